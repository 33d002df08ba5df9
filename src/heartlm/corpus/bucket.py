"""A corpus in a bucket, and its copy on this machine, which is mapped into memory.

tokenize ─► copy ─► all files, manifest.json last ─► bucket ─► open_corpus ─► copy, if its manifest.json is another
"""

from __future__ import annotations

import fcntl
import hashlib
from pathlib import Path
from typing import Any

from heartlm.corpus.schema import FILES
from heartlm.errors import HeartlmError
from heartlm.storage.atomic import atomic_folder, cache_folder, explained, open_lock
from heartlm.storage.foreign import RemotePath
from heartlm.system.progress import track

MANIFEST = "manifest.json"


def copy_of(address: RemotePath) -> Path:
    """Return the folder on this machine in which the corpus at an address is built, or to which it is copied."""
    folder = cache_folder() / "corpora"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # patient data: for their owner alone
    except OSError as error:
        raise explained(folder, error) from error
    return folder / f"{address.name}-{hashlib.sha256(str(address).encode()).hexdigest()[:16]}"


def check_place(address: RemotePath) -> None:
    """Raise a HeartlmError if files that are no corpus, nor a part of one, lie at an address, or it cannot be asked."""
    for path in address.files_below():
        first, *below = path.relative_to(address).parts
        if first not in (("shards", "tokenizer") if below else (*FILES, "records.parquet", MANIFEST)):
            raise HeartlmError(f"{address} has other files, as {path.name}: choose another name, or remove them first")


def upload(folder: Path, manifest: dict[str, Any], address: RemotePath) -> None:
    """Store the corpus in `folder` at an address, in place of an earlier one. Its manifest is there last.

    Raises:
        HeartlmError: a file cannot be written there; there is no corpus then.
    """
    names = [*manifest["checksums"], *(f"tokenizer/{path.name}" for path in sorted((folder / "tokenizer").iterdir()))]
    (address / MANIFEST).unlink(missing_ok=True)
    for name in track(names, len(names), "upload"):
        (address / name).put(folder / name)
    for path in list(address.files_below()):
        if path.relative_to(address).as_posix() not in names:  # of an earlier corpus, with more shards
            path.unlink()
    (address / MANIFEST).put(folder / MANIFEST)


def fetched(address: RemotePath) -> Path:
    """Return the folder of the copy of the corpus at an address; it is copied unless that was done before.

    Raises:
        HeartlmError: a file cannot be read, or there is no space for the copy.
    """
    copy, manifest = copy_of(address), (address / MANIFEST).read_bytes()
    with open_lock(copy.with_name(f".{copy.name}.lock")) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # ranks that open it together take turns
        if (copy / MANIFEST).is_file() and (copy / MANIFEST).read_bytes() == manifest:
            return copy
        with atomic_folder(copy) as folder:
            paths = list(address.files_below())
            for path in track(paths, len(paths), f"fetch {address.name}"):
                file = folder / path.relative_to(address)
                file.parent.mkdir(parents=True, exist_ok=True)
                path.get(file)
    return copy
