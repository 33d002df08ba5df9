"""Find the records of a folder and the files of each record.

Records are the entries of RECORDS. Without RECORDS they are the files in the folder: WFDB headers (except those of
segments), files whose content is of one of the `FORMATS`, and annotation files without a signal.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import TypeVar

from heartlm.errors import HeartlmError
from heartlm.formats.annotation_file import TABLE_SUFFIX, is_beat_table
from heartlm.formats.describe import describe_folder, kind_by_mark
from heartlm.formats.registry import BEGIN_BYTES, FORMATS, format_of
from heartlm.sources import store
from heartlm.storage.foreign import (
    HEADER_BYTES,
    LIST_BYTES,
    RemotePath,
    UnreachableError,
    first_bytes,
    is_there,
    read_ahead,
    read_bytes,
    stays_inside,
)

HELD = 50_000
"""Most records of a source that are held in memory to be named and sorted, where it can be a stream."""

Record = TypeVar("Record")
STANDALONE_ANNOTATORS = ("atr", "qrsc", "qrs", "ecg")
_SIGNAL_SUFFIXES = (".dat", ".mat", ".flac")


class NoRecordingsError(HeartlmError):
    """A folder has no recordings; the message states what its files are."""


@dataclass(frozen=True)
class RecordFiles:
    """The files of one record.

    Attributes:
        stem: path of the files without suffix.
        signal: header, or file with the signal; None for annotation-only records.
        entries: of a record at an address, what its store states of the files whose name begins with its name and a
            dot; None if that is not carried with it.
    """

    stem: Path
    signal: Path | None
    entries: Mapping[str, store.Entry] | None = field(default=None, compare=False, repr=False)

    @property
    def annotation_paths(self) -> list[Path]:
        """Annotation files that form a record without a signal, the reviewed file first."""
        if self.signal is None and is_beat_table(table := _with_suffix(self.stem, TABLE_SUFFIX)):
            return [table]
        return [path for name in STANDALONE_ANNOTATORS if is_there(path := _with_suffix(self.stem, f".{name}"))]

    def annotation(self, annotators: Iterable[str]) -> Path | None:
        """Return the file of the first of `annotators` that exists."""
        paths = (_with_suffix(self.stem, f".{name}") for name in annotators)
        return next((path for path in paths if path != self.signal and is_there(path)), None)


def find_records(folder: Path, named: Path | None = None) -> dict[str, RecordFiles]:
    """Find the records of a folder: record id to files.

    With `named`, a path in the folder with or without ending, only its record and files of the same name are looked at.

    The id of a record is the name of its files. If records in different subfolders have the same name, the ids are
    their paths below `folder`; also of more than `HELD` records, which are named before all are known.
    Bytes that are not text are written as `\\x..`.

    Of files of several formats with one name, the WFDB header is the record, and those that it does not name are left
    out as copies. Without a header all are records: the first by its ending has the name, the others have their endings
    in theirs.

    Raises:
        NoRecordingsError: there are no records.
        HeartlmError: RECORDS lists a record that is missing or outside `folder`.
    """
    listed = folder / "RECORDS"
    if is_there(listed):
        records = list(_listed(listed, named if isinstance(folder, RemotePath) else None))
    else:
        records = list(_unlisted(_files_below(folder) if named is None else _files_named(named), type(folder)))
    if not records:
        raise NoRecordingsError(f"{folder}: no recordings found; {describe_folder(folder)}")
    return _named(folder, records)


def stream_records(folder: Path) -> Iterator[tuple[str, RecordFiles]]:
    """Yield id and files of the records that `find_records` finds, in the order of their ids.

    More than `HELD` records are yielded while the folder is listed, in the order of `records_by_folder`.

    Raises:
        HeartlmError: as `find_records`, or a folder cannot be listed.
    """
    records = records_by_folder(folder)
    first, are_all = beginning_of(records)
    if not first:
        raise NoRecordingsError(f"{folder}: no recordings found; {describe_folder(folder)}")
    if are_all:
        yield from sorted(_named(folder, first).items())
    else:
        for files in chain(first, records):
            yield printable(files.stem.relative_to(folder).as_posix()), files


def beginning_of(records: Iterator[Record]) -> tuple[list[Record], bool]:
    """Take up to `HELD` records of a stream, or one more; return them, and whether they are all."""
    first = list(islice(records, HELD + 1))
    return first, len(first) <= HELD


def _named(folder: Path, records: Sequence[RecordFiles]) -> dict[str, RecordFiles]:
    is_short = len(records) <= HELD and len({files.stem.name for files in records}) == len(records)
    return {
        printable(files.stem.name if is_short else files.stem.relative_to(folder).as_posix()): files
        for files in records
    }


def records_by_folder(folder: Path) -> Iterator[RecordFiles]:
    """Yield the records that `find_records` finds, while the folder is listed, one of its folders after another.

    Their order is that of RECORDS. Without it, the records of a folder follow those of the folders in it, which are in
    the order of their addresses: that is the order in which buckets list them.

    Raises:
        HeartlmError: as `find_records`, or a folder cannot be listed.
    """
    listed = folder / "RECORDS"
    if is_there(listed):
        yield from _listed(listed, None)
        return
    if not isinstance(folder, RemotePath):
        for root, names in _walk(str(folder)):
            yield from _unlisted((_stem_and_suffix(root, name) for name in names), type(folder))
        return
    for group in folder.folders_below():
        texts = sorted(group)
        for files in _unlisted((_stem_and_suffix(*os.path.split(text)) for text in texts), type(folder)):
            first = stop = bisect_left(texts, prefix := f"{files.stem}.")
            while stop < len(texts) and texts[stop].startswith(prefix):
                stop += 1
            yield replace(files, entries=store.entries_of(texts[first:stop]))


def _walk(folder: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each folder below `folder`, after those in it, and the names of its files that are not hidden."""
    for _, folders, names in islice(os.walk(folder), 1):
        for name in sorted(folders, key="{}/".format):
            if not os.path.islink(path := f"{folder}/{name}"):  # noqa: PTH114, as fast as the listing
                yield from _walk(path)
        yield folder, sorted(name for name in names if not name.startswith("."))


def printable(name: str) -> str:
    """Return a file name as text, with undecodable bytes as `\\x..`."""
    return name if name.isprintable() else ascii(os.fsencode(name))[2:-1]


def _listed(records: Path, named: Path | None) -> Iterator[RecordFiles]:
    """Yield the records of a file RECORDS, at the end the error that some are missing."""
    first_missing, num_missing, stems = "", 0, named and (named, named.with_suffix(""))
    for name in dict.fromkeys(read_bytes(records, LIST_BYTES).decode("utf-8", "replace").split()):
        if not stays_inside(name):
            raise HeartlmError(f"{records}: lists {name!r}, expected a record below its folder; take it out")
        stem = records.parent / name
        if stems and stem not in stems:
            continue
        if is_there(header := _with_suffix(stem, ".hea")):
            yield RecordFiles(stem, header)
            continue
        paths = (stem, *(_with_suffix(stem, ending) for form in FORMATS for ending in form.endings))
        signal = next((path for path in paths if is_there(path) and format_of(path)), None)
        files = RecordFiles(stem.with_suffix("") if signal == stem else stem, signal)
        if signal is not None or files.annotation_paths:
            yield files
        else:
            first_missing, num_missing = first_missing or str(files.stem), num_missing + 1
    if num_missing:
        others = f" (and {num_missing - 1} more records)" if num_missing > 1 else ""
        raise HeartlmError(
            f"{first_missing}.hea: listed in {records} and missing{others}; fetch it or take the line out of RECORDS"
        )


def _unlisted(files: Iterable[tuple[str, str]], path_of: type[Path]) -> Iterator[RecordFiles]:
    paths = sorted(files)
    headers = {stem for stem, suffix in paths if suffix == ".hea"}
    # Of remote headers only those without a signal file of their name are read: each takes a round trip.
    is_remote, own = issubclass(path_of, RemotePath), {stem for stem, suffix in paths if suffix in _SIGNAL_SUFFIXES}
    opened = (path_of(f"{stem}.hea") for stem in sorted(headers) if not is_remote or stem not in own)
    segments = {segment for path in read_ahead(opened, Path.absolute) for segment in _segments(path)}
    yield from (RecordFiles(path_of(stem), path_of(f"{stem}.hea")) for stem in sorted(headers - segments))
    taken, alone = set[str](), list[str]()
    # the others are the signal and annotation files of headers
    others = (path_of(stem + suffix) for stem, suffix in paths if stem not in headers)
    for path in read_ahead(others, Path.absolute):
        _, suffix = _stem_and_suffix("", path.name)
        stem = str(path).removesuffix(suffix)
        is_table = suffix == TABLE_SUFFIX and is_beat_table(path)
        if is_table or format_of(path) is not None:
            # of two files with one name the second has its ending in the name of the record
            yield RecordFiles(path if stem in taken else path_of(stem), None if is_table else path)
            taken.add(stem)
        elif suffix.removeprefix(".") in STANDALONE_ANNOTATORS:
            begin = first_bytes(path, BEGIN_BYTES)
            if begin is None or kind_by_mark(begin) is None:  # an image may have the ending .ecg too
                alone.append(stem)
    yield from (RecordFiles(path_of(stem), None) for stem in dict.fromkeys(alone) if stem not in taken)


def _files_below(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield path without suffix, and suffix, as strings for speed, of all files below `folder` that are not hidden.

    A number at the end is no suffix: DICOM files are often named by identifiers such as 1.2.840.
    """
    if isinstance(folder, RemotePath):
        yield from (_stem_and_suffix(str(path.parent), path.name) for path in folder.files_below())
        return
    for root, _, names in os.walk(folder):
        yield from (_stem_and_suffix(root, name) for name in names if not name.startswith("."))


def _files_named(path: Path) -> Iterator[tuple[str, str]]:
    """Yield, as `_files_below`, the files in the folder of `path` that have its name, with any ending."""
    if isinstance(path, RemotePath):
        names = [each.name for each in path.with_suffix("").files_beginning()]
    else:
        with os.scandir(path.parent) as entries:
            names = [each.name for each in entries if each.name.startswith(path.stem) and each.is_file()]
    stems = {f"{path.parent}/{stem}" for stem in (path.name, path.stem)}
    yield from (each for name in names if (each := _stem_and_suffix(str(path.parent), name))[0] in stems)


def _stem_and_suffix(folder: str, name: str) -> tuple[str, str]:
    stem, dot, suffix = name.rpartition(".")
    return (f"{folder}/{stem}", f".{suffix}") if dot and not suffix.isdigit() else (f"{folder}/{name}", "")


def _segments(header: Path) -> list[str]:
    """Return the stems of the segments of a multi-segment header, whose first line is `NAME/COUNT ...`."""
    try:
        lines = read_bytes(header, HEADER_BYTES).splitlines()
    except UnreachableError:
        raise
    except HeartlmError:
        return []  # the reader then reports the error
    stated = (fields for line in lines if (fields := line.split()) and not fields[0].startswith(b"#"))
    if b"/" not in next(stated, [b""])[0]:
        return []
    return [f"{header.parent}/{fields[0].decode(errors='replace')}" for fields in stated]


def _with_suffix(stem: Path, suffix: str) -> Path:
    return stem.parent / f"{stem.name}{suffix}"
