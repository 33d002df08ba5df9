"""The onset of AF in live streams: train the model that judges single beats, and try the sums of its log odds.

    python benchmarks/af_onset.py --work FOLDER --cinc2017 FOLDER --ltafdb FOLDER [--seed 0]

It learns from the beats of cinc2017 (all recordings with AF, a third of the others except noisy ones, none of the 200
of `benchmarks/monitor.py`), from those of 300 simulated patients, from the beats after annotated S beats in every
second record of svdb, and from the intervals of ltafdb and of half of nsrdb, whose records have no signals: their P
waves and classes are unknown. Beats of a source and a label weigh as given by `SOURCES`, whatever their number. The
weights are written to src/heartlm/models/pretrained/af-onset.

The rules are then tried on what the monitor says of DS1, svdb, 120 other simulated patients and the 200 recordings of
cinc2017: how long after the onset AF is raised (episodes of a minute or more that begin after 30 s), and how many
alarms of AF meet no AF. In svdb no rhythms are annotated, so some of its alarms may be right.
"""

from __future__ import annotations

import argparse
import os
import pickle
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import torch
from bedside import Case, judged
from bench.measure import Table
from bench.output import write_results
from monitor import met, normal_recordings
from safetensors.numpy import save_file
from torch import nn
from torch.nn import functional as F  # noqa: N812

import heartlm.ecg.splits as splits
import heartlm.monitor.lead_rules as lead_rules
from heartlm.ecg.database import Database, open_database
from heartlm.ecg.recording import BEAT_CLASSES, Annotations
from heartlm.ecg.simulator.config import SimulationConfig
from heartlm.ecg.simulator.write import simulate_database
from heartlm.models.pretrained import FOLDER
from heartlm.monitor.af_onset import CLASSES, CODES, NUM_CLASSIFIED, NUM_INTERVALS, AfOnset, interval_measures
from heartlm.monitor.alarms import Alarm, AlarmRules
from heartlm.monitor.models import LiveModels
from heartlm.monitor.rules import Rules
from heartlm.monitor.stream import ecg_leads

DATA = Path(os.environ.get("HEARTLM_TEST_DATA", "../shared/data"))
SOURCES = {"cinc2017": 1.0, "simulated": 0.6, "svdb": 0.6, "intervals": 0.3}
"""Weight of each label of a source in training."""
NUM_LEVELS, NUM_HIDDEN, STEPS, BATCH, LEARNING_RATE = 16, 32, 5000, 1024, 5e-3
WITHOUT_SIGNAL, HIDDEN_MEASURES = 0.1, 0.2
"""Shares of the beats in training whose P waves and classes are hidden, and of all measures that are."""
AFTER_ECTOPIC_S, MATCH_S = 4.0, 0.15
"""Beats of svdb this long after an annotated S beat are learnt from; largest distance of a beat from its annotation."""
SHARE_OF_INTERVALS, SHARE_OF_SIMULATED = 1 / 60, 1 / 5
"""Shares of the beats that are learnt from: those of a patient are alike."""
LOG_ODDS = float(np.log(AlarmRules().af_probability / (1 - AlarmRules().af_probability)))
"""`_AF_EXCESS` is the sum that raises AF less these log odds."""
TOGETHER = 32
TRIED = ((0.5, 3.0), (1.0, 3.0))
"""`_AF_DRIFT` and `_AF_CLIP` of the rules that are tried, each with some sums."""
SUMS = (5.0, 6.0, 7.0, 8.0, 10.0)


class Kept:
    """In place of `AfOnset`: keeps measures, and answers with the number of each, by which a beat's are found again."""

    def __init__(self) -> None:
        self.rows = list[np.ndarray]()
        self.num = 0

    def judge(self, measures: np.ndarray) -> np.ndarray:
        self.rows.append(measures.astype(np.float32))
        self.num += len(measures)
        return np.arange(self.num - len(measures), self.num, dtype=np.float64) + 1


def given(models: LiveModels, database: Database, record_ids: list[str]) -> Iterator[tuple[str, float, int, list]]:
    """Of each recording its name, sampling rate, number of leads, and what its rules get every second."""
    for begin in range(0, len(record_ids), TOGETHER):
        cases = list[Case]()
        for record_id in record_ids[begin : begin + TOGETHER]:
            recording = database.recording(record_id)
            signal = recording.signal(0, recording.num_samples, ecg_leads(recording))
            cases.append(Case(record_id, record_id, database.name, (), recording.rate_hz, signal))
        found = judged(models, cases)
        print(database.name, begin + len(cases), "of", len(record_ids), flush=True)
        for case in cases:
            yield case.name, case.rate_hz, len(case.signal_mv), found[case.name]


def in_af(annotations: Annotations, samples: np.ndarray) -> np.ndarray:
    """1 in AF, 0 outside of it, −1 in flutter."""
    label = np.zeros(len(samples), np.int64)
    for span in annotations.rhythms:
        if span.name in ("AFIB", "AFL"):
            label[(samples >= span.start) & (samples < span.stop)] = 1 if span.name == "AFIB" else -1
    return label


def of_signals(
    models: LiveModels, database: Database, record_ids: list[str], labels: Callable[[str, np.ndarray], np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Measures and labels of the beats of each lead; `labels` of a recording at samples are −1 if unknown."""
    kept, label, number = Kept(), list[np.ndarray](), list[np.ndarray]()
    usual, models.af_onset = models.af_onset, kept  # type: ignore[assignment]
    for name, _, num_leads, seconds in given(models, database, record_ids):
        for lead in range(num_leads):
            beats = [beat for _, leads, _ in seconds for beat in leads[lead].beats if beat.af]
            place, row = (np.array([getattr(beat, key) for beat in beats], np.int64) for key in ("sample", "af"))
            label.append(labels(name, place))
            number.append(row - 1)
    models.af_onset = usual
    found, rows = np.concatenate(label), np.concatenate(number)
    return np.concatenate(kept.rows)[rows[found >= 0]], found[found >= 0]


def inside_rhythms(annotations: Annotations, samples: np.ndarray) -> np.ndarray:
    """`in_af` of beats, −1 for the first beats of a rhythm, whose measures are of both."""
    label = in_af(annotations, samples)
    for place in np.flatnonzero(np.diff(label) != 0).tolist():
        label[place + 1 : place + 4] = -1
    return label


def after_ectopic(annotations: Annotations, samples: np.ndarray) -> np.ndarray:
    """0 for S beats and the beats soon after them, which are not of AF; −1 for others, which may be."""
    is_s = annotations.beat_classes() == BEAT_CLASSES.index("S")
    ectopic = np.append(-(10**9), np.asarray(annotations.sample)[is_s])
    last = ectopic[np.searchsorted(ectopic, samples + MATCH_S * annotations.rate_hz) - 1]
    return np.where(samples - last < AFTER_ECTOPIC_S * annotations.rate_hz, 0, -1)


def of_intervals(databases: Iterable[Database], choose: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Measures and labels of a share of the annotated beats, far from the edges of rhythms."""
    measures, label = list[np.ndarray](), list[np.ndarray]()
    for database in databases:
        record_ids = list(database.record_ids)
        for record_id in record_ids[::2] if database.name == "nsrdb" else record_ids:
            recording = database.recording(record_id)
            sample = np.asarray(recording.annotations.sample)
            own = in_af(recording.annotations, sample)
            near = np.convolve(np.diff(own, prepend=own[0]) != 0, np.ones(2 * NUM_INTERVALS + 1), "same") > 0
            usable = (own >= 0) & ~near & (choose.random(len(own)) < SHARE_OF_INTERVALS)
            usable[:NUM_INTERVALS] = False
            last = np.flatnonzero(usable)[:, None] + np.arange(-NUM_INTERVALS, 1)
            measures.append(interval_measures(np.diff(sample[last]) / recording.rate_hz))
            label.append(own[usable])
    known = np.concatenate(measures)
    unknown = np.full((len(known), len(CODES) + len(CLASSES) * NUM_CLASSIFIED), np.nan)
    return np.hstack([known, unknown]).astype(np.float32), np.concatenate(label)


def training_set(models: LiveModels, settings: argparse.Namespace) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Measures and labels of each source; kept in the work folder."""
    path: Path = settings.work / "training.pickle"
    if path.exists():
        found: dict[str, tuple[np.ndarray, np.ndarray]] = pickle.loads(path.read_bytes())
        return found
    choose, cinc2017 = np.random.default_rng(1), open_database(settings.cinc2017)
    lines = (settings.cinc2017 / "REFERENCE-v3-train.csv").read_text().split()
    held_out = set(normal_recordings(settings.cinc2017))
    labels = {
        name: int(label == "A")
        for number, (name, label) in enumerate(line.split(",") for line in lines)
        if name not in held_out and (label == "A" or (label in "NO" and number % 3 == 0))
    }
    simulated, svdb = simulated_patients(settings.work, 300, 7), open_database(DATA / "svdb")

    def of_patient(name: str, samples: np.ndarray) -> np.ndarray:
        return inside_rhythms(simulated.recording(name).annotations, samples)

    def of_recording(name: str, samples: np.ndarray) -> np.ndarray:
        return np.full(len(samples), labels[name])

    def of_ectopic(name: str, samples: np.ndarray) -> np.ndarray:
        return after_ectopic(svdb.recording(name).annotations, samples)

    measures, label = of_signals(models, simulated, list(simulated.record_ids), of_patient)
    chosen = (choose.random(len(label)) < SHARE_OF_SIMULATED) | ((label == 1) & (choose.random(len(label)) < 0.5))
    found = {
        "cinc2017": of_signals(models, cinc2017, sorted(labels), of_recording),
        "simulated": (measures[chosen], label[chosen]),
        "svdb": of_signals(models, svdb, list(svdb.record_ids)[::2], of_ectopic),
        "intervals": of_intervals((open_database(settings.ltafdb), open_database(DATA / "nsrdb")), choose),
    }
    path.write_bytes(pickle.dumps(found))
    return found


def simulated_patients(work: Path, num: int, seed: int) -> Database:
    folder = work / f"simulated-{seed}"
    if not folder.exists():
        simulate_database(folder, SimulationConfig(patients=num, minutes=10, seed=seed, name=folder.name))
    return open_database(folder)


def trained(sources: dict[str, tuple[np.ndarray, np.ndarray]], seed: int) -> dict[str, np.ndarray]:
    """The tensors of `AfOnset`."""
    torch.manual_seed(seed)
    choose = torch.Generator().manual_seed(seed)
    measures = np.concatenate([own for own, _ in sources.values()])
    label = np.concatenate([own for _, own in sources.values()])
    weight = np.concatenate([SOURCES[name] / np.bincount(own, minlength=2)[own] for name, (_, own) in sources.items()])
    known = sources["cinc2017"][0]
    edges = np.full((measures.shape[1], NUM_LEVELS - 1), np.inf, np.float32)
    for index, own in enumerate(known.T):
        levels = np.unique(np.quantile(own, np.arange(1, NUM_LEVELS) / NUM_LEVELS))
        edges[index, : len(levels)] = levels
    level = np.where(np.isnan(measures), 0, 1 + sum(measures >= each for each in edges.T))
    codes, wanted = torch.from_numpy(level.astype(np.int64)), torch.from_numpy(label.astype(np.float32))
    table = nn.Parameter(0.1 * torch.randn(len(edges), NUM_LEVELS + 1, NUM_HIDDEN, generator=choose))
    bias, head = nn.Parameter(torch.zeros(NUM_HIDDEN)), nn.Linear(NUM_HIDDEN, 1)
    optimizer = torch.optim.AdamW([table, bias, *head.parameters()], lr=LEARNING_RATE, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=STEPS)
    places = torch.arange(len(edges))
    num_of_intervals = len(edges) - len(CODES) - len(CLASSES) * NUM_CLASSIFIED
    drawn = torch.multinomial(torch.from_numpy(weight), STEPS * BATCH, replacement=True, generator=choose)
    for batch in drawn.view(STEPS, BATCH):
        own = codes[batch]
        own[torch.rand(BATCH, generator=choose) < WITHOUT_SIGNAL, num_of_intervals:] = 0
        shown = torch.rand(BATCH, len(edges), 1, generator=choose) >= HIDDEN_MEASURES
        hidden = torch.relu((table[places, own] * shown / (1 - HIDDEN_MEASURES)).sum(dim=1) + bias)
        loss = F.binary_cross_entropy_with_logits(head(hidden)[:, 0], wanted[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    tensors = {"table": table, "bias": bias, "weight": head.weight[0], "offset": head.bias}
    halves = {name: each.detach().half().numpy() for name, each in tensors.items()}
    return halves | {"edges": edges}


def tried(sets: dict[str, tuple[Database, list]]) -> Table:
    """Delays of AF and alarms without AF, of each rule."""
    names = [f"{name}: {what}" for name in sets for what in ("delay, median, 95 %, s", "without AF")]
    table = Table("Sums that raise AF", ("drift", "limit", "sum", *names))
    for lead_rules._AF_DRIFT, lead_rules._AF_CLIP in TRIED:
        for total in SUMS:
            lead_rules._AF_EXCESS = total - LOG_ODDS
            cells = list[str]()
            for database, recorded in sets.values():
                delays, others = list[float](), 0
                for name, rate_hz, num_leads, seconds in recorded:
                    rules, alarms = Rules(name, AlarmRules(), rate_hz, 0.0, num_leads), dict[str, Alarm]()
                    for second in seconds:
                        alarms |= {alarm.key: alarm for alarm in rules.update(*second) if alarm.kind == "AF"}
                    annotations, num_samples = database.recording(name).annotations, seconds[-1][0]
                    spans = [span for span in annotations.rhythms if span.name == "AFIB"]
                    long = [span for span in spans if span.stop - span.start >= 60 * rate_hz <= 2 * span.start]
                    delays += met(list(alarms.values()), long, ("AF",), num_samples)[0]
                    spans += [span for span in annotations.rhythms if span.name == "AFL"]
                    _, right, num = met(list(alarms.values()), spans, ("AF",), num_samples)
                    others += num - right
                late = "{:.1f}, {:.1f}".format(*np.percentile(delays, [50, 95])) if delays else "–"
                cells += [late, str(others)]
            table.add(*(lead_rules._AF_DRIFT, lead_rules._AF_CLIP, total), *cells)
            print(*cells, flush=True)
    return table.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="where simulated patients and measures go")
    parser.add_argument("--cinc2017", type=Path, required=True, help="unpacked training set of CinC 2017")
    parser.add_argument("--ltafdb", type=Path, required=True, help="unpacked annotations of ltafdb")
    parser.add_argument("--seed", type=int, default=0)
    settings = parser.parse_args()
    torch.set_num_threads(1)
    settings.work.mkdir(parents=True, exist_ok=True)
    models = LiveModels()
    tensors = trained(training_set(models, settings), settings.seed)
    save_file(tensors, FOLDER / "af-onset/model.safetensors")
    models.af_onset = AfOnset()
    mitdb, cinc2017 = open_database(DATA / "mitdb"), open_database(settings.cinc2017)
    svdb, simulated = open_database(DATA / "svdb"), [simulated_patients(settings.work, 60, seed) for seed in (77, 2026)]
    sets = {
        "DS1": (mitdb, list(splits.DS1)),
        "simulated, seed 77": (simulated[0], list(simulated[0].record_ids)),
        "simulated, seed 2026": (simulated[1], list(simulated[1].record_ids)),
        "svdb, learnt from": (svdb, list(svdb.record_ids)[::2]),
        "svdb, others": (svdb, list(svdb.record_ids)[1::2]),
        "cinc2017, 200 normal": (cinc2017, normal_recordings(settings.cinc2017)),
    }
    recorded = {name: (database, list(given(models, database, ids))) for name, (database, ids) in sets.items()}
    write_results("af_onset", "The onset of AF in live streams", [tried(recorded)])


if __name__ == "__main__":
    main()
