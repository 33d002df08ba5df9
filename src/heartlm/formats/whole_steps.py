"""Leads as whole numbers, to write them to formats of integers.

A file of integers states gain and zero of each lead, `Recording.steps`: its samples are written as the same integers.
For other recordings the step is found from the samples: that of their converter if they are multiples of one step,
otherwise one of 1/65,000 of their range.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from heartlm.ecg.recording import Recording
from heartlm.ecg.spans import runs

# Samples of a lead that are converted at once.
_PIECE = 1 << 18
_MOST_MULTIPLES = 256
# Runs of invalid samples of a lead that are listed.
_MOST_RUNS = 1000


class LeadSteps(NamedTuple):
    """How a lead is written as whole numbers: `value = (number - zero) / gain`.

    Attributes:
        gain: numbers per unit of the lead, positive.
        zero: number of the value 0; a whole one if that was asked for.
        low: lowest number.
        high: highest number.
        invalid: runs of invalid samples `[start, stop)`, at most the first 1,000.
        num_invalid: number of invalid samples.
        error: largest difference between a sample and the value of its number, in the unit of the lead.
        exact: whether each difference is at most the rounding of float32.
    """

    gain: float
    zero: float
    low: int
    high: int
    invalid: tuple[tuple[int, int], ...]
    num_invalid: int
    error: float
    exact: bool

    def bits(self) -> int:
        """Return the bits of the smallest format that holds the numbers and a lower one, the mark of no sample."""
        return next((bits for bits in (16, 24) if self.low > -1 << bits - 1 and self.high < 1 << bits - 1), 32)


def lead_steps(recording: Recording, *, whole_zero: bool, most_bits: int = 32) -> list[LeadSteps]:
    """Return how each lead is written as whole numbers. Leads are read as a whole, so their checksums are verified.

    Args:
        recording: recording with a signal.
        whole_zero: whether the number of the value 0 must be whole; a step is then divided if necessary.
        most_bits: bits that the numbers may have.

    Raises:
        HeartlmError: a file cannot be read.
    """
    stated = recording.steps or (None,) * recording.num_leads
    return [
        _steps_of(recording.signal(leads=[lead])[0], steps, whole_zero, most_bits) for lead, steps in enumerate(stated)
    ]


def whole_numbers(
    recording: Recording, steps: Sequence[LeadSteps], invalid: int, group: int = 1
) -> Iterator[NDArray[np.int32]]:
    """Yield the numbers of all leads `[num_leads, num_samples]`, in pieces, with `invalid` for invalid samples.

    Pieces are multiples of `group` samples; `invalid` fills the last one.
    """
    size = -(-_PIECE // group) * group
    for start in range(0, recording.num_samples, size):
        signal = recording.signal(start, min(start + size, recording.num_samples))
        numbers = np.full((len(signal), -(-signal.shape[1] // group) * group), invalid, np.int32)
        for row, lead, each in zip(numbers, signal, steps, strict=True):
            valid = np.flatnonzero(np.isfinite(lead))
            row[valid] = np.rint(lead[valid].astype(np.float64) * each.gain + each.zero)
        yield numbers


def _steps_of(
    lead: NDArray[np.float32], stated: tuple[float, float] | None, whole_zero: bool, most_bits: int
) -> LeadSteps:
    if stated is not None and np.isfinite(stated).all() and stated[0]:
        gain, zero = (abs(stated[0]), stated[1] if stated[0] > 0 else -stated[1])
        if whole_zero:
            multiples = np.arange(1, _MOST_MULTIPLES + 1) * zero
            # half a step in EDF files whose range is symmetric: numbers twice as high
            multiple = 1 + int(np.argmax(np.abs(multiples - np.rint(multiples)) < 1e-6))
            gain, zero = gain * multiple, float(np.rint(zero * multiple))
        steps = measured_steps(lead, gain, zero)
        if steps.exact and steps.bits() <= most_bits:
            return steps
        return measured_steps(lead, *_step_found(lead, 24))
    return measured_steps(lead, *_step_found(lead, 16))


def measured_steps(lead: NDArray[np.float32], gain: float, zero: float) -> LeadSteps:
    """Return how a lead, float32 `[num_samples]`, is written by this gain and zero."""
    low, high, error, exact, num_invalid = np.inf, -np.inf, 0.0, True, 0
    for start in range(0, len(lead), _PIECE):
        part = lead[start : start + _PIECE]
        values = part[np.isfinite(part)]
        num_invalid += len(part) - len(values)
        if not len(values):
            continue
        numbers = np.rint(values.astype(np.float64) * gain + zero)
        difference = np.abs(((numbers - zero) / gain).astype(np.float32) - values)
        exact &= bool((difference <= np.spacing(np.abs(values))).all())
        low, high = min(low, float(numbers.min())), max(high, float(numbers.max()))
        error = max(error, float(difference.max()))
    # numbers that 32 bits do not hold; without a valid sample, the limits are infinite
    exact &= max(abs(low), abs(high)) < 1 << 31 or num_invalid == len(lead)
    low, high = (int(low), int(high)) if num_invalid < len(lead) else (0, 0)
    spans = tuple((start, stop) for start, stop in runs(~np.isfinite(lead))[:_MOST_RUNS]) if num_invalid else ()
    return LeadSteps(gain, zero, low, high, spans, num_invalid, error, exact)


def _step_found(lead: NDArray[np.float32], bits: int) -> tuple[float, int]:
    """Return gain and zero that write a lead exactly if its samples are multiples of one step, else in `bits`."""
    largest = (1 << bits - 1) - 1
    valid = lead[np.isfinite(lead)].astype(np.float64)
    low, high = (float(valid.min()), float(valid.max())) if len(valid) else (0.0, 0.0)
    size = max(abs(low), abs(high))
    if size == 0:
        return 1000.0, 0
    different = np.unique(valid)
    steps = np.diff(different) if len(different) > 1 else np.array([size])
    step = float(steps[steps < 1.5 * steps.min()].mean())
    # samples are rounded to float32, so their whole range tells the step better than two neighbours
    gain = round((high - low) / step) / (high - low) if high > low else 1 / step
    # the usual gains of converters, then the measured one, with as few digits as write the samples exactly
    for candidate in (200.0, 1000.0, *(float(f"{gain:.{digits}g}") for digits in range(2, 10))):
        zero = 0 if size * candidate < largest else -round((low + high) / 2 * candidate)
        numbers = np.rint(different * candidate + zero)
        if np.abs(numbers).max() < largest and np.array_equal(
            ((numbers - zero) / candidate).astype(np.float32), different.astype(np.float32)
        ):
            return candidate, zero
    gain = float(f"{2 * (largest - 10) / max(high - low, 1e-6 * size):.5g}")
    return gain, -round((low + high) / 2 * gain)
