"""HL7 annotated ECG: an XML file with a rhythm series that holds a list of digits for each lead.

A lead's value is `origin + scale * digit`; the time axis is a start and an increment. Derived series (median beats) are
not recordings and are not read.

Format: HL7 v3 Annotated ECG, ANSI/HL7 V3 ECG R1-2004; Brown and Badilini, HL7 aECG Implementation Guide, 2005.
"""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from heartlm.ecg.readers.foreign import (
    check_calibration,
    check_rate,
    first_bytes,
    to_millivolts,
    without_infinities,
)
from heartlm.ecg.recording import Recording
from heartlm.errors import HeartlmError

_NAMESPACE = "{urn:hl7-org:v3}"
_SECONDS_PER_UNIT = {"s": 1.0, "ms": 1e-3, "us": 1e-6}


def is_aecg(path: Path) -> bool:
    """Return whether an XML file is an annotated ECG, by its root element."""
    begin = first_bytes(path, 4096)
    return begin is None or b"<AnnotatedECG" in begin  # the reader then reports the error


def read_aecg(path: Path) -> Recording:
    """Read an annotated ECG with one series.

    Raises:
        HeartlmError: the file is not well-formed, has no lead or several series, or its leads differ in length.
    """
    root = ElementTree.parse(path).getroot()
    series = root.findall(_path("component/series"))
    if root.tag != f"{_NAMESPACE}AnnotatedECG" or len(series) != 1:
        raise HeartlmError(f"{path}: expected an HL7 AnnotatedECG of one series, found {root.tag} of {len(series)}")
    increment_s = 0.0
    names: list[str] = []
    units: list[str] = []
    gain: list[float] = []
    baseline: list[float] = []
    signals: list[NDArray[np.float32]] = []
    for sequence in series[0].iterfind(_path("component/sequenceSet/component/sequence")):
        code = sequence.find(_path("code"))
        name = "" if code is None else code.get("code", "")
        value = sequence.find(_path("value"))
        if value is None:
            continue
        if name.startswith("TIME_"):
            number, unit = _quantity(value, "increment")
            increment_s = number * _SECONDS_PER_UNIT.get(unit, float("nan"))
            continue
        (origin, unit), (scale, scale_unit) = _quantity(value, "origin"), _quantity(value, "scale")
        if unit != scale_unit or scale == 0:
            raise HeartlmError(f"{path}: {name} has origin in {unit!r} and a scale of {scale:g} {scale_unit!r}")
        unit, factor = to_millivolts(unit)
        names.append(re.sub(r"^MDC_ECG_LEAD_", "", name))
        units.append(unit)
        gain.append(1 / (scale * factor))
        baseline.append(-origin / scale)
        digits = np.array((value.findtext(_path("digits")) or "").split(), np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            signals.append(((origin + scale * digits) * factor).astype(np.float32))
    if not signals or not increment_s > 0:
        raise HeartlmError(f"{path}: the annotated ECG holds no {'lead' if not signals else 'time increment'}")
    lengths = {len(signal) for signal in signals}
    if len(lengths) > 1:
        raise HeartlmError(f"{path}: leads differ in length ({', '.join(map(str, sorted(lengths)))} samples)")
    faults: list[str] = []
    whole = without_infinities(np.stack(signals), names, faults)
    check_calibration(path, names, units, np.array(gain), np.array(baseline), inverted=True)
    return Recording(
        rate_hz=check_rate(path, round(1 / increment_s, 9)),
        num_samples=whole.shape[1],
        lead_names=tuple(names),
        units=tuple(units),
        path=path,
        samples=lambda start, stop, leads: whole[list(leads), start:stop],
        faults=faults,
    )


def _path(names: str) -> str:
    return "/".join(_NAMESPACE + name for name in names.split("/"))


def _quantity(value: ElementTree.Element, name: str) -> tuple[float, str]:
    element = value.find(_path(name))
    if element is None:
        raise ValueError(f"a sequence has no {name}")
    return float(element.attrib["value"]), element.get("unit", "")
