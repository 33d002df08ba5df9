"""Connections of a monitor to brokers and web addresses: how they are secured, and whether they work.

Secrets are read from files or environment variables. The command line is not used for them, because the list of
processes shows it to all users of a machine.
"""

from __future__ import annotations

import os
import re
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from heartlm.errors import HeartlmError
from heartlm.system.network import is_loopback_ip


@dataclass(frozen=True)
class Access:
    """What a client needs to be let in by a broker, and to trust it.

    Attributes:
        user: name of the user.
        password: password of the user.
        credentials: credentials file of a NATS user.
        ca: certificates of the trusted authorities, PEM; None for those of the system.
        certificate: certificate of the client, PEM.
        key: key of this certificate, PEM; None if the file of the certificate contains it.
    """

    user: str | None = None
    password: str | None = field(default=None, repr=False)
    credentials: Path | None = None
    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None

    def tls(self) -> ssl.SSLContext:
        """Return the context of TLS connections; the certificate and the name of the other side are checked.

        Raises:
            HeartlmError: a file is missing, or has no certificate or key.
        """
        try:
            context = ssl.create_default_context(cafile=self.ca)
        except (OSError, ValueError) as error:
            raise HeartlmError(f"ca: {self.ca}: {_fault(error)}, certificates in PEM format expected") from None
        if self.certificate is not None:
            try:
                # Without a password function, OpenSSL asks for the password of an encrypted key on the terminal.
                context.load_cert_chain(self.certificate, self.key, password=lambda: "")
            except (OSError, ValueError) as error:
                files = " and ".join(str(path) for path in (self.certificate, self.key) if path)
                text = "a certificate in PEM format and its key without a password expected"
                raise HeartlmError(f"client_certificate: {files}: {_fault(error)}, {text}") from None
        return context


def _fault(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or "not in this format").replace("_", " ").lower()
    return getattr(error, "strerror", None) or str(error)


def read_secret(path: Path | None, variable: str) -> str | None:
    """Return the first line of a file or, without a file, the value of an environment variable; None without both.

    Raises:
        HeartlmError: the file cannot be read, or the secret is empty.
    """
    if path is None and variable not in os.environ:
        return None
    try:
        content = os.environ[variable] if path is None else path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise HeartlmError(f"{path}: {_fault(error)}, a file with one line of text expected") from None
    if not (lines := content.splitlines()) or not lines[0]:
        raise HeartlmError(f"{path or variable}: empty, one line of text expected")
    return lines[0]


def read_page_token(path: Path) -> str:
    """Return the token of a page from a file.

    Raises:
        HeartlmError: the file cannot be read, or its token is short.
    """
    token = (read_secret(path, "") or "").strip()
    if len(token) < 16:
        raise HeartlmError(f"{path}: {len(token)} characters found, a token of at least 16 expected")
    return token


def read_address(option: str, text: str, ports: Mapping[str, int], access: Access) -> tuple[str, int, bool]:
    """Return host and port of a broker, and whether TLS is used.

    Args:
        option: name of the option, for errors.
        text: host, host:port, or a URL. Without a scheme, TLS is used if a CA or a client certificate is given.
        ports: default port of each scheme: the plain one, then the one with TLS.
        access: access to the broker.

    Raises:
        HeartlmError: this is no such address, or it contains a password.
    """
    refuse_password(option, text)
    plain, secure = ports
    try:
        url = urlsplit(text if "://" in text else f"{secure if access.ca or access.certificate else plain}://{text}")
        host, port = url.hostname or "", url.port or ports[url.scheme]
        valid = bool(host.encode("idna")) and url.path in ("", "/") and not url.query
    except (ValueError, KeyError):
        valid = False
    if not valid:
        raise HeartlmError(f"{option}: {text!r} found; host, host:port, {plain}://HOST or {secure}://HOST expected")
    if url.scheme == plain and access.certificate:
        raise HeartlmError(f"client_certificate: needs TLS: give --{option} {secure}://{host}:{port}")
    return host, port, url.scheme == secure


def refuse_password(option: str, address: str) -> None:
    """Refuse an address that contains a user or password, without repeating it.

    Raises:
        HeartlmError: it contains one.
    """
    if re.match(r"(\w+://)?[^/?#]*@", address):
        raise HeartlmError(f"{option}: an address without user and password expected: the list of processes shows it")


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine by its loopback address."""
    return host == "localhost" or is_loopback_ip(host)


def reason_of(error: BaseException) -> str:
    """Return in one line why a connection failed, and for certificates which option corrects it."""
    if isinstance(error, ssl.SSLCertVerificationError):
        hint = "" if "mismatch" in error.verify_message else " (--ca names the file of its authority)"
        return f"its certificate is not trusted: {error.verify_message.rstrip('.')}{hint}"
    if isinstance(error, ssl.SSLError):
        reason = (error.reason or str(error)).replace("_", " ").lower()
        return f"TLS: {reason}" + (" (--client-certificate names the file of yours)" if "certificate" in reason else "")
    if isinstance(error, TimeoutError):
        return "no answer"
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    if found := re.match(r"Multiple exceptions: \[Errno (\d+)\]", str(error)):  # by asyncio: one of each address
        return os.strerror(int(found[1]))
    return getattr(error, "strerror", None) or str(error).removeprefix("nats: ") or type(error).__name__


def utc_now() -> str:
    """Return the time in the format of ISO 8601."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


class Connection:
    """State of a connection, which the log and the page show.

    Args:
        name: protocol and address, without secrets.
        log: is called with one line for each change.
        waiting: returns the number of alarms that have not been delivered yet.

    Attributes:
        problem: why the connection does not work; None if it does.
        num_errors: number of failed attempts and refused alarms.
        failed_at: time of the last one in seconds of the monotonic clock.
    """

    def __init__(self, name: str, log: Callable[[str], None], waiting: Callable[[], int]) -> None:
        self.name, self.waiting, self._log = name, waiting, log
        self.problem: str | None = None
        self.num_errors, self._since, self.failed_at = 0, "", 0.0

    def fail(self, problem: str) -> None:
        """Count an error, and log it unless it is that of the last attempt."""
        self.num_errors, self.failed_at = self.num_errors + 1, time.monotonic()
        if self.problem is None:
            self._since = utc_now()
        if problem != self.problem:
            self.problem = problem
            self._log(f"{self.name}: {problem}")

    def restore(self) -> None:
        """End the problem, if there is one."""
        if self.problem is not None:
            self.problem = None
            self._log(f"{self.name}: works again")

    def to_json(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        since, counts = self._since if self.problem else None, {"errors": self.num_errors, "waiting": self.waiting()}
        return {"name": self.name, "problem": self.problem, "since": since, **counts}
