"""ISHNE Holter files: a header of 522 bytes, a block of text, then the samples of all leads, interleaved.

A sample has 16 bits, as in WFDB's format 16, whose compiled decoder reads slices of a day without the rest of it.

Format: Badilini, The ISHNE Holter Standard Output File Format, Ann. Noninvasive Electrocardiol. 3:263-266, 1998.
"""

from __future__ import annotations

import binascii
import struct
from collections.abc import Sequence
from contextlib import suppress
from datetime import date, datetime, time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from heartlm.ecg.recording import Patient, Recording
from heartlm.errors import HeartlmError
from heartlm.formats.plausible import check_rate
from heartlm.formats.wfdb_header import SignalFile
from heartlm.storage.foreign import first_bytes, size_of
from heartlm.storage.limits import check_samples

MAGIC = b"ISHNE1.0"
HEADER = struct.Struct("<8sHiiiih40s40s20s2h12hh12h12h12hh40sH")
"""Mark, checksum, size of the text, number of samples, offsets of text and samples, version, first and last name,
identifier, sex and race, dates of birth, recording and file and time of the start, number of leads, their kinds,
quality and resolution, pacemaker, recorder, rate. Proprietary text follows up to byte 522."""
HEADER_BYTES = 522
CHECKED_FROM = 10
"""First byte that the checksum covers; the last one is before the samples."""
_LONGEST_TEXT = 1 << 24
MOST_LEADS = 12
NV_PER_MV = 1e6
# Names of leads from kind 2; 0 is unknown, 1 bipolar without a name.
LEADS = ("X", "Y", "Z", "I", "II", "III", "aVR", "aVL", "aVF", "V1", "V2", "V3", "V4", "V5", "V6", "ES", "AS", "AI")
SEX = {1: "male", 2: "female"}


def read_ishne(path: Path) -> Recording:
    """Open an ISHNE Holter file; samples are read lazily, and those with the mark of a fault (-32768) are NaN.

    Raises:
        HeartlmError: the header is incomplete or implausible, or no sample follows it.
    """
    begin = first_bytes(path, HEADER_BYTES) or b""
    if len(begin) < HEADER_BYTES or not begin.startswith(MAGIC):
        raise HeartlmError(f"{path}: begins with no ISHNE header of {HEADER_BYTES} bytes; fetch it again")
    fields = HEADER.unpack_from(begin)
    checksum, text_bytes, stated, _, stated_offset = fields[1:6]
    names, sex, born, day, clock = fields[7:10], fields[10], fields[12:15], fields[15:18], fields[21:24]
    num_leads, kinds, resolution_nv, rate_hz = fields[24], fields[25:37], fields[49:61], fields[63]
    if not 1 <= num_leads <= MOST_LEADS:
        raise HeartlmError(f"{path}: states {num_leads} leads, expected 1 to {MOST_LEADS}; correct the header")
    if not 0 <= text_bytes <= _LONGEST_TEXT:
        raise HeartlmError(f"{path}: states {text_bytes} bytes of text after the header; correct the header")
    offset, size, repairs, faults = HEADER_BYTES + text_bytes, size_of(path), list[str](), list[str]()
    before_samples = first_bytes(path, offset) or b""
    if stated_offset not in (offset, 0):
        repairs.append(f"samples read from byte {offset}, after the text; the header states byte {stated_offset}")
    frames, rest = divmod(max(0, size - offset), 2 * num_leads)
    if not frames:
        raise HeartlmError(f"{path}: ends before the first sample, at byte {size}; fetch it again")
    # Some programs write the number of samples of all leads instead of one. 0 is not stated.
    per_lead = stated // num_leads if stated == frames * num_leads else stated
    if per_lead > frames or rest:
        stated_text = f" of the {per_lead} that the header states" if per_lead > frames else ""
        repairs.append(f"truncated: {frames} samples of each lead read{stated_text}")
    elif 0 < per_lead < frames:
        repairs.append(f"{frames - per_lead} samples of each lead left out after the {per_lead} that the header states")
        frames = per_lead
    if checksum:
        total = binascii.crc_hqx(before_samples[CHECKED_FROM:], 0xFFFF)
        if checksum not in (total, int.from_bytes(total.to_bytes(2, "big"), "little")):  # the byte order is not fixed
            faults.append(f"the header's checksum is {checksum}, its bytes sum to {total}")
    check_samples(path, frames * num_leads)
    gain = np.array([NV_PER_MV / nv if nv > 0 else 1.0 for nv in resolution_nv[:num_leads]])
    known = [nv > 0 for nv in resolution_nv[:num_leads]]
    if not any(known):
        raise HeartlmError(f"{path}: states no resolution, so the millivolts are unknown; write nV per step into it")
    places = range(num_leads)
    file = SignalFile(path, "16", offset, num_leads, dict(zip(places, places, strict=True)), dict.fromkeys(places, 1))
    calibration = np.stack([np.zeros(num_leads), gain, np.ones(num_leads)], axis=1)

    def samples(start: int, stop: int, leads: Sequence[int]) -> NDArray[np.float32]:
        signal = np.empty((len(leads), stop - start), np.float32)
        file.read(start, leads, calibration[list(leads)], signal)
        return signal

    return Recording(
        rate_hz=check_rate(path, rate_hz),
        num_samples=frames,
        lead_names=tuple(
            LEADS[kind - 2] if 2 <= kind < 2 + len(LEADS) else f"lead {place}"
            for place, kind in enumerate(kinds[:num_leads], 1)
        ),
        units=tuple("mV" if each else "adu" for each in known),
        path=path,
        comments=tuple(filter(None, [_text(before_samples[HEADER_BYTES:])])),
        start=_start(day, clock),
        patient=Patient(" ".join(filter(None, map(_text, names[:2]))), _text(names[2]), SEX.get(sex, ""), _day(born)),
        samples=samples,
        faults=faults,
        repairs=tuple(repairs),
        steps=tuple((each, 0.0) for each in gain.tolist()),
    )


def _text(raw: bytes) -> str:
    return " ".join(raw.partition(b"\0")[0].decode("latin-1").split())


def _day(stated: tuple[int, int, int]) -> date | None:
    """Return a date of the header, stored as day, month, year; None if there is none."""
    day, month, year = stated
    with suppress(ValueError):
        return date(year, month, day)
    return None


def _start(day: tuple[int, int, int], clock: tuple[int, int, int]) -> datetime | time | None:
    with suppress(ValueError):
        first, known = time(*clock), _day(day)
        return first if known is None else datetime.combine(known, first)
    return None
