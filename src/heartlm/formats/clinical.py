"""ECGs of hospitals: SCP-ECG, DICOM waveforms, HL7 aECG, MFER and the XML exports of carts.

The package `ecgdatakit`, an extra, parses them; this module checks its result and converts it to a `Recording`:

    file ─► parser of the format ─► leads: integers with a resolution ─► leads of one rate in mV ─► Recording

Such files hold seconds to minutes and are read as a whole. The package refuses entities in XML, by which a small file
could expand to a large one.
"""

from __future__ import annotations

import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import date, datetime, time
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from heartlm.ecg.cart import Cart
from heartlm.ecg.derived_leads import STORED, derive_leads
from heartlm.ecg.recording import SEXES, Patient, Recording
from heartlm.errors import HeartlmError
from heartlm.formats.arrays import array_recording
from heartlm.formats.plausible import check_calibration, check_rate, to_millivolts
from heartlm.storage.foreign import TEXT_BYTES, inflates_beyond, read_bytes, size_of
from heartlm.storage.limits import SAMPLES_PER_BYTE, check_samples, most_samples

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

    from ecgdatakit.models import ECGRecord, Lead
    from ecgdatakit.parsing.parser import Parser

# Bytes of memory for each byte of a binary file and of a text, as the package reads them.
_HELD_BYTES, _TEXT_HELD_BYTES = 12, 24
# Elements and attributes of XML, or lists of JSON: each takes some hundred bytes of memory.
_MOST_MARKS = 1 << 22
# Samples that leads of any size may unpack to, some minutes of 16 leads; each takes some fifty bytes of memory.
_XLI_SAMPLES, _LAST_XLI_CODE = 1 << 22, 1022
# Words of the package's warnings about parts of a file that are not used here.
_UNREAD = ("median beat", "representative beat", "rounded to", "birth date")
# Measurement of a cart: its name in the package, in CardioSoft, and the range outside of which it is a placeholder.
_MEASURED = {
    "rate_bpm": ("heart_rate", "VentricularRate", 10, 500),
    "pr_ms": ("pr_interval", "PQInterval", 20, 1000),
    "p_ms": ("p_duration", "PDuration", 10, 500),
    "qrs_ms": ("qrs_duration", "QRSDuration", 10, 500),
    "qt_ms": ("qt_interval", "QTInterval", 100, 1500),
    "qtc_ms": ("qtc_bazett", "QTCInterval", 100, 1500),
    "p_axis_degrees": ("p_axis", "PAxis", -180, 360),
    "axis_degrees": ("qrs_axis", "RAxis", -180, 360),
    "t_axis_degrees": ("t_axis", "TAxis", -180, 360),
}
_MOST_STATEMENTS, _MOST_LETTERS = 100, 300
# Earlier dates and higher ages are placeholders.
_FIRST_YEAR, _MOST_YEARS = 1900, 120
# Relative distance from a whole rate that is taken as rounding: an interval of 0.001953 s is 512 Hz.
_NEAR_WHOLE = 2e-4


def read_with(
    parser: str | type[Parser], path: Path, mend: Callable[[Path, ECGRecord], None] | None = None
) -> Recording:
    """Read a file with a parser of `ecgdatakit`.

    Args:
        parser: module in `ecgdatakit.parsing.parsers` and class in it, or the class.
        path: path of the file.
        mend: changes the parser's result in place.

    Raises:
        HeartlmError: the file has no lead in volts, or a gain or rate is implausible.
        Exception: any exception of the parser, for a file that it cannot read.
    """
    from ecgdatakit.exceptions import ChecksumWarning

    check_content(path)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if isinstance(parser, str):
            module, _, name = parser.rpartition(".")
            parser = getattr(import_module(f"ecgdatakit.parsing.parsers.{module}"), name)
        record: ECGRecord = parser().parse(path)  # type: ignore[operator]
        if mend is not None:
            mend(path, record)
    faults, repairs = list[str](), list[str]()
    for each in caught:
        text = " ".join(str(each.message).split())
        if each.category is ChecksumWarning:
            faults.append(text)
        # pydicom warns about each value that is not quite as the standard says
        elif "pydicom" not in Path(each.filename).parts and not any(word in text for word in _UNREAD):
            repairs.append(text)
    stated, who = record.raw_metadata, record.patient
    start: datetime | time | None = record.recording.date and record.recording.date.replace(tzinfo=None)
    if start is None:
        with suppress(KeyError, ValueError):  # a time of day without a date
            start = time.fromisoformat(stated["acquisition_time"])
    patient = Patient(
        " ".join(f"{who.first_name} {who.last_name}".split()),
        who.patient_id,
        SEXES.get(who.sex.lower(), ""),
        who.birth_date and who.birth_date.date(),
        who.age,
    )
    # `Lead.sampling_rate` is rounded to a whole number; the rates that the file states are in the metadata
    rates = [*stated.get("sampling_rates", []), stated.get("rhythm_time", {}).get("sampling_rate_exact", 0.0)]
    rates += [group["sampling_frequency"] for group in stated.get("multiplex_groups", [])]
    found = {name: getattr(record.measurements, each[0], None) for name, each in _MEASURED.items()}
    read, device = record.interpretation, record.recording.device
    lines = [" ".join(filter(None, map(str, each))) for each in read.statements]
    filters = record.recording.acquisition.filters
    bands = {"highpass_hz": filters.highpass, "lowpass_hz": filters.lowpass}
    bands |= {"notch_hz": None if filters.notch_active is False else filters.notch}
    made_by = " ".join(filter(None, (device.manufacturer, device.model or device.name)))
    cart = _cart(found, lines, read.source, read.interpreter, made_by, bands)
    recording = replace(_recording(path, record.leads, rates, start, patient, repairs, faults), cart=cart)
    # A cart that stores eight leads prints twelve.
    return derive_leads(recording) if set(STORED) <= set(recording.lead_names) else recording


def _cart(
    measured: Mapping[str, float | None],
    statements: Sequence[str],
    source: str = "",
    confirmed_by: str = "",
    device: str = "",
    filters: Mapping[str, float | None] | None = None,
) -> Cart | None:
    """Return what the machine wrote, without placeholders; None if that is nothing."""
    plausible = {
        name: float(value)
        for name, value in measured.items()
        if value is not None and value and _MEASURED[name][2] <= value <= _MEASURED[name][3]
    }

    def plain(text: str) -> str:
        words = "".join(letter if letter.isprintable() else " " for letter in text[:_MOST_LETTERS]).split()
        return " ".join(words)

    lines = [text for each in statements[:_MOST_STATEMENTS] if (text := plain(each))]
    known = {name: float(value) for name, value in (filters or {}).items() if value is not None and 0 < value < 1e4}
    cart = Cart(plausible, tuple(lines), source if lines else "", plain(confirmed_by), plain(device), known)
    return None if cart == Cart() else cart


def _number(text: str | None) -> float | None:
    with suppress(ValueError):
        return float(text or "")
    return None


def check_content(path: Path) -> None:
    """Check that a file fits into memory as the package reads it, as a whole.

    Raises:
        HeartlmError: it does not.
    """
    content = read_bytes(path, TEXT_BYTES)
    is_markup = content[:16].strip(b"\xef\xbb\xbf\xff\xfe\0 \t\r\n")[:1] in (b"<", b"{", b"[")
    check_samples(path, len(content), held_bytes=_TEXT_HELD_BYTES if is_markup else _HELD_BYTES)
    marks = sum(map(content.count, (b"<", b"=", b"[", b"{"))) if is_markup else 0
    if marks > _MOST_MARKS:
        raise HeartlmError(
            f"{path}: has {marks} elements, attributes or lists, at most {_MOST_MARKS} expected; export the ECG alone"
        )


def read_scp(path: Path) -> Recording:
    """Read an SCP-ECG file; see `read_with`. The lengths of its leads are checked before they are allocated."""
    from ecgdatakit.parsing.parsers.scp_ecg import SCPECGParser

    class Limited(SCPECGParser):
        def _decode_leads(self, ctx: Any, sid: int, counts: list[int] | None) -> Any:
            check_samples(path, sum(max(count, 0) for count in counts or ()), len(ctx.data))
            return super()._decode_leads(ctx, sid, counts)

    return read_with(Limited, path)


def read_mfer(path: Path) -> Recording:
    """Read an MFER file; see `read_with`. A frame may state a mebibyte more than it has, so they are added up."""
    from ecgdatakit.parsing.parsers.mfer import MFERParser

    total, file_bytes = 0, size_of(path)

    class Limited(MFERParser):
        @staticmethod
        def _decode_frame(wav: bytes, blks: list[int], dtypes: list[Any], seqs: list[int]) -> Any:
            nonlocal total
            total += len(wav) + sum(size * kind.itemsize for size, kind in zip(blks, dtypes, strict=True))
            check_samples(path, total, file_bytes)
            return MFERParser._decode_frame(wav, blks, dtypes, seqs)

    return read_with(Limited, path)


def read_sierra(path: Path) -> Recording:
    """Read a Philips ECG; see `read_with`. Leads that are compressed as XLI must not unpack beyond all measure."""
    from ecgdatakit.parsing.codecs.xli import xli_decode
    from ecgdatakit.parsing.parsers import sierra_xml

    def limited(data: bytes, labels: list[str] | None = None) -> Any:
        num_samples = _xli_bytes(data) // 2
        if num_samples > max(_XLI_SAMPLES, SAMPLES_PER_BYTE * len(data)):
            raise HeartlmError(f"{path}: {len(data)} bytes of XLI unpack to {num_samples} samples; fetch it again")
        return xli_decode(data, labels)

    # the package has no other place for a check
    sierra_xml.xli_decode = limited  # type: ignore[attr-defined]
    return read_with(sierra_xml.SierraXMLParser, path)


def _xli_bytes(data: bytes) -> int:
    """Return the bytes to which the chunks of XLI unpack: LZW in codes of ten bits, each up to 766 bytes long."""
    total, place, powers = 0, 0, 1 << np.arange(9, -1, -1)
    while place + 8 <= len(data):
        stop = place + 8 + int.from_bytes(data[place : place + 4], "little")
        bits = np.unpackbits(np.frombuffer(data[place + 8 : stop], np.uint8))
        lengths, new, before, place = dict.fromkeys(range(256), 1), 256, 0, stop
        for code in (bits[: len(bits) // 10 * 10].reshape(-1, 10) @ powers).tolist():
            if code > _LAST_XLI_CODE or (code not in lengths and not before):
                break
            length = lengths.setdefault(code, before + 1)
            if before and new <= _LAST_XLI_CODE:
                lengths[new], new = before + 1, new + 1
            total, before = total + length, length
    return total


def read_dicom(path: Path) -> Recording:
    """Read the longest multiplex group of a DICOM waveform in volts that is no median beat; see `read_with`.

    Samples with the padding value are NaN, except if it is 0: programs write 0 as a default, and it is 0 mV too.
    """
    from ecgdatakit.parsing.parsers.dicom_waveform import DICOMWaveformParser

    class Longest(DICOMWaveformParser):
        """The package reads the first group."""

        def _parse_dataset(self, ds: Any, file_path: Path) -> Any:
            if groups := ds.get("WaveformSequence"):
                ds.WaveformSequence = sorted(groups, key=_length_of_group, reverse=True)
            return super()._parse_dataset(ds, file_path)

    _check_deflated(path)
    return read_with(Longest, path, _keep_zeros)


def _length_of_group(group: Any) -> tuple[bool, float, int]:
    """Return whether a group has a channel in volts, its duration in seconds and its number of channels."""
    units = [
        str(item.get("CodeValue", ""))
        for channel in group.get("ChannelDefinitionSequence") or []
        for item in channel.get("ChannelSensitivityUnitsSequence") or []
    ]
    rate_hz = float(group.get("SamplingFrequency") or 0)
    duration_s = float(group.get("NumberOfWaveformSamples") or 0) / rate_hz if rate_hz > 0 else 0.0
    return any(to_millivolts(unit)[0] == "mV" for unit in units), duration_s, len(units)


def _check_deflated(path: Path) -> None:
    """Check the size to which a deflated file unpacks, a piece at a time: pydicom unpacks it without a limit.

    Raises:
        HeartlmError: it is more than a file of this size may have.
    """
    from pydicom.filereader import _read_file_meta_info, read_preamble
    from pydicom.uid import DeflatedExplicitVRLittleEndian

    with path.open("rb") as stream:
        read_preamble(stream, False)
        if _read_file_meta_info(stream).get("TransferSyntaxUID") == DeflatedExplicitVRLittleEndian:
            file_bytes = size_of(path)
            if inflates_beyond(stream.read(), most_samples(file_bytes), -zlib.MAX_WBITS):
                check_samples(path, most_samples(file_bytes) + 1, file_bytes)


def _keep_zeros(path: Path, record: ECGRecord) -> None:
    import pydicom

    for group in pydicom.dcmread(path).WaveformSequence:
        padding = group.get("WaveformPaddingValue")
        if padding is not None and not any(padding):
            for lead in record.leads:
                lead.samples = np.nan_to_num(lead.samples, nan=0.0)


def read_cardiosoft(path: Path) -> Recording:
    """Read the XML export of GE CardioSoft or MAC 2000, which `ecgdatakit` does not know: one strip of all leads.

    Raises:
        HeartlmError: the file has no strip, or a gain or rate is implausible.
        Exception: the file is not well-formed, or a number is none.
    """
    from ecgdatakit.models import Lead
    from ecgdatakit.parsing.helpers.xml import parse_xml_root

    check_content(path)
    root: Element = parse_xml_root(read_bytes(path, TEXT_BYTES))
    strip = root.find("StripData")
    if strip is None:
        raise HeartlmError(f"{path}: has no element StripData; of exercise tests, export a strip at rest")
    rate_hz, unit = float(strip.findtext("SampleRate", "nan")), strip.find("Resolution")
    if unit is None or unit.get("units") != "uVperLsb":
        raise HeartlmError(f"{path}: states no Resolution in uVperLsb, so the millivolts are unknown; export it again")
    leads = [
        Lead(
            label=wave.get("lead", ""),
            samples=np.array((wave.text or "").replace(",", " ").split(), np.float64),
            sampling_rate=round(rate_hz),
            resolution=float(unit.text or "nan"),
            resolution_unit="uV",
        )
        for wave in strip.iterfind("WaveformData")
    ]
    info, when = root.find("PatientInfo"), root.find("ObservationDateTime")
    born = None if info is None else _day(info.find("BirthDateTime"))
    day, start = _day(when), None
    if when is not None and day is not None:
        with suppress(ValueError):
            hour, minute, second = (int(when.findtext(name, "")) for name in ("Hour", "Minute", "Second"))
            start = datetime.combine(day, time(hour, minute, second))
    patient = Patient()
    if info is not None:
        age = info.find("Age")
        years = (age.text or "").strip() if age is not None and age.get("units", "").upper() == "YEARS" else ""
        patient = Patient(
            " ".join(f"{info.findtext('Name/GivenName', '')} {info.findtext('Name/FamilyName', '')}".split()),
            info.findtext("PID", "").strip(),
            SEXES.get(info.findtext("Gender", "").strip().lower(), ""),
            born,
            int(years) if years.isdecimal() else None,
        )
    found = {name: _number(root.findtext(f"RestingECGMeasurements/{each[1]}")) for name, each in _MEASURED.items()}
    lines = [each.text or "" for each in root.iterfind("Interpretation/Diagnosis/DiagnosisText")]
    cart = _cart(found, lines, "machine")
    return replace(_recording(path, leads, [rate_hz], start, patient, [], []), cart=cart)


def _day(element: Element | None) -> date | None:
    with suppress(ValueError):
        if element is not None:
            return date(*(int(element.findtext(name, "")) for name in ("Year", "Month", "Day")))
    return None


def _recording(
    path: Path,
    leads: Sequence[Lead],
    stated_rates: Sequence[float],
    start: datetime | time | None,
    patient: Patient,
    repairs: list[str],
    faults: list[str],
) -> Recording:
    """Return the leads in volts that have the most common rate, in mV; leads that begin later are NaN before.

    Raises:
        HeartlmError: no lead is in volts, or a gain, a rate or the begin of a lead is implausible.
    """
    volts = [lead for lead in leads if to_millivolts(lead.resolution_unit)[0] == "mV" and len(lead.samples)]
    if not volts:
        names = ", ".join(lead.label for lead in leads)
        raise HeartlmError(
            f"{path}: no lead states volts ({names or 'it has none'}), so the millivolts are unknown; export it again"
        )
    counts = Counter(lead.sampling_rate for lead in volts)
    whole_hz = max(counts, key=lambda rate: (counts[rate], rate))
    chosen = [lead for lead in volts if lead.sampling_rate == whole_hz]
    comments = [f"left out: {lead.label}, not in volts" for lead in leads if lead not in volts]
    repairs = repairs + [
        f"left out: {lead.label} at {lead.sampling_rate} Hz, not {whole_hz} Hz" for lead in volts if lead not in chosen
    ]
    exact_hz = next((rate for rate in stated_rates if round(rate) == whole_hz), float(whole_hz))
    rate_hz = check_rate(path, float(whole_hz) if abs(exact_hz - whole_hz) <= _NEAR_WHOLE * whole_hz else exact_hz)
    labels, factors = [lead.label for lead in chosen], [to_millivolts(lead.resolution_unit)[1] for lead in chosen]
    resolution, offset = (
        np.array([getattr(lead, name) for lead in chosen], np.float64) for name in ("resolution", "offset")
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        gain, baseline = 1 / (resolution * factors), -offset / resolution
    check_calibration(path, labels, ["mV"] * len(chosen), gain, baseline, inverted=True)
    first = [int(lead.annotations.get("start_sample", "1")) - 1 for lead in chosen]
    length = max(begin + len(lead.samples) for begin, lead in zip(first, chosen, strict=True))
    if length > sum(len(lead.samples) for lead in chosen):  # even if one lead is recorded after the other
        raise HeartlmError(f"{path}: a lead begins at sample {max(first)}, after the end of all others; fetch it again")
    signal_mv = np.full((len(chosen), length), np.nan, np.float32)
    for row, begin, lead, factor in zip(signal_mv, first, chosen, factors, strict=True):
        with np.errstate(over="ignore"):
            row[begin : begin + len(lead.samples)] = (lead.samples * lead.resolution + lead.offset) * factor
    if isinstance(start, datetime) and start.year < _FIRST_YEAR:
        start = None
    born = patient.birth_date if patient.birth_date and patient.birth_date.year >= _FIRST_YEAR else None
    # the package computes an age from the dates, which `Recording.age` does too
    is_computed = born is not None and isinstance(start, datetime)
    age = patient.age if patient.age is not None and 0 <= patient.age <= _MOST_YEARS and not is_computed else None
    recording = array_recording(path, signal_mv, labels, ["mV"] * len(chosen), rate_hz)
    recording.faults.extend(faults)
    return replace(
        recording,
        start=start,
        patient=replace(patient, birth_date=born, age=age),
        comments=tuple(comments),
        repairs=tuple(repairs),
        steps=tuple(zip(gain.tolist(), baseline.tolist(), strict=True)),
    )
