"""Corrections teach: reviewed recordings as labels, on which a model of beats is trained further.

    reviews ─► databases of links, with the reviewed beats ─► corpus ─► fine-tuning ─► mean with the start's weights
                                                                └► reviews held back ─► scores before and after

Every fifth patient is held back for the scores. The mean of the weights before and after keeps what the model knew: few
recordings of one ward would otherwise replace it.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from heartlm.corpus.build import build_corpus, commonest
from heartlm.corpus.config import TokenizeConfig
from heartlm.corpus.corpus import open_corpus
from heartlm.databases.database import Database, locate
from heartlm.ecg.recording import ARTEFACT
from heartlm.errors import HeartlmError
from heartlm.evaluation.config import EvaluationConfig
from heartlm.formats.write_annotations import write_annotations
from heartlm.inference.finetuned import FineTuned
from heartlm.models.pretrained import find_run
from heartlm.models.store import load_model, save_model
from heartlm.review.config import TeachConfig
from heartlm.review.review import Review
from heartlm.review.stored import ENDING, is_same, read_stored, recording_of
from heartlm.runs.run_folder import RunFolder
from heartlm.storage.atomic import write_json
from heartlm.tasks.evaluate import leads_to_score
from heartlm.tasks.finetune import finetune
from heartlm.tasks.load import load_finetuned
from heartlm.tasks.task import FinetuneConfig, task_of

FEWEST, OF_HELD_BACK = 5, 5
"""Fewest patients, and the number of patients of which one is held back."""


@dataclass(frozen=True)
class Taught:
    """A model that learnt from reviews.

    Attributes:
        folder: its run folder.
        trained: patients whose reviews it was trained on.
        held_back: patients whose reviews it was scored on.
        left_out: reason for each recording that was left out, by name.
        before: scores of the model that it started from on the reviews held back; see `score_beats`.
        after: its own.
    """

    folder: Path
    trained: tuple[str, ...]
    held_back: tuple[str, ...]
    left_out: Mapping[str, str]
    before: Mapping[str, Any]
    after: Mapping[str, Any]


def teach(config: TeachConfig) -> Taught:
    """Train a model of beats on reviewed recordings; databases and corpus stay in the folder RUN.reviews.

    Raises:
        HeartlmError: there are too few reviews, a setting is impossible, or a folder cannot be written.
    """
    work = config.out.with_name(f"{config.out.name}.reviews")
    for folder in (config.out, work):
        if folder.exists():
            raise HeartlmError(f"out: {folder} exists already: choose another --out, or remove it first")
    artefacts = ARTEFACT in load_start(config).info.classes
    reviews, left_out = reviewed_recordings(config.reviews)
    patients = {each.patient_id for each in reviews}
    if len(patients) < FEWEST:
        reasons = f"; left out: {commonest(left_out.values())}" if left_out else ""
        raise HeartlmError(
            f"{config.reviews}: reviews of {len(patients)} patients found, at least {FEWEST} expected, as some are "
            f"held back for the scores{reasons}"
        )
    try:
        databases = write_databases(reviews, held_back(patients), work, artefacts)
        return taught(config, databases, work / "corpus", left_out)
    except BaseException:
        if not RunFolder(config.out).config_file.exists():  # a run that has started needs its corpus
            shutil.rmtree(work, ignore_errors=True)
        raise


@dataclass(frozen=True)
class Reviewed:
    """A reviewed recording.

    Attributes:
        database: its database.
        record_id: its name there.
        patient_id: its patient.
        review: the review.
    """

    database: Database
    record_id: str
    patient_id: str
    review: Review


def reviewed_recordings(folder: Path) -> tuple[list[Reviewed], dict[str, str]]:
    """Return the reviewed recordings of a folder, and the reason why each other one is left out.

    Raises:
        HeartlmError: the folder has no analysed recording.
    """
    found, left_out = list[Reviewed](), dict[str, str]()
    for path in sorted(folder.glob(f"*{ENDING}")):
        name = path.name.removesuffix(ENDING)
        try:
            database, record_id = locate(recording_of(path))
            recording = database.recording(record_id)
            stored, head = read_stored(path, recording)
            if not is_same(head["files"], recording):
                raise HeartlmError(f"{recording.path}: changed since its analysis")
            review = Review(stored, folder)
        except HeartlmError as error:
            left_out[name] = str(error)
            continue
        if review.revision or (folder / f"{name}.reviewed.hlm").is_file():
            found.append(Reviewed(database, record_id, recording.patient_id, review))
        else:
            left_out[name] = "not reviewed"
    if not found and not left_out:
        raise HeartlmError(f"reviews: {folder}: no RECORD{ENDING} found, a folder of heartlm review expected")
    return found, left_out


def held_back(patients: set[str]) -> set[str]:
    """Return the patients for the scores: a fifth, by the hash of the name, so that more reviews change few of them."""
    by_hash = sorted(patients, key=lambda patient: hashlib.sha256(patient.encode()).hexdigest())
    return set(by_hash[: max(1, len(by_hash) // OF_HELD_BACK)])


def write_databases(
    reviews: Sequence[Reviewed], for_scores: set[str], folder: Path, artefacts: bool = True
) -> list[Path]:
    """Write databases of links to the signals, with reviewed beats and splits; one for each that they come from.

    Args:
        reviews: reviewed recordings.
        for_scores: patients held back.
        folder: folder to make.
        artefacts: whether deleted detections are a class, of a model that knows it.

    Raises:
        HeartlmError: files of two recordings have one name, or the folder cannot be written.
    """
    folders = list[Path]()
    for name in sorted({each.database.name for each in reviews}):
        own = [each for each in reviews if each.database.name == name]
        target = folder / f"recordings-{len(folders) + 1}"
        target.mkdir(parents=True)
        for each in own:
            _write_review(each, target)
        patients = {each.record_id: each.patient_id.removeprefix(f"{name}/") for each in own}
        splits = {
            each.patient_id.removeprefix(f"{name}/").removeprefix("mitdb/"): (
                "test" if each.patient_id in for_scores else "train"
            )
            for each in own
        }
        # A patient of another database, whose recordings were published again, is found by the name of the recording.
        own_patients = {record: patient for record, patient in patients.items() if "/" not in patient}
        about = {"name": name, "beat_labels": True, "artefacts": artefacts, "splits": splits}
        write_json(target / "database.json", {**about, "patients": own_patients})
        folders.append(target)
    return folders


def _write_review(reviewed: Reviewed, folder: Path) -> None:
    """Link the files of the signal, and write the reviewed beats; deleted detections are artefacts."""
    database, review = reviewed.database, reviewed.review
    for path in sorted(database.signal_paths(reviewed.record_id)):
        if (target := folder / path.name).exists():
            raise HeartlmError(f"{path}: two reviewed recordings have a file of this name: review them in two folders")
        if path.is_file():
            target.symlink_to(path.resolve())
    deleted = np.setdiff1d(review.automatic.sample, review.sample).tolist()
    known = database.known
    annotators = [each for each in known.beat_annotators if each not in known.unlabelled_annotators]
    stem = database.files(reviewed.record_id).stem.name
    artefacts = [(place, ARTEFACT, "") for place in deleted]
    write_annotations(folder, stem, review.findings().annotations(), (*annotators, "atr")[0], None, artefacts)


def load_start(config: TeachConfig) -> FineTuned:
    """Return the model to start from.

    Raises:
        HeartlmError: there is none, or it is of another task.
    """
    tuned, task = load_finetuned(find_run(config.run)), task_of("beats")
    if tuned.info.task != task.name:
        raise HeartlmError(f"run: {config.run} is of the task {tuned.info.task}, one of the task {task.name} expected")
    return tuned


def taught(
    config: TeachConfig, databases: Sequence[Path], corpus: Path, left_out: Mapping[str, str] | None = None
) -> Taught:
    """Train on the training split of databases and score on their test split, if they have one.

    Args:
        config: settings.
        databases: folders of the databases.
        corpus: folder for their corpus.
        left_out: see `Taught`.

    Raises:
        HeartlmError: there is nothing to train on, or a folder cannot be written.
    """
    tuned, task = load_start(config), task_of("beats")
    start = tuned.folder.path
    settings = TokenizeConfig(training_leads="all", beats="annotated", damaged="warn", processes=1)
    build_corpus(databases, tuned.tokenizer, corpus, settings, fit=False)
    finetune(
        FinetuneConfig(
            run=start,
            corpus=corpus,
            out=config.out,
            steps=config.steps,
            learning_rate=config.learning_rate,
            window=tuned.info.window,
            seed=config.seed,
            threads=config.threads,
            validate_every=config.steps,
            checkpoint_every=config.steps,
        )
    )
    keep_weights(start, config.out, config.keep)
    scoring = EvaluationConfig(baselines=False)
    scores, patients = list[Mapping[str, Any]](), dict[str, set[str]]()
    records = open_corpus(corpus).records
    for split, patient_id in zip(records.split, records.patient_id, strict=True):
        patients.setdefault(split, set()).add(patient_id)
    for run in (start, config.out) if "test" in patients else ():
        model = load_finetuned(run)
        leads = leads_to_score(run, corpus, scoring, model, task).leads
        scores.append(task.score(leads, model, None, scoring).scores)
    before, after = scores or ({}, {})
    trained, kept = (tuple(sorted(patients.get(split, ()))) for split in ("train", "test"))
    content = {"trained": trained, "held_back": kept, "left_out": dict(left_out or {})}
    write_json(config.out / "reviews.json", {**content, "keep": config.keep, "before": before, "after": after})
    return Taught(config.out, trained, kept, left_out or {}, before, after)


def in_words(made: Taught) -> list[str]:
    """Return lines about a model that learnt from reviews: who was trained on, scores before and after."""
    lines = [f"{name}: left out, {reason}" for name, reason in made.left_out.items()]
    lines.append(
        f"trained on reviews of {len(made.trained)} patients; scored on {len(made.held_back)} held back "
        f"({', '.join(made.held_back)}), F1 with 95 % interval by patients:"
    )
    for name in made.before["classes"]:
        before, after = (f1_in_words(of["per_class"][name]["f1"]) for of in (made.before, made.after))
        beats = made.before["per_class"][name]["support"]
        lines.append(f"  {name}  {beats:6,} beats  before {before}  after {after}")
    return [*lines, f"{made.folder}"]


def f1_in_words(f1: Mapping[str, Any]) -> str:
    """Return a score with its interval, – where it is undefined or there are too few patients."""
    value, (low, high) = f1["value"], f1["ci"]
    around = "" if low is None else f" [{low:.3f}, {high:.3f}]"
    return "–" if value is None else f"{value:.3f}{around}"


def keep_weights(start: Path, run: Path, keep: float) -> None:
    """Replace the models of a run by the mean of their weights and of those it started from, which count `keep`."""
    first = load_model(RunFolder(start).model("best"))[0].state_dict()
    for which in ("best", "last"):
        folder = RunFolder(run).model(which)
        model, info = load_model(folder)
        with torch.no_grad():
            for name, value in model.state_dict().items():
                if value.is_floating_point():
                    value.lerp_(first[name], keep)
        save_model(folder, model, info)
