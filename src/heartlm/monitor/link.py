"""What comes over a link, and how it becomes a stream without holes: frames in any order, some twice, some never.

A frame is a JSON object:

    {"stream": "bed-7", "rate_hz": 250, "start": 15000, "mv": [0.01, 0.02, null, ...]}

Of several leads `mv` is a list of such lists, one for each lead.
`start` is the number of the first sample, counted by the sender. A sender that cannot count gives `t` instead, seconds
on its own clock; a clock that is off by 1 % does no harm, because only the time since the frame before is looked at.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heartlm.ecg.detect import LOWEST_RATE_HZ
from heartlm.errors import HeartlmError
from heartlm.files import parse_json
from heartlm.kernels.frames import frame_samples
from heartlm.typed import is_number

Floats = NDArray[np.float32]

MOST_BYTES, MOST_FRAME_S = 1 << 20, 60.0
"""Larger messages, and longer frames, are refused."""
AHEAD_S = 2.0
"""What comes early waits until what lies before it comes, or until so much has come after the gap."""
MOST_GAP_S = 86_400.0
"""A frame that is further ahead is refused: its number is wrong rather than its signal a day late."""
MOST_MV = 500.0
"""No ECG has such a voltage: what is beyond is no valid sample."""
MOST_NAME, MOST_LEADS = 64, 3
HIGHEST_RATE_HZ = 4000.0


@dataclass(frozen=True)
class Frame:
    """Consecutive samples of a stream.

    Attributes:
        stream: its name.
        rate_hz: samples a second.
        start: number of the first sample, None where the sender does not count.
        t: seconds on the sender's clock, None where `start` is given.
        mv: float32 `[num_leads, num_samples]`, NaN where invalid.
    """

    stream: str
    rate_hz: float
    start: int | None
    t: float | None
    mv: Floats


def read_frame(message: bytes | str, stream: str | None = None) -> Frame:
    """Read a message.

    Args:
        message: the JSON object.
        stream: its name where the channel tells it, whatever the message says.

    Raises:
        HeartlmError: not such an object; the text names the field.
    """
    if len(message) > MOST_BYTES:
        raise HeartlmError(f"message of {len(message):,} bytes found, at most {MOST_BYTES:,} expected")
    content, mv = _with_samples(message)
    if not isinstance(content, dict):
        raise HeartlmError(f"message: {type(content).__name__} found, an object expected")
    name = content.get("stream") if stream is None else stream
    if not isinstance(name, str) or not 0 < len(name) <= MOST_NAME or not name.isprintable():
        found = str(name)[:80]
        raise HeartlmError(f"stream: {found!r} found, a name of 1 to {MOST_NAME} printable characters expected")
    rate_hz = _number(content, "rate_hz")
    if rate_hz is None or not LOWEST_RATE_HZ <= rate_hz <= HIGHEST_RATE_HZ:
        raise HeartlmError(
            f"{name}: rate_hz: {content.get('rate_hz')!r} found, {LOWEST_RATE_HZ:g} to {HIGHEST_RATE_HZ:g} expected"
        )
    if mv is None:
        values = content.get("mv")
        if not isinstance(values, list):
            raise HeartlmError(f"{name}: mv: a list of samples expected")
        try:
            mv = np.array(values if values and isinstance(values[0], list) else [values], np.float32)
        except (TypeError, ValueError, OverflowError):
            raise HeartlmError(f"{name}: mv: numbers and null expected, or such lists of one length") from None
        with np.errstate(invalid="ignore"):
            mv[~(np.abs(mv) <= MOST_MV)] = np.nan
    if mv.ndim != 2 or len(mv) > MOST_LEADS or not 0 < mv.shape[1] <= MOST_FRAME_S * rate_hz:
        expected = f"samples of at most {MOST_FRAME_S:g} s, of at most {MOST_LEADS} leads"
        raise HeartlmError(f"{name}: mv: {expected} expected")
    start, t = _number(content, "start"), _number(content, "t")
    if start is None and t is None:
        raise HeartlmError(f"{name}: start: nothing found, the number of the first sample (or t, its time) expected")
    if start is not None and (start != int(start) or not 0 <= start < 2**53):
        raise HeartlmError(f"{name}: start: {content['start']!r} found, a number of a sample expected")
    return Frame(name, rate_hz, None if start is None else int(start), None if start is not None else t, mv)


_SAMPLES = re.compile(rb'"mv"[ \t\r\n]*:[ \t\r\n]*')


def _with_samples(message: bytes | str) -> tuple[Any, Floats | None]:
    """What a message says, and its samples where they were read apart, in a tenth of the time.

    They are where `"mv"` stands once and nothing is escaped: then it is no part of a text.
    """
    if isinstance(message, bytes) and (place := _SAMPLES.search(message)):
        begin = place.end()
        if found := frame_samples(message[begin:], MOST_LEADS, MOST_MV):
            samples, length = found
            others = message[:begin] + b"[]" + message[begin + length :]
            if others.count(b'"mv"') == 1 and b"\\" not in others:
                with contextlib.suppress(ValueError):
                    content = parse_json(others, finite=False)
                    if isinstance(content, dict) and content.get("mv") == []:
                        return content, samples
    try:
        return parse_json(message, finite=False), None
    except ValueError as error:
        raise HeartlmError(f"message: no JSON ({error})") from None


def _number(content: dict[str, Any], name: str) -> float | None:
    value = content.get(name)
    return float(value) if is_number(value) else None


@dataclass
class FrameLink:
    """Puts the frames of one stream in order.

    Attributes:
        rate_hz: samples a second.
        num_leads: of the stream.
        next: number of the sample that is expected, None before the first frame.
        early: frames that wait, by their first sample.
        counts: what was wrong: `late or double`, `lost samples`, `gaps`, `too far ahead`.
    """

    rate_hz: float
    num_leads: int = 1
    next: int | None = None
    early: dict[int, Floats] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    anchor: tuple[float, int] | None = None
    """Time and number of the first sample of the last frame that came in order, of a sender that gives times."""

    def take(self, frame: Frame) -> list[Floats]:
        """Take in a frame.

        Returns:
            Samples `[num_leads, num_samples]` in order, without a hole: NaN stands for those that never came.
        """
        start = self._start(frame)
        if self.next is None:
            self.next = start
        if start - self.next > MOST_GAP_S * self.rate_hz:
            self.counts["too far ahead"] += 1
            return []
        if start + frame.mv.shape[1] <= self.next or start in self.early:
            self.counts["late or double"] += 1
            return []
        self.early[start] = frame.mv
        if frame.t is not None and (self.anchor is None or frame.t > self.anchor[0]):
            self.anchor = frame.t, start
        return self._ordered()

    def _start(self, frame: Frame) -> int:
        if frame.start is not None:
            return frame.start
        assert frame.t is not None, "a frame has a number or a time"
        if self.anchor is None:
            return self.next or 0
        since = (frame.t - self.anchor[0]) * self.rate_hz
        last = self.early.get(self.anchor[1])
        length = last.shape[1] if last is not None else (self.next or 0) - self.anchor[1]
        if abs(since - length) <= frame.mv.shape[1] / 2:
            return self.anchor[1] + length  # right after the last one, as far as a clock can tell
        return max(0, self.anchor[1] + round(min(max(since, -(2.0**52)), 2.0**52)))

    def _ordered(self) -> list[Floats]:
        assert self.next is not None, "set by the first frame"
        out = list[Floats]()
        while self.early:
            start = min(self.early)
            if start > self.next:
                latest = max(first + samples.shape[1] for first, samples in self.early.items())
                if latest - start < AHEAD_S * self.rate_hz:
                    break
                self.counts["gaps"] += 1
                self.counts["lost samples"] += start - self.next
                out.append(np.full((self.num_leads, start - self.next), np.nan, np.float32))
                self.next = start
            samples = self.early.pop(start)[:, self.next - start :]
            if samples.shape[1]:
                out.append(samples)
                self.next += samples.shape[1]
        return out

    def state(self) -> dict[str, Any]:
        """What it remembers: numbers, arrays and dictionaries of them."""
        early = {str(start): samples for start, samples in self.early.items()}
        anchor = None if self.anchor is None else np.array(self.anchor)
        return {"next": self.next, "early": early, "counts": dict(self.counts), "anchor": anchor}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state` gave."""
        self.next, self.counts = state["next"], Counter(state["counts"])
        self.early = {int(start): samples for start, samples in state["early"].items()}
        anchor = state["anchor"]
        self.anchor = None if anchor is None else (float(anchor[0]), int(anchor[1]))
