"""Small valid files of clinical formats, written from the formats' definitions: what the readers are tested with.

Each writer takes a path, samples int16 `[num_leads, num_samples]` of the given leads and a rate, and states what
`PATIENT`, `START` and `NV_PER_STEP` are, as far as its format has fields for them.
"""

from __future__ import annotations

import base64
import binascii
import json
import struct
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

NV_PER_STEP = 2500
START = datetime(2024, 3, 1, 13, 5, 6)
FIRST, LAST, IDENTIFIER, BORN = "Ada", "Muster", "P-17", datetime(1951, 5, 2)
LEADS = ("I", "II", "V1")
Samples = NDArray[np.int16]

ISHNE_LEADS = dict(zip(("I", "II", "III", "aVR", "aVL", "aVF", "V1", "V2", "V3", "V4", "V5", "V6"), range(5, 17)))  # noqa: B905


def _day(day: datetime) -> list[int]:
    return [day.day, day.month, day.year]


def write_ishne(
    path: Path,
    samples: Samples,
    rate_hz: int = 500,
    leads: Sequence[str] = LEADS,
    *,
    stated: int | None = None,
    text: bytes = b"",
    nv: Sequence[int] | None = None,
    checksum: int | None = None,
    rest: bytes = b"",
) -> None:
    num = len(samples)
    kinds = [ISHNE_LEADS.get(name, 0) for name in leads] + [-9] * (12 - num)
    resolution = list(nv or [NV_PER_STEP] * num) + [-9] * (12 - num)
    header = struct.pack(
        "<4ih40s40s20s2h3h3h3h3hh12h12h12hh40sh80s80s88s",
        *(len(text), samples.shape[1] if stated is None else stated, 522, 522 + len(text), 1),
        *(FIRST.encode(), LAST.encode(), IDENTIFIER.encode(), 2, 0, *_day(BORN), *_day(START), *_day(START)),
        *(START.hour, START.minute, START.second, num, *kinds, *[1] * num, *[-9] * (12 - num), *resolution),
        *(0, b"digital", rate_hz, b"", b"", b""),
    )
    total = binascii.crc_hqx(header + text, 0xFFFF) if checksum is None else checksum
    content = b"ISHNE1.0" + struct.pack("<H", total) + header + text + samples.T.astype("<i2").tobytes() + rest
    path.write_bytes(content)


def ishne_annotations(first: int, entries: Sequence[tuple[bytes, int]], rate_hz: int = 250, text: bytes = b"") -> bytes:
    """An ISHNE annotation file: the header of a recording, the first position, label and distance of each beat."""
    header = bytearray(522)
    header[:8], header[10:14] = b"ANN  1.0", len(text).to_bytes(4, "little")
    header[272:274] = rate_hz.to_bytes(2, "little")
    beats = b"".join(label + b"\0" + since.to_bytes(2, "little") for label, since in entries)
    return bytes(header) + text + first.to_bytes(4, "little") + beats


def _section(number: int, body: bytes) -> bytes:
    body += b"\0" * (len(body) % 2)
    head = struct.pack("<HIBB6s", number, 16 + len(body), 20, 20, b"SCPECG" if number == 0 else b"")
    return struct.pack("<H", binascii.crc_hqx(head + body, 0xFFFF)) + head + body


def write_scp(path: Path, samples: Samples, rate_hz: int = 500, leads: Sequence[str] = LEADS) -> None:
    codes = {"I": 1, "II": 2, "V1": 3}
    tags = {
        0: LAST.encode() + b"\0",
        1: FIRST.encode() + b"\0",
        2: IDENTIFIER.encode() + b"\0",
        5: struct.pack("<HBB", BORN.year, BORN.month, BORN.day),
        8: b"\2",
        25: struct.pack("<HBB", START.year, START.month, START.day),
        26: bytes([START.hour, START.minute, START.second]),
    }
    patient = b"".join(struct.pack("<BH", tag, len(value)) + value for tag, value in tags.items())
    length = samples.shape[1]
    rhythm = struct.pack("<HHBB", NV_PER_STEP, round(1e6 / rate_hz), 0, 0) + struct.pack("<H", 2 * length) * len(
        samples
    )
    sections = [
        _section(1, patient + b"\xff\0\0"),
        _section(3, bytes([len(samples), 4]) + b"".join(struct.pack("<IIB", 1, length, codes[name]) for name in leads)),
        _section(6, rhythm + samples.astype("<i2").tobytes()),
    ]
    begin = 6 + 16 + 10 * (1 + len(sections))
    pointers, at = struct.pack("<HII", 0, begin - 6, 7), begin + 1
    for number, section in zip((1, 3, 6), sections, strict=True):
        pointers += struct.pack("<HII", number, len(section), at)
        at += len(section)
    rest = struct.pack("<I", at - 1) + _section(0, pointers) + b"".join(sections)
    path.write_bytes(struct.pack("<H", binascii.crc_hqx(rest, 0xFFFF)) + rest)


def write_aecg(
    path: Path, samples: Samples, rate_hz: int = 500, leads: Sequence[str] = LEADS, *, encoding: str = "utf-8"
) -> None:
    def sequence(code: str, value: str) -> str:
        return f'<component><sequence><code code="{code}"/>{value}</sequence></component>'

    moment, unit = START.strftime("%Y%m%d%H%M%S.000"), NV_PER_STEP / 1000
    sequences = sequence(
        "TIME_ABSOLUTE", f'<value><head value="{moment}"/><increment value="{1 / rate_hz}" unit="s"/></value>'
    )
    for name, lead in zip(leads, samples, strict=True):
        digits = " ".join(map(str, lead.tolist()))
        value = (
            f'<value><origin value="0" unit="uV"/><scale value="{unit}" unit="uV"/><digits>{digits}</digits></value>'
        )
        sequences += sequence(f"MDC_ECG_LEAD_{name.upper()}", value)
    path.write_text(
        f'<?xml version="1.0" encoding="{encoding}"?>\n<!-- a comment -->\n<AnnotatedECG xmlns="urn:hl7-org:v3">'
        f'<effectiveTime><low value="{moment}"/></effectiveTime><componentOf><timepointEvent><componentOf>'
        f'<subjectAssignment><subject><trialSubject><id extension="{IDENTIFIER}"/><subjectDemographicPerson>'
        f"<name><given>{FIRST}</given><family>{LAST}</family></name>"
        f'<administrativeGenderCode code="F"/><birthTime value="{BORN:%Y%m%d}"/></subjectDemographicPerson>'
        "</trialSubject></subject></subjectAssignment></componentOf></timepointEvent></componentOf>"
        f'<component><series><code code="RHYTHM"/><effectiveTime><low value="{moment}"/></effectiveTime>'
        f"<component><sequenceSet>{sequences}</sequenceSet></component></series></component></AnnotatedECG>",
        encoding,
    )


def _base64(lead: Samples) -> str:
    return base64.b64encode(lead.astype("<i2").tobytes()).decode()


def write_muse(path: Path, samples: Samples, rate_hz: int = 500, leads: Sequence[str] = LEADS) -> None:
    waves = "".join(
        f"<LeadData><LeadID>{name}</LeadID><LeadSampleCountTotal>{len(lead)}</LeadSampleCountTotal>"
        f"<LeadAmplitudeUnitsPerBit>{NV_PER_STEP / 1000}</LeadAmplitudeUnitsPerBit><LeadAmplitudeUnits>MICROVOLTS"
        f"</LeadAmplitudeUnits><LeadSampleSize>2</LeadSampleSize><WaveFormData>{_base64(lead)}</WaveFormData></LeadData>"
        for name, lead in zip(leads, samples, strict=True)
    )
    path.write_text(
        '<?xml version="1.0" encoding="ISO-8859-1"?>\n<!DOCTYPE RestingECG SYSTEM "restecg.dtd">\n<RestingECG>'
        f"<PatientDemographics><PatientID>{IDENTIFIER}</PatientID><DateofBirth>{BORN:%m-%d-%Y}</DateofBirth><Gender>"
        f"FEMALE</Gender><PatientLastName>{LAST}</PatientLastName><PatientFirstName>{FIRST}</PatientFirstName>"
        f"</PatientDemographics><TestDemographics><AcquisitionTime>{START:%H:%M:%S}</AcquisitionTime><AcquisitionDate>"
        f"{START:%m-%d-%Y}</AcquisitionDate></TestDemographics><Waveform><WaveformType>Rhythm</WaveformType>"
        f"<SampleBase>{rate_hz}</SampleBase><SampleExponent>0</SampleExponent>{waves}</Waveform></RestingECG>"
    )


def write_cardiosoft(path: Path, samples: Samples, rate_hz: int = 500, leads: Sequence[str] = LEADS) -> None:
    def moment(tag: str, when: datetime) -> str:
        names = ("Hour", "Minute", "Second", "Day", "Month", "Year")
        return f"<{tag}>" + "".join(f"<{name}>{getattr(when, name.lower())}</{name}>" for name in names) + f"</{tag}>"

    waves = "".join(
        f'<WaveformData lead="{name}">\t{",".join(map(str, lead.tolist()))}\n</WaveformData>'
        for name, lead in zip(leads, samples, strict=True)
    )
    person = (
        f"<PID>{IDENTIFIER}</PID><Name><FamilyName>{LAST}</FamilyName><GivenName>{FIRST}</GivenName></Name>"
        f"{moment('BirthDateTime', BORN)}<Gender>FEMALE</Gender>"
    )
    path.write_text(
        f'<?xml version="1.0" encoding="ISO-8859-1" ?>\n<CardiologyXML>{moment("ObservationDateTime", START)}'
        f'<PatientInfo>{person}</PatientInfo><StripData><SampleRate units="Hz">{rate_hz}</SampleRate>'
        f'<Resolution units="uVperLsb">{NV_PER_STEP / 1000}</Resolution>{waves}</StripData></CardiologyXML>'
    )


def write_sierra(path: Path, samples: Samples, rate_hz: int = 500, leads: Sequence[str] = LEADS) -> None:
    path.write_text(
        '<?xml version="1.0" encoding="UTF-16"?>\n<restingecgdata xmlns="http://www3.medical.philips.com"><documentinfo>'
        "<documenttype>SierraECG</documenttype><documentversion>1.04</documentversion></documentinfo>"
        f"<patient><generalpatientdata><patientid>{IDENTIFIER}</patientid><name><lastname>{LAST}</lastname><firstname>"
        f"{FIRST}</firstname></name><age><dateofbirth>{BORN:%Y-%m-%d}</dateofbirth></age><sex>Female</sex>"
        f'</generalpatientdata></patient><dataacquisition date="{START:%Y-%m-%d}" time="{START:%H:%M:%S}">'
        f"<signalcharacteristics><samplingrate>{rate_hz}</samplingrate><resolution>{NV_PER_STEP / 1000}</resolution>"
        f"<numberchannelsvalid>{len(samples)}</numberchannelsvalid></signalcharacteristics></dataacquisition><waveforms>"
        f'<parsedwaveforms dataencoding="Base64" leadlabels="{" ".join(leads)}" numberofleads="{len(samples)}" '
        f'durationperchannel="{round(samples.shape[1] * 1000 / rate_hz)}">{_base64(samples)}</parsedwaveforms>'
        "</waveforms></restingecgdata>",
        "utf-16",
    )


def write_mortara(path: Path, samples: Samples, rate_hz: int = 500, leads: Sequence[str] = LEADS) -> None:
    waves = "".join(
        f'<CHANNEL NAME="{name}" BITS="16" FORMAT="SIGNED" UNITS_PER_MV="{1_000_000 / NV_PER_STEP}" DURATION='
        f'"{len(lead)}" SAMPLE_FREQ="{rate_hz}" OFFSET="0" ENCODING="BASE64" DATA="{_base64(lead)}"/>'
        for name, lead in zip(leads, samples, strict=True)
    )
    path.write_text(
        f'<?xml version="1.0"?>\n<ECG ACQUISITION_TIME="{START:%Y%m%d%H%M%S}"><SUBJECT LAST_NAME="{LAST}" FIRST_NAME='
        f'"{FIRST}" ID="{IDENTIFIER}" GENDER="Female" DOB="{BORN:%Y%m%d}"/>{waves}</ECG>'
    )


def write_kardia(path: Path, samples: Samples, rate_hz: int = 500, leads: Sequence[str] = LEADS) -> None:
    keys = {"I": "leadI", "II": "leadII"}
    named = {keys.get(name, name): lead.tolist() for name, lead in zip(leads, samples, strict=True)}
    raw = {"frequency": rate_hz, "amplitudeResolution": NV_PER_STEP, "numLeads": len(samples), "samples": named}
    document = {"patientID": IDENTIFIER, "recordedAt": f"{START.isoformat()}Z", "data": {"raw": raw}}
    path.write_text(json.dumps(document))


def write_mfer(path: Path, samples: Samples, rate_hz: int = 500, leads: Sequence[str] = LEADS) -> None:
    codes = {"I": 1, "II": 2, "V1": 3}

    def item(tag: int, value: bytes) -> bytes:
        size = bytes([len(value)]) if len(value) < 128 else b"\x84" + struct.pack(">I", len(value))
        return bytes([tag]) + size + value

    content = item(0x40, b"MFR Standard 12 leads ECG".ljust(32)) + item(0x01, b"\1")
    content += item(0x82, IDENTIFIER.encode()) + item(0x81, f"{LAST}^^{FIRST}".encode()) + item(0x84, b"\2")
    content += item(0x83, struct.pack("<BHHBB", 0, 0, BORN.year, BORN.month, BORN.day))
    content += item(0x85, struct.pack("<H5B", START.year, *START.timetuple()[1:6]))
    content += item(0x0B, struct.pack("<BbH", 0, 0, rate_hz)) + item(0x0C, struct.pack("<BbH", 0, -9, NV_PER_STEP))
    content += item(0x04, struct.pack("<I", samples.shape[1])) + item(0x05, bytes([len(samples)])) + item(0x06, b"\1")
    for place, name in enumerate(leads):
        definition = item(0x09, struct.pack("<H", codes[name]))
        content += bytes([0x3F, place, len(definition)]) + definition
    path.write_bytes(content + item(0x1E, samples.astype("<i2").tobytes()) + b"\x80\0")


def write_dicom(
    path: Path, samples: Samples, rate_hz: float = 500, leads: Sequence[str] = LEADS, *, padding: bytes | None = None
) -> None:
    from pydicom.dataset import Dataset, FileMetaDataset
    from pydicom.uid import ExplicitVRLittleEndian, TwelveLeadECGWaveformStorage, generate_uid

    def code(value: str, scheme: str, meaning: str) -> list[Dataset]:
        item = Dataset()
        item.CodeValue, item.CodingSchemeDesignator, item.CodeMeaning = value, scheme, meaning
        return [item]

    codes = {"I": "2:1", "II": "2:2", "V1": "2:3"}
    group, channels = Dataset(), []
    for name in leads:
        channel = Dataset()
        channel.ChannelSourceSequence = code(codes[name], "MDC", f"Lead {name}")
        channel.ChannelSensitivity, channel.ChannelSensitivityCorrectionFactor = NV_PER_STEP / 1000, 1
        channel.ChannelSensitivityUnitsSequence = code("uV", "UCUM", "microvolt")
        channel.ChannelBaseline, channel.WaveformBitsStored = 0, 16
        channels.append(channel)
    group.MultiplexGroupLabel, group.WaveformOriginality = "RHYTHM", "ORIGINAL"
    group.NumberOfWaveformChannels, group.NumberOfWaveformSamples = len(samples), samples.shape[1]
    group.SamplingFrequency, group.ChannelDefinitionSequence = rate_hz, channels
    group.WaveformBitsAllocated, group.WaveformSampleInterpretation = 16, "SS"
    if padding is not None:
        group.add_new("WaveformPaddingValue", "OW", padding)
    group.add_new("WaveformData", "OW", samples.T.astype("<i2").tobytes())
    meta, data = FileMetaDataset(), Dataset()
    meta.TransferSyntaxUID, meta.MediaStorageSOPClassUID = ExplicitVRLittleEndian, TwelveLeadECGWaveformStorage
    meta.MediaStorageSOPInstanceUID = data.SOPInstanceUID = generate_uid(entropy_srcs=[path.name])
    data.SOPClassUID, data.file_meta, data.WaveformSequence = TwelveLeadECGWaveformStorage, meta, [group]
    data.PatientName, data.PatientID, data.PatientSex = f"{LAST}^{FIRST}", IDENTIFIER, "F"
    data.PatientBirthDate, data.AcquisitionDateTime = f"{BORN:%Y%m%d}", f"{START:%Y%m%d%H%M%S}"
    data.save_as(path, enforce_file_format=True)


WRITERS: dict[str, Callable[..., None]] = {
    "ishne.ecg": write_ishne,
    "scp.scp": write_scp,
    "dicom.dcm": write_dicom,
    "aecg.xml": write_aecg,
    "muse.xml": write_muse,
    "cardiosoft.xml": write_cardiosoft,
    "sierra.xml": write_sierra,
    "mortara.xml": write_mortara,
    "mfer.mwf": write_mfer,
    "kardia.json": write_kardia,
}
"""Writer of each format by the name of an example."""
