"""Download a published database in parallel, and verify every file with the publisher's SHA-256.

    SHA256SUMS.txt ─► requested files ─► threads: skip if verified, else fetch, verify, rename ─► summary

A file is downloaded to `NAME.part`, which is renamed when its SHA-256 matches. If some files fail, an error is raised,
but the verified files are kept. The same call later fetches only the missing files.
"""

from __future__ import annotations

import difflib
import hashlib
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from http import HTTPStatus
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import IO
from urllib.parse import quote

import requests

from heartlm.ecg import catalogue
from heartlm.ecg.readers.foreign import stays_inside
from heartlm.errors import HeartlmError
from heartlm.files import atomic_file, sha256_of
from heartlm.progress import track

PHYSIONET_FILES_URL = "https://physionet.org/files/"
CHECKSUMS = "SHA256SUMS.txt"
RECORDS = "RECORDS"

ATTEMPTS = 5
FIRST_WAIT_S = 1.0
"""Wait in seconds before the second attempt; it doubles with each further attempt."""
TIMEOUT_S = 60.0
"""Time in seconds without data after which a connection counts as lost."""

_LIST_BYTES = 1 << 28
"""Maximum size of a list of files: enough for two million files with long names."""
_MAY_PASS = {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS}
_ARCHIVES = {".zip", ".gz", ".bz2", ".xz", ".tar"}
_NAMED_IN_ERROR = 5


@dataclass(frozen=True)
class DownloadSummary:
    """Result of a download.

    Attributes:
        folder: folder of the files.
        num_fetched: number of files fetched and verified.
        num_skipped: number of files that already existed and verified.
        num_bytes: number of bytes received, including failed attempts.
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
    listed, _ = _text(f"{site}/{RECORDS}")  # empty if the database has no list of recordings
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
    fetched = _fetch_all(site, folder, checksums, workers)
    if RECORDS not in checksums and listed:
        with atomic_file(folder / RECORDS) as stream:
            stream.write(listed)
    with atomic_file(folder / CHECKSUMS) as stream:
        stream.writelines(f"{digest} {file}\n" for file, digest in checksums.items())
    if failed := [f"{file}: {each.failure}" for file, each in sorted(fetched.items()) if each.failure]:
        more = f"; and {len(failed) - _NAMED_IN_ERROR} more" if len(failed) > _NAMED_IN_ERROR else ""
        raise HeartlmError(
            f"{len(failed)} of {len(fetched)} files could not be had ({'; '.join(failed[:_NAMED_IN_ERROR])}{more}); "
            f"the verified ones are kept in {folder}, the same command fetches the others"
        )
    num_skipped = sum(each.num_bytes is None for each in fetched.values())
    num_bytes = sum(each.num_bytes or 0 for each in fetched.values())
    return DownloadSummary(folder, len(fetched) - num_skipped, num_skipped, num_bytes)


def _checksums(source: str) -> dict[str, str]:
    """Fetch the list of files, path → SHA-256; reject paths outside the folder."""
    text, failure = _text(source)
    if failure:
        raise HeartlmError(f"{source}: {failure}; without it nothing can be verified, check --base-url")
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


@dataclass(frozen=True)
class _Fetched:
    """Result for one file: bytes received, None if it already existed and verified, and the reason of a failure."""

    num_bytes: int | None
    failure: str = ""


def _fetch_all(site: str, folder: Path, checksums: dict[str, str], workers: int) -> dict[str, _Fetched]:
    for path in {path for file in checksums for path in (PurePosixPath(file), *PurePosixPath(file).parents)}:
        for place in (folder / path, folder / f"{path}.part"):
            if str(path) != "." and place.is_symlink():
                raise HeartlmError(f"{place} is a symbolic link, which a download does not follow; remove it")
    outcomes: dict[str, _Fetched] = {}
    stop = threading.Event()
    with ThreadPoolExecutor(max_workers=workers, thread_name_prefix="download") as pool:
        running = {
            pool.submit(_fetch, f"{site}/{quote(file)}", folder / file, digest, stop): file
            for file, digest in checksums.items()
        }
        try:

            def megabytes(future: Future[_Fetched]) -> float:
                return (future.result().num_bytes or 0) / 1e6

            for future in track(as_completed(running), len(running), "download", megabytes, "MB"):
                outcomes[running[future]] = future.result()
        except BaseException:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return outcomes


def _fetch(url: str, path: Path, sha256: str, stop: threading.Event) -> _Fetched:
    """Fetch `url` to `path`, unless `path` already verifies.

    Raises:
        HeartlmError: the disk is full or `path` is not writable.
    """
    part = path.with_name(path.name + ".part")
    try:
        if path.is_file() and sha256_of(path) == sha256:
            return _Fetched(None)
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as stream:
            fetched = _receive(url, stream, stop, sha256)
        if fetched.failure:
            part.unlink()
        else:
            part.replace(path)
    except OSError as error:
        raise HeartlmError(
            f"cannot write {path}: {error.strerror or error}; free space or choose another place"
        ) from error
    return fetched


def _text(url: str) -> tuple[str, str]:
    """Fetch a list of files or recordings; return its text, and why it could not be had."""
    stream = BytesIO()
    failure = _receive(url, stream, threading.Event()).failure
    return ("" if failure else stream.getvalue().decode("utf-8", "replace")), failure


_of_thread = threading.local()


def _receive(url: str, stream: IO[bytes], stop: threading.Event, sha256: str | None = None) -> _Fetched:
    """Write the content of `url` to the empty `stream`, in several attempts unless the server refuses it."""
    if not hasattr(_of_thread, "session"):
        _of_thread.session = requests.Session()
    num_bytes, failure = 0, "interrupted"
    for attempt in range(ATTEMPTS):
        if stop.wait(FIRST_WAIT_S * 2 ** (attempt - 1) if attempt else 0.0):
            break
        stream.seek(0)
        stream.truncate()
        digest = hashlib.sha256()
        try:
            with _of_thread.session.get(
                url, headers={"Accept-Encoding": "identity"}, stream=True, timeout=TIMEOUT_S
            ) as response:
                if not response.ok:
                    failure = f"the server answers {response.status_code} {response.reason}"
                    if response.status_code < 500 and response.status_code not in _MAY_PASS:
                        break
                    failure += f", in {ATTEMPTS} tries"
                    continue
                for chunk in response.iter_content(1 << 16):
                    digest.update(chunk)
                    num_bytes += stream.write(chunk)
                    if stop.is_set() or (sha256 is None and num_bytes > _LIST_BYTES):
                        return _Fetched(num_bytes, f"interrupted after {num_bytes} bytes")
        except requests.RequestException as error:
            failure = f"{_explain(error)}, in {ATTEMPTS} tries"
            continue
        if sha256 in (None, digest.hexdigest()):
            return _Fetched(num_bytes)
        failure = f"wrong bytes, their SHA-256 is not the published {str(sha256)[:8]}…, in {ATTEMPTS} tries"
    return _Fetched(num_bytes, failure)


def _explain(error: requests.RequestException) -> str:
    if isinstance(error, requests.Timeout):
        return "the server is silent"
    if isinstance(error, requests.exceptions.ChunkedEncodingError):
        return "the connection was cut"
    if isinstance(error, requests.ConnectionError):
        return "no connection to the server"
    return " ".join(str(error).split())
