"""State what a file is that cannot be opened as a recording, and what to do about it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

import numpy as np

from heartlm.errors import HeartlmError
from heartlm.formats.annotation_file import ISHNE_MARK, read_annotation_file
from heartlm.formats.registry import BEGIN_BYTES, FORMATS, format_of, xml_root
from heartlm.storage.foreign import first_bytes, is_there

# Files of a folder that are looked at.
_MOST_FILES = 10_000
# Kinds of files that one message names.
_MOST_KINDS = 4

_EXPORT = "export the recording itself (DICOM, SCP-ECG, HL7 aECG, EDF or CSV)"
_UNPACK = "unpack it"
# Offset and bytes of the mark of other kinds of files, and the text about them.
_SIGNATURES: tuple[tuple[int, bytes, str], ...] = (
    (0, ISHNE_MARK, "an ISHNE annotation file; the samples are in the file with the same name and the ending .ecg"),
    (128, b"DICM", f"a DICOM file without waveforms, for example an image; {_EXPORT}"),
    (0, b"%PDF", f"a PDF document; {_EXPORT}"),
    (0, b"\x89PNG", f"a PNG image; {_EXPORT}"),
    (0, b"\xff\xd8\xff", f"a JPEG image; {_EXPORT}"),
    (0, b"GIF8", f"a GIF image; {_EXPORT}"),
    (0, b"II*\0", f"a TIFF image; {_EXPORT}"),
    (0, b"MM\0*", f"a TIFF image; {_EXPORT}"),
    (0, b"PK\3\4", f"a ZIP archive or a workbook; {_UNPACK}, or save the sheet as CSV"),
    (0, b"\xd0\xcf\x11\xe0", "an Office document; save the sheet as CSV"),
    (0, b"\x1f\x8b", f"compressed by gzip; {_UNPACK}"),
    (0, b"BZh", f"compressed by bzip2; {_UNPACK}"),
    (0, b"\xfd7zXZ", f"compressed by xz; {_UNPACK}"),
    (0, b"7z\xbc\xaf", f"a 7z archive; {_UNPACK}"),
    (0, b"Rar!", f"a RAR archive; {_UNPACK}"),
    (257, b"ustar", f"a tar archive; {_UNPACK}"),
    (0, b"\x89HDF", "an HDF5 file; convert it to EDF, CSV or NumPy"),
    (0, b"MATLAB 5.0", "a MATLAB file without a variable for its rate; give --rate"),
    (0, b"PAR1", "a Parquet file without an ECG lead and a column of times; if its rows are samples, give --rate"),
    (0, b"SQLite format 3", "an SQLite database; export the recording itself"),
    (0, b"GDF ", "a GDF file; convert it to EDF"),
    (0, b"fLaC", "a FLAC signal file without a WFDB header; fetch its .hea"),
)
# Fewer annotations decode from other files too.
_FEWEST_ANNOTATIONS = 4


def describe(path: Path) -> str:
    """Return what a file is by its content, as "a PDF document; what to do"."""
    if path.is_dir():
        return "a folder"
    if (form := format_of(path)) is not None:
        return f"{form.what} that {path.parent / 'RECORDS'} does not list; add it there"
    begin = first_bytes(path, BEGIN_BYTES)
    if begin is None:
        return "a file that cannot be read; check its name and permissions"
    if not begin:
        return "an empty file; fetch it again"
    if (kind := kind_by_mark(begin)) is not None:
        return kind
    if (root := xml_root(begin)) is not None:
        return f"an XML file with the root {root}, which is no format that `heartlm data formats` lists"
    name, ending = path.name, path.suffix.lower()
    header, sidecar = path.with_suffix(".hea").name, path.with_suffix(".json").name
    if ending == ".hea":
        return "a WFDB header that another one lists as a segment; open that one"
    if ending == ".npy" and begin.startswith(b"\x93NUMPY"):
        return f'a NumPy array; give --rate, or write its rate into {sidecar} as {{"rate_hz": …}}'
    if is_there(path.with_suffix(".hea")):
        return f"a file of the WFDB record {path.stem}; open that"
    if _is_text(begin):
        if ending in (".csv", ".tsv", ".txt"):
            return f'a text; a table of samples needs a column of times, --rate, or {sidecar} with {{"rate_hz": …}}'
        if begin.lstrip()[:1] in b"{[":
            *names, last = (form.name.removesuffix(" JSON") for form in FORMATS if ".json" in form.endings)
            return f"a JSON text, of which heartlm reads those of {', '.join(names)} and {last}; export CSV or EDF"
        return "a text, for example notes or settings"
    if _is_annotation_file(path):
        return f"a WFDB annotation file without its header; fetch {header}"
    if ending == ".dat":
        return f"a signal file without its WFDB header; fetch {header}, which states rate and format"
    return f"binary data of no format that `heartlm data formats` lists ({name[-20:]} begins with {begin[:8].hex(' ')})"


def kind_by_mark(begin: bytes) -> str | None:
    """Return the kind of a file that has the mark of a format without recordings in its first bytes, else None."""
    return next((text for offset, mark, text in _SIGNATURES if begin.startswith(mark, offset)), None)


def describe_folder(folder: Path) -> str:
    """Return what the files of a folder without recordings are, most frequent kinds first."""
    kinds: dict[str, list[str]] = {}
    for path in islice(_files(folder), _MOST_FILES):
        kinds.setdefault(describe(path), []).append(path.relative_to(folder).as_posix())
    if not kinds:
        return "the folder is empty"
    frequent = sorted(kinds.items(), key=lambda kind: -len(kind[1]))
    texts = list[str]()
    for text, names in frequent[:_MOST_KINDS]:
        others = f" and {len(names) - 1} more" if len(names) > 1 else ""
        texts.append(f"{names[0]}{others}: {text}")
    return "; ".join(texts) + (f"; and {len(frequent) - _MOST_KINDS} other kinds" * (len(frequent) > _MOST_KINDS))


def _files(folder: Path) -> Iterator[Path]:
    for root, folders, names in os.walk(folder):
        folders.sort()
        yield from (Path(root) / name for name in sorted(names) if not name.startswith("."))


def _is_text(begin: bytes) -> bool:
    try:
        text = begin.decode("utf-16" if begin[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8")
    except UnicodeDecodeError as error:
        if error.start < len(begin) - 3:  # not only a character that the limit cuts
            return False
        text = begin[: error.start].decode("utf-8", "ignore")
    return all(each.isprintable() or each in "\t\r\n\f" for each in text)


def _is_annotation_file(path: Path) -> bool:
    with suppress(HeartlmError):
        file = read_annotation_file(path)
        return len(file.code) >= _FEWEST_ANNOTATIONS and not file.faults and bool((np.diff(file.sample) >= 0).all())
    return False
