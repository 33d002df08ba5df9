"""Check the rates, units and gains that files state for plausibility."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heartlm.errors import HeartlmError
from heartlm.storage.typed import is_number

RATES_HZ = 1e-3, 1e6
"""Plausible sampling rates in Hz: from slower than one value per minute to faster than any ECG amplifier."""
ADU_PER_MV = 1e-3, 1e12
"""Plausible gains of voltages in adu/mV; an almost flat lead scaled to 16 bits has a high gain."""
OTHER_GAINS = 1e-30, 1e30
"""Plausible gains of other quantities, in any unit."""
MOST_MV = 1e5
"""Maximum distance in mV between 0 adu and 0 mV."""

_MV_PER_UNIT = {"mv": 1.0, "v": 1e3, "uv": 1e-3, "µv": 1e-3, "μv": 1e-3, "nv": 1e-6}


def to_millivolts(unit: str) -> tuple[str, float]:
    """Return the unit to which samples in `unit` are converted, and the conversion factor."""
    factor = _MV_PER_UNIT.get(unit.strip().lower())
    return (unit, 1.0) if factor is None else ("mV", factor)


def check_rate(path: Path | str, rate_hz: Any, what: str = "sampling rate") -> float:
    """Return a rate as a float.

    Raises:
        HeartlmError: the rate is not a number or not plausible.
    """
    least, most = RATES_HZ
    if not is_number(rate_hz) or not least <= rate_hz <= most:
        shown = f"{rate_hz:g}" if isinstance(rate_hz, float) else repr(rate_hz)[:40]
        raise HeartlmError(f"{path}: {what} is {shown}, expected samples a second, {least:g} to {most:g}; correct it")
    return float(rate_hz)


def without_infinities(signal: NDArray[np.float32], names: Sequence[str], faults: list[str]) -> NDArray[np.float32]:
    """Replace infinite samples of `[num_leads, num_samples]` by NaN in place, and add their leads to `faults`."""
    infinite = np.isinf(signal)
    for lead in np.flatnonzero(infinite.any(axis=1)).tolist():
        fault = f"lead {names[lead]}: has infinite samples, which are read as invalid"
        if fault not in faults:
            faults.append(fault)
    signal[infinite] = np.nan
    return signal


def check_calibration(
    path: Path,
    names: Sequence[str],
    units: Sequence[str],
    gain: NDArray[np.float64],
    baseline: NDArray[np.float64],
    *,
    inverted: bool = False,
) -> None:
    """Check the calibration of all leads.

    Args:
        path: file that states the calibration.
        names: names of the leads.
        units: units of the leads; voltages are in mV.
        gain: adu per unit, NaN where unknown, `[num_leads]`.
        baseline: adu of physical zero, `[num_leads]`.
        inverted: whether the format allows voltages of negative gain.

    Raises:
        HeartlmError: a gain or a baseline is implausible.
    """
    for name, unit, adu_per_unit, zero in zip(names, units, gain.tolist(), baseline.tolist(), strict=True):
        least, most = ADU_PER_MV if unit == "mV" else OTHER_GAINS
        size = adu_per_unit if unit == "mV" and not inverted else abs(adu_per_unit)
        if not (np.isnan(size) or least <= size <= most):
            raise HeartlmError(
                f"{path}: lead {name} has gain {adu_per_unit:g} adu/{unit}, expected {least:g} to {most:g}; "
                "correct the header"
            )
        if unit == "mV" and not np.isnan(size) and not abs(zero) <= MOST_MV * size:
            raise HeartlmError(
                f"{path}: lead {name} has baseline {zero:g} adu at {adu_per_unit:g} adu/mV, expected at most "
                f"{MOST_MV:g} mV; correct the header"
            )
