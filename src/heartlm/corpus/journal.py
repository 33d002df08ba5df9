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
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from heartlm.corpus.encode import Part
from heartlm.corpus.schema import FILES
from heartlm.errors import HeartlmError


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
    """Files of a partial corpus and the entry of each part.

    Attributes:
        folder: folder of the partial corpus.
        path: path of the journal file.
        num_parts: number of finished parts.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / "journal.jsonl"
        self.num_parts, self._digests = 0, {name: hashlib.sha256() for name in FILES}

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
        """Start with the first part, in a folder without files of an earlier build."""
        self.num_parts, self._digests = 0, {name: hashlib.sha256() for name in FILES}
        for name in FILES:
            self._append(name, b"")
        self._append(self.path.name, json.dumps(settings, ensure_ascii=False).encode() + b"\n")

    def resume(self) -> None:
        """Resume after the last part whose tokens are complete, byte for byte."""
        with ExitStack() as stack:
            lines = stack.enter_context(self.path.open("rb"))
            streams = {name: stack.enter_context((self.folder / name).open("rb")) for name in FILES}
            lengths = dict.fromkeys(FILES, 0) | {self.path.name: len(lines.readline())}
            for line in lines:
                if not line.endswith(b"\n"):
                    break  # complete JSON too: the next entry would stand on the same line
                try:
                    entry = json.loads(line)
                    added, checksums = entry["bytes"], entry["sha256"]
                except (ValueError, KeyError):
                    break
                # A digest cannot be taken back, so the bytes of a part are added to copies that are kept if they match.
                digests = {name: digest.copy() for name, digest in self._digests.items()}
                for name, num_bytes in added.items():
                    digests[name].update(streams[name].read(num_bytes))
                if {name: digest.hexdigest() for name, digest in digests.items()} != checksums:
                    break
                self._digests, self.num_parts = digests, self.num_parts + 1
                for name, num_bytes in {**added, self.path.name: len(line)}.items():
                    lengths[name] += num_bytes
        for name, length in lengths.items():
            os.truncate(self.folder / name, length)

    def add(self, part: Part) -> None:
        """Append the tokens of the next part and its entry."""
        for name, content in part.tokens.items():
            self._append(name, content)
            self._digests[name].update(content)
        noted = {name: value for name, value in vars(part).items() if name not in ("tokens", "num_samples")}
        entry = {"bytes": {name: len(content) for name, content in part.tokens.items()}, "sha256": self.checksums()}
        self._append(self.path.name, json.dumps(entry | noted, ensure_ascii=False).encode() + b"\n")
        self.num_parts += 1

    def entries(self) -> Iterator[dict[str, Any]]:
        """Yield the entry of every part, in order."""
        with self.path.open("rb") as stream:
            stream.readline()
            for line in stream:
                yield json.loads(line)

    def checksums(self) -> dict[str, str]:
        """SHA-256 of every token file."""
        return {name: digest.hexdigest() for name, digest in self._digests.items()}

    def _append(self, name: str, content: bytes) -> None:
        # without fsync: `resume` compares every byte with its digest, so a loss of power costs the last parts alone
        with (self.folder / name).open("ab") as stream:
            stream.write(content)


def clear(folder: Path, pattern: str) -> None:
    """Remove what is in a folder under names like `pattern`, except the lock."""
    for path in folder.glob(pattern):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        elif path.name != "lock":
            path.unlink()
