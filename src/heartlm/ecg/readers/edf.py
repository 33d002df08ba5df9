"""EDF and EDF+ files, read through the `edfio` package: a slice costs a slice.

An EDF file may hold signals of several rates (a polysomnogram does). A `Recording` has one, that of the ECG: leads at
another rate are left out, and the recording's comments name them.

Format: Kemp et al., Electroencephalogr. Clin. Neurophysiol. 82:391-393, 1992; https://www.edfplus.info/specs.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heartlm.ecg.readers.foreign import check_calibration, check_rate, reads, to_millivolts
from heartlm.ecg.recording import Recording
from heartlm.errors import HeartlmError, needs


@reads("an EDF file")
def read_edf(path: Path) -> Recording:
    """Open an EDF file; samples are read when asked for.

    Raises:
        HeartlmError: not an EDF file, truncated, discontinuous (EDF+D), or `edfio` is not installed.
    """
    edf = _open(path)
    if not edf.signals:
        raise HeartlmError(f"{path}: holds no signals, only annotations")
    # the rate of the leads that call themselves ECG; where none does, the commonest, of several the highest
    named = [signal for signal in edf.signals if signal.label.upper().startswith(("ECG", "EKG"))]
    rates = Counter(float(signal.sampling_frequency) for signal in named or edf.signals)
    rate_hz = max(rates, key=lambda rate: (rates[rate], rate))
    leads = [signal for signal in edf.signals if signal.sampling_frequency == rate_hz]
    units, factors = zip(*(to_millivolts(lead.physical_dimension) for lead in leads), strict=True)
    gain = np.array([_adu_per_unit(lead) for lead in leads])
    low = np.array([lead.digital_min for lead in leads], np.float64)
    names, baseline = [lead.label for lead in leads], low - gain * np.array([lead.physical_min for lead in leads])
    check_calibration(path, names, units, gain / np.array(factors), baseline, inverted=True)
    return Recording(
        record_id=path.stem,
        patient_id=path.stem,
        database="",
        rate_hz=check_rate(path, rate_hz),
        num_samples=int(edf.num_data_records * leads[0].samples_per_data_record),
        lead_names=tuple(names),
        units=units,
        gain=gain / np.array(factors),
        baseline=baseline,
        path=path,
        comments=tuple(
            f"left out: {signal.label} at {signal.sampling_frequency:g} Hz, not the ECG's {rate_hz:g} Hz"
            for signal in edf.signals
            if signal.sampling_frequency != rate_hz
        ),
        samples=_Samples(path, leads, np.array(factors), gain),
    )


@dataclass(frozen=True)
class _Samples:
    path: Path
    signals: list[Any]
    factors: NDArray[np.float64]
    gain: NDArray[np.float64]

    def __call__(self, start: int, stop: int, leads: Sequence[int]) -> NDArray[np.float32]:
        rows = np.empty((len(leads), stop - start), np.float32)
        for row, lead in enumerate(leads):
            signal = self.signals[lead]
            if not np.isfinite(self.gain[lead]):
                raise HeartlmError(
                    f"{self.path}: lead {signal.label} states no physical or digital range, so its values are unknown"
                )
            rate_hz = signal.sampling_frequency
            if stop > start:
                rows[row] = signal.get_data_slice(start / rate_hz, stop / rate_hz) * self.factors[lead]
        return rows


def _open(path: Path) -> Any:
    with needs("edf"):
        import edfio
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the package only warns of a truncated file
        edf = edfio.read_edf(path, lazy_load_data=True, header_encoding="latin-1")
        continuous = edf.is_continuous
    if not continuous:
        raise HeartlmError(f"{path}: is discontinuous (EDF+D), which heartlm does not read; export it as EDF+C")
    return edf


def _adu_per_unit(signal: Any) -> float:
    physical = float(signal.physical_max) - float(signal.physical_min)
    digital = float(signal.digital_max) - float(signal.digital_min)
    return digital / physical if physical and digital else float("nan")
