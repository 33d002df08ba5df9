"""Evaluation of a fine-tuned run on recordings, with baselines.

run ─► model ┐
             ├─► task ─► ScoreSet ─► RunFolder.scores/NAME
on ─► leads  ┘
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from heartlm.corpus.build import commonest
from heartlm.corpus.corpus import open_corpus
from heartlm.databases.index import holds_recordings
from heartlm.errors import HeartlmError
from heartlm.evaluation.bootstrap import CONFIDENCE
from heartlm.evaluation.config import EvaluationConfig
from heartlm.evaluation.results import SCHEMA_VERSION, write_scores
from heartlm.evaluation.scored import ScoredLeads, leads_of_corpus, leads_of_folder
from heartlm.inference.finetuned import FineTuned, check_tokenizer
from heartlm.inference.load import chosen_device
from heartlm.models.pretrained import model_files
from heartlm.storage.atomic import digest_of_files
from heartlm.system.cores import limit_threads
from heartlm.tasks.load import load_finetuned, load_random_init
from heartlm.tasks.task import Task, task_of


def evaluate(run: Path, on: Path, config: EvaluationConfig, command: str = "") -> tuple[Path, dict[str, Any]]:
    """Score a fine-tuned model and its baselines.

    Args:
        run: run folder of the model.
        on: corpus, or folder of recordings to tokenise with the run's tokenizer.
        config: settings.
        command: command line to record in the results, so that they can be reproduced.

    Returns:
        Folder of the scores, and the content of its `scores.json`.

    Raises:
        HeartlmError: the run cannot be scored, there is nothing to score, or the folder cannot be written.
    """
    if config.threads:
        limit_threads(config.threads)
    device = chosen_device(config.device)
    tuned = load_finetuned(run, config.checkpoint, device)
    rival = load_random_init(config.random_init, tuned, config.checkpoint, device) if config.random_init else None
    task = task_of(str(tuned.info.task))
    how = task.scored_how(tuned, config)
    scored = leads_to_score(run, on, config, tuned, task)
    if not scored.leads:
        reasons = f" ({commonest(entry['reason'] for entry in scored.left_out)})" if scored.left_out else ""
        hint = "" if config.split == "all" else ": try --split all"
        raise HeartlmError(f"{on}: nothing to score in the {config.split} split{reasons}{hint}")
    score_set = task.score(scored.leads, tuned, rival, config)
    notes = tuned.seen_notes([lead.patient_id for lead in scored.leads])
    if rival is not None and (steps := rival.folder.num_steps) != (expected := tuned.folder.num_steps):
        notes.append(f"random initialisation was trained for {steps} steps, the model for {expected}")
    chosen = [f"{len(config.record_ids)}records"] if config.record_ids else []
    last = ["last"] if config.checkpoint == "last" else []
    # for example mitdb-test-annotated, afdb-all-w41
    name = config.name or "-".join([on.resolve().name, config.split, how, *chosen, *last])
    scores = {
        "schema": SCHEMA_VERSION,
        "name": name,
        **score_set.about,
        "scores": score_set.scores,
        "baselines": score_set.baselines,
        "notes": [*notes, *score_set.notes],
        "task": task.name,
        "on": str(on),
        "split": config.split,
        "records": [lead.name for lead in scored.leads],
        "records_left_out": scored.left_out,
        "records_damaged": scored.damaged,
        "checkpoint": config.checkpoint,
        "step": tuned.info.step,
        "model": digest_of_files(*model_files(tuned.folder.model(config.checkpoint))),
        "random_init": str(config.random_init) if config.random_init else None,
        "num_bootstrap": config.bootstrap,
        "seed": config.seed,
        "confidence": CONFIDENCE,
        "command": command,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    folder = tuned.folder.scores / name
    write_scores(folder, scores, score_set)
    return folder, scores


def leads_to_score(run: Path, on: Path, config: EvaluationConfig, tuned: FineTuned, task: Task) -> ScoredLeads:
    """Return the leads that `config` selects, tokenized for the model of `tuned`.

    Raises:
        HeartlmError: the folder does not exist, the corpus has another tokenizer, or a corpus was given but detected
            beats need recordings.
    """
    if not (on / "manifest.json").is_file():
        if not holds_recordings(on):
            raise HeartlmError(f"on: {on}: no such folder; give a corpus, or a folder or index of recordings")
        return leads_of_folder(on, tuned.tokenizer, task.needs_classified_beats, config)
    if config.beats == "detected":
        raise HeartlmError(
            f"beats: 'detected' found, but {on} is a corpus of tokens: give --on the folder of recordings"
        )
    corpus = open_corpus(on)
    check_tokenizer(corpus, tuned.info, run)
    return leads_of_corpus(tuned.own_splits(corpus), config)
