"""Settings of a review, and of training on reviews."""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass
from pathlib import Path

from heartlm.errors import HeartlmError, require
from heartlm.monitor.connection import is_loopback, read_page_token
from heartlm.storage.typed import Checked


@dataclass(frozen=True)
class ReviewConfig:
    """Settings of a review, the options of `heartlm review`.

    Attributes:
        path: recording, folder of recordings, or folder of an earlier review. What was not analysed yet is analysed
            when it is opened.
        out: folder of the results of `heartlm analyze`; corrections are written there too.
        reviewer: your name, which the journal of corrections keeps.
        queue: list the recordings of a folder by the number of wrong beats that is expected in them, most first; those
            without an analysis come last.
        open: open the page in a browser.
        host: address of the page; any address except loopback needs a token, and is not encrypted.
        port: port of the page; 0 selects a free one.
        token: file with the token that requests must contain; by default a new one in each address.
    """

    path: Path
    out: Path = Path("analysis")
    reviewer: str = ""
    queue: bool = False
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
    if config.token is not None:
        return read_page_token(config.token)
    if not is_loopback(config.host):
        raise HeartlmError(f"host: {config.host} found: others can reach it, so --token is needed")
    return secrets.token_urlsafe(24)


@dataclass(frozen=True)
class TeachConfig(Checked):
    """Settings of training on reviews, the options of `heartlm finetune --reviews`.

    Attributes:
        run: run folder of a model of beats, or the name of a shipped one.
        reviews: folder of `heartlm review` with corrected recordings. A fifth of the patients, at least one, is held
            back for the scores.
        out: the run folder to write; recordings and corpus are kept next to it in OUT.reviews.
        steps: optimiser steps.
        learning_rate: peak learning rate.
        keep: weight of the model as it was, in the mean with what it became; 0 keeps nothing, 1 learns nothing.
        seed: seed of data order and dropout.
        threads: CPU threads of torch; by default the number of cores.
    """

    reviews: Path
    out: Path
    run: Path = Path("beats")
    steps: int = 100
    learning_rate: float = 1e-3
    keep: float = 0.5
    seed: int = 0
    threads: int | None = None

    def check(self) -> None:
        """Raise a HeartlmError that names the first field with an impossible value."""
        require(self, lambda value: value >= 1, "at least 1", "steps", "threads")
        require(self, lambda value: 0 < value < math.inf, "more than 0", "learning_rate")
        require(self, lambda value: 0 <= value <= 1, "0 to 1", "keep")
        require(self, lambda value: 0 <= value < 2**31, "0 to 2147483647", "seed")
