"""Accuracy and speed of delineation on LUDB and qtdb, compared with NeuroKit2 and ecgdeli.

    python -m studies.delineate --ludb DIR --qtdb DIR --networks DIR

`--networks` holds the networks of train_delineator.py: the patients of a fold are delineated by the network that was
trained without them. An annotated wave is found if a wave of the same kind has all annotated edges within 150 ms; of a
method that gives one edge only, that one. Each wave is matched once. Papers count the edges one by one. On LUDB every
lead has its own annotations; waves before the first and after the last annotated one do not count. On qtdb a
cardiologist annotated some beats in two leads together; waves that are made up count around these beats. Errors of
edges are those of found waves: mean and standard deviation over all, and the mean of the records' own standard
deviations, which papers on qtdb give. Rates are those of ten minutes in memory, as heartlm.delineate reads them.

Rivals: NeuroKit2 with its own cleaning and R peaks, and ecgdeli with its own filters, on three leads of LUDB.
"""

from __future__ import annotations

import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import metadata

import ecgdeli
import neurokit2
import numpy as np
from numpy.typing import NDArray

from heartlm.delineation.delineate import delineate
from heartlm.delineation.network import Network, find_waves, load_network
from heartlm.ecg.recording import Recording
from lab.delineation_data import NAMES, NUM_FOLDS, QRS, Annotated, P, T, annotated_recordings
from lab.measure import Table, interleaved, pin, rates
from lab.output import write_results
from lab.places import options

Waves = NDArray[np.float64]
"""Kind, onset, peak and offset of waves, NaN where not given, `[num_waves, 4]`."""
Delineator = Callable[[NDArray[np.float32], float], list[Waves]]
"""Signals `[num_leads, num_samples]` and rate → waves of each lead."""

WITHIN_S = 0.150
RIVAL_LEADS = ("ii", "v2", "v5")
COLUMNS = ("wave", "Se %", "+P %", "onset ms", "within records", "offset ms", "within records")


@dataclass
class Counts:
    """Counts and errors in ms of a kind of wave; errors by record."""

    found: int = 0
    missed: int = 0
    extra: int = 0
    errors: dict[str, dict[str, list[float]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))

    def cells(self, has_extra: bool) -> tuple[str, ...]:
        """Return the columns of a table; a method that gives no edges of this kind has none."""
        if not self.found:
            return ("–",) * (len(COLUMNS) - 1)
        edges = []
        for name in ("onset", "offset"):
            of_records = self.errors[name]
            pooled = np.concatenate([*of_records.values(), np.empty(0)])
            own = [np.std(each) for each in of_records.values() if len(each) > 4]
            edges += [f"{pooled.mean():.1f} ± {pooled.std():.1f}" if len(pooled) else "–"]
            edges += [f"± {np.mean(own):.1f}" if own else "–"]
        se = 100 * self.found / max(1, self.found + self.missed)
        ppv = 100 * self.found / max(1, self.found + self.extra)
        return f"{se:.2f}", f"{ppv:.2f}" if has_extra else "–", *edges


def matched(annotated: Waves, waves: Waves, rate_hz: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Match waves of one kind once each, nearest first; return the places of the pairs in both."""
    away = np.abs(annotated[:, None, [1, 3]] - waves[None][..., [1, 3]]) / rate_hz
    missing = np.isnan(away)
    furthest = np.where(missing, 0, away).max(axis=2, initial=0)
    mean = np.where(missing, 0, away).sum(axis=2) / np.maximum(1, (~missing).sum(axis=2))
    possible = (furthest <= WITHIN_S) & ~missing.all(axis=2)
    pairs, used = list[tuple[int, int]](), (set[int](), set[int]())
    first, second = np.nonzero(possible)
    for place in np.argsort(mean[first, second], kind="stable"):
        one, other = int(first[place]), int(second[place])
        if one not in used[0] and other not in used[1]:
            pairs.append((one, other))
            used[0].add(one)
            used[1].add(other)
    table = np.array(sorted(pairs), np.int64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def _counted(record: Annotated, annotated: Waves, waves: Waves, kind: int) -> NDArray[np.bool_]:
    """Return which waves of a kind lie where annotators would have marked them."""
    middle = np.nanmean(waves[:, 1:], axis=1) if len(waves) else np.empty(0)
    if record.database == "ludb":
        edges = annotated[:, 1:]
        inside = (np.nanmin(waves[:, 1:], axis=1, initial=np.inf) > np.nanmin(edges)) if len(waves) else middle > 0
        return inside & (np.nanmax(waves[:, 1:], axis=1, initial=-np.inf) < np.nanmax(edges)) if len(waves) else inside
    rate_hz, complexes = record.rate_hz, annotated[annotated[:, 0] == QRS]
    if kind == T and not (annotated[:, 0] == T).any():
        return np.zeros(len(waves), np.bool_)
    before, after = {P: (0.25, 0.0), QRS: (0.2, 0.4), T: (0.0, 0.45)}[kind]
    first = complexes[:, 1 if kind != T else 3] - before * rate_hz
    last = complexes[:, 1 if kind == P else 3] + after * rate_hz
    return np.asarray(((middle[:, None] > first) & (middle[:, None] < last)).any(axis=1))


def add_lead(counts: Mapping[int, Counts], record: Annotated, annotated: Waves, waves: Waves) -> None:
    """Count the waves of a lead."""
    for kind in range(3):
        own, found = annotated[annotated[:, 0] == kind], waves[waves[:, 0] == kind]
        one, other = matched(own, found, record.rate_hz)
        count = counts[kind]
        count.found += len(one)
        count.missed += len(own) - len(one)
        inside = _counted(record, annotated, found, kind)
        inside[other] = False
        count.extra += int(inside.sum())
        for name, column in (("onset", 1), ("offset", 3)):
            errors = (found[other, column] - own[one, column]) * 1000 / record.rate_hz
            count.errors[name][record.record] += errors[~np.isnan(errors)].tolist()


def add_best(counts: Mapping[int, Counts], record: Annotated, annotated: Waves, leads: list[Waves]) -> None:
    """Count each annotated edge once, with the lead that comes nearest to it (Martinez et al. 2004)."""
    for kind in range(3):
        own = annotated[annotated[:, 0] == kind]
        nearest, hit = np.full((len(own), 2), np.nan), np.zeros(len(own), np.bool_)
        for waves in leads:
            found = waves[waves[:, 0] == kind]
            one, other = matched(own, found, record.rate_hz)
            hit[one] = True
            errors = (found[other][:, [1, 3]] - own[one][:, [1, 3]]) * 1000 / record.rate_hz
            is_nearer = ~(np.abs(nearest[one]) <= np.abs(errors))
            nearest[one] = np.where(is_nearer & ~np.isnan(errors), errors, nearest[one])
        counts[kind].found += int(hit.sum())
        counts[kind].missed += int((~hit).sum())
        for column, name in enumerate(("onset", "offset")):
            counts[kind].errors[name][record.record] += nearest[~np.isnan(nearest[:, column]), column].tolist()


def by_heartlm(network: Network, alone: bool = False, together: bool = False) -> Delineator:
    """heartlm with a network: leads that agree, each lead alone, or one list for all leads together."""

    def find(signals: NDArray[np.float32], rate_hz: float) -> list[Waves]:
        if alone and len(signals) > 1:
            return [waves for signal in signals for waves in find(signal[None], rate_hz)]
        leads = [f"lead {number}" for number in range(len(signals))]
        recording = Recording.from_array(signals, rate_hz=rate_hz, leads=leads)
        found = delineate(recording, leads=range(len(signals)), network=network)
        tables = [found.all_leads] if together else list(found.waves.transpose(1, 0, 2, 3))
        result = []
        for place, table in enumerate(tables):
            waves = np.concatenate([np.tile(np.arange(3.0), len(table))[:, None], table.reshape(-1, 3)], axis=1)
            if not together:
                other = found.other_p[place]
                more = np.stack([np.zeros(len(other.peak)), other.onset, other.peak, other.offset], axis=1)
                waves = np.concatenate([waves, more])
            waves = waves[waves[:, 2] >= 0]
            result.append(np.where(waves < 0, np.nan, waves))
        return result

    return find


Columns = list[list[NDArray[np.float64]]]
"""Onsets, peaks and offsets of each kind of wave; shorter than the others where not given."""


def by_neurokit(method: str, signal: NDArray[np.float64], rate_hz: float) -> Columns:
    """NeuroKit2, with its own cleaning and R peaks."""
    names = (("P_Onsets", "P_Peaks", "P_Offsets"), ("R_Onsets", "", "R_Offsets"), ("T_Onsets", "T_Peaks", "T_Offsets"))
    rate = round(rate_hz)
    clean = neurokit2.ecg_clean(signal, sampling_rate=rate)
    places = np.asarray(neurokit2.ecg_peaks(clean, sampling_rate=rate)[1]["ECG_R_Peaks"])
    found = dict(neurokit2.ecg_delineate(clean, places, sampling_rate=rate, method=method)[1]) | {"ECG_": places}
    return [[np.asarray(found.get(f"ECG_{name}", []), np.float64) for name in columns] for columns in names]


def by_ecgdeli(signal: NDArray[np.float64], rate_hz: float) -> Columns:
    """ecgdeli, with its own filters."""
    clean = ecgdeli.filter_ecg(signal, fs=rate_hz)
    samples = ecgdeli.annotate(clean, fs=rate_hz).leads[0].samples
    return [list(samples[:, columns].T) for columns in ([0, 1, 2], [3, 5, 7], [9, 10, 11])]


def each_lead(
    find: Callable[[NDArray[np.float64], float], Columns], signals: NDArray[np.float32], rate_hz: float
) -> list[Waves]:
    """The waves that a rival finds in each lead by itself."""
    result = []
    for signal in signals:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = find(np.nan_to_num(signal.astype(np.float64)), rate_hz)
        except Exception:  # what users see as an error is a lead without waves
            result.append(np.empty((0, 4)))
            continue
        parts = []
        for kind, columns in enumerate(found):
            num = max(map(len, columns))
            full = [each if len(each) == num else np.full(num, np.nan) for each in columns]
            parts.append(np.stack([np.full(num, float(kind)), *full], axis=1))
        waves = np.concatenate(parts)
        result.append(waves[~np.isnan(waves[:, [1, 3]]).all(axis=1)])
    return result


RIVALS: dict[str, Delineator] = {
    **{f"NeuroKit2 {method}": partial(each_lead, partial(by_neurokit, method)) for method in ("dwt", "cwt", "peak")},
    "ecgdeli": partial(each_lead, by_ecgdeli),
}


def score(
    records: list[Annotated], networks: Mapping[int, Network], rivals: Mapping[str, Delineator]
) -> Iterator[Table]:
    """Score all methods."""
    counts: dict[tuple[str, str], dict[int, Counts]] = defaultdict(lambda: {kind: Counts() for kind in range(3)})
    for record in records:
        network, signals = networks[record.fold], record.signals()
        references = [np.where(waves < 0, np.nan, waves.astype(np.float64)) for waves in record.waves]
        names = [name.lower() for name in record.recording.leads]
        some = [place for place, name in enumerate(names) if record.database == "qtdb" or name in RIVAL_LEADS]
        title = {"ludb": "LUDB, 12 leads", "qtdb": "qtdb, each lead"}[record.database]
        agreeing = by_heartlm(network)(signals, record.rate_hz)
        of_methods = {
            "heartlm": agreeing,
            "heartlm, each lead alone": by_heartlm(network, alone=True)(signals, record.rate_hz),
        }
        for name, leads in of_methods.items():
            for reference, waves in zip(references, leads, strict=True):
                add_lead(counts[title, name], record, reference, waves)
        of_methods |= {name: find(signals[some], record.rate_hz) for name, find in rivals.items()}
        for name, leads in of_methods.items():
            own = leads if len(leads) == len(some) else [leads[place] for place in some]
            if record.database == "qtdb":
                add_best(counts["qtdb, the nearer lead of each edge", name], record, references[0], own)
                if name in rivals:
                    for reference, waves in zip(references, own, strict=True):
                        add_lead(counts[title, name], record, reference, waves)
            else:
                for place, waves in zip(some, own, strict=True):
                    add_lead(counts["LUDB, leads II, V2 and V5", name], record, references[place], waves)
        if record.database == "qtdb":
            (waves,) = by_heartlm(network, together=True)(signals, record.rate_hz)
            add_lead(counts["qtdb, both leads together", "heartlm"], record, references[0], waves)
    for title in dict.fromkeys(title for title, _ in counts):
        table = Table(title, ("method", *COLUMNS))
        has_extra = title != "qtdb, the nearer lead of each edge"
        for kind, wave in enumerate(NAMES):
            for (of_title, name), of_kinds in counts.items():
                if of_title == title:
                    table.add(name, wave, *of_kinds[kind].cells(has_extra))
        yield table


def speeds(records: list[Annotated], network: Network, rounds: int) -> Table:
    """Rates on one core, of signal in memory; NeuroKit2 and ecgdeli have one lead of 60 s."""
    table = Table(
        f"speed, one core (median of {rounds})", ("method", "Hz", "leads", "M samples/s", "times NeuroKit2 dwt")
    )
    for database in ("ludb", "qtdb"):
        record = next(each for each in records if each.database == database)
        signals, num_samples = record.signals(), round(600 * record.rate_hz)
        signals = np.tile(signals, (1, -(-num_samples // signals.shape[1])))[:, :num_samples]
        _add_speeds(table, np.ascontiguousarray(signals), record.rate_hz, network, rounds)
    table.close()
    return table


def _add_speeds(table: Table, signals: NDArray[np.float32], rate_hz: float, network: Network, rounds: int) -> None:
    few, together = signals[:1, : round(60 * rate_hz)], f"heartlm, {len(signals)} leads that agree"
    turns: dict[str, tuple[Callable[[], object], int]] = {
        together: (lambda: find_waves(signals, rate_hz, network), len(signals)),
        "heartlm, one lead": (lambda: find_waves(signals[:1], rate_hz, network), 1),
        **{name: (partial(find, few, rate_hz), 1) for name, find in RIVALS.items()},
    }
    found = {}
    for name, taken in interleaved({name: turn for name, (turn, _) in turns.items()}, rounds).items():
        length = few.shape[1] if name in RIVALS else signals.shape[1]
        found[name] = rates(taken, turns[name][1] * length / 1e6)
    for name, rate in found.items():
        table.add(name, rate_hz, turns[name][1], rate, rate.median / found["NeuroKit2 dwt"].median)


def main() -> None:
    """Score, time, write."""
    parser = options(__doc__, "ludb", "qtdb", "networks", rounds=5)
    parser.add_argument("--every", type=int, default=1, help="score every n-th record only, and write nothing")
    parser.add_argument("--no-rivals", action="store_true", help="score heartlm only, and write nothing")
    settings = parser.parse_args()
    pin(0)
    paths = {fold: settings.networks / f"{fold}.safetensors" for fold in range(NUM_FOLDS)}
    networks = {fold: load_network(path) for fold, path in paths.items() if path.is_file()}
    if not networks:
        sys.exit(f"delineate.py: {settings.networks}: no network of a fold; make them with train_delineator.py")
    records = [each for each in annotated_recordings(settings.ludb, settings.qtdb) if each.fold in networks]
    records = records[:: settings.every]
    tables = list(score(records, networks, {} if settings.no_rivals else RIVALS))
    if settings.no_rivals or settings.every > 1:
        return
    tables += [speeds(records, next(iter(networks.values())), settings.rounds)]
    facts = {name: metadata.version(name) for name in ("neurokit2", "ecgdeli")}
    facts |= {f"{name} records": str(sum(each.database == name for each in records)) for name in ("ludb", "qtdb")}
    write_results(
        "delineate", "Delineation of P, QRS and T", tables, facts | {"folds": f"{len(networks)} of {NUM_FOLDS}"}
    )


if __name__ == "__main__":
    main()
