"""Times of the rows of a table ─► a regular grid: the rate, the position of each row, and the gaps between rows.

Recorders write the times of their samples rounded (to milliseconds, at worst to seconds), with jitter, once for each
packet, or only in its first row; phones stamp packets when they arrive. The sampling itself is regular, so rows follow
each other in equal steps except where the times jump for good: there samples were lost. The step is the slope of time
over rows between such gaps, not the median difference of two times, which rounding distorts (at 360 Hz, 3 ms for
2.78 ms).
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from heartlm.formats.plausible import RATES_HZ

LONGEST_GAP_S, _SHORTEST_STEP_S = 7 * 86400.0, 1e-9
_LARGEST_GAP = 2**40
"""Rows of a gap, of which `_MOST_JUMPS` do not overflow: it is longer than the longest."""
PACKETS = "times are those of packets"
"""Begin of the repair of a clock with one time for several rows."""
# --- packets: one time for several rows, or times of arrival
# A packet has one time if at most this fraction of the rows has one: single rows without a time are faults.
_MOST_WITH_TIME = 0.9
# Long steps are the ends of packets if they are this many and this fraction of the steps, and if this fraction of them
# comes after the same number of rows; losses recur less often and less regularly.
_FEWEST_ENDS, _LEAST_ENDS, _LEAST_SAME_SIZE = 4, 0.01, 0.6
# Lost packets also come after equal numbers of rows, but each of them takes more than this multiple of the usual time.
_LOST_PACKET = 2.0
# Rows of a packet; a few with a wrong time may be wrong themselves.
_FEWEST_IN_PACKET = 4

# --- times that are wrong
# Largest fraction of times that may be out of order, next to two that any table may have.
_MOST_DISORDER, _FEW_WRONG = 0.01, 2
# Times fall back if they do so by more spreads of the steps than this: jitter does not.
_JITTER_SPREADS = 5.0
# Packets with the times of those before them end with a step of this multiple, and are as many rows as the times allow
# within this fraction of a step, or the resolution of a clock in milliseconds.
_LATE_STEP, _LATE_WITHIN, _MILLISECOND_S = 1.5, 0.5, 1e-3
# Rounding repeats a time at this fraction of the rows, or where the step is at most this number of its units.
_MANY_REPEATED, _COARSE_STEPS = 1e-2, 3.0
# Summer time begins and ends at night, in all countries before four o'clock.
_HOUR_S, _DAY_S, _LATEST_CHANGE_S = 3600.0, 86400.0, 4 * 3600.0 + 1

# --- gaps
# Rows (or packets) on each side of a jump whose median tells its size: enough for the cycle of rounded times.
_AROUND = 64
# Least size of a jump in standard errors, and in steps, resolutions and spreads of the times.
_SIGNIFICANT, _LEAST_JUMP, _LEAST_RESOLUTIONS, _LEAST_SPREADS = 6.0, 0.5, 1.1, 3.0
# The median has this standard error, relative to that of the mean.
_MEDIAN_ERROR = 1.25
# No row is lost if all times are within this fraction of a step of a clock without gaps: one lost row would shift the
# times before or after it by more.
_WITHIN = 0.4
_MOST_JUMPS = 100_000
# The grid is final if another step would move the last row by less than this fraction of a step.
_SAME_GRID = 0.1

# --- steps
# Values of which a median is taken.
_MOST_SAMPLED = 100_000
# A step that rounding or jitter explains is at most this much longer than the median: half a step, or what follows from
# resolution and spread, with a little room for the rounding of float64.
_HALF, _ROOM, _USUAL_SPREADS = 0.5, 1.01, 3.0
# Rounded times have two to ten different steps in nanoseconds, each of at least this fraction.
_MOST_STEPS, _LEAST_OF_STEP, _NS = 10, 0.01, 1e-9
# Longer steps at distances that vary by more than this fraction are losses; those of rounding recur regularly.
_IRREGULAR = 0.5
# Packets of exact times vary by this fraction, and most do; those of other times by as much as the second.
_EXACT, _MOSTLY, _UNEVEN_PACKETS = 1e-3, 0.9, 0.2

# --- rate
# Jitter from which on it is reported, as a fraction of the step.
_SHOWN_JITTER = 0.3
# Spread of the times around the grid, in steps or packets, at which they do not tell the places of the rows.
_MOST_SPREAD, _MOST_PACKET_SPREAD = 1.0, 2.0
# Relative distance of the rate that the times tell from a known rate.
_CONTRADICTS = 0.02
# Relative distance from a whole rate that is taken as rounding of the times: this, or four standard errors, which for
# few rows are many, but never more than the last.
_NEAR_WHOLE, _ERRORS_FROM_WHOLE, _FARTHEST_FROM_WHOLE = 1e-4, 4, 0.005

# --- counters of rows
# Fraction of steps that are 1 (and of falls that are equal), as in a counter with losses.
_LEAST_COUNTED = 0.8
# Fewer falls are wrong numbers, or the wraps of a counter of 16 bits.
_FEW_FALLS = 0.002
# Numbers from which counters begin again: two bits to 31.
_LEAST_MODULUS, _MOST_MODULUS = 4, 2**31
# A wrong bit makes a number fall by a power of two too, but then more than a tenth of the others rise beyond it.
_LEAST_WITHIN_MODULUS = 0.9


class UnusableClockError(Exception):
    """Times do not tell the rate; the message says why."""


@dataclass(frozen=True)
class Grid:
    """Regular grid of samples.

    Attributes:
        rate_hz: samples per second.
        rows: rows of the table that are used, int64 ascending.
        positions: place of each used row on the grid, int64 ascending without duplicates, the first is 0.
        irregularity: spread of the times around the grid, as a fraction of the step.
        repairs: what had to be repaired, one line each.
    """

    rate_hz: float
    rows: NDArray[np.int64]
    positions: NDArray[np.int64]
    irregularity: float = 0.0
    repairs: tuple[str, ...] = ()


@np.errstate(over="ignore", invalid="ignore", divide="ignore")  # of times that are refused
def regular_grid(time_s: NDArray[np.float64], rate_hz: float | None = None) -> Grid:
    """Return the grid of rows with the times `time_s`, float64 `[num_rows]`, NaN where a row states none.

    If the rate is known, pass it.

    Raises:
        UnusableClockError: the times do not rise, jump back, are too uneven, or contradict `rate_hz`.
    """
    num_rows = len(time_s)
    known = np.flatnonzero(np.isfinite(time_s))
    if len(known) < 2:
        raise UnusableClockError("has fewer than two times")
    repairs = list[str]()
    if len(known) == num_rows and np.median(np.diff(time_s)) == 0:
        # one time for all rows of a packet: it is the time of one row only, and the first packet may be incomplete
        known = (known[1:])[np.diff(time_s) > 0]
        is_packet = True
    else:
        is_packet = len(known) < _MOST_WITH_TIME * num_rows
    dropped = np.zeros(num_rows, bool)
    if not is_packet and (misdated := _misdated(known, time_s)).any():
        repairs.append(f"{_rows(int(misdated.sum()))} with times of rows before them placed by their number")
        known = known[~misdated]
    known = _ordered(known, time_s, dropped)
    if len(known) < 2:
        raise UnusableClockError("has fewer than two different times")
    if not is_packet and (starts := _packet_starts(known, time_s)) is not None:
        known, is_packet = starts, True
    if is_packet:
        dropped[:] = False  # a wrong time of a packet does not concern its rows
        known = known[np.diff(time_s[known], prepend=-np.inf) > 0]
    else:
        _drop_repeated(known, time_s, dropped)
        known = known[~dropped[known]]
        if num_dropped := int(dropped.sum()):
            repairs.append(f"{_rows(num_dropped)} whose time is out of order or repeated left out")
    if len(known) < 2:
        raise UnusableClockError("has fewer than two different times")
    step_s = 1 / rate_hz if rate_hz else _step_between_gaps(known, time_s)
    if not _SHORTEST_STEP_S < step_s < LONGEST_GAP_S:
        raise UnusableClockError("does not rise")
    # Gaps follow from the step, and the step from the times with their gaps: the second round has the better step.
    for _ in range(2):
        gaps = _gaps(known, time_s, step_s)
        places = known + np.concatenate([[0], np.cumsum(gaps)])
        fitted_s, error_s = _slope(places, time_s[known])
        if not fitted_s > 0:  # jitter around equal times
            raise UnusableClockError("does not rise")
        if not RATES_HZ[0] <= 1 / fitted_s <= RATES_HZ[1]:
            raise UnusableClockError(f"tells {1 / fitted_s:.5g} Hz")
        if rate_hz and abs(fitted_s * rate_hz - 1) > _CONTRADICTS:
            raise UnusableClockError(f"tells {1 / fitted_s:.5g} Hz")
        is_same = not gaps.any() and abs(fitted_s - step_s) * len(known) < _SAME_GRID * step_s
        step_s = step_s if rate_hz else fitted_s
        if is_same:
            break
    duration_s, lost = np.diff(time_s[known]), gaps > 0
    rows = positions = np.arange(num_rows)
    if gaps.any() or dropped.any():
        extra = _extra_rows(known, gaps, dropped)
        if extra.any():
            repairs.append(f"{_rows(int(extra.sum()))} more than the times allow left out")
        after = np.searchsorted(known[1:], positions, side="right")  # number of gaps before each row
        # rows and places on the grid, `[num_used]`: each row is later by the gaps before it
        kept = ~(dropped | extra)
        positions, rows = (positions + np.concatenate([[0], np.cumsum(gaps)])[after])[kept], rows[kept]
        rising = np.diff(positions, prepend=positions[0] - 1) > 0
        rows, positions = rows[rising], positions[rising] - positions[0]
    if lost.any() and (longest := float(duration_s[lost].max())) > LONGEST_GAP_S:
        row = int(known[1:][lost][int(np.argmax(duration_s[lost]))])
        raise UnusableClockError(f"jumps by {longest / 86400:.0f} days at row {row + 1}")
    if not rate_hz:
        rate_hz = 1 / step_s
        near = min(max(_NEAR_WHOLE, _ERRORS_FROM_WHOLE * error_s / step_s), _FARTHEST_FROM_WHOLE)
        if abs(rate_hz - round(rate_hz)) <= near * rate_hz:
            rate_hz = float(round(rate_hz))
    spread_s = _spread(duration_s - step_s * np.diff(places))
    if is_packet:
        rows_per_packet = float(np.median(np.diff(known)))
        repairs.append(f"{PACKETS} of {rows_per_packet:.0f} rows; rows taken as evenly spaced at {rate_hz:.6g} Hz")
    elif spread_s > _SHOWN_JITTER * step_s:
        repairs.append(
            f"times vary by {1e3 * spread_s:.2g} ms around steps of {1e3 * step_s:.4g} ms; rows taken as evenly spaced "
            f"at {rate_hz:.6g} Hz"
        )
    if spread_s > (_MOST_PACKET_SPREAD * rows_per_packet if is_packet else _MOST_SPREAD) * step_s:
        raise UnusableClockError(f"is too uneven (differences vary by {spread_s:.3g} s)")
    missing = int(positions[-1]) + 1 - len(positions)
    if missing:
        num_gaps = int((np.diff(positions) > 1).sum())
        many = "a gap" if num_gaps == 1 else f"{num_gaps} gaps"
        repairs.append(f"{many} in the times, {missing / rate_hz:.3g} s in all, read as invalid samples (NaN)")
    return Grid(rate_hz, rows, positions, spread_s / step_s, tuple(repairs))


def grid_of_counter(counter: NDArray[np.float64], rate_hz: float) -> Grid | None:
    """Return the grid of rows with numbers that rise by one, also modulo a power of two; None if they do not.

    Of numbers modulo n, lost rows are known modulo n.
    """
    span = counter_modulus(counter)
    if span is None:
        return None
    if span:
        # a row without a number follows the row before it, the first ones precede the row after them
        row = np.arange(len(counter))
        near = np.maximum.accumulate(np.where(np.isfinite(counter), row, 0))
        near[: np.isfinite(counter).argmax()] = np.isfinite(counter).argmax()
        steps = np.rint(np.diff(counter[near] + row - near)).astype(np.int64) % span
        # a single wrong number makes two wrong steps
        wrong = (steps[:-1] != 1) & (steps[1:] != 1) & ((steps[:-1] + steps[1:]) % span == 2)
        steps[:-1][wrong] = steps[1:][wrong] = 1
        counter = np.concatenate([[0], np.cumsum(steps)]).astype(np.float64)
    try:
        grid = regular_grid(counter / rate_hz, rate_hz)
    except UnusableClockError:
        return None
    return replace(grid, repairs=tuple(each.replace("in the times", "in the row numbers") for each in grid.repairs))


@np.errstate(over="ignore", invalid="ignore")
def counter_modulus(values: NDArray[np.float64]) -> int | None:
    """Return the number from which a counter of rows begins again, 0 if it does not; None if `values` do not count."""
    if len(values) < 2:
        return None
    steps = np.diff(values)
    if np.mean(steps == 1) < _LEAST_COUNTED:
        return None
    falls = 1 - steps[steps < 0]
    if not len(falls):
        return 0
    few = len(falls) < _FEW_FALLS * len(steps)
    span = float(np.median(falls))
    is_power_of_two = _LEAST_MODULUS <= span <= _MOST_MODULUS and not int(span) & (int(span) - 1)
    if np.mean(falls == span) < _LEAST_COUNTED or not is_power_of_two:
        return 0 if few else None
    is_within = np.mean(np.abs(values - np.nanmedian(values)) < span) >= _LEAST_WITHIN_MODULUS
    return 0 if few and not is_within else int(span)


def _ordered(known: NDArray[np.int64], time_s: NDArray[np.float64], dropped: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return `known` without the fewest rows such that times never fall, which are marked in `dropped`.

    Times that fall by no more than their jitter stay.
    """
    times = time_s[known]
    steps = np.diff(times)
    if not len(steps) or steps.min() >= -_JITTER_SPREADS * _spread(steps):
        return known
    # longest non-decreasing subsequence: `ends[n]` is the lowest last time of such a sequence of n + 1 times
    ends, last, before = list[float](), list[int](), [0] * len(times)
    for place, value in enumerate(times.tolist()):
        length = bisect_right(ends, value)
        before[place] = last[length - 1] if length else -1
        ends[length : length + 1], last[length : length + 1] = [value], [place]
    keep, place = np.zeros(len(times), bool), last[-1]
    while place >= 0:
        keep[place], place = True, before[place]
    wrong = known[~keep]
    if len(wrong) > _FEW_WRONG + _MOST_DISORDER * len(known):
        first = int(known[1:][steps < 0][0])
        raise UnusableClockError(f"goes back at row {first + 1}")
    dropped[wrong] = True
    return known[keep]


def _misdated(known: NDArray[np.int64], time_s: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return which of the rows `known` have times that fall back, but are as many as the times around them allow.

    Recorders write a packet with the times of the packet before it. A packet that is there twice makes rows too many.
    """
    times, wrong = time_s[known], np.zeros(len(known), bool)
    steps = np.diff(times)
    falls = np.flatnonzero(steps < -_JITTER_SPREADS * _spread(steps)) if len(steps) else steps
    if not 0 < len(falls) <= _FEW_WRONG + _MOST_DISORDER * len(known):
        return wrong
    usual = steps[(steps > 0) & (steps <= _usual(steps))]
    if not len(usual):
        return wrong
    step_s = float(usual.mean())
    rises = np.flatnonzero(steps > _LATE_STEP * step_s)
    for fall in falls.tolist():
        for rise in rises[np.searchsorted(rises, fall) :][:_AROUND].tolist():
            late_s = times[rise + 1] - times[fall] - step_s * (known[rise + 1] - known[fall])
            if abs(late_s) < max(_LATE_WITHIN * step_s, _MILLISECOND_S) and rise - fall >= _FEWEST_IN_PACKET:
                wrong[fall + 1 : rise + 1] = True
                break
            if times[rise + 1] > times[fall]:
                break
    return wrong


def without_time_change(seconds: NDArray[np.float64], clock_s: float) -> tuple[NDArray[np.float64], tuple[str, ...]]:
    """Return local times without the hour by which they jump where summer time begins or ends, and what was repaired.

    The jump is at a whole hour at night, from the last row before it to the first after it, without a loss of rows.

    Args:
        seconds: local times of the rows, rising otherwise.
        clock_s: time of day of the first row in seconds.
    """
    known = np.flatnonzero(np.isfinite(seconds))
    steps = np.diff(seconds[known])
    rising = steps[steps > 0]
    if not len(rising):
        return seconds, ()
    near_s = 2 * max(float(np.median(rising)), _MILLISECOND_S)
    places = np.flatnonzero(np.abs(np.abs(steps) - _HOUR_S) <= near_s)
    repairs = list[str]()
    for place in places.tolist():
        before, after = (clock_s + seconds[known[each]] - seconds[known[0]] for each in (place, place + 1))
        sign = 1 if steps[place] > 0 else -1
        at_whole_hour = -before % _HOUR_S <= near_s and after % _HOUR_S <= near_s
        if at_whole_hour and before % _DAY_S < _LATEST_CHANGE_S and not repairs:
            seconds = seconds.copy()
            seconds[known[place + 1] :] -= sign * _HOUR_S
            season = "begins" if sign > 0 else "ends"
            repairs.append(f"summer time {season} at row {int(known[place + 1]) + 1}: its hour is no gap")
    return seconds, tuple(repairs)


def _drop_repeated(known: NDArray[np.int64], time_s: NDArray[np.float64], dropped: NDArray[np.bool_]) -> None:
    """Mark rows with the time of the row before, unless rounding explains it."""
    steps = np.diff(time_s[known])
    repeated = steps == 0
    if not repeated.any():
        return
    usual_s = float(np.median(steps))
    # rounding makes single steps of 0, in equal distances if these are many, and the next step is longer
    single = repeated & ~np.concatenate([[False], repeated[:-1]]) & ~np.concatenate([repeated[1:], [False]])
    if single.mean() >= _MANY_REPEATED or usual_s <= _COARSE_STEPS * _resolution(steps[~repeated]):
        repeated &= ~single
    else:
        repeated[:-1] &= ~single[:-1] | (steps[1:] < _LATE_STEP * usual_s)
    dropped[known[1:][repeated]] = True


def _packet_starts(known: NDArray[np.int64], time_s: NDArray[np.float64]) -> NDArray[np.int64] | None:
    """Return the first row of each packet if long steps recur after equal numbers of rows; None if they do not."""
    steps = np.diff(time_s[known])
    ends = np.flatnonzero(steps > _usual(steps))
    if len(ends) < max(_FEWEST_ENDS, _LEAST_ENDS * len(steps)):
        return None
    sizes = np.diff(ends)
    size = int(np.median(sizes))
    if size < 2 or np.mean(sizes == size) < _LEAST_SAME_SIZE:
        return None
    totals = time_s[known[ends[1:] + 1]] - time_s[known[ends[:-1] + 1]]
    usual_s = np.median(steps) * size
    if np.median(totals[sizes == size]) > _LOST_PACKET * usual_s:
        return None
    return np.concatenate([known[:1], known[ends + 1]])


def _usual(steps: NDArray[np.float64]) -> float:
    """Return the longest step that rounding or jitter explains."""
    middle = float(np.median(steps))
    return middle + _ROOM * max(_HALF * middle, min(_resolution(steps), middle), _USUAL_SPREADS * _spread(steps))


def _resolution(steps: NDArray[np.float64]) -> float:
    """Return the unit in which times are rounded; 0 if steps vary by more, or by less, than rounding does."""
    steps = steps[:_MOST_SAMPLED]
    values, counts = np.unique(np.rint(steps / _NS), return_counts=True)
    is_frequent = counts >= _LEAST_OF_STEP * len(steps)
    values = values[is_frequent]
    if not 2 <= len(values) <= _MOST_STEPS:
        return 0.0
    most = values[int(np.argmax(counts[is_frequent]))]
    distances = np.diff(np.flatnonzero(steps > _NS * (most + 0.5)))
    if most == values[0] and len(distances) > 1 and distances.std() > _IRREGULAR * distances.mean():
        return 0.0
    return float(np.diff(values).min()) * _NS


def _spread(values: NDArray[np.float64]) -> float:
    """Return a robust standard deviation around the median."""
    if len(values) > _MOST_SAMPLED:
        values = values[np.linspace(0, len(values) - 1, _MOST_SAMPLED).astype(np.int64)]
    return 1.4826 * float(np.median(np.abs(values - np.median(values))))


def _step_between_gaps(known: NDArray[np.int64], time_s: NDArray[np.float64]) -> float:
    """Return the time from row to row where no row is lost: the time between gaps over the number of rows."""
    steps, rows = np.diff(time_s[known]), np.diff(known)
    slopes = steps / rows
    if (rows > 1).mean() > 0.5:  # packets have equal numbers of rows, single steps may be rounded to 0
        if not (middle := float(np.median(slopes))) > 0:
            return 0.0
        off = np.abs(slopes / middle - 1)
        # if times are exact, a lost row changes the slope of a packet by little
        is_exact = np.mean(off <= _EXACT) > _MOSTLY
        usual = off <= (_EXACT if is_exact else max(_JITTER_SPREADS * _spread(off), _UNEVEN_PACKETS))
    else:
        usual = slopes <= _usual(slopes)
    return float(steps[usual].sum() / rows[usual].sum())


def _gaps(known: NDArray[np.int64], time_s: NDArray[np.float64], step_s: float) -> NDArray[np.int64]:
    """Return the number of rows that are lost between each two of the rows `known`, int64 `[len(known) - 1]`.

    It is negative, down to minus the number of rows between the two, where these are more than the times allow.
    """
    # times of the known rows minus those of a clock without gaps, `[len(known)]`: a step up is a gap
    late_s = time_s[known] - step_s * known
    gaps = np.zeros(len(known) - 1, np.int64)
    level_s, drift_s = late_s[0], late_s[-1] - late_s[0]
    if len(known) == known[-1] - known[0] + 1 and abs(drift_s) < _WITHIN * step_s:
        level_s += 0.5 * drift_s
        if max(late_s.max() - level_s, level_s - late_s.min()) < _WITHIN * step_s:
            return gaps
    jumps, rows = np.diff(late_s), np.diff(known)
    spread_s = _spread(jumps)
    resolution_s = min(_resolution(np.diff(time_s[known])), 2 * step_s)
    enough_s = max(_LEAST_JUMP * step_s, _LEAST_RESOLUTIONS * resolution_s, _LEAST_SPREADS * spread_s)
    places = np.flatnonzero((jumps > enough_s) | ((rows > 1) & (jumps < -enough_s)))
    if len(places) > _MOST_JUMPS:
        raise UnusableClockError("is too uneven (it jumps at every few rows)")
    edges = np.concatenate([[-1], places, [len(known) - 1]])
    for number, place in enumerate(places.tolist(), 1):
        before = late_s[max(edges[number - 1] + 1, place + 1 - _AROUND) : place + 1]
        after = late_s[place + 1 : min(edges[number + 1] + 1, place + 1 + _AROUND)]
        jump_s = float(np.median(after)) - float(np.median(before))
        # `jumps` are differences of two times
        error_s = _MEDIAN_ERROR * spread_s / np.sqrt(2) * np.sqrt(1 / len(before) + 1 / len(after))
        if abs(jump_s) >= _SIGNIFICANT * error_s:
            gaps[place] = max(1 - int(rows[place]), round(min(max(jump_s / step_s, -_LARGEST_GAP), _LARGEST_GAP)))
    return gaps


def _extra_rows(known: NDArray[np.int64], gaps: NDArray[np.int64], dropped: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return which rows are too many: the last ones before the next known row, less those that are dropped already."""
    extra = np.zeros(len(dropped), bool)
    for place in np.flatnonzero(gaps < 0).tolist():
        between = np.arange(known[place] + 1, known[place + 1])
        left = between[~dropped[between]]
        too_many = -int(gaps[place]) - (len(between) - len(left))
        extra[left[len(left) - max(0, too_many) :]] = True
    return extra


def _slope(places: NDArray[np.int64], time_s: NDArray[np.float64]) -> tuple[float, float]:
    """Return the slope of the line through times over places, and its standard error."""
    x, y = places - places.mean(), time_s - time_s.mean()
    slope = float(x @ y / (x @ x))
    variance = float(np.mean((y - slope * x) ** 2)) / max(1, len(x) - 2) * len(x)
    return slope, float(np.sqrt(variance / (x @ x)))


def _rows(number: int) -> str:
    return "a row" if number == 1 else f"{number} rows"
