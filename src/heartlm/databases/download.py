"""Download a published database in parallel, and verify every file with the publisher's SHA-256.

    SHA256SUMS.txt ─► requested files ─► threads: skip if verified, else fetch, verify, rename ─► summary

A file is downloaded under a temporary name and renamed when its SHA-256 matches. If some files fail, an error is
raised, but the verified files are kept. The same call later fetches only the missing files.
"""

from __future__ import annotations

import difflib
import hashlib
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path, PurePosixPath
from typing import TypeVar
from urllib.parse import quote

import requests

from heartlm.databases import catalogue
from heartlm.errors import HeartlmError
from heartlm.storage.atomic import atomic_file, sha256_of, write_text
from heartlm.storage.foreign import stays_inside
from heartlm.system.progress import track

PHYSIONET_FILES_URL = "https://physionet.org/files/"
CHECKSUMS = "SHA256SUMS.txt"
RECORDS = "RECORDS"

ATTEMPTS = 5
FIRST_WAIT_S = 1.0
"""Wait in seconds before the second attempt; it doubles with each further attempt."""
TIMEOUT_S = 60.0
"""Time in seconds without data after which a connection counts as lost."""

T = TypeVar("T")

# Maximum size of a list of files: enough for two million files with long names.
_LIST_BYTES = 1 << 28
_MAY_PASS = {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS}
_ARCHIVES = {".zip", ".gz", ".bz2", ".xz", ".tar"}
_NAMED_IN_ERROR = 5
_REASONS = {
    requests.Timeout: "the server is silent",
    requests.exceptions.ChunkedEncodingError: "the connection was cut",
    requests.ConnectionError: "no connection to the server",
}


@dataclass(frozen=True)
class DownloadSummary:
    """Result of a download.

    Attributes:
        folder: folder of the files.
        num_fetched: number of files fetched and verified.
        num_skipped: number of files that already existed and verified.
        num_bytes: number of bytes in the files fetched.
    """

    folder: Path
    num_fetched: int
    num_skipped: int
    num_bytes: int


def download_database(
    name: str,
    folder: Path,
    *,
    base_url: str = PHYSIONET_FILES_URL,
    workers: int = 4,
    records: Sequence[str] | None = None,
) -> DownloadSummary:
    """Download the database `name` of the catalogue into `folder`.

    Args:
        name: catalogue name of the database.
        folder: target folder, in the publisher's layout. Files in it that verify are not fetched again.
        base_url: URL of the folder that contains `mitdb/1.0.0/` and the other databases; it may be a mirror.
        workers: number of files to fetch in parallel.
        records: recordings to fetch, with the documents at the top level. RECORDS and SHA256SUMS.txt in `folder` then
            list only these.

    Raises:
        HeartlmError: the database or a recording is unknown, there is no list of files, the disk is full, `folder` is
            not writable, or files could not be fetched or verified. The message names the first such file.
    """
    info = catalogue.find(name)
    folder = Path(folder)
    site = f"{base_url.rstrip('/')}/{info.physionet_path}"
    checksums = _checksums(f"{site}/{CHECKSUMS}")
    try:
        listed = _text(f"{site}/{RECORDS}")
    except _UnavailableError:
        listed = ""  # the database has no list of recordings
    if records is not None:
        # a recording is an entry of RECORDS that is not a folder, or a record with a header
        entries = (entry for entry in listed.split() if not entry.endswith("/"))
        available = dict.fromkeys((*entries, *(_recording_of(file) for file in checksums if file.endswith(".hea"))))
        path_of = {PurePosixPath(path).name: path for path in available} | {path: path for path in available}
        if unknown := [record for record in records if record not in path_of]:
            near = difflib.get_close_matches(unknown[0], path_of, n=3, cutoff=0.5) or list(available)[:3]
            raise HeartlmError(f"{info.name} has no recording {unknown[0]!r}: did you mean {' or '.join(near)}?")
        chosen = dict.fromkeys(path_of[record] for record in records)

        def is_document(file: str) -> bool:
            is_archive = PurePosixPath(file).suffix in _ARCHIVES
            return "/" not in file and file != RECORDS and not is_archive and _recording_of(file) not in available

        checksums = {file: sha for file, sha in checksums.items() if _recording_of(file) in chosen or is_document(file)}
        listed = "".join(f"{record}\n" for record in chosen)
    running = _fetch_all(site, folder, checksums, workers)
    if RECORDS not in checksums and listed:
        write_text(folder / RECORDS, listed)
    write_text(folder / CHECKSUMS, "".join(f"{digest} {file}\n" for file, digest in checksums.items()))
    if failed := [f"{file}: {error}" for file, each in sorted(running.items()) if (error := each.exception())]:
        more = f"; and {len(failed) - _NAMED_IN_ERROR} more" if len(failed) > _NAMED_IN_ERROR else ""
        raise HeartlmError(
            f"{len(failed)} of {len(running)} files could not be had ({'; '.join(failed[:_NAMED_IN_ERROR])}{more}); "
            f"the verified ones are kept in {folder}, the same command fetches the others"
        )
    sizes = [size for each in running.values() if (size := each.result()) is not None]
    return DownloadSummary(folder, len(sizes), len(running) - len(sizes), sum(sizes))


def _checksums(source: str) -> dict[str, str]:
    """Fetch the list of files, path → SHA-256; reject paths outside the folder."""
    try:
        text = _text(source)
    except _UnavailableError as error:
        raise HeartlmError(f"{source}: {error}; without it nothing can be verified, check --base-url") from error
    checksums: dict[str, str] = {}
    for number, line in enumerate(filter(str.strip, text.splitlines()), start=1):
        digest, _, file = line.strip().partition(" ")
        file = file.strip().removeprefix("*").removeprefix("./")
        if len(digest) != 64 or set(digest.lower()) - set("0123456789abcdef") or not file:
            raise HeartlmError(f"{source}: line {number} is {line[:60]!r}, expected a SHA-256 and a file name")
        if not stays_inside(file):
            raise HeartlmError(f"{source}: line {number} names {file!r}, a file outside of the database")
        checksums[file] = digest.lower()
    if not checksums:
        raise HeartlmError(f"{source}: it lists no files")
    return checksums


def _recording_of(file: str) -> str:
    """Return the path of a file up to the first dot of its name: `"training/A00001.hea"` → `"training/A00001"`."""
    path = PurePosixPath(file)
    return str(path.with_name(path.name.partition(".")[0] or path.name))


def _fetch_all(site: str, folder: Path, checksums: dict[str, str], workers: int) -> dict[str, Future[int | None]]:
    """Fetch all files; return for each the number of bytes, None if it already verifies, or an `_UnavailableError`."""
    for path in {path for file in checksums for path in (PurePosixPath(file), *PurePosixPath(file).parents)}:
        if str(path) != "." and (folder / path).is_symlink():
            raise HeartlmError(f"{folder / path} is a symbolic link, which a download does not follow; remove it")
    stop = threading.Event()

    def megabytes(future: Future[int | None]) -> float:
        return 0.0 if future.exception() else (future.result() or 0) / 1e6

    def done() -> Iterator[Future[int | None]]:
        # Headers last: where the disk is full, no header may stand without its samples.
        for are_headers in (False, True):
            files = [file for file in checksums if file.endswith(".hea") == are_headers]
            batch = [pool.submit(_fetch, f"{site}/{quote(f)}", folder / f, checksums[f], stop) for f in files]
            running.update(zip(files, batch, strict=True))
            yield from as_completed(batch)

    running = dict[str, Future[int | None]]()
    with ThreadPoolExecutor(max_workers=workers, thread_name_prefix="download") as pool:
        try:
            for future in track(done(), len(checksums), "download", megabytes, "MB"):
                if not isinstance(future.exception(), _UnavailableError):
                    future.result()  # raises an error of the disk, which ends the download
        except BaseException:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return running


class _UnavailableError(Exception):
    """A file could not be fetched, with the reason."""


def _fetch(url: str, path: Path, sha256: str, stop: threading.Event) -> int | None:
    """Fetch `url` to `path` and return its size; return None if `path` already verifies.

    Raises:
        HeartlmError: the disk is full or `path` is not writable.
        _UnavailableError: the file could not be fetched.
    """
    if path.is_file() and sha256_of(path) == sha256:
        return None

    def write(chunks: Iterator[bytes]) -> int:
        digest, num_bytes = hashlib.sha256(), 0
        with atomic_file(path, "wb") as stream:
            for chunk in chunks:
                if stop.is_set():
                    raise _UnavailableError("interrupted")
                digest.update(chunk)
                num_bytes += stream.write(chunk)
            if digest.hexdigest() != sha256:
                raise requests.RequestException(f"wrong bytes, their SHA-256 is not the published {sha256[:8]}…")
        return num_bytes

    return _receive(url, stop, write)


def _text(url: str) -> str:
    """Fetch a list of files or recordings.

    Raises:
        _UnavailableError: it could not be fetched or is too large.
    """

    def join(chunks: Iterator[bytes]) -> str:
        content = bytearray()
        for chunk in chunks:
            content += chunk
            if len(content) > _LIST_BYTES:
                raise _UnavailableError(f"more than {_LIST_BYTES} bytes")
        return content.decode("utf-8", "replace")

    return _receive(url, threading.Event(), join)


_per_thread = threading.local()


def _receive(url: str, stop: threading.Event, use: Callable[[Iterator[bytes]], T]) -> T:
    """Return what `use` makes of the content of `url`, in several attempts unless the server refuses it.

    Raises:
        _UnavailableError: no attempt succeeded.
    """
    if not hasattr(_per_thread, "session"):
        _per_thread.session = requests.Session()
    failure = "interrupted"
    for attempt in range(ATTEMPTS):
        if stop.wait(FIRST_WAIT_S * 2 ** (attempt - 1) if attempt else 0.0):
            break
        try:
            with _per_thread.session.get(
                url, headers={"Accept-Encoding": "identity"}, stream=True, timeout=TIMEOUT_S
            ) as response:
                if not response.ok:
                    failure = f"the server answers {response.status_code} {response.reason}"
                    if response.status_code < 500 and response.status_code not in _MAY_PASS:
                        break
                    raise requests.RequestException(failure)
                return use(response.iter_content(1 << 16))
        except requests.RequestException as error:
            known = (reason for kind, reason in _REASONS.items() if isinstance(error, kind))
            failure = f"{next(known, ' '.join(str(error).split()))}, in {ATTEMPTS} tries"
    raise _UnavailableError(failure)
