"""Find the records of a folder and the files of each record.

Records are the entries of RECORDS. Without RECORDS they are the files in the folder: WFDB headers (except those of
segments), EDF, aECG, CSV and NumPy files, and annotation files without a signal.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from heartlm.ecg.readers.aecg import is_aecg, read_aecg
from heartlm.ecg.readers.annotation_file import TABLE_SUFFIX, is_beat_table
from heartlm.ecg.readers.arrays import is_array_recording, read_csv, read_numpy
from heartlm.ecg.readers.edf import read_edf
from heartlm.ecg.readers.foreign import HEADER_BYTES, LIST_BYTES, TEXT_BYTES, is_there, read_bytes, stays_inside
from heartlm.ecg.recording import Recording
from heartlm.errors import HeartlmError


class FileFormat(NamedTuple):
    """A format with one file per record.

    Attributes:
        read: reader of a file.
        what: description in error messages.
        largest: maximum size of a file in bytes; None if it is read in slices.
        is_recording: test for suffixes that other files of a database also have, for example tables of labels.
    """

    read: Callable[[Path], Recording]
    what: str
    largest: int | None = None
    is_recording: Callable[[Path], bool] = is_there


FORMATS = {
    ".edf": FileFormat(read_edf, "an EDF file"),
    ".bdf": FileFormat(read_edf, "a BDF file"),
    ".xml": FileFormat(read_aecg, "an HL7 annotated ECG", TEXT_BYTES, is_aecg),
    ".csv": FileFormat(read_csv, "a table of numbers", TEXT_BYTES, is_array_recording),
    ".npy": FileFormat(read_numpy, "a NumPy array of samples", None, is_array_recording),
}
"""The formats by suffix; `.hea` is a WFDB header."""

_SIGNAL_SUFFIXES = (".hea", *FORMATS)
STANDALONE_ANNOTATORS = ("atr", "qrsc", "qrs", "ecg")


@dataclass(frozen=True)
class RecordFiles:
    """The files of one record.

    Attributes:
        stem: path of the files without suffix.
        signal: header, or file with the signal; None for annotation-only records.
    """

    stem: Path
    signal: Path | None

    @property
    def annotation_paths(self) -> list[Path]:
        """Annotation files that form a record without a signal, the reviewed file first."""
        if self.signal is None and is_beat_table(table := _with_suffix(self.stem, TABLE_SUFFIX)):
            return [table]
        return [path for name in STANDALONE_ANNOTATORS if is_there(path := _with_suffix(self.stem, f".{name}"))]

    def annotation(self, annotators: Iterable[str]) -> Path | None:
        """Return the file of the first of `annotators` that exists."""
        paths = (_with_suffix(self.stem, f".{name}") for name in annotators)
        return next(filter(is_there, paths), None)


def find_records(folder: Path) -> dict[str, RecordFiles]:
    """Find the records of a folder: record id to files.

    The id of a record is the name of its files. If records in different subfolders have the same name, the ids are
    their paths below `folder`. Bytes that are not text are written as `\\x..`.

    Raises:
        HeartlmError: RECORDS lists a record that is missing or outside `folder`, or there are no records.
    """
    listed = folder / "RECORDS"
    found = list(_listed(listed) if is_there(listed) else _lying_there(folder))
    if not found:
        raise HeartlmError(
            f"{folder}: no recordings found; expected WFDB headers (.hea), .edf, .csv or .npy and a .json, or "
            "annotation files (.atr, .qrs)"
        )
    names = [files.stem.name for files in found]
    unique = len(set(names)) == len(names)
    return {
        printable(files.stem.name if unique else files.stem.relative_to(folder).as_posix()): files for files in found
    }


def printable(name: str) -> str:
    """Return a file name as text, with undecodable bytes as `\\x..`."""
    return name if name.isprintable() else ascii(os.fsencode(name))[2:-1]


def _listed(records: Path) -> list[RecordFiles]:
    listed = []
    for name in dict.fromkeys(read_bytes(records, LIST_BYTES).decode("utf-8", "replace").split()):
        if not stays_inside(name):
            raise HeartlmError(f"{records}: lists {name!r}, expected a record below its folder; take it out")
        stem = records.parent / name
        signals = (_with_suffix(stem, suffix) for suffix in _SIGNAL_SUFFIXES)
        listed.append(RecordFiles(stem, next(filter(is_there, signals), None)))
    missing = [files.stem for files in listed if files.signal is None and not files.annotation_paths]
    if missing:
        others = f" (and {len(missing) - 1} more records)" if len(missing) > 1 else ""
        raise HeartlmError(
            f"{missing[0]}.hea: listed in {records} and missing{others}; fetch it or take the line out of RECORDS"
        )
    return listed


def _lying_there(folder: Path) -> Iterator[RecordFiles]:
    paths = sorted(_files_below(folder))
    headers = [stem for stem, suffix in paths if suffix == ".hea"]
    segments = {segment for stem in headers for segment in _segments(stem)}
    taken = set(headers)
    yield from (RecordFiles(Path(stem), Path(f"{stem}.hea")) for stem in headers if stem not in segments)
    for stem, suffix in paths:
        if stem in taken or suffix.lower() not in FORMATS:
            continue
        path = Path(stem + suffix)
        is_table = suffix == TABLE_SUFFIX and is_beat_table(path)
        if is_table or FORMATS[suffix.lower()].is_recording(path):
            taken.add(stem)
            yield RecordFiles(Path(stem), None if is_table else path)
    for stem, suffix in paths:
        if suffix.removeprefix(".") in STANDALONE_ANNOTATORS and stem not in taken:
            taken.add(stem)
            yield RecordFiles(Path(stem), None)


def _files_below(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield path and suffix, as strings for speed, of all files below `folder` with a suffix that are not hidden."""
    for root, _, names in os.walk(folder):
        for name in names:
            stem, dot, suffix = name.rpartition(".")
            if dot and not name.startswith("."):
                yield f"{root}/{stem}", f".{suffix}"


def _segments(stem: str) -> list[str]:
    """Return the stems of the segments of a multi-segment header, whose first line is `NAME/COUNT ...`."""
    try:
        lines = read_bytes(Path(f"{stem}.hea"), HEADER_BYTES).splitlines()
    except HeartlmError:
        return []  # the reader then reports the error
    stated = (fields for line in lines if (fields := line.split()) and not fields[0].startswith(b"#"))
    if b"/" not in next(stated, [b""])[0]:
        return []
    folder, _, _ = stem.rpartition("/")
    return [f"{folder}/{fields[0].decode(errors='replace')}" for fields in stated]


def _with_suffix(stem: Path, suffix: str) -> Path:
    return stem.parent / f"{stem.name}{suffix}"
