"""`heartlm data download`: fetch a database, with a progress bar on a terminal and sparse lines elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from heartlm.cli.options import parse
from heartlm.errors import HeartlmError

if TYPE_CHECKING:
    from heartlm.ecg.download import Listener
    from heartlm.ecg.transfer import Fetched

_SECONDS_BETWEEN_LINES = 30.0


@dataclass(frozen=True)
class DownloadOptions:
    """What to fetch, and how.

    Attributes:
        name: a database of the catalogue (see `heartlm data list`).
        folder: where its files go; verified files that are there already are left alone.
        records: only these recordings, separated by commas.
        workers: files fetched at once.
        base_url: where the databases lie, to fetch from a mirror.
        attempts: tries in a row without progress before a file is given up.
    """

    name: str
    folder: Path
    records: str | None = None
    workers: int = 4
    base_url: str = "https://physionet.org/files/"
    attempts: int = 5

    def check(self) -> None:
        """Raise a HeartlmError that names the first option with an impossible value."""
        for name in ("workers", "attempts"):
            if getattr(self, name) < 1:
                raise HeartlmError(f"--{name}: {getattr(self, name)} found, at least 1 expected")


def run(argv: Sequence[str]) -> int:
    """Fetch a database and say what to cite."""
    options = parse(
        DownloadOptions,
        argv,
        command="data download",
        summary="Fetch a database from PhysioNet. Interrupted, the same command continues where it stopped; "
        "every file is checked against the published SHA-256.",
        examples=[
            "heartlm data download mitdb data/mitdb",
            "heartlm data download mitdb data/few --records 100,208",
            "heartlm data download ptb-xl data/ptb-xl --workers 8",
        ],
        positionals=["name", "folder"],
    )
    options.check()
    from heartlm.ecg.catalogue import find
    from heartlm.ecg.download import download_database
    from heartlm.ecg.transfer import Retry

    info = find(options.name)
    records = None if options.records is None else [name.strip() for name in options.records.split(",")]
    with _progress() as progress:
        summary = download_database(
            info.name,
            options.folder,
            base_url=options.base_url,
            workers=options.workers,
            records=records,
            retry=Retry(attempts=options.attempts),
            listener=progress,
        )
    print(
        f"{summary.folder}: {summary.num_fetched} files fetched ({summary.num_bytes / 1e6:,.1f} MB), "
        f"{summary.num_skipped} were there already; every SHA-256 holds"
    )
    print(f"licence: {info.licence}; what to cite:  heartlm data list {info.name}")
    return 0


def _progress() -> AbstractContextManager[Listener]:
    return _BarProgress() if sys.stderr.isatty() else nullcontext(LineProgress(sys.stderr))


class LineProgress:
    """A line now and then, for logs, and one for each file that was given up."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        """Write to `stream`; `clock` tells the seconds."""
        self._stream, self._clock = stream, clock
        self._lock = threading.Lock()
        self._num_files = self._num_done = self._num_bytes = 0
        self._start_s = self._last_s = clock()

    def started(self, num_files: int) -> None:
        """Say how many files there are."""
        self._num_files = num_files
        print(f"{num_files} files", file=self._stream, flush=True)

    def received(self, num_bytes: int) -> None:
        """Count bytes; say how far it is when the last line is long ago."""
        with self._lock:
            self._num_bytes += num_bytes
            self._say_now_and_then()

    def finished(self, name: str, outcome: Fetched) -> None:
        """Count the file; name it if it failed."""
        with self._lock:
            self._num_done += 1
            if outcome.failure is not None:
                print(f"failed: {name}: {outcome.failure}", file=self._stream, flush=True)
            self._say_now_and_then()

    def _say_now_and_then(self) -> None:
        now_s = self._clock()
        if now_s - self._last_s < _SECONDS_BETWEEN_LINES:
            return
        self._last_s = now_s
        rate_mb = self._num_bytes / 1e6 / (now_s - self._start_s)
        print(
            f"{self._num_done} of {self._num_files} files, {self._num_bytes / 1e6:,.1f} MB, {rate_mb:,.2f} MB/s",
            file=self._stream,
            flush=True,
        )


class _BarProgress:
    """A bar of files with the time left, and the rate of bytes."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("files  {task.fields[rate]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self._task = self._bar.add_task("downloading", total=None, rate="")
        self._lock = threading.Lock()
        self._num_bytes = 0
        self._start_s = time.monotonic()

    def __enter__(self) -> _BarProgress:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def started(self, num_files: int) -> None:
        self._bar.update(self._task, total=num_files)

    def received(self, num_bytes: int) -> None:
        with self._lock:
            self._num_bytes += num_bytes
        rate_mb = self._num_bytes / 1e6 / max(time.monotonic() - self._start_s, 1e-3)
        self._bar.update(self._task, rate=f"{self._num_bytes / 1e6:,.1f} MB  {rate_mb:,.2f} MB/s")

    def finished(self, name: str, outcome: Fetched) -> None:
        if outcome.failure is not None:
            self._bar.console.print(f"failed: {name}: {outcome.failure}", markup=False, highlight=False)
        self._bar.advance(self._task)
