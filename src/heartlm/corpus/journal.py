"""The journal of a build: which parts are done, so that a killed one continues.

A corpus under way lies in the folder `.NAME.partial` next to it. Tokens are appended to its files, and after each
part one line to `journal.jsonl`: how many bytes it added, the checksums of the files up to there, and the rows of the
part. The first line holds the settings and the fingerprint of the recordings. To continue: the first line is what it
would be now, the files have the length and the checksums that some line says; what stands after that is cut off. So a
build may be killed, or the machine lose its power, at any moment.
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
"""What is noted of one part."""


@contextmanager
def partial_folder(out: Path) -> Iterator[Path]:
    """The folder of a corpus under way to `out`, made where there is none; no other process writes it meanwhile.

    Raises:
        HeartlmError: another process writes to it.
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
            pass  # a filesystem without locks
        yield folder


class Journal:
    """The files of a corpus under way and the note of each part; closed by `close`.

    Attributes:
        num_parts: parts that are done.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._stack = ExitStack()
        self._streams: dict[str, IO[bytes]] = {}
        self._reset()

    @property
    def path(self) -> Path:
        """The journal's own file."""
        return self.folder / "journal.jsonl"

    @property
    def settings(self) -> Any:
        """What the first line holds; None where nothing is there to continue from."""
        try:
            with self.path.open("rb") as stream:
                line = stream.readline()
            return json.loads(line) if line.endswith(b"\n") else None
        except (OSError, ValueError):
            return None

    def begin(self, settings: Mapping[str, Any]) -> None:
        """Start from the first part."""
        self._open("wb")
        self._write_line(settings)

    def resume(self) -> None:
        """Continue after the last part whose tokens are there, to the byte."""
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
        """Append the tokens of the next part, and note it."""
        for name, content in part.tokens.items():
            self._streams[name].write(content)
            self._digests[name].update(content)
            self._streams[name].flush()
        noted = {name: value for name, value in vars(part).items() if name not in ("tokens", "num_samples")}
        lengths = {name: len(content) for name, content in part.tokens.items()}
        self._write_line({"bytes": lengths, "sha256": self.checksums(), **noted})
        self.num_parts += 1

    def entries(self) -> Iterator[Entry]:
        """What was noted of every part, in order."""
        with self.path.open("rb") as stream:
            stream.readline()
            for line in stream:
                yield json.loads(line)

    def checksums(self) -> dict[str, str]:
        """SHA-256 of every file of tokens."""
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
        except ValueError:
            return False
        before = {name: digest.copy() for name, digest in self._digests.items()}
        for name, num_bytes in entry["bytes"].items():
            self._digests[name].update(self._streams[name].read(num_bytes))
        if self.checksums() != entry["sha256"]:
            self._digests = before
            return False
        self._lengths = {name: length + entry["bytes"][name] for name, length in self._lengths.items()}
        return True


def clear(folder: Path, pattern: str) -> None:
    """Remove what is in a folder under names like `pattern`, except the lock."""
    for path in folder.glob(pattern):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        elif path.name != "lock":
            path.unlink()
