"""Train the network of heartlm.delineation, on all recordings or on all folds of patients but one.

    python -m recipes.train_delineator --ludb DIR --qtdb DIR --ptb-xl DIR --nstdb DIR --work DIR [--folds all 0 …]

Every network is written to WORK/NAME.safetensors; `all` is what heartlm ships, `0` to `4` are scored by delineate.py on
the fold that they have not seen. About five minutes of one core each.

Each item is a lead of LUDB or qtdb with its annotated waves; what the annotators left unmarked does not count. Atrial
fibrillation of PTB-XL adds that there is no P wave, noise of nstdb that there is nothing. Augmentation changes
amplitude, polarity, time scale, wander, noise and bandwidth. It also changes the rhythm: a part between T and P is cut
out, up to P waves on T waves, and in block QRS complexes and T waves are replaced by a line.
"""

from __future__ import annotations

import ast
import csv
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import save_file
from torch import Tensor, nn
from torch.nn import functional

from heartlm.databases.database import open_database
from heartlm.delineation.network import NETWORK_HZ, prepare
from lab.delineation_data import NUM_FOLDS, QRS, Annotated, P, T, annotated_recordings
from lab.places import options

LENGTH = 2048
"""Samples of a training window at 250 Hz; classes are given for every second one."""
STEPS, RATE, LUDB_ITEMS, QTDB_ITEMS, OTHER_ITEMS = 5000, 4e-3, 16, 8, 3
CHANNELS, DILATIONS = (8, 16, 24, 32), (1, 2, 4, 8)
LONGEST_RR = 400.0
"""Samples between beats of qtdb beyond which what lies between them is taken as not annotated."""
AF_WEIGHT = 0.1

Doubles = NDArray[np.float64]


class DelineationNetwork(nn.Module):
    """The network of delineate_network.c: x `[batch, 1, samples]` → logits `[batch, 4, samples / 2]`."""

    def __init__(self) -> None:
        super().__init__()
        a, b, c, d = CHANNELS

        def layer(inner: int, outer: int, kernel: int, stride: int = 1, dilation: int = 1) -> nn.Sequential:
            padding = kernel // 2 * dilation
            convolution = nn.Conv1d(inner, outer, kernel, stride, padding, dilation, bias=False)
            return nn.Sequential(convolution, nn.BatchNorm1d(outer))

        self.down = nn.ModuleList([layer(1, a, 11, 2), layer(a, b, 5, 2), layer(b, c, 5, 2), layer(c, d, 3, 2)])
        self.residual = nn.ModuleList([layer(d, d, 3, 1, dilation) for dilation in DILATIONS])
        self.up = nn.ModuleList([layer(d, c, 1), layer(c, b, 1), layer(b, a, 1)])
        self.mix = nn.ModuleList([layer(c, c, 3), layer(b, b, 3), layer(a, a, 5)])
        self.out = nn.Conv1d(a, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        skips = [x]
        for down in self.down:
            skips.append(functional.relu(down(skips[-1])))
        h = skips.pop()
        for residual in self.residual:
            h = h + functional.relu(residual(h))
        for up, mix in zip(self.up, self.mix, strict=True):
            h = functional.relu(up(h).repeat_interleave(2, -1) + skips.pop())
            h = functional.relu(mix(h))
        return torch.as_tensor(self.out(h))

    def save(self, path: Path) -> None:
        """Write the layers with the batch normalisation folded in."""
        pairs = [pair for each in zip(self.up, self.mix, strict=True) for pair in each]
        tensors, dilations = {}, []
        for number, layer in enumerate([*self.down, *self.residual, *pairs, self.out]):
            convolution, norm = layer if isinstance(layer, nn.Sequential) else (layer, None)
            assert isinstance(convolution, nn.Conv1d)
            weight: Tensor = convolution.weight
            bias: Tensor | None = convolution.bias
            if isinstance(norm, nn.BatchNorm1d):
                assert norm.running_var is not None and norm.running_mean is not None
                gain = norm.weight / torch.sqrt(norm.running_var + norm.eps)
                weight, bias = weight * gain[:, None, None], norm.bias - norm.running_mean * gain
            assert bias is not None
            tensors[f"{number}.weight"], tensors[f"{number}.bias"] = weight.detach().numpy(), bias.detach().numpy()
            dilations.append(convolution.dilation[0])
        save_file(tensors, path, {"dilations": json.dumps(dilations)})


@dataclass(frozen=True)
class Item:
    """A lead to learn from; positions are samples at 250 Hz.

    Attributes:
        source: `"ludb"`, `"qtdb"`, `"af"` (no P waves, the rest unknown) or `"noise"` (no waves).
        fold: fold of the patient; None for recordings that are never scored.
        x: the lead as the network reads it.
        waves: kind, onset and offset, ascending, float64 `[num_waves, 3]`.
        known: stretches in which every wave is annotated, `[num_stretches, 2]`.
    """

    source: str
    fold: int | None
    x: Doubles
    waves: Doubles
    known: Doubles


def items_of(recording: Annotated) -> Iterator[Item]:
    """Yield the leads of a recording."""
    to_network = NETWORK_HZ / recording.rate_hz
    signals = recording.signals()
    for signal, waves in zip(signals, recording.waves, strict=True):
        places = np.where(waves[:, 1:] < 0, np.nan, waves[:, 1:] * to_network)
        kinds = waves[:, 0]
        spans = _ludb_spans(kinds, places) if recording.database == "ludb" else _qtdb_spans(kinds, places)
        # the T waves of qtdb often have no onset: their peak stands for it, and what precedes it is not known
        onset = np.where(np.isnan(places[:, 0]), places[:, 1], places[:, 0])
        whole = ~np.isnan(places[:, 2]) & (~np.isnan(places[:, 0]) | (recording.database == "qtdb"))
        found = np.stack([kinds, onset, places[:, 2]], axis=1)[whole]
        if len(spans):
            x = prepare(signal, recording.rate_hz)[: int(signals.shape[1] * to_network)].astype(np.float64)
            known = np.array(spans, np.float64)
            yield Item(recording.database, recording.fold, x, found[np.argsort(found[:, 1])], known)


def _ludb_spans(kinds: NDArray[np.int64], places: Doubles) -> list[tuple[float, float]]:
    """From the first to the last annotated wave, without the surroundings of waves of which an edge is missing."""
    whole = ~np.isnan(places).any(axis=1)
    if not whole.any():
        return []
    spans = [(places[whole, 0].min() - 2, places[whole, 2].max() + 2)]
    for onset, peak, offset in places[~whole]:
        first = (peak - 80 if np.isnan(onset) else onset) - 4
        last = (peak + 80 if np.isnan(offset) else offset) + 4
        spans = [cut for a, b in spans for cut in ((a, min(b, first)), (max(a, last), b)) if cut[1] - cut[0] > 5]
    return spans


def _qtdb_spans(kinds: NDArray[np.int64], places: Doubles) -> list[tuple[float, float]]:
    """Around each annotated beat, and between consecutive ones."""
    spans, beats = list[tuple[float, float]](), np.flatnonzero(kinds == QRS)
    peaks = places[beats, 1]
    usual = min(float(np.median(np.diff(peaks))), LONGEST_RR) if len(beats) > 2 else 200.0
    t_is_annotated = (kinds == T).sum() >= 0.5 * len(beats)
    p_is_annotated = (kinds == P).sum() > 0.5 * len(beats)
    for number, beat in enumerate(beats):
        onset, peak, offset = places[beat]
        before, after = beat - 1, beat + 1
        has_p = before >= 0 and kinds[before] == P and peak - places[before, 1] < 100
        has_t = after < len(kinds) and kinds[after] == T and places[after, 1] - peak < 175
        first = places[before, 0] - 12 if has_p else onset - (3 if p_is_annotated else 50)
        if not t_is_annotated:
            first = onset - 25
        if not (t_is_annotated and has_t):
            spans.append((first, offset + 3))
            continue
        if np.isnan(places[after, 0]):
            spans.append((first, offset + 4))
            first = places[after, 1]
        last = places[after, 2] + 12
        if number + 1 < len(beats) and peaks[number + 1] - peak < 1.6 * usual:
            following = beats[number + 1]
            has_next_p = following - 1 > after and kinds[following - 1] == P
            last = max(last, places[following - 1 if has_next_p else following, 0])
        spans.append((first, last))
    return spans


def other_items(ptb_xl: Path, nstdb: Path) -> Iterator[Item]:
    """Yield leads in atrial fibrillation, and pieces of 20 s of noise."""
    nothing = np.empty((0, 3))
    if ptb_xl is not None:
        with (ptb_xl / "ptbxl_database.csv").open(encoding="utf-8") as stream:
            rows = [row for row in csv.DictReader(stream) if "AFIB" in ast.literal_eval(row["scp_codes"])]
        database = open_database(ptb_xl)
        by_name = {Path(record).name: record for record in database.record_ids}
        for row in rows:
            if {"AFLT", "PACE", "SR", "SVTAC"} & set(ast.literal_eval(row["scp_codes"])):
                continue
            recording = database.recording(by_name[Path(row["filename_hr"]).name])
            for signal in recording.signal():
                x = prepare(signal, recording.rate_hz).astype(np.float64)
                yield Item("af", None, x, nothing, np.array([[0.0, len(x)]]))
    if nstdb is not None:
        database = open_database(nstdb)
        for record in ("bw", "ma"):
            recording = database.recording(record)
            length = round(20 * recording.rate_hz)
            for start in range(0, recording.num_samples - length, length):
                for signal in recording.signal(start, start + length):
                    x = prepare(signal, recording.rate_hz).astype(np.float64)
                    yield Item("noise", None, x, nothing, np.array([[0.0, len(x)]]))


def faster(item: Item, random: np.random.Generator) -> Item:
    """Cut out parts between T waves and what follows; in some, P waves come to lie on the end of T waves."""
    fraction, x, waves = random.uniform(0.3, 1.0), item.x.copy(), item.waves.copy()
    may_overlap = random.random() < 0.4
    cuts, overlaps = list[tuple[int, int]](), list[int]()
    for number in range(len(waves) - 1):
        (kind, _, offset), (next_kind, onset, _) = waves[number], waves[number + 1]
        gap = onset - offset
        if kind != T or next_kind == T or not 0 <= gap < LONGEST_RR or onset + 45 > len(x):
            continue
        if may_overlap and next_kind == P:
            overlap = int(random.integers(0, 18))
            first, stop = int(offset) - overlap, int(onset)
            tail = x[first : first + overlap] - x[int(offset)]
            x[stop : stop + 40] += (x[int(offset)] - x[stop]) * np.linspace(1, 0, 40)
            x[stop : stop + overlap] += tail
            waves[number, 2], waves[number + 1, 1] = first, stop + overlap / 2
        else:
            size = int(gap * fraction * random.uniform(0.8, 1) * (1 if next_kind == P else 0.6))
            first = int(offset + (gap - size) * random.uniform(0.2, 0.8))
            stop, overlap = first + size, 0
            x[stop : stop + 40] += (x[first] - x[stop]) * np.linspace(1, 0, 40)
        if stop > first:
            cuts.append((first, stop))
            overlaps.append(number if overlap else -1)
    if not cuts:
        return item
    kept = np.ones(len(x), np.bool_)
    for first, stop in cuts:
        kept[first:stop] = False
    moved = np.concatenate([[0], np.cumsum(kept)]).astype(np.float64)
    places = np.arange(len(moved))
    known = np.interp(item.known, places, moved)
    ends = np.interp(waves[:, 1:], places, moved)
    for number in overlaps:  # a T wave ends where the P wave on it begins
        if number >= 0:
            ends[number, 1] = ends[number + 1, 0]
    return replace(item, x=x[kept], waves=np.column_stack([waves[:, 0], ends]), known=known)


def blocked(item: Item, random: np.random.Generator) -> Item:
    """Replace QRS complexes and T waves that follow a P wave: every second one, or some."""
    x, waves, kept = item.x.copy(), item.waves, np.ones(len(item.waves), np.bool_)
    alternate, parity, num = random.random() < 0.5, int(random.integers(2)), 0
    for number in range(len(waves) - 2):
        p, qrs, t = waves[number : number + 3]
        if (p[0], qrs[0], t[0]) != (P, QRS, T) or not 0 <= qrs[1] - p[2] < 80:
            continue
        num += 1
        if num % 2 != parity if alternate else random.random() < 0.75:
            continue
        first, stop = max(int(max(qrs[1] - 2, p[2] + 1)), 1), min(int(t[2]) + 3, len(x) - 2)
        if stop - first < 20:
            continue
        before = np.diff(x[max(0, first - 60) : first])
        noise = random.normal(0, max(0.5 * float(before.std()) if len(before) > 10 else 0.005, 1e-4), stop - first)
        slow = np.convolve(random.normal(0, 1, stop - first + 40), np.hanning(41) / 20, "valid")
        fade = np.sin(np.pi * np.arange(stop - first) / (stop - first))
        x[first:stop] = np.linspace(x[first], x[stop], stop - first) + noise + random.uniform(0, 0.02) * slow * fade
        kept[number + 1 : number + 3] = False
    return replace(item, x=x, waves=waves[kept])


def _noisy(x: Doubles, noises: list[Doubles], random: np.random.Generator) -> Doubles:
    """Change polarity, amplitude, wander, noise and bandwidth of a window."""
    if random.random() < 0.3:
        x = -x
    x = x * np.exp(random.normal(0, 0.3))
    time_s = np.arange(LENGTH) / NETWORK_HZ
    if random.random() < 0.5:
        x = x + random.uniform(0, 0.3) * np.sin(2 * np.pi * random.uniform(0.15, 0.8) * time_s + random.uniform(0, 6.3))
    kind = random.random()
    if kind < 0.3:
        x = x + random.normal(0, np.exp(random.uniform(-5.5, -2.7)), LENGTH)
    elif kind < 0.5 and noises:
        noise = noises[random.integers(len(noises))]
        start = random.integers(len(noise) - LENGTH)
        x = x + noise[start : start + LENGTH] / (noise.std() + 1e-9) * np.exp(random.uniform(-4, -1.2))
    elif kind < 0.6:
        hum = np.sin(2 * np.pi * random.choice([50, 60]) * time_s + random.uniform(0, 6.3))
        x = x + np.exp(random.uniform(-5, -3)) * hum
    if random.random() < 0.3:
        width = int(random.integers(2, 5))
        bell = np.hanning(2 * width + 1)[1:-1]
        x = np.convolve(np.pad(x, width - 1, mode="edge"), bell / bell.sum(), "valid")
    return x


def _coverage(edges: Doubles) -> Doubles:
    """Return how much of each cell the stretches `edges` `[num, 2]` cover, float64 `[LENGTH / 2]`."""
    cells = np.arange(LENGTH // 2)[:, None]
    covered = np.minimum(cells + 1, edges[:, 1]) - np.maximum(cells, edges[:, 0])
    return np.asarray(covered.clip(0).sum(axis=1).clip(max=1))


def window_of(item: Item, noises: list[Doubles], random: np.random.Generator) -> tuple[Doubles, Doubles, Doubles]:
    """Return samples `[LENGTH]`, class shares `[4, LENGTH / 2]` and which cells are known `[LENGTH / 2]`."""
    if len(item.waves) > 6:
        if item.source == "ludb" and random.random() < 0.12:
            item = blocked(item, random)
        if random.random() < 0.3:
            item = faster(item, random)
    speed = np.exp(random.uniform(0, 0.6) if random.random() < 0.25 else random.uniform(-0.35, 0.35))
    needed, (first, last) = LENGTH * speed, item.known[random.integers(len(item.known))]
    start = random.uniform(first - 0.8 * needed, last - 0.2 * needed)
    if len(item.x) > needed:
        start = min(max(start, -50), len(item.x) - needed + 50)
    x = np.interp(start + np.arange(LENGTH) * speed, np.arange(len(item.x)), item.x)

    def to_cell(places: Doubles) -> Doubles:  # a cell covers samples 2 c and 2 c + 1: from 2 c - 0.5 to 2 c + 1.5
        return np.asarray(((places - start) / speed + 0.5) / 2)

    shares = np.stack([_coverage(to_cell(item.waves[item.waves[:, 0] == kind, 1:])) for kind in (P, QRS, T)])
    shares = np.concatenate([(1 - shares.sum(axis=0, keepdims=True)).clip(0), shares])
    known = _coverage(to_cell(item.known)) > 0.99
    return _noisy(x, noises, random), shares / shares.sum(axis=0), known.astype(np.float64)


def train(items: list[Item], steps: int, seed: int) -> DelineationNetwork:
    """Train a network; its weights are a running mean over the last steps."""
    torch.manual_seed(seed)
    random, network = np.random.default_rng(seed), DelineationNetwork()
    groups = [[item for item in items if item.source in names] for names in (("ludb",), ("qtdb",), ("af", "noise"))]
    noises = [item.x for item in items if item.source == "noise"]
    mean = {name: value.clone() for name, value in network.state_dict().items()}
    optimizer = torch.optim.AdamW(network.parameters(), lr=RATE, weight_decay=1e-3)
    started, recent = time.perf_counter(), 0.0
    for step in range(steps):
        decay = 0.5 * (1 + np.cos(np.pi * step / steps))
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1, step / 100) * (0.01 + 0.99 * decay)
        sizes = (LUDB_ITEMS, QTDB_ITEMS, OTHER_ITEMS)
        batch = [
            group[place]
            for group, size in zip(groups, sizes, strict=True)
            if group
            for place in random.integers(len(group), size=size)
        ]
        windows = [window_of(item, noises, random) for item in batch]
        x, shares, known = (torch.from_numpy(np.stack(each)).float() for each in zip(*windows, strict=True))
        in_af = torch.tensor([item.source == "af" for item in batch])
        known[in_af] = 0
        logs = functional.log_softmax(network(x[:, None]), 1)
        loss = -((logs * shares).sum(1) * known).sum() / known.sum()
        if in_af.any():
            loss = loss - AF_WEIGHT * torch.log1p(-logs[in_af, P + 1].exp().clamp(max=1 - 1e-5)).mean()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        keep = min(0.995, (1 + step) / (10 + step))
        for name, value in network.state_dict().items():
            mean[name] = value.clone() if not value.is_floating_point() else keep * mean[name] + (1 - keep) * value
        recent = float(loss.detach()) if step == 0 else 0.98 * recent + 0.02 * float(loss.detach())
        if step % 250 == 249:
            print(f"step {step + 1}: loss {recent:.4f}, {time.perf_counter() - started:.0f} s", flush=True)
    network.load_state_dict(mean)
    return network.eval()


def main() -> None:
    """Read, train, write."""
    parser = options(__doc__, "ludb", "qtdb", "ptb-xl", "nstdb", "work", steps=STEPS, seed=1)
    parser.add_argument("--folds", nargs="+", default=["all", *map(str, range(NUM_FOLDS))])
    settings = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    settings.work.mkdir(parents=True, exist_ok=True)
    items = [item for each in annotated_recordings(settings.ludb, settings.qtdb) for item in items_of(each)]
    items += other_items(settings.ptb_xl, settings.nstdb)
    print(f"{len(items):,} leads", flush=True)
    for name in settings.folds:
        own = [item for item in items if name == "all" or item.fold != int(name)]
        print(f"{name}: {len(own):,} leads", flush=True)
        train(own, settings.steps, settings.seed).save(settings.work / f"{name}.safetensors")


if __name__ == "__main__":
    main()
