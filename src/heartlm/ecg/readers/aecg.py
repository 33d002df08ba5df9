"""HL7 annotated ECG: an XML file with a rhythm series that holds a list of digits for each lead.

A lead's value is `origin + scale * digit`; the time axis is a start and an increment. Derived series (median beats) are
not recordings and are not read.

Format: HL7 v3 Annotated ECG, ANSI/HL7 V3 ECG R1-2004; Brown and Badilini, HL7 aECG Implementation Guide, 2005.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from heartlm.ecg.readers.arrays import array_recording
from heartlm.ecg.readers.foreign import check_calibration, check_rate, first_bytes, to_millivolts
from heartlm.ecg.recording import SEXES, Patient, Recording
from heartlm.errors import HeartlmError

_NAMESPACE = "urn:hl7-org:v3"
_DEFAULT = {"": _NAMESPACE}
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
    series = root.findall("component/series", _DEFAULT)
    if root.tag != f"{{{_NAMESPACE}}}AnnotatedECG" or len(series) != 1:
        raise HeartlmError(f"{path}: expected an HL7 AnnotatedECG of one series, found {root.tag} of {len(series)}")
    begin = series[0].find("effectiveTime/low", _DEFAULT)
    increment_s, names, units, signals = 0.0, list[str](), list[str](), list[NDArray[np.float64]]()
    for sequence in series[0].iterfind("component/sequenceSet/component/sequence", _DEFAULT):
        code, value = sequence.find("code", _DEFAULT), sequence.find("value", _DEFAULT)
        name = "" if code is None else code.get("code", "")
        if value is None:
            continue
        if name.startswith("TIME_"):
            number, unit = _quantity(value, "increment")
            increment_s = number * _SECONDS_PER_UNIT.get(unit, float("nan"))
            if name == "TIME_ABSOLUTE":
                begin = value.find("head", _DEFAULT)
            continue
        (origin, unit), (scale, scale_unit) = _quantity(value, "origin"), _quantity(value, "scale")
        if unit != scale_unit or scale == 0:
            raise HeartlmError(f"{path}: {name} has origin in {unit!r} and a scale of {scale:g} {scale_unit!r}")
        names.append(re.sub(r"^MDC_ECG_LEAD_", "", name))
        units.append(unit)
        converted, factor = to_millivolts(unit)
        gain, baseline = np.array([1 / (scale * factor)]), np.array([-origin / scale])
        check_calibration(path, names[-1:], [converted], gain, baseline, inverted=True)
        digits = np.array((value.findtext("digits", "", _DEFAULT)).split(), np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            signals.append(origin + scale * digits)
    if not signals or not increment_s > 0:
        raise HeartlmError(f"{path}: the annotated ECG holds no {'lead' if not signals else 'time increment'}")
    lengths = {len(signal) for signal in signals}
    if len(lengths) > 1:
        raise HeartlmError(f"{path}: leads differ in length ({', '.join(map(str, sorted(lengths)))} samples)")
    recording = array_recording(path, np.stack(signals), names, units, check_rate(path, round(1 / increment_s, 9)))
    start = None if begin is None else _moment(begin.get("value", ""))
    return replace(recording, start=start, patient=_patient(root))


def _moment(text: str) -> datetime | None:
    """Return an HL7 time as `20021122091000.000-0500`, without its zone; None if it is less precise than seconds."""
    stated = re.fullmatch(r"(\d{14})(?:\.(\d{1,6})\d*)?(?:[-+]\d{4})?", text)
    with suppress(ValueError):
        if stated is not None:
            moment = datetime.strptime(stated[1], "%Y%m%d%H%M%S")
            return moment.replace(microsecond=int((stated[2] or "0").ljust(6, "0")))
    return None


def _patient(root: ElementTree.Element) -> Patient:
    """Return the data of the trial subject."""
    subject = root.find("componentOf/timepointEvent/componentOf/subjectAssignment/subject/trialSubject", _DEFAULT)
    if subject is None:
        return Patient()

    def value(place: str, attribute: str) -> str:
        element = subject.find(place, _DEFAULT)
        return "" if element is None else element.get(attribute, "")

    person = "subjectDemographicPerson"
    name, born = subject.find(f"{person}/name", _DEFAULT), None
    with suppress(ValueError):
        born = datetime.strptime(value(f"{person}/birthTime", "value")[:8].ljust(8), "%Y%m%d").date()
    return Patient(
        "" if name is None else " ".join("".join(name.itertext()).split()),
        value("id", "extension"),
        SEXES.get(value(f"{person}/administrativeGenderCode", "code").lower(), ""),
        born,
    )


def _quantity(value: ElementTree.Element, name: str) -> tuple[float, str]:
    element = value.find(name, _DEFAULT)
    if element is None:
        raise ValueError(f"a sequence has no {name}")
    return float(element.attrib["value"]), element.get("unit", "")
