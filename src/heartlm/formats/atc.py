"""ATC files of AliveCor (Kardia): blocks of name, length, content and checksum, with 16-bit samples of each lead.

Format: Alive File Format Specification 1.7, as AliveCor's own reader https://github.com/alivecor/ATCpy implements it.
"""

from __future__ import annotations

import re
import struct
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import numpy as np

from heartlm.ecg.recording import Recording
from heartlm.errors import HeartlmError
from heartlm.formats.arrays import array_recording
from heartlm.formats.plausible import check_rate
from heartlm.formats.units import Unit
from heartlm.storage.foreign import TEXT_BYTES, read_bytes
from heartlm.storage.limits import check_samples

_LEADS = {
    b"ecg ": "I", b"ecg2": "II", b"ecg3": "III", b"ecg4": "aVR", b"ecg5": "aVL", b"ecg6": "aVF", b"ecg7": "V1",
    b"ecg8": "V2", b"ecg9": "V3", b"ecga": "V4", b"ecgb": "V5", b"ecgc": "V6",
}  # fmt: skip
# Mark and version before the first block.
_HEADER_BYTES = 12


def read_atc(path: Path) -> Recording:
    """Read an ATC file.

    Raises:
        HeartlmError: a block ends after the file, or there is no lead, rate or resolution.
    """
    content, blocks, faults = read_bytes(path, TEXT_BYTES), dict[bytes, bytes](), list[str]()
    place = _HEADER_BYTES
    while place + 8 <= len(content):
        name, size = content[place : place + 4], int.from_bytes(content[place + 4 : place + 8], "little")
        stop = place + 8 + size
        if stop + 4 > len(content):
            raise HeartlmError(f"{path}: ends within block {name.decode('latin-1')!r}; fetch it again")
        # the sum of all bytes of the block before the checksum
        total = int(np.frombuffer(content[place:stop], np.uint8).sum(dtype=np.uint64)) & 0xFFFFFFFF
        if total != int.from_bytes(content[stop : stop + 4], "little"):
            faults.append(f"the checksum of block {name.decode('latin-1').strip()!r} does not match its bytes")
        blocks[name] = content[place + 8 : stop]
        place = stop + 4
    leads = {
        label: np.frombuffer(blocks[name][: len(blocks[name]) // 2 * 2], "<i2")
        for name, label in _LEADS.items()
        if name in blocks
    }
    if len(blocks.get(b"fmt ", b"")) < 5 or not leads:
        raise HeartlmError(f"{path}: has no {'samples' if b'fmt ' in blocks else 'rate'}; fetch it again")
    _, rate_hz, resolution_nv = struct.unpack_from("<BHH", blocks[b"fmt "])
    if not resolution_nv:
        raise HeartlmError(f"{path}: states no resolution, so the millivolts are unknown; fetch it again")
    length, longest = min(map(len, leads.values())), max(map(len, leads.values()))
    cut = (f"the leads have {length} to {longest} samples; the first {length} are read",) if length < longest else ()
    if length == 0:
        raise HeartlmError(f"{path}: has no samples; fetch it again")
    check_samples(path, length * len(leads), held_bytes=8)
    signal = np.stack([lead[:length] for lead in leads.values()])
    units = [Unit("mV", resolution_nv * 1e-6)] * len(leads)
    recording = array_recording(path, signal, list(leads), units, check_rate(path, rate_hz))
    recording.faults.extend(faults)
    start, stated = None, blocks.get(b"info", b"")[:32].partition(b"\0")[0].decode("latin-1")
    with suppress(ValueError):
        start = datetime.fromisoformat(re.sub(r"([+-]\d\d:?\d\d|Z)$", "", stated.strip()))
    return replace(recording, start=start, repairs=cut)
