"""Blocks of files at addresses, kept on disk: bounded, checked, shared by the processes of a machine.

    RemoteFile.readinto ─► block in memory ─► block in the cache folder ─► range request
                                                        └─ the next blocks and files, read ahead by threads

A block is a file named by address, version, and number, so a changed file has other blocks. It is written under a
temporary name and ends with its CRC-32; a damaged one is fetched again. When the folder exceeds its size, the blocks
that were not used for longest go.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import secrets
import threading
import zlib
from collections import OrderedDict
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path, PurePath
from typing import Any

from heartlm.errors import HeartlmError
from heartlm.sources.store import Entry, read_range

FOLDER, SIZE_GB = "HEARTLM_CACHE", "HEARTLM_CACHE_GB"
"""Variables of the environment: folder of the cache, and its size in units of 10^9 bytes."""
DEFAULT_GB = 10.0
SMALLEST_GB = 0.1

BLOCK_BYTES = 1 << 22
_FIRST_BYTES = 1 << 18
# Blocks of a long file that are fetched before they are asked for, once it is read in order.
_BLOCKS_AHEAD = 4
_THREADS = 8
# Blocks in memory in each process, for readers that read a lead at a time.
_HELD_BLOCKS = 8
# A process looks at the size of the folder when it has written this part of the limit.
_LOOKS = 20
_CRC_BYTES = 4
# Of a block, or of its temporary file, which a killed process may leave.
_BLOCK_NAME = re.compile(r"[0-9a-f]{30}\.\d+(\.[0-9a-f]{8})?")


def cache_folder() -> Path:
    """Return the folder of the cache."""
    if folder := os.environ.get(FOLDER):
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "heartlm", "sources")


def cache_bytes() -> int:
    """Return the size of the cache.

    Raises:
        HeartlmError: the variable is no number, or too small.
    """
    text = os.environ.get(SIZE_GB) or str(DEFAULT_GB)
    with suppress(ValueError):
        if (size_gb := float(text)) >= SMALLEST_GB:
            return int(size_gb * 1e9)
    raise HeartlmError(f"{SIZE_GB}: {text!r} found, the size of the cache in GB expected, at least {SMALLEST_GB}")


# Address, entry and number of a block.
_Key = tuple[str, Entry, int]


class _Blocks:
    """Blocks of this process: in memory, in the cache folder, on their way."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.lock = threading.Lock()
        self.held = OrderedDict[_Key, bytes]()
        self.coming: dict[_Key, Future[bytes]] = {}
        self.threads = ThreadPoolExecutor(_THREADS, "heartlm-ahead")
        self.written = 0
        self.last: dict[str, int] = {}

    def block(self, path: PurePath, found: Entry, number: int) -> bytes:
        key = str(path), found, number
        with self.lock:
            if key in self.held:
                self.held.move_to_end(key)
                return self.held[key]
            coming = self.coming.get(key)
        content = coming.result() if coming is not None else self._load(_file_of(*key), path, found, number)
        with self.lock:
            self.held[key] = content
            while len(self.held) > _HELD_BLOCKS:
                self.held.popitem(last=False)
        return content

    def ahead(self, path: PurePath, found: Entry, numbers: Iterable[int]) -> None:
        """Fetch blocks into the cache folder by threads; an error is left to the one who reads them."""
        for number in numbers:
            key = str(path), found, number
            with self.lock:
                if key in self.held or key in self.coming or (file := _file_of(*key)).is_file():
                    continue
                self.coming[key] = future = self.threads.submit(self._load_ahead, file, path, found, number)
            future.add_done_callback(partial(self._arrived, key))

    def _arrived(self, key: _Key, _: Future[bytes]) -> None:
        with self.lock:
            self.coming.pop(key, None)

    def _load_ahead(self, file: Path, path: PurePath, found: Entry, number: int) -> bytes:
        if not threading.main_thread().is_alive():  # the process ends, and waits for its threads
            raise HeartlmError(f"{path}: not fetched")
        return self._load(file, path, found, number)

    def _load(self, file: Path, path: PurePath, found: Entry, number: int) -> bytes:
        with suppress(OSError):
            stored = file.read_bytes()
            content, crc = stored[:-_CRC_BYTES], stored[-_CRC_BYTES:]
            if zlib.crc32(content).to_bytes(_CRC_BYTES, "big") == crc:
                with suppress(OSError):
                    os.utime(file)  # used now
                return content
        content = read_range(path, found, *_span(found, number))
        self._store(file, content)
        return content

    def _store(self, file: Path, content: bytes) -> None:
        temporary = file.with_name(f"{file.name}.{secrets.token_hex(4)}")
        try:
            if not file.parent.is_dir():
                cache_folder().mkdir(mode=0o700, parents=True, exist_ok=True)  # patient data: for their owner alone
                file.parent.mkdir(exist_ok=True)
            try:
                with temporary.open("xb") as stream:
                    stream.write(content)
                    stream.write(zlib.crc32(content).to_bytes(_CRC_BYTES, "big"))
                temporary.replace(file)
            finally:
                temporary.unlink(missing_ok=True)
        except OSError as error:
            raise HeartlmError(
                f"{cache_folder()}: the cache cannot be written ({error.strerror}); free space, or give --cache FOLDER"
            ) from error
        with self.lock:
            self.written += len(content)
            is_due = self.written * _LOOKS > (limit := cache_bytes())
            self.written *= not is_due
        if is_due:
            _shrink(cache_folder(), limit)


def _shrink(folder: Path, limit: int) -> None:
    """Remove the blocks that were not used for longest, until nine tenths of the limit are left.

    Only names of blocks are looked at: the user may have named a folder with other files.
    """
    files = list[tuple[int, int, str]]()
    for file in folder.glob("[0-9a-f][0-9a-f]/*"):
        if _BLOCK_NAME.fullmatch(file.name):
            with suppress(OSError):  # another process removed it
                status = file.stat()
                files.append((status.st_mtime_ns, status.st_size, str(file)))
    surplus = sum(size for _, size, _ in files) - limit
    surplus += limit // 10 if surplus > 0 else 0
    for _, size, name in sorted(files):
        if surplus <= 0:
            break
        with suppress(OSError):
            Path(name).unlink()
        surplus -= size


def _span(found: Entry, number: int) -> tuple[int, int]:
    """Return the first byte of a block and the one after its last.

    A file of up to a block is one, read at once. A longer one has a short first block, which is all that a listing of
    recordings needs.
    """
    if found.size <= BLOCK_BYTES:
        return 0, found.size
    if number == 0:
        return 0, _FIRST_BYTES
    return max(_FIRST_BYTES, (number - 1) * BLOCK_BYTES), min(number * BLOCK_BYTES, found.size)


def _number_of(found: Entry, place: int) -> int:
    """Return the number of the block with the byte at `place`."""
    return 0 if found.size <= BLOCK_BYTES or place < _FIRST_BYTES else place // BLOCK_BYTES + 1


def _file_of(text: str, found: Entry, number: int) -> Path:
    key = hashlib.sha256(f"{text}\0{found.size}\0{found.version}\0{BLOCK_BYTES}".encode()).hexdigest()[:32]
    return cache_folder() / key[:2] / f"{key[2:]}.{number}"


_own: _Blocks | None = None


def _blocks() -> _Blocks:
    """Return the blocks of this process; threads and locks of a parent are of no use after a fork."""
    global _own
    if _own is None or _own.pid != os.getpid():
        _own = _Blocks()
    return _own


def start_again() -> None:
    """Keep no block in memory, as a new process."""
    global _own
    _own = None


def fetch_ahead(path: PurePath, found: Entry) -> None:
    """Begin to fetch the first block of a file that is read soon."""
    _blocks().ahead(path, found, [0])


class RemoteFile(io.RawIOBase):
    """A file at an address, opened for reading; its blocks come through the cache."""

    def __init__(self, path: PurePath, found: Entry) -> None:
        if found.is_folder:
            raise HeartlmError(f"{path}: is a folder; give a file")
        self.path, self.found, self._place = path, found, 0

    def readable(self) -> bool:
        """Whether the file can be read: always."""
        return True

    def seekable(self) -> bool:
        """Whether the file has positions: always."""
        return True

    def tell(self) -> int:
        """Return the position."""
        return self._place

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move the position."""
        self._place = max(0, offset + (0, self._place, self.found.size)[whence])
        return self._place

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer, as far as the file goes."""
        view = memoryview(buffer).cast("B")
        size = max(0, min(len(view), self.found.size - self._place))
        done, blocks, name = 0, _blocks(), str(self.path)
        last = _number_of(self.found, self.found.size - 1)
        stop = self._place + size
        while done < size:
            number = _number_of(self.found, self._place)
            begin, end = _span(self.found, number)
            # readers open a file for each piece, so the process knows which block was the last
            if last and (blocks.last.get(name) == number - 1 or end < stop):
                blocks.ahead(self.path, self.found, range(number, min(last, number + _BLOCKS_AHEAD) + 1))
            blocks.last[name] = number
            inside = self._place - begin
            part = memoryview(blocks.block(self.path, self.found, number))[inside : inside + size - done]
            view[done : done + len(part)] = part
            done += len(part)
            self._place += len(part)
        return size
