"""The onset of AF in live streams: train the model that judges single beats.

    python -m recipes.af_onset --work FOLDER --cinc2017 FOLDER --ltafdb FOLDER [--seed 0]

It learns from the beats of cinc2017 (all recordings with AF, a third of the others except noisy ones, none of the 200
of `studies/monitor_alarms.py`), from those of 1,000 simulated patients, from the beats after annotated S and V beats in
every second record of svdb, and from the intervals of ltafdb, of half of nsrdb and of the onsets of AF in afdb: their
P waves, classes and hidden states are unknown. The first beats of AF after another rhythm, whose intervals are of both,
are a label of their own. Beats of a source and a label weigh as given by `SOURCES`, whatever their number. The weights
are written to src/heartlm/models/pretrained/af-onset.
"""

from __future__ import annotations

import argparse
import pickle
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from safetensors.numpy import save_file
from torch import nn
from torch.nn import functional as F  # noqa: N812

from heartlm.databases.database import Database, open_database
from heartlm.ecg.recording import BEAT_CLASSES, Annotations
from heartlm.models.pretrained import FOLDER
from heartlm.monitor.af_onset import CLASSES, CODES, NUM_CLASSIFIED, NUM_INTERVALS, AfOnset, interval_measures
from heartlm.monitor.models import BeatsKernel, LiveModels
from lab.bedside_cases import judged_recordings, normal_recordings, simulated_patients
from lab.places import DATA, annotations_of, labels_of, options

SOURCES = {
    "cinc2017": (1.0, 1.0, 0.0),
    "simulated": (0.8, 0.8, 0.4),
    "svdb": (1.0, 0.0, 0.0),
    "intervals": (0.3, 0.3, 0.4),
}
"""Weight of each label of a source in training: no AF, AF, `EARLY`."""
EARLY, EARLY_BEATS = 2, (2, 8)
"""Label of the first beats of AF after another rhythm, and which ones these are: the interval before the first one is
of the other rhythm, and the measures of later ones are of AF."""
LEARNT_FROM = ((300, 7), (700, 8))
"""Numbers of simulated patients and their seeds."""
NUM_LEVELS, NUM_HIDDEN, STEPS, BATCH, LEARNING_RATE = 16, 32, 5000, 1024, 5e-3
NUM_NETWORKS = 2
"""Networks with random numbers of their own whose log odds are averaged: delays of single ones differ by 1 s."""
DECAY, DECAY_OF_STATE = 0.1, 1.0
"""Weight decay, and that of the matrix of hidden states, of which much fits single patients."""
WITHOUT_SIGNAL, WITHOUT_STATE, HIDDEN_MEASURES, HIDDEN_STATE = 0.1, 0.3, 0.2, 0.3
"""Shares of the beats in training whose P waves, classes and states are hidden and whose states are, of all measures
that are hidden, and of all numbers of states."""
AFTER_ECTOPIC_S, MATCH_S = 4.0, 0.15
"""Beats of svdb this long after an annotated S or V beat are learnt from; how far a beat may be from its annotation."""
LEAST_AF_S, BEFORE_AF_BEATS = 30, 10
"""Episodes of AF whose first beats are learnt from last this long, and this number of beats before are of no AF."""
SHARE_OF_INTERVALS, SHARE_OF_SIMULATED, SHARE_OF_AF = 1 / 60, 1 / 5, 3 / 5
"""Shares of the beats that are learnt from, the last one of simulated AF: those of a patient are alike."""
TOGETHER = 32


class Beats(NamedTuple):
    """Measures and hidden states, NaN where unknown, and labels of beats."""

    measures: np.ndarray
    states: np.ndarray
    label: np.ndarray

    def chosen(self, which: np.ndarray) -> Beats:
        return Beats(*(each[which] for each in self))


def joined(parts: list[Beats]) -> Beats:
    return Beats(*(np.concatenate(own) for own in zip(*parts, strict=True)))


class Kept:
    """In place of `AfOnset`: keeps measures and hidden states, and answers with the number of each beat's."""

    def __init__(self) -> None:
        self.rows, self.states = list[np.ndarray](), list[np.ndarray]()
        self.num = 0

    def judge(self, measures: np.ndarray, states: np.ndarray) -> np.ndarray:
        self.rows.append(measures.astype(np.float32))
        self.states.append(states.astype(np.float16))
        self.num += len(measures)
        return np.arange(self.num - len(measures), self.num, dtype=np.float64) + 1


def in_af(annotations: Annotations, samples: np.ndarray) -> np.ndarray:
    """1 in AF, 0 outside of it, −1 in flutter."""
    label = np.zeros(len(samples), np.int64)
    for span in annotations.rhythms:
        if span.name in ("AFIB", "AFL"):
            label[(samples >= span.start) & (samples < span.stop)] = 1 if span.name == "AFIB" else -1
    return label


def of_signals(
    models: LiveModels, database: Database, record_ids: list[str], labels: Callable[[str, np.ndarray], np.ndarray]
) -> Beats:
    """The beats of each lead; `labels` of a recording at samples are −1 if unknown."""
    kept, label, number = Kept(), list[np.ndarray](), list[np.ndarray]()
    usual = models.af_onset, models.beats_kernel
    width = models.af_onset.of_state.shape[1]
    models.beats_kernel = BeatsKernel(models.trunk, np.eye(width, dtype=np.float32))
    models.af_onset = kept  # type: ignore[assignment]
    for case, seconds in judged_recordings(models, database, record_ids, TOGETHER):
        for lead in range(len(case.signal_mv)):
            beats = [beat for _, leads, _ in seconds for beat in leads[lead].beats if beat.af]
            place, row = (np.array([getattr(beat, key) for beat in beats], np.int64) for key in ("sample", "af"))
            label.append(labels(case.name, place))
            number.append(row - 1)
    models.af_onset, models.beats_kernel = usual
    found, rows = np.concatenate(label), np.concatenate(number)
    chosen = rows[found >= 0]
    return Beats(np.concatenate(kept.rows)[chosen], np.concatenate(kept.states)[chosen], found[found >= 0])


def inside_rhythms(annotations: Annotations, samples: np.ndarray) -> np.ndarray:
    """`in_af` of beats, `EARLY` or −1 for the first beats of a rhythm, whose measures are of both."""
    rhythm = in_af(annotations, samples)
    label = rhythm.copy()
    for place in (np.flatnonzero(np.diff(rhythm) != 0) + 1).tolist():
        if rhythm[place - 1] == 0 and rhythm[place] == 1:
            label[place : place + EARLY_BEATS[0]] = -1
            early = slice(place + EARLY_BEATS[0], place + EARLY_BEATS[1])
            label[early][rhythm[early] == 1] = EARLY
        else:
            label[place : place + 3] = -1
    return label


def after_ectopic(annotations: Annotations, samples: np.ndarray) -> np.ndarray:
    """0 for S and V beats and the beats soon after them, which are not of AF; −1 for others, which may be."""
    early = np.isin(annotations.beat_classes(), [BEAT_CLASSES.index(name) for name in "SV"])
    ectopic = np.append(-(10**9), np.asarray(annotations.sample)[early])
    last = ectopic[np.searchsorted(ectopic, samples + MATCH_S * annotations.rate_hz) - 1]
    return np.where(samples - last < AFTER_ECTOPIC_S * annotations.rate_hz, 0, -1)


def of_intervals(databases: Iterable[Database], choose: np.random.Generator) -> Beats:
    """A share of the annotated beats far from the edges of rhythms, none in afdb, and the first beats of AF."""
    measures, label = list[np.ndarray](), list[np.ndarray]()
    for database in databases:
        record_ids = list(database.record_ids)
        for record_id in record_ids[::2] if database.name == "nsrdb" else record_ids:
            recording = database.recording(record_id)
            annotations = annotations_of(recording)
            sample = np.asarray(annotations.sample)
            own = in_af(annotations, sample)
            near = np.convolve(np.diff(own, prepend=own[0]) != 0, np.ones(2 * NUM_INTERVALS + 1), "same") > 0
            usable = (own >= 0) & ~near & (choose.random(len(own)) < SHARE_OF_INTERVALS) & (database.name != "afdb")
            for span in annotations.rhythms:
                first = int(np.searchsorted(sample, span.start))
                lasts = span.name == "AFIB" and span.stop - span.start >= LEAST_AF_S * recording.rate_hz
                if lasts and first >= BEFORE_AF_BEATS and not own[first - BEFORE_AF_BEATS : first].any():
                    early = np.arange(first + EARLY_BEATS[0], min(first + EARLY_BEATS[1], len(own)))
                    early = early[own[early] == 1]
                    own[early], usable[early] = EARLY, True
            usable[:NUM_INTERVALS] = False
            last = np.flatnonzero(usable)[:, None] + np.arange(-NUM_INTERVALS, 1)
            measures.append(interval_measures(np.diff(sample[last]) / recording.rate_hz))
            label.append(own[usable])
    known = np.concatenate(measures)
    unknown = np.full((len(known), len(CODES) + len(CLASSES) * NUM_CLASSIFIED), np.nan)
    states = np.full((len(known), AfOnset().of_state.shape[1]), np.nan, np.float16)
    return Beats(np.hstack([known, unknown]).astype(np.float32), states, np.concatenate(label))


def training_set(models: LiveModels, settings: argparse.Namespace) -> dict[str, Beats]:
    """The beats of each source; kept in the work folder."""
    path: Path = settings.work / "training.pickle"
    if path.exists():
        found: dict[str, Beats] = pickle.loads(path.read_bytes())
        return found
    choose, cinc2017 = np.random.default_rng(1), open_database(settings.cinc2017)
    held_out = set(normal_recordings(settings.cinc2017))
    labels = {
        name: int(label == "A")
        for number, (name, label) in enumerate(labels_of(settings.cinc2017).items())
        if name not in held_out and (label == "A" or (label in "NO" and number % 3 == 0))
    }
    svdb, simulated = open_database(DATA / "svdb"), list[Beats]()
    for num, seed in LEARNT_FROM:
        patients = simulated_patients(settings.work / f"simulated-{seed}", num, seed)

        def of_patient(name: str, samples: np.ndarray, patients: Database = patients) -> np.ndarray:
            return inside_rhythms(annotations_of(patients.recording(name)), samples)

        beats = of_signals(models, patients, list(patients.record_ids), of_patient)
        share = np.array([SHARE_OF_SIMULATED, SHARE_OF_AF, 1.0])[beats.label]
        simulated.append(beats.chosen(choose.random(len(share)) < share))

    def of_recording(name: str, samples: np.ndarray) -> np.ndarray:
        return np.full(len(samples), labels[name])

    def of_ectopic(name: str, samples: np.ndarray) -> np.ndarray:
        return after_ectopic(annotations_of(svdb.recording(name)), samples)

    of_intervals_only = settings.ltafdb, DATA / "nsrdb", DATA / "afdb"
    found = {
        "cinc2017": of_signals(models, cinc2017, sorted(labels), of_recording),
        "simulated": joined(simulated),
        "svdb": of_signals(models, svdb, list(svdb.record_ids)[::2], of_ectopic),
        "intervals": of_intervals([open_database(path) for path in of_intervals_only], choose),
    }
    path.write_bytes(pickle.dumps(found))
    return found


def trained(sources: dict[str, Beats], seed: int) -> dict[str, np.ndarray]:
    """The tensors of `AfOnset`."""
    torch.manual_seed(seed)
    choose = torch.Generator().manual_seed(seed)
    measures, states, label = joined(list(sources.values()))
    weights = list[np.ndarray]()
    for name, beats in sources.items():
        weights.append((np.array(SOURCES[name]) / np.maximum(np.bincount(beats.label, minlength=3), 1))[beats.label])
    known = sources["cinc2017"]
    edges = np.full((measures.shape[1], NUM_LEVELS - 1), np.inf, np.float32)
    for index, own in enumerate(known.measures.T):
        levels = np.unique(np.quantile(own, np.arange(1, NUM_LEVELS) / NUM_LEVELS))
        edges[index, : len(levels)] = levels
    level = np.where(np.isnan(measures), 0, 1 + sum(measures >= each for each in edges.T))
    codes, wanted = torch.from_numpy(level.astype(np.int64)), torch.from_numpy((label > 0).astype(np.float32))
    usual = known.states.astype(np.float32)
    mean, deviation = torch.from_numpy(usual.mean(axis=0)), torch.from_numpy(usual.std(axis=0) + 1e-3)
    has_state, state = torch.from_numpy(~np.isnan(states[:, 0])), torch.from_numpy(np.nan_to_num(states))
    table = nn.Parameter(0.1 * torch.randn(len(edges), NUM_LEVELS + 1, NUM_HIDDEN, generator=choose))
    bias, head = nn.Parameter(torch.zeros(NUM_HIDDEN)), nn.Linear(NUM_HIDDEN, 1)
    of_state = nn.Linear(len(mean), NUM_HIDDEN)
    nn.init.normal_(of_state.weight, std=0.03)
    nn.init.zeros_(of_state.bias)
    own = {"params": [table, bias, *head.parameters()], "weight_decay": DECAY}
    others = {"params": [*of_state.parameters()], "weight_decay": DECAY_OF_STATE}
    optimizer = torch.optim.AdamW([own, others], lr=LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=STEPS)
    places = (NUM_LEVELS + 1) * torch.arange(len(edges))
    num_of_intervals = len(edges) - len(CODES) - len(CLASSES) * NUM_CLASSIFIED
    weight = torch.from_numpy(np.concatenate(weights))
    drawn = torch.multinomial(weight, STEPS * BATCH, replacement=True, generator=choose)
    for batch in drawn.view(STEPS, BATCH):
        own_codes, without = codes[batch], torch.rand(BATCH, generator=choose) < WITHOUT_SIGNAL
        own_codes[without, num_of_intervals:] = 0
        shown = torch.rand(BATCH, len(edges), 1, generator=choose) >= HIDDEN_MEASURES
        hidden = (F.embedding(own_codes + places, table.flatten(0, 1)) * (shown / (1 - HIDDEN_MEASURES))).sum(dim=1)
        used = has_state[batch] & ~without & (torch.rand(BATCH, generator=choose) >= WITHOUT_STATE)
        normal = F.dropout((state[batch].float() - mean) / deviation, HIDDEN_STATE)
        hidden = torch.relu(hidden + bias + of_state(normal) * used[:, None])
        loss = F.binary_cross_entropy_with_logits(head(hidden)[:, 0], wanted[batch])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
    matrix = (of_state.weight / deviation).detach().half()
    offsets = bias + of_state.bias - matrix.float() @ mean
    tensors = {"table": table, "of_state": matrix, "weight": head.weight[0], "offset": head.bias}
    halves = {name: each.detach().half().numpy() for name, each in tensors.items()}
    return halves | {"edges": edges, "bias": offsets.detach().numpy()}


def averaged(networks: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """The mean of the log odds of networks with the same levels, as one network with all of their hidden units."""
    both = {name: [network[name] for network in networks] for name in networks[0]}
    wide = {name: np.concatenate(both[name], axis=axis) for name, axis in (("table", 2), ("of_state", 0), ("bias", 0))}
    weight = np.concatenate(both["weight"]) / len(networks)
    return wide | {"weight": weight, "offset": np.mean(both["offset"], axis=0), "edges": networks[0]["edges"]}


def main() -> None:
    settings = options(__doc__, "work", "cinc2017", "ltafdb", seed=0).parse_args()
    torch.set_num_threads(1)
    settings.work.mkdir(parents=True, exist_ok=True)
    sources = training_set(LiveModels(), settings)
    tensors = averaged([trained(sources, settings.seed + number) for number in range(NUM_NETWORKS)])
    save_file(tensors, FOLDER / "af-onset/model.safetensors")


if __name__ == "__main__":
    main()
