"""WFDB records: a header and its signal files, read lazily and in slices.

Of the common formats the compiled kernels decode the bytes of the slice that is asked for, and the leads; the `wfdb`
package, which takes long to import, reads the rare ones alone. CinC challenge `.mat` files are WFDB signal files behind
a prefix of 24 bytes, and are read here too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from heartlm.ecg.readers.calibration import check_calibration, to_millivolts
from heartlm.ecg.readers.foreign import HEADER_BYTES, reads
from heartlm.ecg.readers.wfdb_checks import Checksum, check_files, check_gains, checksums
from heartlm.ecg.readers.wfdb_files import SignalFile
from heartlm.ecg.readers.wfdb_header import Header, Signal, read_header
from heartlm.ecg.readers.wfdb_package import read_physical
from heartlm.ecg.recording import Recording
from heartlm.kernels.wfdb import decode


@reads("a WFDB record", HEADER_BYTES)
def read_wfdb(path: Path, *, accept_uncalibrated: bool = False) -> Recording:
    """Open the record whose header is `path`; samples are read when asked for.

    Args:
        path: the `.hea` file.
        accept_uncalibrated: read leads of gain 0 with the 200 adu/mV that the WFDB library assumes, not refuse them.

    Raises:
        HeartlmError: the header is missing, malformed or contradicts itself.
    """
    header = read_header(path)
    for part in (header, *header.segments):
        _calibration(part.path, part.signals)
    units, calibration = _calibration(path, header.leads)
    faults: list[str] = []
    return Recording(
        record_id=path.stem,
        patient_id=path.stem,
        database="",
        rate_hz=header.rate_hz,
        num_samples=header.num_samples,
        lead_names=tuple(lead.name for lead in header.leads),
        units=units,
        gain=calibration[:, 1] / calibration[:, 2],
        baseline=calibration[:, 0],
        path=path,
        comments=header.comments,
        samples=_Samples(header, calibration, accept_uncalibrated, faults) if header.leads else None,
        faults=faults,
    )


def _calibration(path: Path, leads: Sequence[Signal]) -> tuple[tuple[str, ...], NDArray[np.float64]]:
    """Units of the leads, voltages in mV, and their baseline, gain and factor to those, `[num_leads, 3]`."""
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
    """Reads slices; the files are checked against the header once, before the first.

    `calibration` is baseline, gain and factor to millivolts of each lead, `[num_leads, 3]`. Leads whose samples, read
    whole, do not sum to the header's checksum are noted in `faults`.
    """

    header: Header
    calibration: NDArray[np.float64]
    accept_uncalibrated: bool
    faults: list[str]

    def __call__(self, start: int, stop: int, leads: Sequence[int]) -> NDArray[np.float32]:
        self._checked  # noqa: B018
        signal = np.empty((len(leads), stop - start), np.float32)
        rows_of: dict[tuple[int | None, int], list[int]] = {}
        for row, lead in enumerate(leads):
            rows_of.setdefault(self._source_of[lead], []).append(row)
        for (file, skew), rows in rows_of.items():
            own = [leads[row] for row in rows]
            part = signal if len(rows) == len(leads) else np.empty((len(rows), stop - start), np.float32)
            valid = max(0, min(stop, self.header.num_samples - skew) - start)
            part[:, valid:] = np.nan
            if valid and file is None:
                physical = read_physical(self.header, start + skew, start + skew + valid, own)
                part[:, :valid] = physical * self.calibration[own, 2:]
                if stop - start == self.header.num_samples:
                    self._compared  # noqa: B018
            elif valid and file is not None:
                self._decode(self.header.files[file], start + skew, own, part[:, :valid])
            if part is not signal:
                signal[rows] = part
        return signal

    def _decode(self, file: SignalFile, start: int, leads: list[int], out: NDArray[np.float32]) -> None:
        columns, calibration = [file.columns[lead] for lead in leads], self.calibration[leads]
        sums = np.zeros(len(leads), np.uint16) if out.shape[1] == self.header.num_samples else None
        for first, last, content, skip in file.frames(start, start + out.shape[1]):
            part = out[:, first - start : last - start]
            decode(content, file.format, file.samples_per_frame, columns, part, skip, calibration, sums)
        if sums is not None:
            for lead, total in zip(leads, sums.tolist(), strict=True):
                signal = self.header.signals[lead]
                self._note(Checksum(signal.name, signal.checksum, total))

    def _note(self, checksum: Checksum, where: str = "") -> None:
        # Programs that compute no checksum write 0, so that alone does not make samples suspect.
        if checksum.stated and checksum.fault and (fault := where + checksum.fault) not in self.faults:
            self.faults.append(fault)

    @cached_property
    def _compared(self) -> bool:
        """Sums what the package reads, once: it does not sum while it reads."""
        for part in self.header.parts:
            for checksum in checksums(part):
                self._note(checksum, f"{part.path.name}: " if self.header.segment_lines else "")
        return True

    @cached_property
    def _checked(self) -> bool:
        check_files(self.header)
        if not self.accept_uncalibrated:
            check_gains(self.header)
        return True

    @cached_property
    def _source_of(self) -> list[tuple[int | None, int]]:
        """Of each lead the file, None where the package reads it, and by how many frames it stands too late there."""
        if self.header.segment_lines:
            return [(None, 0)] * len(self.header.leads)
        files = [(index, file) for index, file in enumerate(self.header.files) if file.is_decoded]
        file_of = {lead: index for index, file in files for lead in file.columns}
        return [(file_of.get(lead), signal.skew) for lead, signal in enumerate(self.header.signals)]
