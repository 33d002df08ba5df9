"""Fetch one file over HTTP so that it is whole and right, or not there at all.

Bytes collect in `NAME.part`. A cut connection is continued where it broke off by a range request, in this run or the
next; a server that ignores the range sends the file from its start. When all bytes are in, their SHA-256 decides: if
it is right the file gets its final name, else the bytes are thrown away and fetched again.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

import requests

from heartlm.errors import HeartlmError
from heartlm.files import sha256_of

FIRST_WAIT_S = 1.0
"""Wait before the second try; it doubles with each further one."""
TIMEOUT_S = 60.0
"""Silence of the server after which a connection counts as cut."""

_CHUNK_BYTES = 1 << 14
"""A cut connection loses at most this much of what it brought."""
_TEXT_BYTES = 1 << 28
"""The largest list of files: of two million files with long names."""
_MAY_PASS = {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS}


@dataclass(frozen=True)
class Fetched:
    """What became of one file.

    Attributes:
        num_bytes: bytes received for it, also in vain.
        skipped: it was there already and its checksum held.
        failure: why it could not be had; None where it is there.
    """

    num_bytes: int = 0
    skipped: bool = False
    failure: str | None = None


class RefusedError(Exception):
    """The server will not give this file however often it is asked."""


class _BrokenError(requests.RequestException):
    """The transfer failed in a way that may not happen again."""


class _StoppedError(Exception):
    """`Transfer.stop` was called."""


class Transfer:
    """Fetches files, from any number of threads.

    Args:
        attempts: tries in a row that bring nothing new; one that got further than any before restarts the count.
    """

    def __init__(self, attempts: int) -> None:
        self.attempts = attempts
        self._stop = threading.Event()
        self._local = threading.local()

    def stop(self) -> None:
        """Make every running and later call give up soon; what arrived stays in the `.part` files."""
        self._stop.set()

    def text(self, url: str) -> str:
        """Fetch a text file of at most `_TEXT_BYTES`.

        Raises:
            RefusedError: the server has no such file, or denies it.
            HeartlmError: the server cannot be reached or keeps failing.
        """
        reason = ""
        for attempt in range(self.attempts):
            self._wait(attempt)
            try:
                with self._get(url, offset=0) as response:
                    content = bytearray()
                    for chunk in response.iter_content(_CHUNK_BYTES):
                        content += chunk
                        if len(content) > _TEXT_BYTES:
                            raise HeartlmError(f"{url}: more than {_TEXT_BYTES >> 20} MiB, which no such list has")
                    return content.decode("utf-8", "replace")
            except requests.RequestException as error:
                reason = _explain(error)
        raise HeartlmError(f"{url}: {reason}, in {self.attempts} tries; check the connection and try again")

    def file(self, url: str, path: Path, sha256: str) -> Fetched:
        """Fetch `url` to `path` unless `path` verifies already.

        Raises:
            HeartlmError: the disk is full or `path` is not writable.
        """
        part, num_bytes, attempt, reason = path.with_name(path.name + ".part"), 0, 0, ""
        try:
            if path.is_file() and sha256_of(path) == sha256:
                return Fetched(skipped=True)
            path.parent.mkdir(parents=True, exist_ok=True)
            for place in (path, part):
                if place.is_symlink():
                    return Fetched(failure=f"{place} is a symbolic link, which a download does not follow; remove it")
            furthest = _length(part)
            while attempt < self.attempts:
                self._wait(attempt)
                attempt += 1
                try:
                    for received in self._receive(url, part):
                        num_bytes += received
                except requests.RequestException as error:
                    reason = _explain(error)
                    if _length(part) > furthest:
                        furthest, attempt = _length(part), 1
                    continue
                if sha256_of(part) == sha256:
                    part.replace(path)
                    return Fetched(num_bytes)
                part.unlink()
                reason = f"wrong bytes, their SHA-256 is not the published {sha256[:8]}…"
        except RefusedError as error:
            return Fetched(num_bytes, failure=str(error))
        except _StoppedError:
            return Fetched(failure="stopped")
        except OSError as error:
            raise HeartlmError(
                f"cannot write {path}: {error.strerror or error}; free space or choose another place"
            ) from error
        return Fetched(num_bytes, failure=f"{reason}, in {self.attempts} tries")

    def _receive(self, url: str, part: Path) -> Iterator[int]:
        """Bring `part` to its full length, from where it stands; yield the number of bytes as they come."""
        offset = _length(part)
        with self._get(url, offset) as response:
            if response.status_code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                return  # nothing is missing, or the bytes are another file's: the checksum tells
            continues = response.status_code == HTTPStatus.PARTIAL_CONTENT
            if continues and not response.headers.get("Content-Range", "").startswith(f"bytes {offset}-"):
                part.unlink()
                raise _BrokenError("the server sent another range than it was asked for")
            with part.open("ab" if continues else "wb") as stream:
                for chunk in response.iter_content(_CHUNK_BYTES):
                    if self._stop.is_set():
                        raise _StoppedError
                    stream.write(chunk)
                    yield len(chunk)
                stream.flush()
                os.fsync(stream.fileno())

    def _get(self, url: str, offset: int) -> requests.Response:
        """Open `url` at `offset`; a status that means failure is raised as `RefusedError` or `_BrokenError`."""
        if not hasattr(self._local, "session"):
            self._local.session = requests.Session()
        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={offset}-"} if offset else {})
        response: requests.Response = self._local.session.get(url, headers=headers, stream=True, timeout=TIMEOUT_S)
        status = response.status_code
        if response.ok or status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            return response
        response.close()
        reason = f"the server answers {status} {response.reason}"
        raise _BrokenError(reason) if status >= 500 or status in _MAY_PASS else RefusedError(reason)

    def _wait(self, attempt: int) -> None:
        if self._stop.wait(FIRST_WAIT_S * 2 ** (attempt - 1) if attempt else 0.0):
            raise _StoppedError


def _length(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _explain(error: requests.RequestException) -> str:
    if isinstance(error, requests.Timeout):
        return "the server is silent"
    if isinstance(error, requests.exceptions.ChunkedEncodingError):
        return "the connection was cut"
    if isinstance(error, requests.ConnectionError):
        return "no connection to the server"
    return " ".join(str(error).split())
