"""Check the files of a corpus against their checksums and value ranges, once per corpus and machine.

A note in the user's cache folder records each checked file with its inode, length and times of change. A file that was
written to afterwards has another time of change, even if its length and modification time are the same; it is read
again. Ranks that open a corpus together take turns: the first rank reads it, and the others find the note.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import numpy as np

from heartlm.corpus.schema import FILES
from heartlm.ecg.recording import BEAT_CLASSES, RHYTHMS
from heartlm.errors import HeartlmError
from heartlm.storage.atomic import cache_folder, write_json
from heartlm.storage.reading import read_json
from heartlm.system.progress import track

TOKENS_AT_ONCE = 1 << 20
SETTLED_S = 2.0
"""Minimum age of a change in seconds. A file changed later is not noted: it may change again at the same time stamp."""


def check_content(folder: Path, manifest_hash: str, checksums: Mapping[str, str], facet_sizes: Sequence[int]) -> None:
    """Check that files in `folder` have the manifest's `checksums`, codes below `facet_sizes` and valid labels.

    Raises:
        HeartlmError: a file was changed or damaged, or cannot be read. The message names the file.
    """
    folder = folder.resolve()
    try:
        stats = {name: (folder / name).stat() for name in checksums}
        files = {name: [each.st_ino, each.st_size, each.st_mtime_ns, each.st_ctime_ns] for name, each in stats.items()}
        state = {"folder": str(folder), "manifest": manifest_hash, "files": files}
        cache = cache_folder()
        note = cache / f"corpus-{hashlib.sha256(os.fsencode(folder)).hexdigest()[:32]}.json"
        with ExitStack() as stack:
            with suppress(OSError):  # without a cache folder that supports locks, every rank reads the files
                cache.mkdir(mode=0o700, parents=True, exist_ok=True)
                fcntl.flock(stack.enter_context(note.with_suffix(".lock").open("w")), fcntl.LOCK_EX)
            with suppress(HeartlmError):  # no note yet, or a damaged one
                if read_json(note) == state:  # maybe by the previous rank
                    return
            limits = {
                "codes.bin": [(0, size - 1) for size in facet_sizes],
                "labels.bin": [(-1, len(BEAT_CLASSES) - 1), (-1, len(RHYTHMS) - 1)],
                "sample.bin": [(0, np.iinfo(np.int64).max)],
            }
            for name in track(checksums, len(checksums), f"check the files of {folder.name}, once on this machine"):
                _check(folder / name, checksums[name], limits.get(Path(name).name, []))
            if time.time() > max(each.st_ctime for each in stats.values()) + SETTLED_S:
                with suppress(HeartlmError):  # disk full, or no cache folder: the next process checks again
                    write_json(note, state)
    except OSError as error:
        raise HeartlmError(f"{error.filename or folder} cannot be read ({error.strerror}): tokenize again") from error


def _check(path: Path, checksum: str, limits: list[tuple[int, int]]) -> None:
    """Check the content of a file.

    Args:
        path: the file to check.
        checksum: expected SHA-256 of the file.
        limits: lowest and highest value of each column; empty if every value is valid.

    Raises:
        HeartlmError: a value is outside `limits`, or the checksum differs.
    """
    kind = np.dtype(FILES[path.name][0]) if path.name in FILES else np.dtype(np.uint8)
    digest, wrong = hashlib.sha256(), ""
    with path.open("rb") as stream:
        while chunk := stream.read(TOKENS_AT_ONCE * kind.itemsize * max(1, len(limits))):
            digest.update(chunk)
            columns = np.frombuffer(chunk, kind).reshape(-1, max(1, len(limits))).T
            for number, (column, (low, high)) in enumerate(zip(columns, limits, strict=False)):
                if not wrong and (column.max() > high or (kind.kind == "i" and column.min() < low)):
                    wrong = f"{column.min()} to {column.max()} found in column {number}, {low} to {high} expected"
    if digest.hexdigest() != checksum:
        raise HeartlmError(
            f"{path}: SHA-256 {digest.hexdigest()[:12]} found, {checksum[:12]} expected by manifest.json: the file was "
            "changed or damaged; copy it again, or tokenize again"
        )
    if wrong:
        raise HeartlmError(f"{path}: values {wrong}: written by another version of heartlm, or changed; tokenize again")
