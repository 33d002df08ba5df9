"""EDF and EDF+ files, read with the `edfio` package. Reading a slice does not read the whole file.

An EDF file may contain signals of several rates (for example a polysomnogram). A `Recording` has the rate of the ECG:
leads at other rates are left out, and the recording's comments name them.

Format: Kemp et al., Electroencephalogr. Clin. Neurophysiol. 82:391-393, 1992; https://www.edfplus.info/specs.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from heartlm.ecg.readers.foreign import check_calibration, check_rate, to_millivolts
from heartlm.ecg.recording import Recording
from heartlm.errors import HeartlmError, needs


def read_edf(path: Path) -> Recording:
    """Open an EDF file; samples are read lazily.

    Raises:
        HeartlmError: the file is not EDF, is truncated or discontinuous (EDF+D), or `edfio` is not installed.
    """
    with needs("edf"):
        import edfio
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the package only warns about a truncated file
        edf = edfio.read_edf(path, lazy_load_data=True, header_encoding="latin-1")
        if not edf.is_continuous:
            raise HeartlmError(f"{path}: is discontinuous (EDF+D), which heartlm does not read; export it as EDF+C")
    if not edf.signals:
        raise HeartlmError(f"{path}: holds no signals, only annotations")
    # the rate of the leads labelled ECG; without such a label the most common rate, and the highest of equals
    named = [signal for signal in edf.signals if signal.label.upper().startswith(("ECG", "EKG"))]
    rates = Counter(float(signal.sampling_frequency) for signal in named or edf.signals)
    rate_hz = max(rates, key=lambda rate: (rates[rate], rate))
    leads = [signal for signal in edf.signals if signal.sampling_frequency == rate_hz]
    units, factors = zip(*(to_millivolts(lead.physical_dimension) for lead in leads), strict=True)
    low, high, physical_low, physical_high = (
        np.array([getattr(lead, name) for lead in leads], np.float64)
        for name in ("digital_min", "digital_max", "physical_min", "physical_max")
    )
    known = (low != high) & (physical_low != physical_high)
    gain = np.divide(high - low, physical_high - physical_low, out=np.full(len(leads), np.nan), where=known)
    names = tuple(lead.label for lead in leads)
    check_calibration(path, names, units, gain / np.array(factors), low - gain * physical_low, inverted=True)

    def samples(start: int, stop: int, chosen: Sequence[int]) -> NDArray[np.float32]:
        rows = np.empty((len(chosen), stop - start), np.float32)
        for row, lead in zip(rows, chosen, strict=True):
            if not known[lead]:
                raise HeartlmError(
                    f"{path}: lead {names[lead]} states no physical or digital range, so its values are unknown"
                )
            if stop > start:
                row[:] = leads[lead].get_data_slice(start / rate_hz, stop / rate_hz) * factors[lead]
        return rows

    return Recording(
        rate_hz=check_rate(path, rate_hz),
        num_samples=int(edf.num_data_records * leads[0].samples_per_data_record),
        lead_names=names,
        units=units,
        path=path,
        comments=tuple(
            f"left out: {signal.label} at {signal.sampling_frequency:g} Hz, not the ECG's {rate_hz:g} Hz"
            for signal in edf.signals
            if signal.sampling_frequency != rate_hz
        ),
        samples=samples,
    )
