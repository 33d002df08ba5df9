"""The formats of recordings, recognised by their content.

The first bytes of a file decide, because endings are ambiguous: `.ecg` is an ISHNE Holter file or WFDB annotations,
`.xml` is the export of several makes, DICOM files often have no ending. An ending decides only where the content is
text without a mark (CSV), or where the begin of a file is damaged.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from heartlm.ecg.recording import Recording
from heartlm.formats.arrays import is_array_recording, read_numpy
from heartlm.formats.atc import read_atc
from heartlm.formats.clinical import read_cardiosoft, read_dicom, read_mfer, read_scp, read_sierra, read_with
from heartlm.formats.edf import read_edf
from heartlm.formats.ishne import read_ishne
from heartlm.formats.labchart import is_labchart, read_labchart
from heartlm.formats.phone_json import (
    is_fitbit,
    is_movesense,
    is_polar_recorder,
    read_fitbit,
    read_movesense,
    read_polar_recorder,
)
from heartlm.formats.wfdb import read_wfdb
from heartlm.storage.foreign import HEADER_BYTES, TEXT_BYTES, ending_of, first_bytes

BEGIN_BYTES = 4096
"""First bytes of a file by which its format is recognised."""


class FileFormat(NamedTuple):
    """A format of recordings.

    Attributes:
        name: name in tables.
        what: name with an article, in messages.
        read: reader of a file.
        detects: test of the first bytes; the path is for formats that have no mark.
        endings: usual endings of file names.
        by_ending: whether a file with such an ending has this format whatever its begin is, so that a damaged file is
            reported and not left out.
        largest: maximum size of a file in bytes; None if it is read in slices.
        packages: packages that the reader needs, by the names of their modules.
        extra: extra of heartlm that includes them.
        in_slices: whether of a remote file only those bytes are read that are asked for; others are copied first.
        is_table: whether files need not state their rate, units and leads, so that the user may.
    """

    name: str
    what: str
    read: Callable[[Path], Recording]
    detects: Callable[[bytes, Path], bool]
    endings: tuple[str, ...]
    by_ending: bool = False
    largest: int | None = None
    packages: tuple[str, ...] = ()
    extra: str = ""
    is_table: bool = False
    in_slices: bool = False

    @property
    def missing(self) -> str | None:
        """What to install before files of this format can be read; None if nothing."""
        absent = [package for package in self.packages if find_spec(package) is None]
        if not absent:
            return None
        return f"the package {absent[0]!r}: install it with  pip install 'heartlm[{self.extra}]'"


_PROLOG = re.compile(r"<\?.*?\?>|<!--.*?-->|<!DOCTYPE[^\[>]*(?:\[.*?\]\s*)?>", re.DOTALL | re.IGNORECASE)
_ROOT = re.compile(r"\s*<(?:[\w.-]+:)?([A-Za-z_][\w.-]*)(?=[\s/>])")
_MORTARA = ("ACQUISITION_TIME", "<CHANNEL", "<SUBJECT", "<TYPICAL_CYCLE")
_KARDIA = re.compile(rb'"(recordedAt|algorithmDetermination|amplitudeResolution|patientID)"')
# Begin of the identifiers of the DICOM storage classes for waveforms; images have others.
_DICOM_WAVEFORMS = b"1.2.840.10008.5.1.4.1.1.9."


def xml_root(begin: bytes) -> str | None:
    """Return the name of the root element of an XML file, without its namespace; None if it is no XML."""
    codec = "utf-16" if begin.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8-sig"
    text = begin.decode(codec, "ignore").lstrip()
    root = _ROOT.match(_PROLOG.sub("", text)) if text.startswith("<") else None
    return root and root[1]


def _is_scp(begin: bytes, path: Path) -> bool:
    """Whether the pointer section stands where the format has it: after 6 bytes, with itself as its first entry."""
    return len(begin) >= 32 and begin[8:10] == b"\0\0" and begin[22:24] == b"\0\0" and begin[28:32] == b"\7\0\0\0"


def _clinical(
    name: str,
    what: str,
    reader: str | Callable[[Path], Recording],
    detects: Callable[[bytes, Path], bool],
    endings: tuple[str, ...],
    by_ending: bool = False,
    packages: tuple[str, ...] = ("ecgdatakit",),
) -> FileFormat:
    """Return a format of hospitals; `reader` may be the name of a parser of `ecgdatakit`, see `read_with`."""
    read = partial(read_with, reader) if isinstance(reader, str) else reader
    return FileFormat(name, what, read, detects, endings, by_ending, TEXT_BYTES, packages, "formats")


def _xml(
    name: str,
    what: str,
    root: str,
    reader: str | Callable[[Path], Recording],
    endings: tuple[str, ...] = (".xml",),
    marks: Sequence[str] = ("",),
) -> FileFormat:
    """Return the format of XML files with the root element `root` and one of `marks` in their first bytes."""

    def detects(begin: bytes, path: Path) -> bool:
        return xml_root(begin) == root and any(mark in begin.decode("latin-1").upper() for mark in marks)

    return _clinical(name, what, reader, detects, endings)


WFDB = FileFormat(
    "WFDB",
    "a WFDB record",
    read_wfdb,
    lambda begin, path: path.suffix == ".hea",
    (".hea",),
    True,
    HEADER_BYTES,
    in_slices=True,
)
"""Recognised by the ending of the header; its signal files may have any name."""


def _table(name: str, what: str, kind: str, endings: tuple[str, ...]) -> FileFormat:
    def read(path: Path) -> Recording:
        recording: Recording = getattr(import_module(_TABLE_FILES), f"read_{kind}")(path)
        return recording

    def detects(begin: bytes, path: Path) -> bool:
        # imported here, because Arrow is not needed for other files
        return ending_of(path) in endings and getattr(import_module(_TABLE_FILES), f"is_{kind}_recording")(path)

    return FileFormat(
        name, what, read, detects, endings, largest=TEXT_BYTES, is_table=True, in_slices=kind == "parquet"
    )


_TABLE_FILES = "heartlm.formats.table_files"


FORMATS: tuple[FileFormat, ...] = (
    FileFormat(
        "EDF, EDF+, BDF",
        "an EDF file",
        read_edf,
        lambda begin, path: begin.startswith((b"0       ", b"\xffBIOSEMI")),
        (".edf", ".bdf"),
        by_ending=True,
        in_slices=True,
    ),
    FileFormat(
        "ISHNE Holter",
        "an ISHNE Holter file",
        read_ishne,
        lambda begin, path: begin.startswith(b"ISHNE1.0"),
        (".ecg", ".hol"),
        in_slices=True,
    ),
    _clinical(
        "DICOM waveform",
        "a DICOM waveform",
        read_dicom,
        lambda begin, path: begin[128:132] == b"DICM" and _DICOM_WAVEFORMS in begin,
        (".dcm", ".dicom"),
        packages=("ecgdatakit", "pydicom"),
    ),
    _clinical("SCP-ECG", "an SCP-ECG file", read_scp, _is_scp, (".scp",), True),
    _xml("HL7 aECG", "an HL7 annotated ECG", "AnnotatedECG", "hl7_aecg.HL7aECGParser", (".xml", ".aecg")),
    _xml("GE MUSE XML", "an ECG of GE MUSE", "RestingECG", "ge_muse_xml.GEMuseXMLParser"),
    _xml("GE CardioSoft XML", "an ECG of GE CardioSoft or MAC 2000", "CardiologyXML", read_cardiosoft),
    _xml("Philips Sierra XML", "a Philips ECG", "restingecgdata", read_sierra),
    _xml("Mortara ELI XML", "a Mortara ECG", "ECG", "mortara_el250.MortaraEL250Parser", marks=_MORTARA),
    _clinical(
        "MFER",
        "an MFER file",
        read_mfer,
        lambda begin, path: begin[:1] == b"@" and begin[2:6] == b"MFR ",
        (".mwf", ".mfer", ".mfr"),
        True,
    ),
    _clinical(
        "AliveCor Kardia JSON",
        "a recording of AliveCor Kardia",
        "alivecor_kardia.AliveCorKardiaParser",
        lambda begin, path: begin.lstrip()[:1] == b"{" and len(set(_KARDIA.findall(begin))) > 1,
        (".json",),
    ),
    FileFormat("Movesense JSON", "a log of Movesense", read_movesense, is_movesense, (".json",), largest=TEXT_BYTES),
    FileFormat("Fitbit JSON", "an export of Fitbit", read_fitbit, is_fitbit, (".json",), largest=TEXT_BYTES),
    FileFormat(
        "Polar Recorder JSON",
        "a recording of Polar Recorder",
        read_polar_recorder,
        is_polar_recorder,
        (".jsonl", ".json"),
        largest=TEXT_BYTES,
    ),
    FileFormat(
        "AliveCor ATC",
        "an ATC file of AliveCor",
        read_atc,
        lambda begin, path: begin.startswith(b"ALIVE\0"),
        (".atc",),
        by_ending=True,
        largest=TEXT_BYTES,
    ),
    FileFormat(
        "LabChart text",
        "a text of LabChart",
        read_labchart,
        is_labchart,
        (),
        largest=TEXT_BYTES,
        is_table=True,
    ),
    _table("CSV, text", "a table of samples", "text", (".csv", ".tsv", ".tab", ".txt")),
    _table("Parquet", "a Parquet file of samples", "parquet", (".parquet",)),
    _table("MATLAB 5, 7.3, HDF5", "a MATLAB or HDF5 file", "matlab", (".mat", ".h5", ".hdf5")),
    FileFormat(
        "NumPy",
        "a NumPy array of samples",
        read_numpy,
        lambda begin, path: ending_of(path) == ".npy" and is_array_recording(path),
        (".npy",),
        is_table=True,
        in_slices=True,
    ),
)
"""The formats with one file per recording, in the order in which they are tried."""


def format_of(path: Path, *, is_given: bool = False) -> FileFormat | None:
    """Return the format of a file; None if it is none of `FORMATS`.

    Args:
        path: path of the file.
        is_given: whether the file is known to be a recording, so that its ending decides where its content does not.
    """
    begin, ending = first_bytes(path, BEGIN_BYTES), ending_of(path)
    if begin is not None and (detected := next((form for form in FORMATS if form.detects(begin, path)), None)):
        return detected
    # the reader then reports why the file cannot be opened or what is wrong with it
    is_packed = path.suffix.lower() == ".gz"
    by_ending = (form for form in FORMATS if ending in form.endings and (form.is_table or not is_packed))
    if begin is None:
        return next(by_ending, None) if ending not in (*_SHARED, *_TEXTS) else None
    is_known = is_given and ending not in (*_SHARED, ".xml")
    return next((form for form in by_ending if is_known or form.by_ending), None)


# Endings that are usual for other files too.
_SHARED = (".ecg", ".json")
# Endings of any text.
_TEXTS = (".txt", ".tab")
