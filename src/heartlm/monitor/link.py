"""Messages to frames, and frames to a continuous stream: they may arrive out of order, twice, or not at all.

A frame is a JSON object:

    {"stream": "bed-7", "rate_hz": 250, "start": 15000, "mv": [0.01, 0.02, null, ...]}

With several leads, `mv` is a list of such lists, one for each lead.
`start` is the number of the first sample, counted by the sender. A sender that does not count samples gives `t`
instead: seconds on its own clock. Only the time since the previous frame is used, so the clock may be off by 1 %.

A microcontroller sends the integers of its converter instead of `mv`, and may count frames of equal length:

    {"stream": "bed-7", "rate_hz": 250, "seq": 60, "gain": 200, "int16": "AgAEAAYA..."}

`int16` is base64 of little-endian 16-bit integers (for several leads a list of such texts), `gain` their steps per
millivolt, and -32768 a missing sample. `seq` numbers the frames from 0: `start` is `seq` times the length of a frame.
"""

from __future__ import annotations

import math
import threading
from base64 import b64decode
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from heartlm.ecg.detect import LOWEST_RATE_HZ
from heartlm.errors import HeartlmError
from heartlm.kernels.library import kernel
from heartlm.monitor.state import Stateful
from heartlm.storage.reading import parse_json
from heartlm.storage.typed import is_number

Floats = NDArray[np.float32]

MAX_BYTES, MAX_FRAME_S = 1 << 20, 60.0
"""Larger messages and longer frames are rejected."""
REORDER_S = 2.0
"""A frame that arrives early waits for the frames before it, until this much signal has arrived after the gap."""
MAX_GAP_S = 120.0
"""Longest gap that is filled with invalid samples, so that no sample number makes the monitor allocate more."""
MAX_LOST_S = 86_400.0
"""Numbers further ahead are those of another count: that is more likely than a gap of a day."""
RESTART_S, OTHER_COUNT_S, FROM_ZERO_S = 6.0, 60.0, 60.0
"""A sender counts again if this much signal arrives and nothing else. Frames that were sent a second time look the same
for a while, except that restarted senders count from 0, so more is needed if the first number is later than the last of
these times. The first is longer than the time after which a stream is silent, so that the alarm comes before."""
MISSING = -32768
"""Integer that stands for a missing sample in `int16`."""
MAX_MV = 500.0
"""Samples beyond this voltage are invalid: no ECG reaches it."""
MAX_NAME_LENGTH, MAX_LEADS = 64, 3
HIGHEST_RATE_HZ = 4000.0


class Frame(NamedTuple):
    """Consecutive samples of a stream.

    Attributes:
        stream: its name.
        rate_hz: samples per second.
        start: number of the first sample; None if the sender gives `t`.
        t: seconds on the sender's clock; None if the sender gives `start`.
        mv: float32 `[num_leads, num_samples]`, NaN where invalid.
    """

    stream: str
    rate_hz: float
    start: int | None
    t: float | None
    mv: Floats


def read_frame(message: bytes | str, stream: str | None = None) -> Frame:
    """Parse a message.

    Args:
        message: the JSON object.
        stream: name of the stream if the channel gives it; replaces the one in the message.

    Raises:
        HeartlmError: the message is invalid; the text names the field.
    """
    if len(message) > MAX_BYTES:
        raise HeartlmError(f"message of {len(message):,} bytes found, at most {MAX_BYTES:,} expected")
    content, mv = (isinstance(message, bytes) and usual_content(message)) or _content(message)
    name = content.get("stream") if stream is None else stream
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME_LENGTH or not name.isprintable():
        found = str(name)[:80]
        raise HeartlmError(f"stream: {found!r} found, a name of 1 to {MAX_NAME_LENGTH} printable characters expected")
    rate_hz = _number(content, "rate_hz")
    if rate_hz is None or not LOWEST_RATE_HZ <= rate_hz <= HIGHEST_RATE_HZ:
        raise HeartlmError(
            f"{name}: rate_hz: {content.get('rate_hz')!r} found, {LOWEST_RATE_HZ:g} to {HIGHEST_RATE_HZ:g} expected"
        )
    if "int16" in content:
        mv = _integers(content, name)
    elif mv is None:
        values = content.get("mv")
        if not isinstance(values, list):
            raise HeartlmError(f"{name}: mv: a list of samples expected")
        try:
            with np.errstate(over="ignore"):  # numbers beyond float32 become infinite, and then NaN
                mv = np.array(values if values and isinstance(values[0], list) else [values], np.float32)
        except (TypeError, ValueError, OverflowError):
            raise HeartlmError(f"{name}: mv: numbers or null expected, or lists of these of equal length") from None
        mv[~(np.abs(mv) <= MAX_MV)] = np.nan
    if mv.ndim != 2 or len(mv) > MAX_LEADS or not 0 < mv.shape[1] <= MAX_FRAME_S * rate_hz:
        expected = f"1 to {MAX_LEADS} leads with samples of at most {MAX_FRAME_S:g} s"
        raise HeartlmError(f"{name}: {'int16' if 'int16' in content else 'mv'}: {expected} expected")
    start, t, seq = (_number(content, each) for each in ("start", "t", "seq"))
    if seq is not None and start is None and t is None:
        if seq != int(seq) or not 0 <= seq < 2**32:
            raise HeartlmError(f"{name}: seq: {content['seq']!r} found, a frame number from 0 to 4294967295 expected")
        start = seq * mv.shape[1]
    if start is None and t is None:
        expected = "the number of the first sample (or t, its time, or seq, the number of the frame) expected"
        raise HeartlmError(f"{name}: start: missing; {expected}")
    if start is not None and (start != int(start) or not 0 <= start < 2**53):
        raise HeartlmError(f"{name}: start: {content['start']!r} found, a sample number expected")
    return Frame(name, rate_hz, None if start is None else int(start), None if start is not None else t, mv)


def _integers(content: dict[str, Any], name: str) -> Floats:
    """Return the millivolts `[num_leads, num_samples]` of a message with `int16` and `gain`.

    Raises:
        HeartlmError: these fields are invalid.
    """
    gain, leads = _number(content, "gain"), content["int16"]
    if "mv" in content:
        raise HeartlmError(f"{name}: int16: found together with mv, one of them expected")
    if gain is None or not 0 < gain < math.inf:
        raise HeartlmError(f"{name}: gain: {content.get('gain')!r} found, the steps per millivolt expected")
    try:
        decoded = [b64decode(each, validate=True) for each in (leads if isinstance(leads, list) else [leads])]
        steps = np.array([np.frombuffer(each, "<i2") for each in decoded])
    except (TypeError, ValueError):
        expected = "base64 of little-endian 16-bit integers expected, or a list of these of equal length"
        raise HeartlmError(f"{name}: int16: {expected}") from None
    with np.errstate(over="ignore"):
        mv = (steps / gain).astype(np.float32)
    mv[(steps == MISSING) | ~(np.abs(mv) <= MAX_MV)] = np.nan
    return mv


class _FrameMemory(threading.local):
    """Where `frame` of c/frames.c writes; kept, because arrays and their addresses take as long as a frame."""

    def __init__(self) -> None:
        self.samples = np.empty(MAX_BYTES // 2, np.float32)  # a sample takes two bytes at least, a digit and a comma
        self.numbers, self.sizes = np.empty(3), np.empty(4, np.int64)
        self.addresses = [each.ctypes.data for each in (self.samples, self.numbers, self.sizes)]


_memory = _FrameMemory()


def usual_content(message: bytes) -> tuple[dict[str, Any], Floats] | None:
    """Return the fields of a message without `mv`, and its samples, in a tenth of the time of a whole JSON parser.

    Returns:
        The fields, and float32 `[num_leads, num_samples]`, NaN for null and beyond `MAX_MV`; None for a message with
        other fields, escapes or characters beyond ASCII, and for invalid JSON.
    """
    assert len(message) <= MAX_BYTES
    read = kernel("frame", None, True)(message, len(message), MAX_LEADS, MAX_MV, *_memory.addresses)
    if read < 0:
        return None
    num_leads, num_samples, name_at, name_length = _memory.sizes.tolist()
    named = zip(("rate_hz", "start", "t"), _memory.numbers.tolist(), strict=True)
    content: dict[str, Any] = {name: number for name, number in named if number == number}  # NaN is none
    if name_at:
        content["stream"] = message[name_at : name_at + name_length].decode()
    return content, _memory.samples[: num_leads * num_samples].reshape(num_leads, num_samples).copy()


def _content(message: bytes | str) -> tuple[dict[str, Any], None]:
    """Return the fields of any message."""
    try:
        content = parse_json(message, finite=False)
    except ValueError as error:
        raise HeartlmError(f"message: no JSON ({error})") from None
    if not isinstance(content, dict):
        raise HeartlmError(f"message: {type(content).__name__} found, a JSON object expected")
    return content, None


def _number(content: dict[str, Any], name: str) -> float | None:
    value = content.get(name)
    return float(value) if is_number(value) else None


@dataclass
class FrameLink(Stateful):
    """Puts the frames of one stream in order.

    Attributes:
        rate_hz: samples per second.
        num_leads: leads of the stream.
        next: number of the next expected sample; None before the first frame.
        early: frames that wait for earlier ones, by their first sample.
        counts: faults by kind: `late or double`, `lost samples`, `gaps`, `too far ahead`, `new counts`.
        anchor: `t` and first sample of the last frame, for senders that give times.
        other: link of the frames since the last that fits here, which are numbered by another count; None without.
        ahead: sample number here of the first of these frames, from `next` on; negative if it is earlier.
        needed: samples after which the other count is that of the sender.
        held: samples that the other link has returned.
    """

    STATE = ("next", "early", "counts", "anchor", "other", "ahead", "needed", "held")

    rate_hz: float
    num_leads: int = 1
    next: int | None = None
    early: dict[int, Floats] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    anchor: tuple[float, int] | None = None
    other: FrameLink | None = None
    ahead: int = 0
    needed: int = 0
    held: list[Floats] = field(default_factory=list)

    def push(self, frame: Frame) -> list[Floats]:
        """Add a frame. If `is_replaced` then, `other` continues the stream with the samples `held`.

        Returns:
            The samples `[num_leads, num_samples]` that follow those returned before. Lost samples are NaN.
        """
        start, ahead = self._place(frame)
        if -frame.mv.shape[1] < ahead <= MAX_GAP_S * self.rate_hz:
            if self.other is not None:
                if self.ahead > 0:
                    self.counts["too far ahead"] += 1
                self.other, self.held = None, []
            return self._insert(frame, start)
        if ahead <= 0:
            self.counts["late or double"] += 1
        self._hold(frame, ahead)
        return []

    @property
    def is_replaced(self) -> bool:
        """Whether the sender numbers its samples by the count of `other`."""
        return self.other is not None and sum(samples.shape[1] for samples in self.held) >= self.needed

    @property
    def lost(self) -> int:
        """Samples between `next` and the first of `other`; 0 if unknown, as the sender restarted its count."""
        return self.ahead if 0 < self.ahead <= MAX_LOST_S * self.rate_hz else 0

    def _hold(self, frame: Frame, ahead: int) -> None:
        """Add a frame that does not fit to `other`, or to a new one if it does not fit there either."""
        # Samples that are lost count like others, so their number is small, and `held` stays little more than `needed`.
        after = 0 if self.other is None else self.other._place(frame)[1]
        if self.other is None or not -MAX_GAP_S * self.rate_hz <= after <= REORDER_S * self.rate_hz:
            self.other, self.ahead, self.held = FrameLink(self.rate_hz, self.num_leads), ahead, []
            number_s = frame.t if frame.start is None else frame.start / self.rate_hz
            restart_s = RESTART_S if (number_s or 0.0) < FROM_ZERO_S else OTHER_COUNT_S
            self.needed = round((REORDER_S if ahead > 0 else restart_s) * self.rate_hz)
        start, ahead = self.other._place(frame)
        if ahead > -frame.mv.shape[1]:
            self.held += self.other._insert(frame, start)

    def _place(self, frame: Frame) -> tuple[int, int]:
        """Return the first sample of a frame, and how many samples it is after the expected one."""
        start = self._first_sample(frame)
        if self.next is None:
            self.next = start
        return start, start - self.next

    def _insert(self, frame: Frame, start: int) -> list[Floats]:
        """Add a frame that fits."""
        if start == self.next and not self.early and frame.t is None:  # as most frames; with `t` the anchor must move
            self.next += frame.mv.shape[1]
            return [frame.mv]
        if start in self.early:
            self.counts["late or double"] += 1
            return []
        assert self.next is not None, "set by _place"
        self.early[start] = frame.mv
        if frame.t is not None and (self.anchor is None or frame.t > self.anchor[0]):
            self.anchor = frame.t, start
        pieces = list[Floats]()
        while self.early:
            start = min(self.early)
            if start > self.next:
                latest = max(first + samples.shape[1] for first, samples in self.early.items())
                if latest - start < REORDER_S * self.rate_hz:
                    break
                self.counts["gaps"] += 1
                self.counts["lost samples"] += start - self.next
                pieces.append(np.full((self.num_leads, start - self.next), np.nan, np.float32))
                self.next = start
            samples = self.early.pop(start)[:, self.next - start :]
            if samples.shape[1]:
                pieces.append(samples)
                self.next += samples.shape[1]
        return pieces

    def _first_sample(self, frame: Frame) -> int:
        if frame.start is not None:
            return frame.start
        assert frame.t is not None, "a frame has a number or a time"
        if self.anchor is None:
            return self.next or 0
        since = (frame.t - self.anchor[0]) * self.rate_hz
        last = self.early.get(self.anchor[1])
        length = last.shape[1] if last is not None else (self.next or 0) - self.anchor[1]
        if abs(since - length) <= frame.mv.shape[1] / 2:
            return self.anchor[1] + length  # within the precision of the clock it follows the last frame
        return max(0, self.anchor[1] + round(min(max(since, -(2.0**52)), 2.0**52)))

    def restore(self, state: dict[str, Any]) -> None:
        """Set the saved attributes."""
        super().restore(state)
        self.counts = Counter(state["counts"])
        self.early = {int(start): samples for start, samples in state["early"].items()}
        waiting, anchor = [*self.early.values(), *self.held], self.anchor or (0.0, 0)
        if not (is_number(self.next or 0) and all(map(is_number, anchor)) and len(anchor) == 2):
            raise ValueError("next: no number")
        if any(samples.ndim != 2 or len(samples) != self.num_leads for samples in waiting):
            raise ValueError("early: an array of another shape")
        if state["other"] is not None:
            self.other = FrameLink(self.rate_hz, self.num_leads)
            self.other.restore(state["other"])
