"""Addresses of files and folders that fsspec reads, as paths.

`SourcePath("s3:/bucket/mitdb/100.hea")` is a `Path` whose text is `s3://bucket/mitdb/100.hea`: names, parents and
endings are those of any path, and what asks for the file asks the store. It is read only, except an `OutputPath`.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from fnmatch import fnmatch
from io import RawIOBase
from pathlib import Path
from typing import Any

from heartlm.errors import HeartlmError
from heartlm.sources import store
from heartlm.sources.cache import RemoteFile, fetch_ahead
from heartlm.storage.foreign import RemotePath

_ADDRESS = re.compile(rf"({'|'.join(store.PACKAGES)}):/+")


def source_path(source: str | os.PathLike[str]) -> Path:
    """Return the path of a source: a `SourcePath` of an address, also of one that `Path` has taken for a local path.

    Raises:
        HeartlmError: the address has a user name, a password or a query, which process lists and results would show.
    """
    if isinstance(source, SourcePath):
        return source
    text = os.fspath(source)
    if (match := _ADDRESS.match(text)) is None:
        return Path(source)
    path = SourcePath(f"{match[1]}:/{text[match.end() :]}")
    # A query of a signed address is a credential too. Azure's own form, CONTAINER@ACCOUNT, has no password.
    host = text[match.end() :].partition("/")[0]
    if match[1].startswith("http") and ("?" in text or "@" in host):
        raise HeartlmError(
            f"{match[1]}://{host.rpartition('@')[2].partition('?')[0]}: the address holds a password or a query, which "
            "process lists and results would show; give it without, and credentials as docs/archive.md says"
        )
    if len(path.parts) < 2:
        raise HeartlmError(f"{match[1]}://: names no bucket or host; give {match[1]}://BUCKET/PATH")
    return path


class SourcePath(RemotePath):
    """Path of a file or folder at an address; see the module."""

    def __str__(self) -> str:
        """Return the address."""
        return super().__str__().replace(":/", "://", 1)

    def is_absolute(self) -> bool:
        """Whether the path depends on no other: always."""
        return True

    def absolute(self) -> SourcePath:
        """Return the path itself."""
        return self

    def resolve(self, strict: bool = False) -> SourcePath:
        """Return the path itself; links of a store are not followed."""
        return self

    def exists(self, **_: Any) -> bool:
        """Return whether there is a file or folder."""
        return store.entry(self) is not None

    def is_file(self, **_: Any) -> bool:
        """Return whether there is a file."""
        found = store.entry(self)
        return found is not None and not found.is_folder

    def is_dir(self, **_: Any) -> bool:
        """Return whether there is a folder: some name begins with this path."""
        found = store.entry(self)
        return found is not None and found.is_folder

    def stat(self, **_: Any) -> os.stat_result:
        """Return the kind and size of the file; its times are 0, see `version`."""
        found = store.existing(self)
        kind = stat.S_IFDIR if found.is_folder else stat.S_IFREG
        return os.stat_result((kind | 0o444, 0, 0, 1, 0, 0, found.size, 0, 0, 0))

    lstat = stat

    def version(self) -> str:
        """Return a text that changes with the content of the file."""
        found = store.existing(self)
        return f"{found.size} {found.version}"

    def files_below(self) -> Iterator[SourcePath]:
        """Yield the files below this folder as they are listed; a process lists a folder once."""
        return map(type(self), store.listed(self))

    def glob(self, pattern: str, **_: Any) -> Iterator[SourcePath]:  # type: ignore[override]
        """Yield the files of this folder whose name fits the pattern."""
        return (each for each in self.files_below() if each.parent == self and fnmatch(each.name, pattern))

    def files_matching(self) -> Iterator[SourcePath]:
        """Yield the files whose path this pattern matches, part by part; `*` stays within a part."""
        fixed = next(each for each in self.parents if not set("*?[") & set(str(each)))
        for path in fixed.files_below():
            if len(path.parts) == len(self.parts) and all(map(fnmatch, path.parts, self.parts)):
                yield path

    def folders_below(self) -> Iterator[list[str]]:
        """Yield the addresses of the files of one folder after another; those of all are not kept."""
        return store.folders_below(self)

    def ahead(self) -> None:
        """Begin to fetch the file, if it is known that there is one; of a long one its begin."""
        if (found := store.known(self)) is not None:
            fetch_ahead(self, found)

    def files_beginning(self) -> Iterator[SourcePath]:
        """Yield the files whose path begins with this one."""
        return map(SourcePath, store.beginning_with(self))

    def stream(self) -> RawIOBase:
        """Open the file; its content is read in blocks, through the cache."""
        return RemoteFile(self, store.existing(self))

    def open(self, mode: str = "r", *_: Any, **__: Any) -> Any:
        """Open the file for reading bytes."""
        if mode != "rb":
            self._refuse()
        return self.stream()

    def read_bytes(self) -> bytes:
        """Return the content of the file."""
        with self.stream() as stream:
            return stream.read()

    def get(self, file: Path) -> None:
        """Copy the whole file to a local one, past the cache."""
        store.get(self, file)

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise HeartlmError(f"{self}: addresses are read only; give a local folder for what is written")

    put = mkdir = touch = unlink = rename = replace = write_text = write_bytes = symlink_to = _refuse


class OutputPath(SourcePath):
    """Path at which results are written: each file appears when it is complete, and folders are parts of names."""

    is_output = True

    def is_file(self, **_: Any) -> bool:
        """Return whether there is a file now."""
        found = store.ask_again(self)
        return found is not None and not found.is_folder

    def put(self, file: Path) -> None:
        """Store a local file here."""
        store.put(self, file, file.stat().st_size)

    def mkdir(self, *_: Any, **__: Any) -> None:
        """Do nothing."""

    def unlink(self, missing_ok: bool = True) -> None:
        """Remove the file."""
        store.remove(self)


def local_output(path: str | os.PathLike[str]) -> Path:
    """Return the path of results that are not written to a bucket.

    Raises:
        HeartlmError: see `source_path`; or it is an address.
    """
    path = source_path(path)
    if isinstance(path, SourcePath):
        raise HeartlmError(
            f"out: {path}: a local or shared folder expected; only a corpus and Parquet tables (tables: parquet) are "
            "written to a bucket"
        )
    return path


def output_path(path: str | os.PathLike[str]) -> Path:
    """Return the path of results that may lie in a bucket.

    Raises:
        HeartlmError: see `source_path`; or nothing can be written to such an address.
    """
    path = source_path(path)
    if not isinstance(path, SourcePath):
        return path
    if (kind := str(path).partition(":")[0]) not in store.WRITABLE:
        kinds = ", ".join(f"{each}://" for each in store.WRITABLE)
        raise HeartlmError(f"{path}: {kind}:// is read only: results go to a folder, or to a bucket by {kinds}")
    store.forget(path)
    return OutputPath(path)
