"""What lies at addresses: entries, listings and bytes, by fsspec.

Each process knows the entries that it listed or asked for; `Database` carries those of its folder to worker processes.
Credentials are found by each library: environment, profiles, roles of the machine. They appear in no error.
"""

from __future__ import annotations

import os
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import PurePath
from typing import Any, NamedTuple, TypeVar

from heartlm.errors import HeartlmError
from heartlm.storage.foreign import UnreachableError

PACKAGES = {
    "s3": "s3fs",
    "gs": "gcsfs",
    "az": "adlfs",
    "abfs": "adlfs",
    "hf": "huggingface_hub",
    "https": "aiohttp",
    "http": "aiohttp",
}
"""Kinds of addresses, and the package with which fsspec reads them."""

ATTEMPTS = 5
FIRST_WAIT_S = 0.25
"""Wait before the second attempt; doubled before each further one."""
TIMEOUT_S = 30.0
"""Longest time without a byte from the server."""

# Where stores state what changes with the content of a file, the surest first.
_VERSIONS = (
    "ETag",
    "etag",
    "md5Hash",
    "generation",
    "blob_id",
    "content_md5",
    "LastModified",
    "last_modified",
    "mtime",
)
_SECRETS = re.compile(r"\?\S*|(?<=//)[^/@\s]*@|(?i:signature|token|key|secret|credential)\w*[=:]\s*\S+")
_LONGEST_REASON = 160
# Facts about files that are kept of a folder too large to be known as a whole.
_RECENT = 100_000
# Records whose files are known to this process because an index or another process states them.
_RECENT_RECORDS = 10_000

WRITABLE = ("s3", "gs", "az", "abfs")
"""Kinds of addresses at which files are written: stores in which a file is complete or absent."""

Result = TypeVar("Result")


class Entry(NamedTuple):
    """What a store states about a file or folder: size in bytes, and a text that changes with the content."""

    size: int
    version: str
    is_folder: bool = False


_FOLDER = Entry(0, "", True)


class ChangedError(UnreachableError):
    """A file is no longer that which was listed."""


@dataclass
class _Known:
    """Entries by address (None: there is none), and prefixes, to a slash or a dot, whose files are all among them."""

    entries: dict[str, Entry | None]
    complete: set[str]


_known = _Known({}, set())
_records = deque[tuple[str, tuple[str, ...]]]()
_systems: dict[tuple[int, str, bool], Any] = {}
# Stores in which no credentials are found, and which are read without.
_anonymous: set[str] = set()


def forget(path: PurePath) -> None:
    """Ask the store again for what lies at or below `path`."""
    text = str(path)
    for key in [key for key in _known.entries if key.startswith(text)]:
        del _known.entries[key]
    _known.complete -= {prefix for prefix in _known.complete if prefix.startswith(text) or text.startswith(prefix)}


def known_below(path: PurePath) -> tuple[dict[str, Entry | None], set[str]]:
    """Return what this process knows below `path`, for `remember` in another one."""
    text = str(path)
    return (
        {key: entry for key, entry in _known.entries.items() if key.startswith(text)},
        {prefix for prefix in _known.complete if prefix.startswith(text)},
    )


def remember(entries: Mapping[str, Entry | None], complete: Iterable[str]) -> None:
    """Add what another process knows."""
    _known.entries.update(entries)
    _known.complete.update(complete)


def remember_record(prefix: str, entries: Mapping[str, Entry]) -> None:
    """Add what is known of all files whose address begins with `prefix`; that of the last records only is kept."""
    if prefix in _known.complete and entries.items() <= _known.entries.items():
        return
    remember(entries, [prefix])
    _records.append((prefix, tuple(entries)))
    if len(_records) > _RECENT_RECORDS:
        oldest, texts = _records.popleft()
        for text in texts:
            _known.entries.pop(text, None)
        _known.complete.discard(oldest)


def entries_of(texts: Iterable[str]) -> dict[str, Entry]:
    """Return the entries of files that this process knows."""
    return {text: found for text in texts if (found := _known.entries.get(text)) is not None}


def entry(path: PurePath) -> Entry | None:
    """Return the entry of a file or folder; None if there is none.

    Raises:
        HeartlmError: the store cannot be asked.
    """
    text = str(path)
    if text not in _known.entries:
        _known.entries[text] = None if _is_listed(text) else _asked(path)
    found = _known.entries[text]
    if found is not None and found.size < 0:  # listings of web pages state no sizes
        found = _known.entries[text] = _asked(path)
    return found


def _is_listed(text: str) -> bool:
    """Return whether all that begins so is known: a folder above was listed, or the files of the stem."""
    return any(text[: place + 1] in _known.complete for place, character in enumerate(text) if character in "/.")


def known(path: PurePath) -> Entry | None:
    """Return the entry of a file that was listed; None if it was not."""
    found = _known.entries.get(str(path))
    return found if found is not None and found.size > 0 else None


def existing(path: PurePath) -> Entry:
    """Return the entry of a file.

    Raises:
        HeartlmError: there is none, or the store cannot be asked.
    """
    if (found := entry(path)) is None:
        raise HeartlmError(f"{path}: no such file; check its address")
    return found


def listed(folder: PurePath) -> Iterator[str]:
    """Yield the addresses of the files below a folder that are not hidden, in the order of the store.

    Raises:
        HeartlmError: the folder cannot be listed.
    """
    prefix, root = f"{folder}/", str(folder)
    if prefix not in _known.complete:
        text = ""
        for text, found in each_file(folder):
            _known.entries[text] = found
            parent = text.rpartition("/")[0]
            while len(parent) > len(root) and parent not in _known.entries:
                _known.entries[parent] = _FOLDER
                parent = parent.rpartition("/")[0]
            yield text
        if text:
            _known.entries[root] = _FOLDER
        _known.complete.add(prefix)
        return
    yield from [
        text
        for text, found in _known.entries.items()
        if found is not None and not found.is_folder and text.startswith(prefix)
    ]


def each_file(folder: PurePath) -> Iterator[tuple[str, Entry]]:
    """Yield address and entry of the files below a folder that are not hidden, page by page, and keep none.

    Raises:
        HeartlmError: the folder cannot be listed.
    """
    prefix = f"{folder}/"
    pages = _pages_of_s3(prefix) if prefix.startswith("s3://") else _pages_by_walk(folder)
    for page in pages:
        for text, found in page:
            if "/." not in text[len(prefix) - 1 :] and not text.endswith("/"):
                yield text, found


def folders_below(folder: PurePath) -> Iterator[list[str]]:
    """Yield the addresses of the files of one folder after another, below a folder that is too large to be kept.

    What is known of the files of the last folders is kept, for those who open them.

    Raises:
        HeartlmError: the folder cannot be listed.
    """
    recent = deque[str]()

    def kept(group: list[tuple[str, Entry]]) -> list[str]:
        for text, found in group:
            name = text.rpartition("/")[2]
            stem = text[: len(text) - len(name)] + (name.rpartition(".")[0] or name) + "."
            _known.entries[text] = found
            _known.complete.add(stem)
            recent.extend((text, stem))
        while len(recent) > max(_RECENT, 4 * len(group)):
            _known.entries.pop(oldest := recent.popleft(), None)
            _known.complete.discard(oldest)
        return [text for text, _ in group]

    # Stores list in the order of the names, so those of a folder may stand before and after those of one below it.
    open_groups: list[tuple[str, list[tuple[str, Entry]]]] = []
    for text, found in each_file(folder):
        parent = text.rpartition("/")[0]
        while open_groups and not f"{parent}/".startswith(f"{open_groups[-1][0]}/"):
            yield kept(open_groups.pop()[1])
        if not open_groups or open_groups[-1][0] != parent:
            open_groups.append((parent, []))
        open_groups[-1][1].append((text, found))
    while open_groups:
        yield kept(open_groups.pop()[1])


def beginning_with(path: PurePath) -> Iterator[str]:
    """Yield the addresses of the files in the folder of `path` whose name begins with its name: of a record all files.

    Raises:
        HeartlmError: the folder cannot be listed.
    """
    start, folder = str(path), str(path.parent)
    if not _is_listed(f"{start}."):
        if start.startswith("s3://"):
            pages: Iterator[list[tuple[str, Entry]]] = _pages_of_s3(start, delimiter="/")
        else:
            pages = iter([_children(folder)])
        for page in pages:
            _known.entries.update(each for each in page if each[0].startswith(start))
        _known.complete.add(f"{start}.")
    for text, found in list(_known.entries.items()):
        if found is not None and not found.is_folder and text.startswith(start) and "/" not in text[len(folder) + 1 :]:
            yield text


def read_range(path: PurePath, found: Entry, start: int, stop: int) -> bytes:
    """Return bytes `start` to `stop` of a file.

    Raises:
        ChangedError: the file is another one than `found`.
        HeartlmError: the bytes cannot be read, or their number is another one.
    """
    size = stop - start

    def fetch(system: Any) -> bytes:
        content = _FETCH.get(_kind(str(path)), _fetch)(system, str(path), found, start, stop)
        if len(content) == found.size > size:  # a server without ranges
            content = content[start:stop]
        if len(content) != size:
            raise _ShortError(f"{len(content)} of {size} bytes received")
        return content

    return _attempted(str(path), fetch)


def ask_again(path: PurePath) -> Entry | None:
    """Return the entry of a file or folder that may have changed since it was asked for."""
    _known.entries[str(path)] = found = _asked(path)
    return found


def put(path: PurePath, file: PurePath, size: int) -> None:
    """Store a local file at an address, a large one in several parts; it is there when all of it is.

    Raises:
        HeartlmError: the file cannot be written there.
    """

    # adlfs replaces a file only if it is told to, others always
    options = {"overwrite": True} if PACKAGES[_kind(str(path))] == "adlfs" else {}

    def send(system: Any) -> None:
        system.put_file(str(file), str(path), **options)
        if (found := ask_again(path)) is None or found.size != size:
            raise _ShortError(f"{found and found.size} of {size} bytes are there")

    _attempted(str(path), send, "written")


def get(path: PurePath, file: PurePath) -> None:
    """Copy a whole file to a local one.

    Raises:
        HeartlmError: the file cannot be read.
    """
    _attempted(str(path), lambda system: system.get_file(str(path), str(file)))


def remove(path: PurePath) -> None:
    """Remove a file, if it is there.

    Raises:
        HeartlmError: the file cannot be removed.
    """
    if ask_again(path) is not None:
        _attempted(str(path), lambda system: system.rm_file(str(path)), "removed")
        _known.entries[str(path)] = None


class _ShortError(OSError):
    """An answer has another length."""


def _fetch_s3(system: Any, text: str, found: Entry, start: int, stop: int) -> bytes:
    from fsspec.asyn import sync

    bucket, key, _ = system.split_path(text)

    async def make_client() -> None:
        async with system.starting:
            await system.set_session()
            await system.get_s3(bucket)

    if bucket not in system.started:  # threads that start together would make a client each
        sync(system.loop, make_client)
        system.started.add(bucket)
    answer = system.call_s3(
        "get_object", Bucket=bucket, Key=key, Range=f"bytes={start}-{stop - 1}", IfMatch=found.version
    )
    content: bytes = sync(system.loop, answer["Body"].read, timeout=_LIMIT_S)
    return content


def _fetch_http(system: Any, text: str, found: Entry, start: int, stop: int) -> bytes:
    headers = {"If-Match": found.version} if found.version.startswith('"') else {}
    content: bytes = system.cat_file(text, start=start, end=stop, headers=headers)
    return content


def _fetch(system: Any, text: str, found: Entry, start: int, stop: int) -> bytes:
    content: bytes = system.cat_file(text, start=start, end=stop)
    system.invalidate_cache()
    if _entry_of(system.info(text)).version != found.version:
        raise ChangedError(_changed(text))
    return content


_FETCH: dict[str, Callable[[Any, str, Entry, int, int], bytes]] = {
    "s3": _fetch_s3,
    "http": _fetch_http,
    "https": _fetch_http,
}
# A file whose bytes come one by one is given up, although no wait is long.
_LIMIT_S = 10 * TIMEOUT_S


def _changed(path: object) -> str:
    return f"{path}: changed since it was listed; run the command again"


def _pages_of_s3(start: str, delimiter: str = "") -> Iterator[list[tuple[str, Entry]]]:
    """Yield the objects whose address begins with `start`, up to 1,000 at a time."""
    bucket, _, prefix = start.removeprefix("s3://").partition("/")
    options: dict[str, Any] = {"Bucket": bucket, "Prefix": prefix, "Delimiter": delimiter}
    while True:
        page = _attempted(start, partial(_page_of_s3, options=options))
        yield [(f"s3://{bucket}/{each['Key']}", Entry(each["Size"], each["ETag"])) for each in page.get("Contents", ())]
        if not page["IsTruncated"]:
            return
        options["ContinuationToken"] = page["NextContinuationToken"]


def _page_of_s3(system: Any, options: dict[str, Any]) -> dict[str, Any]:
    page: dict[str, Any] = system.call_s3("list_objects_v2", **options)
    return page


def _pages_by_walk(folder: PurePath) -> Iterator[list[tuple[str, Entry]]]:
    """Yield the files of one folder after another."""
    folders = [str(folder)]
    while folders:
        page = _children(folders.pop())
        folders += [text for text, found in page if found.is_folder]
        yield [each for each in page if not each[1].is_folder]


def _children(folder: str) -> list[tuple[str, Entry]]:
    kind, bucket = folder.partition(":")[0], "/".join(folder.split("/")[:3])

    def ask(system: Any) -> Any:
        try:
            return system.ls(f"{folder}/", detail=True)
        except FileNotFoundError:
            if kind not in WRITABLE or folder == bucket:
                raise
            system.ls(bucket)  # raises if that is missing too
            return []  # as S3 answers for a folder without files

    answers = _attempted(folder, ask)
    children = list[tuple[str, Entry]]()
    for answer in answers:
        name = str(answer["name"]).partition("?")[0]
        text = (name if "://" in name else f"{kind}://{name}").rstrip("/")
        if text.startswith(f"{folder}/"):
            children.append((text, _FOLDER if name.endswith("/") else _entry_of(answer)))
    return children


def _asked(path: PurePath) -> Entry | None:
    """Ask the store for one entry; a bucket, which it may not let be asked for, is a folder."""
    text = str(path)
    if len(path.parts) < 3:
        return _FOLDER if len(path.parts) == 2 else None

    def ask(system: Any) -> Entry | None:
        system.invalidate_cache()  # entries are kept here
        try:
            return _entry_of(system.info(text))
        except FileNotFoundError:
            return None

    return _attempted(text, ask)


def _entry_of(answer: dict[str, Any]) -> Entry:
    if answer.get("type") == "directory" or str(answer.get("mimetype", "")).startswith("text/html"):
        return _FOLDER
    size = answer.get("size")
    version = next((str(answer[name]) for name in _VERSIONS if answer.get(name)), "")
    return Entry(-1 if size is None else int(size), version)


def _kind(text: str) -> str:
    return text.partition(":")[0]


def _system(kind: str) -> Any:
    """Return the filesystem of fsspec for a kind of address; one for each process, because none survives a fork."""
    key = os.getpid(), kind, kind in _anonymous
    if key not in _systems:
        try:
            fsspec = import_module("fsspec")
            import_module(PACKAGES[kind])
        except ModuleNotFoundError as error:
            raise HeartlmError(
                f"{kind}://: reading it needs the package {error.name!r}: install it with  pip install 'heartlm[cloud]'"
            ) from None
        options: dict[str, Any] = {"use_listings_cache": False, "skip_instance_cache": True}
        if kind == "s3":
            # attempts are counted here, not once more in botocore and in s3fs
            config = {"retries": {"total_max_attempts": 1}, "connect_timeout": TIMEOUT_S, "read_timeout": TIMEOUT_S}
            options |= {"config_kwargs": config, "cache_regions": True}
            options |= {"anon": True} if kind in _anonymous else {}
        elif kind.startswith("http"):
            timeout = import_module("aiohttp").ClientTimeout(total=None, sock_connect=TIMEOUT_S, sock_read=TIMEOUT_S)
            options |= {"client_kwargs": {"timeout": timeout, "trust_env": True}}
        system = fsspec.filesystem(kind, **options)
        if kind == "s3":
            system.retries, system.starting, system.started = 1, import_module("asyncio").Lock(), set()
        _systems.setdefault(key, system)
    return _systems[key]


def _attempted(text: str, call: Callable[[Any], Result], done: str = "read") -> Result:
    """Return what `call` returns for the filesystem of the address, by several attempts if it is busy or cut off.

    Raises:
        HeartlmError: the last attempt failed, or one failed in a way that another will not mend.
    """
    kind, attempt = _kind(text), 0
    while True:
        attempt += 1
        try:
            return call(_system(kind))
        except HeartlmError:
            raise
        except Exception as error:
            reason, is_final = _explained(text, kind, error, done)
            if reason is None:  # without credentials from now on
                attempt = 0
            elif is_final or attempt == ATTEMPTS:
                raise reason from None  # the library's exception may quote headers with credentials
            else:
                time.sleep(FIRST_WAIT_S * 2 ** (attempt - 1))


def _explained(text: str, kind: str, error: Exception, done: str) -> tuple[HeartlmError | None, bool]:
    """Return the error to raise, and whether further attempts are useless; None to try without credentials."""
    code = _code_of(error)
    if code in ("PreconditionFailed", "412") or (code in ("InvalidRange", "416")):
        return ChangedError(_changed(text)), True
    if type(error).__name__ in ("NoCredentialsError", "CredentialRetrievalError", "DefaultCredentialsError"):
        if kind == "s3" and kind not in _anonymous:
            _anonymous.add(kind)  # public buckets, as those of PhysioNet, are read unsigned
            return None, False
        return _refused(text, "no credentials were found"), True
    if isinstance(error, PermissionError) or code in ("403", "401", "AccessDenied"):
        return _refused(text, "no credentials were found" if kind in _anonymous else "access is denied"), True
    if isinstance(error, FileNotFoundError) or code in ("404", "NoSuchKey", "NoSuchBucket"):
        return HeartlmError(f"{text}: no such file or bucket; check its address"), True
    words = " ".join(_SECRETS.sub("", str(error)).split())[:_LONGEST_REASON] or type(error).__name__
    is_final = not isinstance(error, OSError | TimeoutError) and type(error).__module__.partition(".")[0] not in (
        "aiohttp", "botocore", "aiobotocore", "asyncio", "fsspec",
    )  # fmt: skip
    what = "is not what was listed" if isinstance(error, _ShortError) else f"cannot be {done}"
    return UnreachableError(f"{text}: {what} ({words}), {ATTEMPTS} attempts; try again later"), is_final


def _code_of(error: BaseException | None) -> str:
    """Return the code of an answer: that of S3 or of HTTP."""
    while error is not None:
        answer = getattr(error, "response", None)
        if isinstance(answer, dict) and "Error" in answer:
            return str(answer["Error"].get("Code", ""))
        if isinstance(status := getattr(error, "status", None), int):
            return str(status)
        error = error.__cause__
    return ""


def _refused(text: str, why: str) -> HeartlmError:
    return UnreachableError(f"{text}: {why}; set the credentials of the store in the environment, see docs/archive.md")
