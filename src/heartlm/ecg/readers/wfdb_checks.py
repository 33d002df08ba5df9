"""Does a WFDB header fit its signal files: lengths, calibration, checksums."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from heartlm.ecg.readers import wfdb_package
from heartlm.ecg.readers.foreign import is_there, open_file, size_of
from heartlm.ecg.readers.wfdb_files import GROUP, SignalFile
from heartlm.ecg.readers.wfdb_header import Header
from heartlm.errors import HeartlmError
from heartlm.kernels.wfdb import adu_type, decode

_FLAC_FORMATS = ("508", "516", "524")
_MATLAB_INT16 = 30


class Checksum(NamedTuple):
    """The 16-bit sum of a lead's samples: as the header states it (None where it does not), and as computed."""

    lead: str
    stated: int | None
    computed: int

    @property
    def fault(self) -> str | None:
        """What is wrong, in words; None where nothing is stated or it holds."""
        if self.stated is None or self.stated == self.computed:
            return None
        return f"lead {self.lead}: the header's checksum is {self.stated}, its samples sum to {self.computed}"


def check_files(header: Header) -> None:
    """Compare every signal file with the header.

    Raises:
        HeartlmError: a file is missing, too short for the header, or more than a second longer than it says while the
            header's checksum does not vouch for the length.
    """
    for part in header.parts:
        for file in part.files:
            _check_file(header, file, part.num_samples)
    if header.stated_samples is None and header.num_samples == 0:
        raise HeartlmError(
            f"{header.path}: states no length, and its signal files do not tell it; add it to the header"
        )


def _check_file(header: Header, file: SignalFile, num_frames: int) -> None:
    if not is_there(file.path):
        raise HeartlmError(f"{file.path}: signal file named by {header.path.name} is missing; fetch it")
    size_bytes = size_of(file.path)
    if file.path.suffix.lower() == ".mat":
        _check_matlab(file)
    if file.format in _FLAC_FORMATS:
        return  # its length shows when it is decoded
    if file.format not in GROUP:
        raise HeartlmError(f"{header.path}: signal format {file.format} is not one that heartlm reads")
    held = file.num_frames_in(size_bytes)
    lengths = f"{file.path}: holds {held} samples a lead, {header.path.name} says {num_frames}"
    if size_bytes < file.num_bytes(num_frames):
        raise HeartlmError(f"{lengths}; the file is truncated or the header wrong, fetch both again")
    is_long = not header.segment_lines and held - num_frames > header.rate_hz
    if is_long and any(each.stated != each.computed for each in checksums(header)):
        raise HeartlmError(f"{lengths} and its checksum does not fit them; the header is wrong, fetch it again")


def _check_matlab(file: SignalFile) -> None:
    """WFDB reads MATLAB files of level 4 alone, whose samples stand as they are behind the name of the variable."""
    with open_file(file.path) as stream:
        start = stream.read(20) or b""
    if start.startswith((b"MATLAB", b"\x89HDF")):
        raise HeartlmError(
            f"{file.path}: is a MATLAB file of version 5 or 7.3, which keeps its samples compressed; save it with "
            "option -v4, as the CinC challenges do"
        )
    kind, num_rows = np.frombuffer(start[:8].ljust(8, b"\0"), "<i4").tolist()
    if file.byte_offset >= len(start) and (kind != _MATLAB_INT16 or num_rows != file.samples_per_frame):
        raise HeartlmError(
            f"{file.path}: its MATLAB header says type {kind} and {num_rows} rows, expected type {_MATLAB_INT16} "
            f"(16-bit integers) and {file.samples_per_frame} rows, the leads of the WFDB header; fetch both again"
        )


def checksums(header: Header) -> list[Checksum]:
    """The checksum of every lead of a header without segments.

    Raises:
        HeartlmError: a signal file is unreadable.
    """
    computed = dict[int, int]()
    for file in header.files:
        if file.is_decoded:
            sums, columns = np.zeros(len(file.columns), np.uint16), list(file.columns.values())
            for first, last, content, skip in file.frames(0, header.num_samples):
                adu = np.empty((len(columns), last - first), adu_type(file.format))
                decode(content, file.format, file.samples_per_frame, columns, adu, skip, sums=sums)
            computed |= dict(zip(file.columns, sums.tolist(), strict=True))
    if others := [place for place in range(len(header.signals)) if place not in computed]:
        computed |= wfdb_package.sums(header, others)
    return [Checksum(lead.name, lead.checksum, computed[place]) for place, lead in enumerate(header.signals)]


def check_gains(header: Header) -> None:
    """Refuse leads without calibration.

    Raises:
        HeartlmError: a lead's gain is 0 or missing, so its millivolts are unknown.
    """
    for part in header.parts:
        for lead in part.signals:
            if not lead.calibrated:
                raise HeartlmError(
                    f"{part.path}: lead {lead.name} has gain 0 (uncalibrated), so its millivolts are unknown; write "
                    'its adu/mV into the header, or "uncalibrated": true into database.json to assume 200'
                )
