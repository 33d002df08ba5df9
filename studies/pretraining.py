"""Pretraining over all leads: what it saves in labels, and what its frozen vectors hold, on folds 7 and 8 of PTB-XL.

    python -m studies.pretraining --data ../shared/data --work FOLDER

A network is pretrained without labels on folds 1 to 6 (of what is there). From it and from random weights the same
network learns the superclasses from 1 to 100 % of the patients of these folds, in the same number of steps. Of few
patients there are several draws; the tables have the mean AUROC. Learning rates are those that were better at 10 %:
3e-4 from the pretrained network; 1e-3 from random weights up to 10 %, where the usual 3e-3 is worse.
Trees learn from the same patients. Vectors are mean, maximum and spread over time of
the last two residual blocks, then the mean beat and the intervals; logistic regression on them
is compared with logistic regression on the mean beat and the intervals alone. The work folder may be that of
`recipes/statements.py`, which makes the corpus. Folds 7 and 8 chose the objective (docs/log/statements.md).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from heartlm.corpus.corpus import Corpus, open_corpus
from heartlm.ecg.statements import SUPERCLASSES
from heartlm.evaluation.bootstrap import Resampling
from heartlm.evaluation.rhythm import auroc
from heartlm.evaluation.statements import logistic_probabilities
from heartlm.inference.beat_summary import beat_summary
from heartlm.inference.statements import means_over_windows
from heartlm.labels.statements import stated_labels, stated_of
from heartlm.models.answering import answering
from heartlm.models.leads import LeadsNetwork
from heartlm.models.store import load_model
from heartlm.runs.run_folder import RunFolder
from heartlm.tasks.finetune import finetune
from heartlm.tasks.task import FinetuneConfig
from lab.intervals import shown
from lab.measure import Table
from lab.output import write_results
from lab.places import options
from studies.statements import network_probabilities, selection_corpus

Floats = NDArray[np.float64]
Features = NDArray[np.float32]

PRETRAINING_STEPS = 1500
STEPS_AND_DRAWS = {1: (100, 3), 3: (150, 3), 10: (200, 3), 30: (400, 1), 100: (1300, 1)}
"""Percent of the patients of folds 1 to 6: steps of fine-tuning, and draws of patients."""
STARTS = "random", "pretrained"
FEW, RATE_OF_FEW = 10, 1e-3
"""Percent up to which random weights learn at another rate than the usual one."""


class HeldOut:
    """Recordings of folds 7 and 8, their superclasses, and AUROC with resampled patients."""

    def __init__(self, corpus: Corpus) -> None:
        self.corpus, self.labels = corpus, stated_labels(stated_of(corpus), SUPERCLASSES)
        self.training, self.rows = (corpus.records.select(split) for split in ("train", "validation"))
        names, self.patient = np.unique(corpus.records.patient_id[self.rows], return_inverse=True)
        self.num_patients = len(names)
        drawn = Resampling(1000).weights(self.num_patients)
        self.weights = np.concatenate([np.ones((1, self.num_patients), np.int64), drawn])

    def codes(self, rows: NDArray[np.int64]) -> list[NDArray[np.uint16]]:
        """Codes of the recordings of `rows`."""
        return [self.corpus.codes[self.corpus.tokens_of(row)] for row in rows.tolist()]

    def area(self, probabilities: Floats) -> Floats:
        """Macro AUROC of the superclasses: of all patients, then of each resample."""
        own = self.labels[self.rows]
        areas = [
            auroc(own[:, place] == 1, probabilities[:, place], self.patient, self.weights)
            for place in range(len(SUPERCLASSES))
        ]
        return np.asarray(np.nanmean(areas, axis=0))

    def shown(self, area: Floats, sign: str = "") -> str:
        """An area, or the difference of two, with its interval."""
        return shown(float(area[0]), area[1:], self.num_patients, sign)

    def drawn(self, percent: int, draw: int) -> list[str]:
        """Patients of folds 1 to 6 among whom every superclass is present and absent."""
        patient_id, random = self.corpus.records.patient_id[self.training], np.random.default_rng([percent, draw])
        patients = np.unique(patient_id)
        while True:
            chosen = random.permutation(patients)[: max(1, round(len(patients) * percent / 100))]
            own = self.labels[self.training[np.isin(patient_id, chosen)]]
            if (own == 1).any(axis=0).all() and (own == 0).any(axis=0).all():
                return sorted(chosen.tolist())


def learnt(held_out: HeldOut, work: Path, foundation: Path, percent: int, table: Table) -> Floats:
    """Fine-tune with some of the labels, add a row, and return the area of random weights."""
    steps, num_draws = STEPS_AND_DRAWS[percent]
    codes, of_draws = held_out.codes(held_out.rows), dict[str, list[Floats]]()
    for draw in range(num_draws):
        patients = held_out.drawn(percent, draw)
        for start in STARTS:
            run = work / f"{start}-{percent}-{draw}"
            if not (run / "models/last").exists():
                config = FinetuneConfig(
                    run=foundation if start == "pretrained" else None,
                    task="statements",
                    corpus=held_out.corpus.folder,
                    out=run,
                    statements=",".join(SUPERCLASSES),
                    patients=",".join(patients),
                    members=1,
                    steps=steps,
                    class_balance=0,
                    seed=draw,
                    learning_rate=RATE_OF_FEW if start == "random" and percent <= FEW else None,
                    threads=1,
                    validate_every=steps,
                    checkpoint_every=steps,
                )
                finetune(config)
            for with_trees in (False, True):
                found = network_probabilities(RunFolder(run), codes, with_trees)
                of_draws.setdefault(start + " with trees" * with_trees, []).append(held_out.area(found))
    mean = {name: np.mean(areas, axis=0) for name, areas in of_draws.items()}
    cells = list[str]()
    for trees in ("", " with trees"):
        random, pretrained = (mean[f"{start}{trees}"] for start in STARTS)
        cells += held_out.shown(random), held_out.shown(pretrained), held_out.shown(pretrained - random, "+")
    num = len(held_out.drawn(percent, 0))
    table.add(f"{percent} %", num, num_draws, steps, *cells)
    return np.asarray(mean["random"])


def probes(held_out: HeldOut, foundation: Path, of_random: dict[int, Floats]) -> Table:
    """Logistic regression on frozen vectors and on summaries of beats; `of_random` are areas of `learnt`."""
    model, info = load_model(RunFolder(foundation).model("last"))
    assert isinstance(model, LeadsNetwork)
    rows = held_out.training, held_out.rows
    summaries = [np.stack([np.asarray(beat_summary(each)) for each in held_out.codes(own)]) for own in rows]
    states = [_states(model, held_out.codes(own), info.window) for own in rows]
    vectors = [np.concatenate(own, axis=1) for own in zip(states, summaries, strict=True)]
    inputs = {"mean beat and intervals": summaries, "state of the network": states, "both: vectors": vectors}
    less = ("vectors - mean beat and intervals", "vectors - network from random weights")
    table = Table("Logistic regression on frozen vectors, by labels", ("labels", "draws", *inputs, *less))
    patient_id = held_out.corpus.records.patient_id[held_out.training]
    for percent, (_, num_draws) in STEPS_AND_DRAWS.items():
        chosen = [np.isin(patient_id, held_out.drawn(percent, draw)) for draw in range(num_draws)]
        areas = {
            name: np.mean([held_out.area(_logistic(held_out, each, *own)) for each in chosen], axis=0)
            for name, own in inputs.items()
        }
        others = areas["mean beat and intervals"], of_random[percent]
        differences = [held_out.shown(areas["both: vectors"] - other, "+") for other in others]
        table.add(f"{percent} %", num_draws, *map(held_out.shown, areas.values()), *differences)
    return table


def _states(model: LeadsNetwork, recordings: list[NDArray[np.uint16]], window: int) -> Features:
    @torch.inference_mode()
    def states(part: NDArray[np.uint16]) -> Features:
        blocks = [model.frames(torch.from_numpy(part.astype(np.int64)), layer=layer) for layer in (2, 3)]
        pooled = torch.cat([each for x in blocks for each in (x.mean(dim=2), x.amax(dim=2), x.std(dim=2))], dim=1)
        return pooled.numpy()

    means = means_over_windows(answering(model), recordings, window, states)
    return np.stack([each for _, each in means]).astype(np.float32)


def _logistic(held_out: HeldOut, chosen: NDArray[np.bool_], known: Features, others: Features) -> Floats:
    return logistic_probabilities(known[chosen], held_out.labels[held_out.training[chosen]], others)


def main() -> None:
    """Pretrain, fine-tune, score and write the results."""
    settings = options(__doc__, "work", data="the archive of PTB-XL").parse_args()
    steps, _, folder, _ = selection_corpus(settings.work, settings.data)
    work = folder.parent
    foundation = work / "pretraining/foundation"
    words = ("pretrain", "--corpus", folder / "corpus", "--out", foundation, "--threads", 1)
    length = ("--steps", PRETRAINING_STEPS, "--validate-every", 5000, "--checkpoint-every", 5000)
    steps.run("pretraining", foundation / "models/last", *words, *length)
    held_out = HeldOut(open_corpus(folder / "corpus"))
    of_start = (*STARTS, "pretrained - random")
    trees = tuple(f"{name}, with trees" for name in of_start)
    columns = ("labels", "patients", "draws", "steps", *of_start, *trees)
    table = Table("Macro AUROC of the superclasses on folds 7 and 8, by labels", columns)
    of_random = {
        percent: learnt(held_out, work / "pretraining", foundation, percent, table) for percent in STEPS_AND_DRAWS
    }
    write_results("pretraining", "Pretraining over all leads", [table, probes(held_out, foundation, of_random)])


if __name__ == "__main__":
    main()
