"""Cross-validation by patients: a training and a scoring for each fold, in one folder, and the scores of all together.

    corpus ─► folds of patients ─► fold-1/ … fold-N/: a run each, scored on its own patients ─► scores/pooled
                               └► folds.csv

The folder is a run folder without a model. It resumes as a run does: finished folds are kept, an unfinished one
continues from its checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from heartlm.corpus.corpus import open_corpus
from heartlm.corpus.folds import fold_by_patient
from heartlm.distributed.ranks import Ranks
from heartlm.errors import HeartlmError
from heartlm.evaluation.bootstrap import THOUSAND
from heartlm.evaluation.config import EvaluationConfig
from heartlm.evaluation.results import Predictions, write_scores
from heartlm.runs.run_folder import RunFolder
from heartlm.storage.atomic import write_csv
from heartlm.system.progress import plural, say
from heartlm.tasks.evaluate import evaluate
from heartlm.tasks.task import FinetuneConfig, task_of

HELD_OUT, POOLED = "held-out", "pooled"
"""Names of the scores of a fold on its own patients, and of the scores of all folds together."""


def cross_validate(config: FinetuneConfig) -> Path:
    """Train and score a model for each of `config.folds` folds, score them together, and return the folder.

    Raises:
        HeartlmError: as in `finetune`; a fold has no patient or nothing to score; or there are several ranks.
        Stopped: the process received a stop signal.
    """
    from heartlm.tasks.finetune import about_run, usual_name
    from heartlm.training.loop import Stopped

    if Ranks.from_environment().world_size > 1:
        raise HeartlmError(
            "folds: several ranks found, one expected: train each fold by itself, with --fold 1 and so on"
        )
    assert config.folds is not None
    corpus = open_corpus(config.required_corpus())
    patients = fold_by_patient(corpus, config.folds, config.seed)
    folder = RunFolder(config.resume or config.out or Path("runs") / usual_name(config))
    if config.resume is not None:
        folder.check_resumable(corpus)
    else:
        folder.start(asdict(config), {**about_run(config), "kind": "folds", "steps": config.steps}, corpus)
    write_csv([{"patient": name, "fold": fold} for name, fold in patients.items()], folder.path / "folds.csv")
    runs = [folder.path / f"fold-{number}" for number in range(1, config.folds + 1)]
    for number, path in enumerate(runs, 1):
        own = [patient for patient, fold in patients.items() if fold == number]
        say(f"fold {number} of {config.folds}: {plural(len(own), 'patient')} held out")
        try:
            _train_and_score(replace(config, fold=number, out=path, resume=None), path)
        except Stopped as stopped:
            raise Stopped(f"{stopped} alone, or with all folds by --resume {folder.path}") from stopped
        except HeartlmError as error:
            raise HeartlmError(f"fold {number}: {error}") from error
    _pool(folder, [path / "scores" / HELD_OUT for path in runs])
    folder.finish()
    return folder.path


def _train_and_score(config: FinetuneConfig, path: Path) -> None:
    """Do what is left of a fold."""
    from heartlm.tasks.finetune import finetune

    run = RunFolder(path)
    if (run.scores / HELD_OUT / "scores.json").is_file():
        return
    if run.is_finished:
        task_of(config.task).finish(path, config)  # it may have been killed in between
    else:
        finetune(replace(config, resume=path) if (path / "run.json").is_file() else config)
    how = EvaluationConfig(name=HELD_OUT, baselines=False, device=config.device, threads=config.threads)
    evaluate(path, config.required_corpus(), how)


def _pool(folder: RunFolder, scored: Sequence[Path]) -> None:
    """Score the predictions of all folds together: each patient is scored once, by the model that did not see it."""
    sets: list[dict[str, Any]] = [json.loads((path / "scores.json").read_text()) for path in scored]
    predictions = Predictions.together([Predictions.read(path) for path in scored])
    first, task = sets[0], task_of(sets[0]["task"])
    own = task.score_predictions(predictions, sets, THOUSAND)
    # What tables of predictions do not have, such as the number of beats outside of windows.
    counted = {key for key, value in first["scores"].items() if isinstance(value, int)} - own.keys()
    kept = ("schema", "task", "on", "beats", "window", "positive", "flutter", "labels", "checkpoint", "confidence")
    content = {key: first[key] for key in kept if key in first} | {
        "name": POOLED,
        "split": f"{len(sets)} folds",
        "scores": own | {key: sum(each["scores"][key] for each in sets) for key in sorted(counted)},
        "baselines": {},
        "notes": _once(each["notes"] for each in sets),
        **{key: _once(each[key] for each in sets) for key in ("records", "records_left_out", "records_damaged")},
        "num_bootstrap": THOUSAND.num_bootstrap,
        "seed": THOUSAND.seed,
        "command": folder.run_json["command"],
        "created": max(each["created"] for each in sets),
    }
    write_scores(folder.scores / POOLED, content, predictions)


def _once(lists: Any) -> list[Any]:
    together: list[Any] = []
    for values in lists:
        together += [value for value in values if value not in together]
    return together


def scores_of(folder: Path) -> list[Mapping[str, Any]]:
    """Return the `scores.json` of each fold, then that of all together."""
    paths = sorted(folder.glob(f"fold-*/scores/{HELD_OUT}"), key=lambda path: int(path.parts[-3].partition("-")[2]))
    return [json.loads((path / "scores.json").read_text()) for path in (*paths, folder / "scores" / POOLED)]
