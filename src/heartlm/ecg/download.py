"""Fetch a published database: resumable, in parallel, every file checked against the publisher's SHA-256.

    SHA256SUMS.txt ─► the files wanted ─► threads: verified already? or fetch, verify, rename ─► summary

How a single file is fetched stands in `heartlm.ecg.transfer`. A database with some files missing is an error, but the
files that verified stay, and the same call later fetches only the others.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import quote

from heartlm.ecg import catalogue
from heartlm.ecg.readers.foreign import stays_inside
from heartlm.ecg.transfer import Fetched, RefusedError, Transfer
from heartlm.errors import HeartlmError
from heartlm.files import atomic_file
from heartlm.progress import Measure, track

PHYSIONET_FILES_URL = "https://physionet.org/files/"
CHECKSUMS = "SHA256SUMS.txt"
RECORDS = "RECORDS"

_ARCHIVES = {".zip", ".gz", ".bz2", ".xz", ".tar"}
_NAMED_IN_ERROR = 5


@dataclass(frozen=True)
class DownloadSummary:
    """What a download did.

    Attributes:
        folder: where the files are.
        num_fetched: files fetched and verified.
        num_skipped: files that were there already and verified.
        num_bytes: bytes received, those in vain included.
        failed: name and reason of each file that could not be had.
    """

    folder: Path
    num_fetched: int
    num_skipped: int
    num_bytes: int
    failed: tuple[tuple[str, str], ...] = ()


class DownloadError(HeartlmError):
    """Some files could not be had; `summary` lists them all, and counts what did arrive."""

    def __init__(self, summary: DownloadSummary) -> None:
        """Name the first few files in the text."""
        self.summary = summary
        named = "; ".join(f"{name}: {reason}" for name, reason in summary.failed[:_NAMED_IN_ERROR])
        more = len(summary.failed) - _NAMED_IN_ERROR
        num_verified = summary.num_fetched + summary.num_skipped
        super().__init__(
            f"{len(summary.failed)} of {len(summary.failed) + num_verified} files could not be had ({named}"
            f"{f'; and {more} more' if more > 0 else ''}); the verified ones are kept in {summary.folder}, "
            "the same command fetches the others"
        )


def download_database(
    name: str,
    folder: Path,
    *,
    base_url: str = PHYSIONET_FILES_URL,
    workers: int = 4,
    records: Sequence[str] | None = None,
    attempts: int = 5,
) -> DownloadSummary:
    """Fetch the catalogue's database `name` into `folder`.

    Args:
        name: a name of the catalogue.
        folder: gets the database's files in the publisher's layout; files in it that verify are left alone.
        base_url: where `mitdb/1.0.0/` and its like lie; a mirror may stand here.
        workers: files fetched at once.
        records: fetch only these recordings, and the documents at the top; RECORDS and SHA256SUMS.txt in `folder` then
            list these alone.
        attempts: tries of a file that bring nothing new, after which it is given up.

    Raises:
        DownloadError: some files never arrived or never verified; all others are in `folder`.
        HeartlmError: unknown database or recording, no list of files, no worker, a full disk, `folder` not
            writable.
    """
    info = catalogue.find(name)
    if workers < 1:
        raise HeartlmError(f"workers is {workers}, expected 1 or more")
    folder = Path(folder)
    site = f"{base_url.rstrip('/')}/{info.physionet_path}"
    transfer = Transfer(attempts)
    checksums = _checksums(transfer, site)
    try:
        records_text = transfer.text(f"{site}/{RECORDS}")
    except RefusedError:  # the database has no list of recordings
        records_text = ""
    if records is not None:
        # a recording is what RECORDS lists, its folders aside, or what has a header
        listed = (entry for entry in records_text.split() if not entry.endswith("/"))
        available = dict.fromkeys((*listed, *(_recording_of(file) for file in checksums if file.endswith(".hea"))))
        path_of = {PurePosixPath(path).name: path for path in available} | {path: path for path in available}
        if unknown := [record for record in records if record not in path_of]:
            near = difflib.get_close_matches(unknown[0], path_of, n=3, cutoff=0.5) or list(available)[:3]
            raise HeartlmError(f"{info.name} has no recording {unknown[0]!r}: did you mean {' or '.join(near)}?")
        chosen = dict.fromkeys(path_of[record] for record in records)
        # the files of the chosen recordings, and the documents (not the archives) that stand at the top
        documents = {
            file
            for file in checksums
            if "/" not in file
            and PurePosixPath(file).suffix not in _ARCHIVES
            and file != RECORDS
            and _recording_of(file) not in available
        }
        checksums = {file: sha for file, sha in checksums.items() if file in documents or _recording_of(file) in chosen}
        records_text = "".join(f"{record}\n" for record in chosen)
    for parent in {parent for file in checksums for parent in PurePosixPath(file).parents}:
        if str(parent) != "." and (folder / parent).is_symlink():
            raise HeartlmError(f"{folder / parent}: is a symbolic link, which a download does not follow; remove it")
    summary = _fetch_all(transfer, site, folder, checksums, workers)
    if RECORDS not in checksums and records_text:
        with atomic_file(folder / RECORDS) as stream:
            stream.write(records_text)
    with atomic_file(folder / CHECKSUMS) as stream:
        stream.writelines(f"{digest} {file}\n" for file, digest in checksums.items())
    if summary.failed:
        raise DownloadError(summary)
    return summary


def _checksums(transfer: Transfer, site: str) -> dict[str, str]:
    """Fetch the list of files, path → SHA-256; paths that leave the folder are refused."""
    source = f"{site}/{CHECKSUMS}"
    try:
        lines = transfer.text(source).splitlines()
    except RefusedError as error:
        raise HeartlmError(f"{source}: {error}; without it nothing can be verified, check --base-url") from error
    checksums: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
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
    """The path of a file up to the first dot of its name: `"training/A00001.hea"` → `"training/A00001"`."""
    path = PurePosixPath(file)
    return str(path.with_name(path.name.partition(".")[0] or path.name))


def _fetch_all(transfer: Transfer, site: str, folder: Path, checksums: dict[str, str], workers: int) -> DownloadSummary:
    outcomes: dict[str, Fetched] = {}
    with ThreadPoolExecutor(max_workers=workers, thread_name_prefix="download") as pool:
        running = {
            pool.submit(transfer.file, f"{site}/{quote(file)}", folder / file, digest): file
            for file, digest in checksums.items()
        }
        try:
            megabytes = Measure[Future[Fetched]](
                len(running), lambda _: 1.0, lambda future: future.result().num_bytes / 1e6, "MB"
            )
            for future in track(as_completed(running), len(running), "download", megabytes):
                outcomes[running[future]] = future.result()
        except BaseException:
            transfer.stop()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    failed = sorted((file, outcome.failure) for file, outcome in outcomes.items() if outcome.failure is not None)
    num_skipped = sum(outcome.skipped for outcome in outcomes.values())
    num_bytes = sum(outcome.num_bytes for outcome in outcomes.values())
    return DownloadSummary(folder, len(outcomes) - num_skipped - len(failed), num_skipped, num_bytes, tuple(failed))
