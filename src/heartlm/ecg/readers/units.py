"""Physical units: every voltage becomes millivolts, everything else stays what it is."""

from __future__ import annotations

_MV_PER_UNIT = {"mv": 1.0, "v": 1e3, "uv": 1e-3, "µv": 1e-3, "μv": 1e-3, "nv": 1e-6}


def to_millivolts(unit: str) -> tuple[str, float]:
    """Return the unit that samples in `unit` are given in, and the factor to multiply them by."""
    factor = _MV_PER_UNIT.get(unit.strip().lower())
    return (unit, 1.0) if factor is None else ("mV", factor)
