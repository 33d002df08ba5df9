"""Statistics of a window of RR intervals: measures of irregularity, computed from its tokens.

A transformer of this size does not learn Zhou's entropy by itself, so the window head also reads the measures used by
rules and decision trees. They are computed from the intervals of the window only, so they are comparable across widths.

Shapes: B windows, T intervals per window.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from heartlm.models.sizes import AROUND, EARLY, LONGEST_S, RUN, SCALES, SHORTEST_S, STEP_S, TOLERANCE_MS

PAIRS_AT_ONCE = {"cpu": 1 << 17, "cuda": 1 << 27}
"""Pairs of intervals that are compared together, 2 bytes each: what the caches of a CPU hold, or a batch of a GPU."""


def interval_statistics(seconds: Tensor, valid: Tensor | None = None, scales: Tensor | None = None) -> Tensor:
    """Return scaled measures of irregularity of windows of RR intervals, in the order of `SCALES`.

    Nothing depends on a number on the host, so that a step of training can be captured.

    Entropies are Zhou's (2015) and CoSEn (Lake and Moorman 2011) with the tolerance fixed at 30 ms; dispersion and
    bigeminy are those of Petrėnas (2015), averaged over runs of 8 intervals.

    Args:
        seconds: intervals in s, float32 `[B, T]`; entropies are 0 for fewer than 4 valid intervals.
        valid: valid intervals, at the start of each window, bool `[B, T]`; None for all.
        scales: the numbers of `SCALES` on the device of `seconds`, float32 `[len(SCALES), 2]`; copied there if None.

    Returns:
        float32 `[B, len(SCALES)]`, finite.
    """
    if scales is None:
        scales = torch.tensor(list(SCALES.values()), device=seconds.device)
    if valid is None:
        valid = torch.ones_like(seconds, dtype=torch.bool)
    short = max(0, RUN - seconds.shape[1])  # `unfold` needs at least one run
    seconds, valid = F.pad(seconds, (0, short)), F.pad(valid, (0, short))
    num = valid.sum(dim=1, keepdim=True)
    last = (num - 1).clamp(min=0)
    index = torch.minimum(torch.arange(seconds.shape[1], device=seconds.device)[None], last)
    x = seconds.gather(1, index).clamp(SHORTEST_S, LONGEST_S)  # padded with the last interval, for running medians
    inside = index[:, :1] + torch.arange(x.shape[1], device=x.device) < num
    around = _running_median(x, AROUND)
    early = x < EARLY * around
    late = F.pad(early[:, :-1], (1, 0)) & (x > around)
    filtered = torch.where(early | late, around, x)
    smooth = _running_median(x, 3)
    known = x.masked_fill(~inside, torch.nan)
    mean = known.nanmean(1)
    columns = [mean.log(), num[:, 0].clamp(min=1).float().log()]
    for series in (x, filtered, smooth):
        columns += _spread(series.masked_fill(~inside, torch.nan))
    columns += [_entropy(series, inside) for series in (x, filtered, smooth)]
    columns.append(_cosen(x, inside))
    step = known.diff(dim=1)
    first, second = step[:, :-1], step[:, 1:]
    # Of an even number of values, the median of torch is the lower of the two in the middle, unlike that of NumPy.
    relative = known / known.nanmedian(1, keepdim=True).values
    columns += [
        _share(step.abs() > STEP_S, step),
        _share(first * second < 0, second),
        _correlation(known[:, 1:], known[:, :-1]),
        _correlation(known[:, 2:], known[:, :-2]),
        _correlation(known[:, 3:], known[:, :-3]),
        *(_spread(known.unfold(1, size, 1).mean(2))[0] for size in (2, 3)),
        *_quantiles(relative, 0.05, 0.95),
        _share((relative - 1).abs() < STEP_S, relative),
        *_dispersion(x, smooth, inside),
        _share((first < -STEP_S) & (second > STEP_S), second),
        _share((first > STEP_S) & (second < -STEP_S), second),
    ]
    centre, spread = scales.T
    return torch.nan_to_num((torch.stack(columns, dim=1) - centre) / spread).clamp(-5, 5)


def _running_median(x: Tensor, width: int) -> Tensor:
    """Return the running median of `width` values, with replicated ends; shape of `x`."""
    ends = F.pad(x[:, None], (width // 2, width // 2), mode="replicate")[:, 0]
    return ends.unfold(1, width, 1).median(dim=2).values


def _spread(known: Tensor) -> list[Tensor]:
    """Return logarithms of standard deviation, RMSSD and median absolute difference, each divided by the mean."""
    mean, step = known.nanmean(1), known.diff(dim=1)
    deviation = ((known - mean[:, None]) ** 2).nanmean(1).sqrt()
    measures = deviation, (step**2).nanmean(1).sqrt(), step.abs().nanmedian(1).values
    return [(measure / mean + 1e-3).log() for measure in measures]


def _quantiles(known: Tensor, *shares: float) -> list[Tensor]:
    """Return quantiles of the known values of each row, linearly interpolated, as `nanquantile`; sorts once."""
    ordered = known.sort(dim=1).values  # NaN last
    last = ((~known.isnan()).sum(1, keepdim=True) - 1).clamp(min=0)
    values = []
    for share in shares:
        rank = share * last
        below, above = (ordered.gather(1, end.long())[:, 0] for end in (rank.floor(), rank.ceil()))
        values.append(below.lerp(above, (rank - rank.floor())[:, 0]))
    return values


def _share(holds: Tensor, known: Tensor) -> Tensor:
    """Return the fraction of known values for which `holds` is true."""
    is_known = ~known.isnan()
    return (holds & is_known).sum(1) / is_known.sum(1).clamp(min=1)


def _correlation(one: Tensor, other: Tensor) -> Tensor:
    valid = ~(one.isnan() | other.isnan())
    num = valid.sum(1, keepdim=True).clamp(min=1)
    one, other = (torch.where(valid, x, torch.zeros_like(x)) for x in (one, other))
    one, other = (torch.where(valid, x - x.sum(1, keepdim=True) / num, torch.zeros_like(x)) for x in (one, other))
    power = ((one**2).sum(1) * (other**2).sum(1)).sqrt()
    return (one * other).sum(1) / power.clamp(min=1e-9)


def _entropy(x: Tensor, inside: Tensor) -> Tensor:
    """Return the scaled entropy of words of three symbols of 5 beats/min, as in `heartlm.evaluation.zhou`; `[B]`."""
    symbol = (60 / x / 5).floor().clamp(max=63)  # three of 6 bits are a whole number that float32 holds exactly
    word = (symbol[:, :-2] * 64 + symbol[:, 1:-1]) * 64 + symbol[:, 2:]
    counts = inside[:, 2:]
    word = word.masked_fill(~counts, -1.0)
    ordered = word.sort(dim=1).values
    # Where words equal to one begin and end in order tells their number. Each of n counts 1 / n as a different word.
    num_same = torch.searchsorted(ordered, word, right=True) - torch.searchsorted(ordered, word)
    num = counts.sum(1).clamp(min=2)
    zero = torch.zeros_like(word)
    num_different = torch.where(counts, 1 / num_same, zero).sum(1)
    bits = torch.where(counts, -(num_same / num[:, None]).log2(), zero).sum(1) / num
    return num_different * bits / (num * num.log2())


def _cosen(x: Tensor, inside: Tensor) -> Tensor:
    """Return the coefficient of sample entropy (CoSEn) of order 1; `[B]`."""
    num = inside.sum(1)
    mean = torch.where(inside, x, torch.zeros_like(x)).sum(1) / num.clamp(min=1)
    milliseconds = (1000 * x).round().to(torch.int16)  # for fast comparison
    # padding is far from every interval, and from itself
    one, other = milliseconds.masked_fill(~inside, -10_000), milliseconds.masked_fill(~inside, 10_000)
    at_once = max(1, PAIRS_AT_ONCE.get(x.device.type, 1 << 17) // x.shape[1] ** 2)
    parts = []
    for rows, columns in zip(torch.split(one, at_once), torch.split(other, at_once), strict=True):
        near = (rows[:, :, None] - columns[:, None]).abs_() <= TOLERANCE_MS
        parts.append(torch.stack([near.sum((1, 2)), (near[:, :-1, :-1] & near[:, 1:, 1:]).sum((1, 2))]))
    ones, twos = torch.cat(parts, dim=1).unbind()
    # Pairs of one interval leave the last one out, which has none after it: its row and its column, which share a pair.
    near_last = (milliseconds.gather(1, (num - 1).clamp(min=0)[:, None]) - one).abs() <= TOLERANCE_MS
    ones = ones - 2 * near_last.sum(1) + (num > 0)
    itself = num - 1
    matches = ((ones - itself) / 2).clamp(min=1).log() - ((twos - itself) / 2).clamp(min=0.5).log()
    return matches + torch.log(2 * TOLERANCE_MS / (1000 * mean.clamp(min=SHORTEST_S)))


def _dispersion(x: Tensor, smooth: Tensor, inside: Tensor) -> list[Tensor]:
    """Return the fraction of pairs in runs that differ by 30 ms after the median, and the log change of the sum."""
    ends = inside[:, RUN - 1 :]
    runs = smooth.unfold(1, RUN, 1)
    differ = (runs[..., None] - runs[..., None, :]).abs() >= TOLERANCE_MS / 1000
    num_pairs = RUN * (RUN - 1)  # each pair twice, and none of an interval with itself
    differ = differ.flatten(2).sum(2) / num_pairs
    change = ((runs.sum(2) / x.unfold(1, RUN, 1).sum(2) - 1) ** 2 + 1e-6).log()
    num = ends.sum(1).clamp(min=1)
    return [torch.where(ends, value, torch.zeros_like(value)).sum(1) / num for value in (differ, change)]


class WindowStatistics(nn.Module):
    """Embeds the statistics of windows as vectors to add to the pooled hidden states.

    Args:
        seconds: interval in s of each code of the first facet, 0 if unknown, float32 `[size]`.
        width: width of the model.
    """

    seconds: Tensor
    scales: Tensor

    def __init__(self, seconds: Tensor, width: int) -> None:
        super().__init__()
        self.register_buffer("seconds", seconds)
        self.register_buffer("scales", torch.tensor(list(SCALES.values())), persistent=False)
        self.into = nn.Linear(len(SCALES), width)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, codes: Tensor, valid: Tensor | None) -> Tensor:
        """Return vectors `[B, width]` of the first facet's `codes` `[B, T]`; unknown intervals repeat the neighbour."""
        with torch.no_grad():
            seconds = self.seconds[codes]
            index = torch.arange(codes.shape[1], device=codes.device)
            before = torch.where(seconds > 0, index, -1).cummax(dim=1).values
            first = torch.where(seconds > 0, index, codes.shape[1] - 1).min(dim=1, keepdim=True).values
            seconds = seconds.gather(1, torch.where(before < 0, first, before))
            statistics = interval_statistics(seconds.float(), valid, self.scales)
        out: Tensor = self.out(F.silu(self.into(statistics)))
        return out
