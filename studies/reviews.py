"""Corrections teach: a model learns from reviewed recordings of another database, and is scored on its other patients.

    svdb ─► 20 patients drawn ─► 5, 10, 20 of them reviewed ─► `heartlm finetune --reviews` ─► F1 on the 19 others

The reference annotations stand for the reviewer. The model before is that of `quality.py --study svdb`: the recipe of
the shipped one, trained on DS1 of mitdb and recordings without labels of beats, so that no patient of svdb is known to
it. A fifth of the reviews is held back as by the command. Steps, learning rate and weight of the start were chosen on
another draw. Confusion matrices of a patient are summed over the draws; intervals
are by patients, differences are paired. The recordings of DS1 that the model was first trained on show what it forgets.

    python -m studies.reviews --work DIR --quality DIR --data DIR
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np

from heartlm.databases.database import open_database
from heartlm.evaluation.bootstrap import Counts
from heartlm.evaluation.config import EvaluationConfig
from heartlm.review.config import TeachConfig
from heartlm.review.teach import held_back, taught
from heartlm.system.cores import limit_threads
from heartlm.tasks.evaluate import leads_to_score
from heartlm.tasks.load import load_finetuned
from heartlm.tasks.task import task_of
from lab.intervals import interval
from lab.measure import Table
from lab.output import write_results
from lab.places import database_of, files_of, numbers_of, options
from studies.quality import LABELS, S, V, add, f1_of

NUMBERS = (5, 10, 20)
FIRST_DRAW = 10
"""Draw 0 chose the settings."""
FIRST_DATABASE = "mitdb"

Found = dict[str, Counts]


def learnt(settings: Any, patients: list[str], name: str) -> Path:
    """The run that learnt from the reviews of some patients, made once."""
    work, run = Path(settings.work / name), Path(settings.work / f"{name}-run")
    if not (run / "reviews.json").exists():
        for folder in (work, run):
            shutil.rmtree(folder, ignore_errors=True)
        for_scores = held_back({f"svdb/{patient}" for patient in patients})
        splits = {each: "test" if f"svdb/{each}" in for_scores else "train" for each in patients}
        database = database_of(files_of(settings.data / "svdb", patients), work / "svdb", splits=splits)
        config = TeachConfig(reviews=work, out=run, run=settings.quality / "svdb/tuned-0", threads=1)
        taught(config, [database], work / "corpus")
    return run


def scored(run: Path, corpus: Path) -> Found:
    """Confusion matrices of the patients of svdb and of DS1, by annotated beats of the first lead."""
    task, found = task_of("beats"), Found()
    model = load_finetuned(run)
    for split in ("test", "train"):
        config = EvaluationConfig(split=split, baselines=False, bootstrap=1, threads=1)
        leads = leads_to_score(run, corpus, config, model, task).leads
        chosen = [each for each in leads if each.database in ("svdb", FIRST_DATABASE)]
        add(found, dict(task.score(chosen, model, None, config).scores))
    return found


def summed(draws: list[tuple[Found, set[str]]]) -> tuple[list[str], Counts]:
    """Confusion matrices summed over the draws in which a patient is not reviewed."""
    patients = sorted(set().union(*(others for _, others in draws)))
    zero = np.zeros((len(LABELS), len(LABELS)), np.int64)
    return patients, np.stack(
        [sum((found[each] for found, others in draws if each in others), zero) for each in patients]
    )


def main() -> None:
    settings = options(__doc__, "work", "quality", data="svdb", draws=4).parse_args()
    limit_threads(1)
    corpus = settings.quality / "svdb/corpus-tuned"
    records = list(open_database(settings.data / "svdb").record_ids)
    start = scored(settings.quality / "svdb/tuned-0", corpus)
    first = {each for each in start if each.startswith(f"{FIRST_DATABASE}/")}
    of: dict[int, list[tuple[Found, Found, set[str]]]] = {number: [] for number in NUMBERS}
    for draw in range(FIRST_DRAW, FIRST_DRAW + settings.draws):
        order = np.random.default_rng(draw).permutation(records).tolist()
        others = {f"svdb/{each}" for each in order[max(NUMBERS) :]}
        for number in NUMBERS:
            run = learnt(settings, order[:number], f"draw-{draw}-{number}")
            of[number].append((start, scored(run, corpus), others))
            print(draw, number, flush=True)
    tables = []
    for title, which in (
        ("Other patients of svdb", set[str]()),
        ("DS1 of mitdb, on which it was first trained", first),
    ):
        heads = ("reviews", "S F1 before", "S F1 after", "S difference", "V F1 before", "V F1 after", "V difference")
        table = Table(f"{title}: F1 with 95 % interval by patients", heads)
        for number, draws in of.items():
            old = summed([(before, which or others) for before, _, others in draws])[1]
            new = summed([(after, which or others) for _, after, others in draws])[1]
            cells = []
            for index in (S, V):
                score = f1_of(index)
                cells += [interval(score, old), interval(score, new), interval(score, new, old)]
            table.add(number, *cells)
        tables.append(table)
    about = {"patients": len(summed([(each[0], each[2]) for each in of[5]])[0]), **numbers_of(settings)}
    write_results("reviews", "What a model learns from reviewed recordings, annotated beats, first lead", tables, about)


if __name__ == "__main__":
    main()
