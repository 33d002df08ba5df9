"""Timeline of each step: spans as JSON lines per rank.

`spans/rank-0.jsonl`, `rank-1.jsonl`, … hold one event a line in the Trace Event Format (the document of that name by
the Chromium project): `ts` and `dur` in microseconds, `pid` the rank. An array of the events of all ranks, as from
`jq -s . spans/*.jsonl`, is a file for https://ui.perfetto.dev or chrome://tracing.
"""

from __future__ import annotations

import time
from pathlib import Path

from heartlm.errors import HeartlmError
from heartlm.storage.atomic import append_line


class Spans:
    """Writes the spans of one rank, buffered.

    Args:
        path: output file; lines are appended, also by a resumed run.
        rank: rank of this process.
    """

    BUFFERED = 512
    """Number of lines buffered in memory, which are lost if the process is killed."""

    def __init__(self, path: Path, rank: int = 0) -> None:
        self.path, self.rank = Path(path), rank
        self._lines: list[str] = []
        self._epoch_s = time.time() - time.perf_counter()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise HeartlmError(f"cannot write {self.path}: {error.strerror}") from error

    def add(self, name: str, begin_s: float, end_s: float, step: int) -> None:
        """Add a span `name` from `begin_s` to `end_s`, in seconds of `time.perf_counter`.

        Raises:
            HeartlmError: the file cannot be written.
        """
        ts_us, dur_us = (self._epoch_s + begin_s) * 1e6, (end_s - begin_s) * 1e6
        self._lines.append(
            f'{{"name":"{name}","ph":"X","ts":{ts_us:.1f},"dur":{dur_us:.1f},'
            f'"pid":{self.rank},"tid":0,"args":{{"step":{step}}}}}'
        )
        if len(self._lines) >= self.BUFFERED:
            self.flush()

    def flush(self) -> None:
        """Write buffered lines; call it at the end of the run.

        Raises:
            HeartlmError: the file cannot be written.
        """
        if self._lines:
            append_line(self.path, "\n".join(self._lines))
            self._lines = []
