"""EDF and EDF+ files, read with the `edfio` package. Reading a slice does not read the whole file.

An EDF file may contain signals of several rates (for example a polysomnogram). A `Recording` has the rate of the ECG:
leads at other rates are left out, and the recording's comments name them.

Format: Kemp et al., Electroencephalogr. Clin. Neurophysiol. 82:391-393, 1992; https://www.edfplus.info/specs.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from datetime import date, datetime, time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from heartlm.ecg.readers.foreign import check_calibration, check_rate, first_bytes, to_millivolts
from heartlm.ecg.recording import SEXES, Patient, Recording
from heartlm.errors import HeartlmError, needs

_MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_PLACEHOLDER = date(1985, 1, 1)
"""Start date of EDF+ files without a known date; `00.00.00` is written too."""


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
        header = (first_bytes(path, 256) or b"").decode("latin-1")
        start = None
        with suppress(ValueError, IndexError):  # the time is not checked on reading
            start = _start(header, edf.starttime)
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
        start=start,
        patient=_patient(header[8:88].strip()),
        samples=samples,
    )


def _start(header: str, clock: time) -> datetime | time | None:
    """Return the start by the first 256 characters of a file and its time of day; None if it is not stated."""
    words, day = header[88:168].split(), _PLACEHOLDER
    if words[:1] == ["Startdate"]:
        day = _date(words[1] if len(words) > 1 else "X") or _PLACEHOLDER
    else:
        with suppress(ValueError):  # the years are 1985 to 2084
            two_digits = datetime.strptime(header[168:176], "%d.%m.%y").date()
            day = two_digits.replace(year=two_digits.year % 100 + (1900 if two_digits.year % 100 >= 85 else 2000))
    if day != _PLACEHOLDER:
        return datetime.combine(day, clock)
    return clock if clock != time() else None  # anonymised files have the placeholder and midnight


def _patient(text: str) -> Patient:
    """Return the subfields of EDF+: code, sex, birth date and name; other text is the identifier as a whole."""
    words = text.split()
    if set(words) <= {"X"}:
        return Patient()
    code, sex, born, name = ("" if word == "X" else word.replace("_", " ") for word in (words + [""] * 4)[:4])
    if len(words) < 4 or sex not in ("F", "M", "") or (born and _date(born) is None):
        return Patient(identifier=text)
    return Patient(name, code, SEXES.get(sex.lower(), ""), _date(born))


def _date(text: str) -> date | None:
    """Return a date of EDF+ such as `02-MAY-1951`; None for other text."""
    with suppress(ValueError):
        day, month, year = text.split("-")
        return date(int(year), _MONTHS.index(month.upper()) + 1, int(day))
    return None
