"""WFDB records: a header and its signal files, checked against each other, read lazily and in slices.

For common formats the compiled kernels decode only the requested slice and leads. The `wfdb` package, an extra that is
slow to import, reads rare formats and records of several segments. CinC challenge `.mat` files, which are WFDB signal
files with a prefix of 24 bytes, are also supported.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heartlm.ecg.leads import is_ecg_name
from heartlm.ecg.recording import SEXES, Patient, Recording
from heartlm.errors import HeartlmError
from heartlm.formats.interpolate import interpolate
from heartlm.formats.plausible import check_calibration, check_rate, to_millivolts
from heartlm.formats.stated import Stated
from heartlm.formats.wfdb_header import FLAC, GROUP, Signal, SignalFile, WfdbHeader, adu_type, decode, read_header
from heartlm.storage.foreign import HEADER_BYTES, first_bytes, is_there, local_copy, one_line, read_bytes
from heartlm.storage.limits import check_samples

_MATLAB_INT16 = 30
# Calibration of a lead whose samples are returned as integers.
_INTEGERS: dict[str, Any] = {"gain": 1.0, "baseline": 0.0, "unit": "adu", "calibrated": True}
_DIFFERENCE_FORMAT = "8"
# Bytes of memory for each sample of a FLAC file.
_FLAC_BYTES = 16

_AGE = r"(\d{1,3})(?:\.0*)?(?: ?(?:y|yr|years?))?"
_MOST_AGE = 120
# Patient data in a comment: `<age>: 71 <sex>: M` (header(5)) or `Sex: female` on a line of its own.
_INFO = re.compile(r"<(age|sex|name|identifier|birth date)>:([^<]*)|^(age|sex|gender):(.*)", re.IGNORECASE)
# First comment of the MIT-BIH databases, `69 M` or `69 M 1085 1629 x1` with numbers of the tape and the recorder.
_AGE_AND_SEX = re.compile(r"(-?\d{1,3})\s+([FM])(?:\s+\d+\s+\S+\s+x\d)?")


def read_wfdb(path: Path, *, accept_uncalibrated: bool = False) -> Recording:
    """Open the record with header `path`; samples are read lazily.

    Args:
        path: path of the `.hea` file.
        accept_uncalibrated: whether to read leads of gain 0 with 200 adu/mV, as the WFDB library does, instead of
            refusing them.

    Raises:
        HeartlmError: the header is missing, malformed or contradictory.
    """
    header = read_header(path)
    if Stated.current().units:  # of the integers of leads without a gain
        signals = [each if each.calibrated else each._replace(**_INTEGERS) for each in header.signals]
        header = replace(header, signals=tuple(signals))
    for part in (header, *header.segments):
        _calibration(part.path, part.signals)
    units, calibration = _calibration(path, header.leads)
    per_frame = _samples_per_frame(header.leads)
    rate_hz, num_samples = check_rate(path, header.rate_hz * per_frame), header.num_samples * per_frame
    check_samples(path, num_samples * max(1, len(header.leads)))
    resampled = [lead.samples_per_frame != per_frame for lead in header.leads]
    faults: list[str] = []
    return Recording(
        rate_hz=rate_hz,
        num_samples=num_samples,
        lead_names=tuple(lead.name for lead in header.leads),
        units=units,
        path=path,
        comments=header.comments,
        start=header.start,
        patient=patient_in(header.comments),
        samples=_Samples(header, per_frame, calibration, accept_uncalibrated, faults) if header.leads else None,
        faults=faults,
        repairs=tuple(
            f"lead {lead.name}: resampled from {lead.samples_per_frame * header.rate_hz:g} Hz to {rate_hz:g} Hz"
            for lead, is_other in zip(header.leads, resampled, strict=True)
            if is_other
        ),
        steps=tuple(
            None if is_other else (gain / factor, zero)
            for is_other, (zero, gain, factor) in zip(resampled, calibration.tolist(), strict=True)
        ),
        ticks_hz=header.rate_hz if per_frame > 1 else None,
    )


def _samples_per_frame(leads: Sequence[Signal]) -> int:
    """Return the samples a frame of the recording: those of the ECG lead that has most of them."""
    named = [lead for lead in leads if is_ecg_name(lead.name)]
    volts = [lead for lead in leads if to_millivolts(lead.unit)[0] == "mV" and is_ecg_name(lead.name) is not False]
    return max((lead.samples_per_frame for lead in named or volts or leads), default=1)


def patient_in(comments: Sequence[str]) -> Patient:
    """Return patient data as comments state them in one of the usual forms; anything else is not interpreted."""
    stated = dict[str, str]()
    if comments and (both := _AGE_AND_SEX.fullmatch(comments[0])):
        stated = {"age": both[1], "sex": both[2]}
    for comment in comments:
        for bracketed, value, name, rest in _INFO.findall(comment):
            key = (bracketed or name).lower()
            stated["sex" if key == "gender" else key] = (value or rest).strip()
    years, born = re.fullmatch(_AGE, stated.get("age", ""), re.IGNORECASE), None
    known = years is not None and int(years[1]) <= _MOST_AGE  # databases write 300 to hide a high age
    with suppress(ValueError):
        born = date.fromisoformat(stated.get("birth date", ""))
    return Patient(
        stated.get("name", ""),
        stated.get("identifier", ""),
        SEXES.get(stated.get("sex", "").lower(), ""),
        born,
        int(years[1]) if years and known else None,
    )


def _calibration(path: Path, leads: Sequence[Signal]) -> tuple[tuple[str, ...], NDArray[np.float64]]:
    """Return the units of the leads, and their baseline, gain and conversion factor, `[num_leads, 3]`."""
    units = [to_millivolts(lead.unit) for lead in leads]
    calibration = np.array(
        [(lead.baseline, lead.gain, factor) for lead, (_, factor) in zip(leads, units, strict=True)], np.float64
    ).reshape(-1, 3)
    names = tuple(unit for unit, _ in units)
    gain = calibration[:, 1] / calibration[:, 2]
    check_calibration(path, [lead.name for lead in leads], names, gain, calibration[:, 0])
    return names, calibration


@dataclass(frozen=True)
class _Samples:
    """Read slices of samples; before the first one, check the files against the header.

    `per_frame` is the number of samples a frame of the recording; leads with another number are resampled.
    `calibration` holds baseline, gain and conversion factor to mV of each lead, `[num_leads, 3]`. A lead that is read
    completely and does not match the header's checksum is added to `faults`.
    """

    header: WfdbHeader
    per_frame: int
    calibration: NDArray[np.float64]
    accept_uncalibrated: bool
    faults: list[str]

    def __call__(self, start: int, stop: int, leads: Sequence[int]) -> NDArray[np.float32]:
        self._checked  # noqa: B018
        signal = np.empty((len(leads), stop - start), np.float32)
        rows_of: dict[tuple[int | None, int, int], list[int]] = {}
        for row, lead in enumerate(leads):
            rows_of.setdefault(self._source_of[lead], []).append(row)
        for (file, skew, own), rows in rows_of.items():
            file_leads = [leads[row] for row in rows]
            part = signal if len(rows) == len(leads) else np.empty((len(rows), stop - start), np.float32)
            valid = max(0, min(stop, (self.header.num_samples - skew) * self.per_frame) - start)
            part[:, valid:] = np.nan
            if valid and own == self.per_frame:
                self._read(file, file_leads, skew, own, start, part[:, :valid])
            elif valid:
                layout = own, (self.header.num_samples - skew) * own, self.per_frame
                for lead, samples in zip(file_leads, part, strict=True):

                    def read(low: int, values: NDArray[np.float32], lead: int = lead) -> None:
                        self._read(file, [lead], skew, own, low, values[np.newaxis])  # noqa: B023

                    interpolate(read, layout, start, samples[:valid])
            if part is not signal:
                signal[rows] = part
        return signal

    def _read(
        self, file: int | None, leads: list[int], skew: int, own: int, start: int, out: NDArray[np.float32]
    ) -> None:
        """Fill `out` with samples of leads from `start`, both at their own rate of `own` samples a frame."""
        is_whole = out.shape[1] == self.header.num_samples * own
        if file is None:
            first, last = start // own + skew, -(-(start + out.shape[1]) // own) + skew
            physical = _read_by_package(self.header, first, last, leads)
            begin = start - (first - skew) * own
            out[:] = physical[:, begin : begin + out.shape[1]] * self.calibration[leads, 2:]
            if is_whole:
                self._compared  # noqa: B018
            return
        sums = np.zeros(len(leads), np.uint16) if is_whole else None
        self.header.files[file].read(start + skew * own, leads, self.calibration[leads], out, sums)
        if sums is not None:
            for lead, total in zip(leads, sums.tolist(), strict=True):
                self._compare(self.header.signals[lead], total)

    def _compare(self, signal: Signal, total: int, where: str = "") -> None:
        # Programs that compute no checksum write 0, so that alone does not make samples suspect.
        fault = f"{where}lead {signal.name}: the header's checksum is {signal.checksum}, its samples sum to {total}"
        if signal.checksum and signal.checksum != total and fault not in self.faults:
            self.faults.append(fault)

    @cached_property
    def _compared(self) -> bool:
        """Compare the checksums of leads that the package reads, once, because it computes none while reading."""
        for part in self.header.parts:
            where = f"{part.path.name}: " if self.header.segment_lines else ""
            for signal, total in zip(part.signals, sums_of(part), strict=True):
                self._compare(signal, total, where)
        return True

    @cached_property
    def _checked(self) -> bool:
        header = self.header
        for part in header.parts:
            for file in part.files:
                _check_file(header, file, part.num_samples)
        if header.stated_samples is None and header.num_samples == 0:
            raise HeartlmError(
                f"{header.path}: states no length, and its signal files do not tell it; add it to the header"
            )
        for part in () if self.accept_uncalibrated else header.parts:
            if unknown := [lead.name for lead in part.signals if not lead.calibrated]:
                raise HeartlmError(
                    f"{part.path}: lead {unknown[0]} has gain 0 (uncalibrated), so its millivolts are unknown; write "
                    'its adu/mV into the header, give --units, for example 200/mV, or write "uncalibrated": true into '
                    "database.json to assume that"
                )
        return True

    @cached_property
    def _source_of(self) -> list[tuple[int | None, int, int]]:
        """Index of each lead's file (None if the package reads it), its skew in frames, its samples a frame."""
        if self.header.segment_lines:
            return [(None, 0, lead.samples_per_frame) for lead in self.header.leads]
        files = [(index, file) for index, file in enumerate(self.header.files) if file.is_decoded]
        file_of = {lead: index for index, file in files for lead in file.columns}
        return [
            (file_of.get(lead), signal.skew, signal.samples_per_frame)
            for lead, signal in enumerate(self.header.signals)
        ]


def _check_file(header: WfdbHeader, file: SignalFile, num_frames: int) -> None:
    """Compare a signal file with the header.

    Raises:
        HeartlmError: the file is missing, shorter than the header states, or more than one second longer without a
            checksum in the header that confirms the length.
    """
    if not is_there(file.path):
        raise HeartlmError(f"{file.path}: signal file named by {header.path.name} is missing; fetch it")
    size_bytes = file.size_bytes()
    if not file.is_decoded and file.unpacked is not None:
        raise HeartlmError(f"{file.path}: is compressed and of format {file.format}; unpack it")
    if file.path.suffix.lower() == ".mat":
        _check_matlab(file)
    if file.format in FLAC:
        # the length is checked on decoding, which needs memory for all samples of the file
        check_samples(file.path, num_frames * file.samples_per_frame, size_bytes, held_bytes=_FLAC_BYTES)
        return
    if file.format not in GROUP:
        raise HeartlmError(f"{header.path}: signal format {file.format} is not one that heartlm reads")
    held = file.num_frames_in(size_bytes)
    lengths = f"{file.path}: holds {held} samples a lead, {header.path.name} says {num_frames}"
    if size_bytes < file.num_bytes(num_frames):
        raise HeartlmError(f"{lengths}; the file is truncated or the header wrong, fetch both again")
    is_long = not header.segment_lines and held - num_frames > header.rate_hz
    if is_long and [signal.checksum for signal in header.signals] != sums_of(header):
        raise HeartlmError(f"{lengths} and its checksum does not fit them; the header is wrong, fetch it again")


def _check_matlab(file: SignalFile) -> None:
    """Check that a MATLAB file is level 4, the only level WFDB reads: raw samples after the name of the variable."""
    start = first_bytes(file.path, 20) or b""
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


def sums_of(header: WfdbHeader) -> list[int]:
    """Return the sum modulo 65536 of all samples of each lead, for a header without segments.

    Raises:
        HeartlmError: a signal file is unreadable.
    """
    computed = dict[int, int]()
    for file in header.files:
        if file.is_decoded:
            columns = file.samples_of(list(file.columns))
            sums = np.zeros(len(columns), np.uint16)
            for first, last, content, skip in file.frames(0, header.num_samples):
                adu = np.empty((len(columns), last - first), adu_type(file.format))
                decode(content, file.format, file.samples_per_frame, columns, adu, skip, sums=sums)
            edges = np.cumsum([0, *file.own_samples.values()])[:-1]
            totals = np.add.reduceat(sums, edges, dtype=np.uint16)
            computed |= dict(zip(file.columns, totals.tolist(), strict=True))
    if others := [place for place in range(len(header.signals)) if place not in computed]:
        # what checksums of headers count: whole numbers, all samples of a frame, not shifted by skews
        how = {"physical": False, "smooth_frames": False, "ignore_skew": True, "return_res": 32}
        signals = _rdrecord(header, channels=others, **how).e_d_signal
        for place, signal in zip(others, signals, strict=True):
            computed[place] = int(np.sum(signal, dtype=np.int64)) % 65536
    return [computed[place] for place in range(len(header.signals))]


def _read_by_package(header: WfdbHeader, start: int, stop: int, leads: Sequence[int]) -> NDArray[np.float64]:
    """Read frames `start` to `stop` of `leads` in their units, ignoring skew, NaN where invalid.

    The leads have equal numbers of samples a frame. Format 8 stores differences and is read from the start.

    Returns:
        `[num_leads, num_samples]`.

    Raises:
        HeartlmError: the package cannot read the record.
    """
    first = 0 if any(signal.format == _DIFFERENCE_FORMAT for part in header.parts for signal in part.signals) else start
    distinct, own = sorted(set(leads)), header.leads[leads[0]].samples_per_frame
    how = {"sampfrom": first, "sampto": stop, "channels": distinct, "ignore_skew": True}
    if own == 1:
        physical: NDArray[np.float64] = _rdrecord(header, **how).p_signal.T
    else:
        physical = np.stack(_rdrecord(header, smooth_frames=False, **how).e_p_signal)
    return physical[[distinct.index(lead) for lead in leads], (start - first) * own : (stop - first) * own]


def _rdrecord(header: WfdbHeader, **options: Any) -> Any:
    try:
        import wfdb
    except ModuleNotFoundError:
        raise HeartlmError(
            f"{header.path}: has segments or a rare signal format, which the package wfdb reads: install it with  "
            "pip install 'heartlm[wfdb]'"
        ) from None
    # the package raises anything from IndexError to a codec's own exceptions
    files = {path for part in (header, *header.segments) for path in (part.path, *(each.path for each in part.files))}
    with (
        one_line(header.path, "a WFDB record"),
        local_copy(header.path, *files) as copy,
        TemporaryDirectory() as folder,
    ):
        path = copy.with_suffix("")
        if header.stated_samples is None and not header.segment_lines:
            # The package needs the length: it gets a header that states it, next to links to the signal files.
            text, path = read_bytes(header.path, HEADER_BYTES).decode("latin-1"), Path(folder) / "record"
            for file in header.files:
                link = path.parent / file.path.relative_to(header.path.parent)
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(copy.parent.absolute() / file.path.relative_to(header.path.parent))
            lines = [line for line in map(str.strip, text.splitlines()) if line and not line.startswith("#")]
            lines[0] = f"record {len(header.signals)} {header.rate_hz} {header.num_samples}"
            path.with_suffix(".hea").write_text("\n".join(lines) + "\n", encoding="latin-1")
        return wfdb.rdrecord(str(path), **options)
