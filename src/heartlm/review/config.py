"""Settings of a review."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path

from heartlm.errors import HeartlmError, require
from heartlm.monitor.connection import is_loopback, read_secret


@dataclass(frozen=True)
class ReviewConfig:
    """Settings of a review, the options of `heartlm review`.

    Attributes:
        path: recording, folder of recordings, or folder of an earlier review. What was not analysed yet is analysed
            when it is opened.
        out: folder of the results of `heartlm analyze`; corrections are written there too.
        reviewer: your name, which the journal of corrections keeps.
        open: open the page in a browser.
        host: address of the page; any address except loopback needs a token, and is not encrypted.
        port: port of the page; 0 selects a free one.
        token: file with the token that requests must contain; by default a new one in each address.
    """

    path: Path
    out: Path = Path("analysis")
    reviewer: str = ""
    open: bool = True
    host: str = "127.0.0.1"
    port: int = 0
    token: Path | None = None


def read_token(config: ReviewConfig) -> str:
    """Check the settings, and return the token of the page.

    Raises:
        HeartlmError: a setting is impossible, or the page would be open to other machines.
    """
    require(config, lambda port: 0 <= port <= 65535, "0 to 65535", "port")
    if config.token is None:
        if not is_loopback(config.host):
            raise HeartlmError(f"host: {config.host} found: others can reach it, so --token is needed")
        return secrets.token_urlsafe(24)
    token = (read_secret(config.token, "") or "").strip()
    if len(token) < 16:
        raise HeartlmError(f"{config.token}: {len(token)} characters found, a token of at least 16 expected")
    return token
