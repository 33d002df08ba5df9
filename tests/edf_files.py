"""EDF and BDF files, byte by byte: also such as no package writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass
class Lead:
    """A signal of a file, in digits.

    Attributes:
        label: its name.
        digits: samples, a multiple of the records; of an annotation signal None.
        unit, low, high, digital_low, digital_high: as they stand in the header.
        texts: annotations of each record of an annotation signal, bytes without the padding.
        size: samples a record of an annotation signal.
    """

    label: str
    digits: NDArray[np.int64] | None = None
    unit: str | bytes = "mV"
    low: str = "-5"
    high: str = "5"
    digital_low: str = "-32767"
    digital_high: str = "32767"
    texts: Sequence[bytes] = ()
    size: int = 60

    def physical(self) -> NDArray[np.float64]:
        """Samples in the unit of the header."""
        assert self.digits is not None
        low, high, first, last = (
            float(text.replace(",", ".")) for text in (self.low, self.high, self.digital_low, self.digital_high)
        )
        return low + (self.digits - first) * (high - low) / (last - first)


def edf_bytes(
    leads: Sequence[Lead],
    num_records: int,
    *,
    width: int = 2,
    duration: str = "1",
    stated: str | None = None,
    reserved: str = "",
    patient: str = "X X X X",
    recording: str = "Startdate X X X X",
    day: str = "01.01.85",
    clock: str = "00.00.00",
) -> bytes:
    """A file of `num_records` records whose header may state another number of them."""

    def column(values: Sequence[str | bytes], size: int) -> bytes:
        return b"".join((text if isinstance(text, bytes) else text.encode()).ljust(size)[:size] for text in values)

    counts = [lead.size if lead.digits is None else len(lead.digits) // num_records for lead in leads]
    header = (b"0".ljust(8) if width == 2 else b"\xffBIOSEMI") + column([patient, recording], 80)
    header += column([day, clock, str(256 * (len(leads) + 1))], 8) + column([reserved], 44)
    header += column([str(num_records) if stated is None else stated, duration], 8) + column([str(len(leads))], 4)
    header += column([lead.label for lead in leads], 16) + column([""] * len(leads), 80)
    for name in ("unit", "low", "high", "digital_low", "digital_high"):
        header += column([getattr(lead, name) for lead in leads], 8)
    header += column([""] * len(leads), 80) + column(list(map(str, counts)), 8) + column([""] * len(leads), 32)
    records = []
    for record in range(num_records):
        for lead, count in zip(leads, counts, strict=True):
            if lead.digits is None:
                text = lead.texts[record] if record < len(lead.texts) else b""
                assert len(text) <= count * width
                records.append(text.ljust(count * width, b"\0"))
            else:
                own = lead.digits[record * count : (record + 1) * count].astype("<i4")
                records.append(own.view(np.uint8).reshape(-1, 4)[:, :width].tobytes())
    return header + b"".join(records)


def times(onsets: Sequence[float | str | None], *others: tuple[int, bytes]) -> list[bytes]:
    """Texts of an annotation signal: the time of each record (None: not stated), and annotations `(record, text)`."""
    texts = [b"" if onset is None else f"+{onset}\x14\x14\0".encode() for onset in onsets]
    for record, text in others:
        texts[record] += text
    return texts
