"""Beat classification in unseen patients: a heart language model and hand-crafted features, on selection data.

    python -m studies.quality --data ../shared/data --work FOLDER
    python -m studies.quality --study svdb --data ../shared/data --work FOLDER
    python -m studies.quality --study ds2 --data ../shared/data --work FOLDER
    python -m studies.quality --study shipped --data ../shared/data --work FOLDER --detected

Everything about models is chosen by the first: patient-wise folds over DS1 of mitdb and svdb. The second trains on DS1
alone and scores on svdb. The third trains on both and scores on DS2, a test set: run it once for each model that is to
be released, and add a line to `results/looks.md`. The fourth scores the beats model that ships on DS2, as `heartlm
evaluate beats --on mitdb --split test` does; README quotes it. In each part of the others a tokenizer and a foundation
model learn from the other patients; for each seed the foundation model and the same model from random initialisation
are fine-tuned on their labels, on their beats on drawn rhythms (`recipes/retime.py`), on pieces of their recordings
with noise, and on recordings of cinc2017 and ptb-xl in sinus rhythm or AF with noise (`recipes/noisy_pieces.py`):
detections of noise are a class of their own. Both, gradient boosting and the majority class are scored on the patients
left out. The trees learn from the same tokens: decoded waveforms and intervals, and the levels of all comparisons.

Scores are of all folds together: F1 of V and S pooled over beats, of S also as the mean over patients with ten or more,
and how many of 1,000 N beats are called S in recordings with atrial fibrillation. Intervals are by bootstrap over
patients, all seeds of a patient together; differences are paired: the same patients are drawn for both. Every step is a
`heartlm` command and is not repeated when it is done.
"""

from __future__ import annotations

import argparse
import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heartlm.evaluation.bootstrap import Counts, Floats, ratio
from heartlm.models.pretrained import FOLDER
from heartlm.storage.atomic import atomic_folder
from lab.intervals import Score, interval
from lab.measure import Table
from lab.output import write_results
from lab.places import numbers_of, options
from lab.steps import Steps
from lab.weights import digests_of
from recipes.beats import STEPS, linked, noise_and_weak, parts_of, prepared

FIBRILLATION = tuple(f"mitdb/{record}" for record in (201, 203, 210, 219, 221, 222))
"""Patients of mitdb with atrial fibrillation, 202 being 201; of svdb no rhythms are known."""
STUDIES = {
    "folds": ("quality", "Beats of patients never seen: folds over DS1 and svdb"),
    "svdb": ("quality-svdb", "Beats of another database: trained on DS1, scored on svdb"),
    "ds2": ("quality-ds2", "Beats of DS2, trained on DS1 and svdb"),
    "shipped": ("quality-shipped", "Beats of DS2 by the model that ships"),
}
"""File of results and title of each study."""
APART = {"ds2": ("232", "201", "213"), "shipped": ("232",)}
"""Patients without whom a study is scored again: 232 has most of the S beats of DS2, 201 (there record 202) is in DS1
too, 213 has most of the F beats, which lie between N and V."""

S, V, FEWEST_S = 1, 2, 10
MEAN_S, FALSE_S = "S F1, mean over patients", "false S of 1,000 N in AF"
LABELS = ("N", "S", "V", "F", "other", "none")
DETECTED = "pretrained, detected beats"
MODEL, RANDOM, TREES, MAJORITY = "pretrained", "random initialisation", "gradient boosting", "majority class"


def measured(data: Path, work: Path, settings: argparse.Namespace) -> dict[str, dict[str, Counts]]:
    """Confusion matrices of every patient, summed over seeds, by method; int64 `[6, 6]`, see `LABELS`."""
    steps = Steps(work)
    noise, weak = noise_and_weak(data, work, steps)
    found: dict[str, dict[str, Counts]] = {}
    for part, splits in parts_of(data, settings.study, settings.folds).items():
        folder, name = work / part, part.removeprefix("fold-")
        databases, size = linked(data, folder, splits), (settings.depth, settings.pretrain_steps)
        tune = prepared(steps, name, folder, databases, splits, noise, weak, settings.causal, *size)
        steps.finetune(name, folder, settings.seeds, *tune, "--steps", settings.steps)
        for seed in range(settings.seeds):
            tuned = folder / f"tuned-{seed}"
            on = ("--on", folder / "corpus-tuned", "--random-init", folder / f"scratch-{seed}")
            content = evaluated(steps, f"evaluate-{name}-{seed}", tuned, "fold", seed, *on)
            for method, block in ({MODEL: content["scores"]} | content["baselines"]).items():
                add(found.setdefault(method, {}), block)
            if settings.detected:
                for database in databases:
                    if "test" in {of for patient, of in splits.items() if patient.startswith(f"{database.name}/")}:
                        step, words = (
                            f"detected-{name}-{seed}-{database.name}",
                            ("--beats", "detected", "--no-baselines"),
                        )
                        kept = f"detected-{database.name}"
                        content = evaluated(steps, step, tuned, kept, seed, "--on", database, *words)
                        add(found.setdefault(DETECTED, {}), content["scores"])
    return found


def shipped(data: Path, work: Path, detected: bool) -> dict[str, dict[str, Counts]]:
    """The same of DS2 by the beats model that ships, of a copy: scores are written next to the model."""
    run = work / digests_of(STUDIES["shipped"][0])["beats"]  # other weights are scored again
    if not run.is_dir():
        with atomic_folder(run) as temporary:
            shutil.copytree(FOLDER / "beats", temporary, dirs_exist_ok=True)
    found: dict[str, dict[str, Counts]] = {}
    for method, beats in {MODEL: "annotated", DETECTED: "detected"}.items():
        if beats == "annotated" or detected:
            words = ("--on", data / "mitdb", "--split", "test", "--beats", beats, "--no-baselines")
            content = evaluated(Steps(run), beats, run, beats, 0, *words)
            add(found.setdefault(method, {}), content["scores"])
    return found


def evaluated(steps: Steps, step: str, run: Path, name: str, seed: int, *words: object) -> dict[str, Any]:
    """The scores of a run that `heartlm evaluate` keeps by `name`."""
    scores = run / f"scores/{name}/scores.json"
    steps.run(step, scores, "evaluate", run, *words, "--checkpoint", "last", "--seed", seed, "--name", name)
    content: dict[str, Any] = json.loads(scores.read_text())
    return content


def add(total: dict[str, Counts], block: dict[str, Any]) -> None:
    """Add the matrices of one scored set."""
    place = np.array([LABELS.index(label) for label in block["confusion_labels"]])
    for entry in block["per_patient"]:
        confusion = total.setdefault(entry["patient"], np.zeros((len(LABELS), len(LABELS)), np.int64))
        confusion[np.ix_(place, place)] += np.array(entry["confusion"], np.int64)


def f1_of(index: int) -> Score:
    """Pooled F1 of a class, of patients drawn `[draws, patients]` times; `confusions` `[patients, 6, 6]`."""

    def score(drawn: Counts, confusions: Counts) -> Floats:
        right, truth, called = parts(confusions, index)
        return ratio(2 * (drawn @ right), drawn @ (truth + called))

    return score


def macro_s(counts: NDArray[np.bool_]) -> Score:
    """Mean F1 of S over those of the drawn patients that `counts` says have enough S beats."""

    def score(drawn: Counts, confusions: Counts) -> Floats:
        right, truth, called = parts(confusions, S)
        f1 = np.where(counts, ratio(2 * right, truth + called), 0)
        return ratio(drawn @ f1, drawn @ counts.astype(np.int64))

    return score


def parts(confusions: Counts, index: int) -> tuple[Counts, Counts, Counts]:
    return confusions[:, index, index], confusions[:, index].sum(axis=1), confusions[:, :, index].sum(axis=1)


def false_s(patients: list[str], confusions: Counts) -> str:
    """N beats of recordings with atrial fibrillation that are called S, of 1,000."""
    of = confusions[[place for place, patient in enumerate(patients) if patient in FIBRILLATION]]
    return f"{1000 * of[:, 0, S].sum() / of[:, 0].sum():.0f}" if len(of) else "–"


def tables_of(found: dict[str, dict[str, Counts]], seeds: int, without: str = "") -> list[Table]:
    """Scores of every method, and paired differences; one patient may be left out."""
    patients = sorted(patient for patient in found[MODEL] if patient != f"mitdb/{without}")
    confusions = {name: np.stack([of[patient] for patient in patients]) for name, of in found.items()}
    with_s = confusions[MODEL][:, S].sum(axis=1) >= FEWEST_S * seeds
    measures: dict[str, Score] = {"V F1": f1_of(V), "S F1": f1_of(S), MEAN_S: macro_s(with_s)}
    cell = partial(interval, num_bootstrap=2000)
    left_out = f" without {without}" if without else ""
    title = f"{len(patients)} patients{left_out}, F1 with 95 % interval by patients"
    scores = Table(title, ("method", *measures, FALSE_S))
    for name, of_method in confusions.items():
        scores.add(name, *(cell(score, of_method) for score in measures.values()), false_s(patients, of_method))
    differences = Table(f"Paired differences{left_out}", ("difference", *measures))
    pairs = ((MODEL, TREES), (RANDOM, TREES), (MODEL, RANDOM), (DETECTED, MODEL))
    for one, other in (pair for pair in pairs if found.keys() >= {*pair}):
        cells = (cell(score, confusions[one], confusions[other]) for score in measures.values())
        differences.add(f"{one} − {other}", *cells)
    return [scores, differences]


def main() -> None:
    values = {"folds": 5, "seeds": 5, "depth": 4, "pretrain_steps": 1000}
    parser = options(__doc__, "work", data="mitdb and svdb", **values)
    parser.add_argument("--study", choices=sorted(STUDIES), default="folds")
    parser.add_argument("--causal", action="store_true", help="the form for live streams")
    parser.add_argument("--detected", action="store_true", help="score on detected beats too")
    parser.add_argument("--steps", type=int, default=STEPS, help="of fine-tuning")
    settings = parser.parse_args()
    if settings.study == "shipped":
        settings.seeds = 1
        found = shipped(settings.data, settings.work, settings.detected)
    else:
        found = measured(settings.data, settings.work, settings)
    tables = [
        table for without in ("", *APART.get(settings.study, ())) for table in tables_of(found, settings.seeds, without)
    ]
    name, title = STUDIES[settings.study]
    name += "-causal" if settings.causal else ""
    about = numbers_of(settings) if settings.study != "shipped" else {}
    write_results(name, f"{title}, annotated beats, first lead", tables, about)


if __name__ == "__main__":
    main()
