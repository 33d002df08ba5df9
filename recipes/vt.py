"""The rule of VT: a logistic regression of what is known of the last five beats, fitted and tested between patients.

    python -m recipes.vt --work FOLDER --noise FOLDER --cinc2017 FOLDER

A second of a lead counts if its last five beats run at 100/min or faster. It is VT in annotated VT and flutter and in
annotated runs of five V or F beats of DS1, svdb and the paced recordings of mitdb, and at the end of bedside cases that
show a row of V beats (bedside_cases.py); it is none elsewhere in these recordings, in false bedside cases and in
normal recordings of cinc2017 that neither trained a model nor are scored by studies/monitor_alarms.py. Seconds weigh
by the root of the number of a patient's. The table has regressions of other patients (five folds); the weights are
those of all patients. The rules use them in heartlm.monitor.rules.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

import heartlm.databases.splits as splits
import heartlm.monitor.rules as live_rules
from heartlm.databases.database import Database, open_database
from heartlm.ecg.recording import Recording
from heartlm.ecg.spans import runs
from heartlm.monitor.alarms import AlarmRules
from heartlm.monitor.models import LiveModels
from lab import bedside_cases as bedside
from lab.measure import Table
from lab.output import write_results
from lab.places import DATA, annotations_of, options

NAMES = ("mean p(V)", "beats above 0.3", "VT", "noise", "1 / RR, 1/s", "RR: deviation / mean")
FOLDS, BLOCK_S, END_S = 5, 30, 2.5
BEFORE_S, AFTER_S = 5, 12
"""Seconds before and after annotated VT in which a call is neither false nor learnt as such."""
TRIED = (
    (0.95, 0.8),
    (0.9, 0.8),
    (0.9, 0.75),
    (0.85, 0.75),
    (0.9, 0.7),
    (0.85, 0.7),
    (0.5, 0.5),
    (0.3, 0.3),
    (0.2, 0.2),
)
"""Probabilities from which on VT is called in one second, and in two in a row."""
NEVER = -20.0


@dataclass
class Stream:
    """A recording or bedside case.

    Attributes:
        source: database, or `true` or `false` for a bedside case.
        patient: decides the fold.
        seconds: times of the seconds, in s.
        measures: of each lead, measures of the seconds that count, by index of the second.
        label: 1, 0 or −1 (neither) for each second.
    """

    source: str
    patient: str
    seconds: np.ndarray
    measures: list[dict[int, tuple[float, ...]]]
    label: np.ndarray


def measured(given: bedside.Seconds, rate_hz: float) -> list[dict[int, tuple[float, ...]]]:
    """The measures of each second that counts, in each lead, as the rules compute them."""
    num_leads = len(given[0][1])
    rules = live_rules.Rules("", AlarmRules(), rate_hz, 0.0, num_leads)
    found: list[dict[int, tuple[float, ...]]] = [{} for _ in range(num_leads)]
    for index, second in enumerate(given):
        rules.update(*second)
        for lead, own in zip(rules.leads, found, strict=True):
            measures = tuple(lead.vt_measures)
            if not rules.lost and not np.isnan(measures[0]):
                own[index] = measures
    return found


def annotated_vt(recording: Recording) -> list[tuple[float, float]]:
    """Start and end of annotated VT and flutter, and of runs of V and F beats with five at 100/min, in seconds."""
    beats, rate_hz = annotations_of(recording), recording.rate_hz
    sample = beats.sample / rate_hz
    spans = [
        (span.start / rate_hz, span.stop / rate_hz) for span in beats.rhythms if span.name in ("VT", "VFL", "VFIB")
    ]
    for first, stop in runs(np.isin(beats.beat_classes(), (2, 3))).tolist():
        own = sample[first:stop]
        if len(own) >= 5 and (own[4:] - own[:-4]).min() <= 4 * 0.6:
            spans.append((own[0], own[-1]))
    return spans


def of_database(models: LiveModels, name: str, database: Database, record_ids: list[str]) -> Iterator[Stream]:
    for case, given in bedside.judged_recordings(models, database, record_ids):
        seconds = np.array([now for now, _, _ in given]) / case.rate_hz
        label = np.zeros(len(seconds), int)
        for start, stop in annotated_vt(database.recording(case.name)) if name != "cinc2017" else ():
            label[(seconds >= start - BEFORE_S) & (seconds <= stop + AFTER_S)] = -1
            label[(seconds >= start + 2.2) & (seconds <= stop + 1.5)] = 1
        yield Stream(name, f"{name}/{case.name}", seconds, measured(given, case.rate_hz), label)


def of_cases(models: LiveModels, noise: Path, work: Path) -> Iterator[Stream]:
    """Streams of bedside cases; those of VF and of fast rhythms, which may be VT too, are left out."""
    all_cases = bedside.cases(noise, False)
    seconds_of = bedside.given(models, all_cases, work)
    for case in all_cases:
        given = seconds_of[case.name]
        true = "VT" in case.kinds
        if case.patient.startswith("cudb") or (not true and "extreme tachycardia" in case.kinds):
            continue
        seconds = np.array([now for now, _, _ in given]) / case.rate_hz
        label = np.full(len(seconds), 0 if not case.kinds else -1)
        if case.what == "V in a row":
            label[seconds > seconds[-1] - END_S] = 1
        # A case is one event: only its last seconds count.
        measures = [
            {index: each for index, each in own.items() if seconds[index] > seconds[-1] - bedside.LAST_S}
            for own in measured(given, case.rate_hz)
        ]
        yield Stream("true" if true else "false", case.patient, seconds, measures, label)


def fit(streams: list[Stream]) -> Pipeline:
    rows = [
        (measures, stream.label[index], (stream.patient, stream.source, stream.label[index]))
        for stream in streams
        for own in stream.measures
        for index, measures in own.items()
        if stream.label[index] >= 0
    ]
    measures, labels = np.array([row[0] for row in rows]), np.array([row[1] for row in rows])
    count = Counter(row[2] for row in rows)
    weight = np.array([1 / count[row[2]] ** 0.5 for row in rows])
    weight[labels == 1] *= weight[labels == 0].sum() / weight[labels == 1].sum()
    model: Pipeline = make_pipeline(StandardScaler(), LogisticRegression(C=0.3, max_iter=1000))
    return model.fit(measures, labels, logisticregression__sample_weight=weight)


def scored(stream: Stream, model: Pipeline, num_leads: int) -> np.ndarray:
    """The highest log-odds of the leads in each second."""
    out = np.full(len(stream.seconds), NEVER)
    for own in stream.measures[:num_leads]:
        if own:
            index = np.array(list(own))
            out[index] = np.maximum(out[index], model.decision_function(np.array(list(own.values()))))
    return out


def is_called(score: np.ndarray, once: float, twice: float) -> np.ndarray:
    """Whether VT is called in each second, from log-odds and the probabilities of `TRIED`."""
    both = np.minimum(score, np.concatenate([[NEVER], score[:-1]]))
    return np.asarray((score >= np.log(once / (1 - once))) | (both >= np.log(twice / (1 - twice))))


def main() -> None:
    settings = options(__doc__, "work", "noise", "cinc2017").parse_args()
    torch.set_num_threads(1)
    settings.work.mkdir(parents=True, exist_ok=True)
    path = settings.work / "vt.pickle"
    if not path.exists():
        models, mitdb, svdb = LiveModels(), open_database(DATA / "mitdb"), open_database(DATA / "svdb")
        streams = list(of_cases(models, settings.noise, settings.work))
        streams += of_database(models, "mitdb", mitdb, [*splits.DS1, *bedside.PACED])
        streams += of_database(models, "svdb", svdb, list(svdb.record_ids))
        cinc2017 = open_database(settings.cinc2017)
        streams += of_database(models, "cinc2017", cinc2017, bedside.normal_recordings(settings.cinc2017, others=True))
        path.write_bytes(pickle.dumps(streams))
    streams = pickle.loads(path.read_bytes())
    patients = sorted({stream.patient for stream in streams})
    fold = dict(zip(np.random.default_rng(0).permutation(patients), np.arange(len(patients)) % FOLDS, strict=True))
    fits = [fit([stream for stream in streams if fold[stream.patient] != own]) for own in range(FOLDS)]
    places = ("mitdb", "svdb", "cinc2017")
    table = Table(
        "Five folds of patients",
        (
            "probability in one second",
            "in two in a row",
            "true cases called, %: first lead",
            "two leads",
            "false cases called, %: first lead",
            "two leads",
            *(f"other calls in {place}" for place in places),
        ),
    )
    scores = [(stream, *(scored(stream, fits[fold[stream.patient]], leads) for leads in (1, 2))) for stream in streams]
    for probabilities in TRIED:
        called = [(stream, *(is_called(own, *probabilities) for own in of_leads)) for stream, *of_leads in scores]
        cells = [
            f"{100 * np.mean([each[leads].any() for each in called if each[0].source == source]):.1f}"
            for source in ("true", "false")
            for leads in (1, 2)
        ]
        for place in places:
            of_place = [(stream, own & (stream.label == 0)) for stream, _, own in called if stream.source == place]
            cells.append(str(sum(len(np.unique(stream.seconds[own] // BLOCK_S)) for stream, own in of_place)))
        table.add(*(f"{each:g}" for each in probabilities), *cells)
    model = fit(streams)
    scale, regression = model[0], model[-1]
    weights = regression.coef_[0] / scale.scale_
    used = Table("Weights, fitted to all patients and used", ("measure", "fitted", "used"))
    limits = live_rules.LIMITS
    for name, fitted, weight in zip(NAMES, weights, limits["vt_weights"], strict=True):
        used.add(name, f"{fitted:.2f}", f"{weight:.2f}")
    used.add("constant", f"{regression.intercept_[0] - weights @ scale.mean_:.2f}", f"{limits['vt_bias']:.2f}")
    write_results("vt", "The rule of VT", [table, used])


if __name__ == "__main__":
    main()
