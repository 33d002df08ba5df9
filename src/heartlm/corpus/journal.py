"""Journal of a build: a record of the finished parts, so that a killed build can be resumed.

A partial corpus is stored in the folder `.NAME.partial` next to the final one. Each part appends its tokens to the
files and one line to `journal.jsonl`: the number of bytes added, the checksums of the files up to this point, and the
rows of the part. The first line holds the settings and the fingerprint of the recordings. A build is resumed if the
first line is the same as for a new build. It resumes at the last line whose lengths and checksums match the files, and
truncates everything after it. A build may therefore be killed, or the machine lose power, at any time.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

from heartlm.corpus.encode import Part
from heartlm.corpus.schema import FILES
from heartlm.errors import HeartlmError

Entry = dict[str, Any]
"""Entry of one part."""


@contextmanager
def partial_folder(out: Path) -> Iterator[Path]:
    """Yield the folder of the partial corpus of `out`, created if missing and locked against other processes.

    Raises:
        HeartlmError: another process writes to the folder.
    """
    folder = out.with_name(f".{out.name}.partial")
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise HeartlmError(
                f"{out}: another process is making it at this moment: wait, or choose another name"
            ) from error
        except OSError:
            pass  # the filesystem does not support locks
        yield folder


class Journal:
    """Files of a partial corpus and the entry of each part; `close` closes them.

    Attributes:
        num_parts: number of finished parts.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._stack = ExitStack()
        self._streams: dict[str, IO[bytes]] = {}
        self._reset()

    @property
    def path(self) -> Path:
        """Path of the journal file."""
        return self.folder / "journal.jsonl"

    @property
    def settings(self) -> Any:
        """Content of the first line; None if there is no build to resume."""
        try:
            with self.path.open("rb") as stream:
                line = stream.readline()
            return json.loads(line) if line.endswith(b"\n") else None
        except (OSError, ValueError):
            return None

    def begin(self, settings: Mapping[str, Any]) -> None:
        """Start with the first part."""
        self._open("wb")
        self._write_line(settings)

    def resume(self) -> None:
        """Resume after the last part whose tokens are complete, byte for byte."""
        self._open("r+b")
        journal = self._streams["journal"]
        good = len(journal.readline())
        for line in journal:
            if not self._holds(line):
                break
            self.num_parts += 1
            good += len(line)
        for name, length in {**self._lengths, "journal": good}.items():
            self._streams[name].truncate(length)
            self._streams[name].seek(length)

    def add(self, part: Part) -> None:
        """Append the tokens of the next part and its entry."""
        for name, content in part.tokens.items():
            self._streams[name].write(content)
            self._digests[name].update(content)
            self._streams[name].flush()
        noted = {name: value for name, value in vars(part).items() if name not in ("tokens", "num_samples")}
        lengths = {name: len(content) for name, content in part.tokens.items()}
        self._write_line({"bytes": lengths, "sha256": self.checksums(), **noted})
        self.num_parts += 1

    def entries(self) -> Iterator[Entry]:
        """Yield the entry of every part, in order."""
        with self.path.open("rb") as stream:
            stream.readline()
            for line in stream:
                yield json.loads(line)

    def checksums(self) -> dict[str, str]:
        """SHA-256 of every token file."""
        return {name: digest.hexdigest() for name, digest in self._digests.items()}

    def close(self) -> None:
        """Close the files."""
        self._stack.close()

    def _reset(self) -> None:
        self.num_parts = 0
        self._digests = {name: hashlib.sha256() for name in FILES}
        self._lengths = dict.fromkeys(FILES, 0)

    def _open(self, mode: str) -> None:
        self.close()
        self._reset()
        for name in FILES:
            self._streams[name] = self._stack.enter_context((self.folder / name).open(mode))
        self._streams["journal"] = self._stack.enter_context(self.path.open(mode))

    def _write_line(self, value: Mapping[str, Any]) -> None:
        self._streams["journal"].write(json.dumps(value, ensure_ascii=False).encode() + b"\n")
        self._streams["journal"].flush()

    def _holds(self, line: bytes) -> bool:
        """Whether the files continue as `line` says; their checksums are then those up to there."""
        try:
            entry = json.loads(line)
            lengths, checksums = entry["bytes"], entry["sha256"]
        except (ValueError, KeyError):
            return False
        before = {name: digest.copy() for name, digest in self._digests.items()}
        for name, num_bytes in lengths.items():
            self._digests[name].update(self._streams[name].read(num_bytes))
        if self.checksums() != checksums:
            self._digests = before
            return False
        self._lengths = {name: length + lengths[name] for name, length in self._lengths.items()}
        return True


def clear(folder: Path, pattern: str) -> None:
    """Remove what is in a folder under names like `pattern`, except the lock."""
    for path in folder.glob(pattern):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        elif path.name != "lock":
            path.unlink()
