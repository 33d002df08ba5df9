"""Fine-tuning: a pretrained model learns labels."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heartlm.corpus.corpus import Corpus, open_corpus
from heartlm.distributed.parallel import joined, together
from heartlm.distributed.ranks import Ranks
from heartlm.errors import HeartlmError
from heartlm.models.config import ModelConfig
from heartlm.models.heart import HeartModel
from heartlm.models.store import ModelInfo, build_model, load_foundation
from heartlm.runs.run_folder import RunFolder
from heartlm.tokenizers.millivolts import MillivoltTokenizer
from heartlm.tokenizers.rhythm import RHYTHM_FACETS
from heartlm.training import waveform
from heartlm.training.batches import BEAT_TASK_CLASSES, IGNORE, LabelBatches, beat_labels, rhythm_labels
from heartlm.training.config import WAVEFORM_BATCH, WAVEFORM_THRESHOLD, WAVEFORM_WINDOW, FinetuneConfig
from heartlm.training.job import Job
from heartlm.training.objectives import LabelLoss, label_weights
from heartlm.training.pretrain import begin, finished, training_windows, validation_windows


def finetune(config: FinetuneConfig) -> Path:
    """Fine-tune as `config` says; return the run folder.

    Raises:
        HeartlmError: an impossible setting, a corpus of another tokenizer or without labels, an unwritable folder.
    """
    config.checked_corpus()
    with joined(config.device, config.precision, config.threads, config.pin, config.timeout_s) as ranks:
        return finished(together(lambda: _job(config, ranks)))


def _job(config: FinetuneConfig, ranks: Ranks) -> Job:
    corpus = open_corpus(config.checked_corpus())
    if config.task == "waveform":
        return _waveform_job(config, corpus, ranks)
    parent, classes = RunFolder(config.foundation), class_names(config)
    if parent.about.get("task") == "waveform":
        raise HeartlmError(
            f"run: {config.run} is of the task waveform, a pretrained run or one that reads beats expected"
        )
    torch.manual_seed(config.seed)
    model, foundation = load_foundation(
        parent.model("best"),
        classes=classes,
        pooled=config.head == "window",
        dropout=config.dropout,
        keep_weights=not config.from_scratch,
        seconds=interval_levels(corpus) if config.head == "window" else None,
    )
    check_tokenizer(corpus, foundation, config.foundation)
    assert foundation.config.width
    config.follow(foundation.config.depth, foundation.config.width)
    config.check_split(ranks.world_size)
    labels = labels_of(corpus, config.task, config.rhythm, config.flutter)
    rows = rows_of_patients(corpus, labelled_rows(corpus, labels, "train"), config.patient_ids)
    if len(rows) == 0:
        raise HeartlmError(f"{corpus.folder}: no token of the training split has a label for the task {config.task!r}")
    windows = training_windows(corpus, rows, config)
    run = RunFolder(config.resume or config.out or Path("runs") / _name(config, parent))
    begin(run, config, _about(config, foundation, model), corpus, ranks)
    held_out = labelled_rows(corpus, labels, "validation")
    labels, loss = weighted_labels(corpus, labels, [*rows, *held_out], len(classes), config)
    mask_codes, pooled = model.mask_codes().numpy(), config.head == "window"
    return Job(
        config=config,
        run=run,
        model=model,
        info=_info(config, foundation, classes),
        sampler=windows,
        make_batch=LabelBatches(
            corpus,
            labels,
            mask_codes,
            pooled,
            config.facet_dropout,
            config.seed,
            config.shortest_window,
            num_kept=int(model.statistics is not None),
            waveform_dropout=config.waveform_dropout,
        ),
        loss=loss,
        validation=validation_windows(corpus, held_out, config.window),
        ranks=ranks,
    )


def _waveform_job(config: FinetuneConfig, corpus: Corpus, ranks: Ranks) -> Job:
    kind = corpus.manifest["tokenizer"]["kind"]
    if kind != MillivoltTokenizer.kind:
        raise HeartlmError(
            f"{corpus.folder}: tokens of the {kind} tokenizer found, the task waveform reads millivolts: tokenize "
            "with  --tokenizer millivolts"
        )
    config.window, config.batch_size = WAVEFORM_WINDOW, config.batch_size or WAVEFORM_BATCH
    torch.manual_seed(config.seed)
    geometry = [torch.from_numpy(places) for places in corpus.tokenizer().geometry()]
    shape = ModelConfig((len(geometry[0]),), 4, 48, dropout=config.dropout, network="waveform").resolve()
    assert shape.width
    config.follow(shape.depth, shape.width)
    if ranks.world_size * config.accumulation > 1:
        raise HeartlmError(
            f"task: waveform found with {ranks.world_size} ranks and accumulation {config.accumulation}, 1 of each "
            "expected: its small network normalises over whole batches"
        )
    model = build_model(shape, geometry, len(waveform.CLASSES), pooled=True)
    classes, rows = waveform.corpus_classes(corpus), corpus.records.select("train")
    windows = waveform.balanced_windows(corpus, rows, classes, config.batch_size or WAVEFORM_BATCH, config.seed)
    info = ModelInfo(
        shape,
        corpus.tokenizer_hash,
        kind,
        objective="labels",
        window=WAVEFORM_WINDOW,
        task=config.task,
        classes=waveform.CLASSES,
        pooled=True,
        threshold=config.threshold or WAVEFORM_THRESHOLD,
    )
    run = RunFolder(config.resume or config.out or Path("runs") / f"waveform-s{config.seed}")
    begin(run, config, _about(config, info, model), corpus, ranks)
    return Job(
        config=config,
        run=run,
        model=model,
        info=info,
        sampler=windows,
        make_batch=waveform.WaveformBatches(corpus, classes, rows, config.seed),
        loss=waveform.WaveformLoss(),
        validation=None,  # few patients have VF, so the loss on those of the validation split would choose by chance
        ranks=ranks,
    )


def _info(config: FinetuneConfig, foundation: ModelInfo, classes: tuple[str, ...]) -> ModelInfo:
    return replace(
        foundation,
        window=config.window,
        shortest=config.shortest_window or 0,
        threshold=config.threshold or ModelInfo.threshold,
        task=config.task,
        classes=classes,
        pooled=config.head == "window",
        positive=(config.rhythm, config.flutter) if config.task == "rhythm" else (),
    )


def _about(config: FinetuneConfig, foundation: ModelInfo, model: HeartModel) -> dict[str, Any]:
    return {
        "kind": "finetune",
        "objective": foundation.objective,
        "task": config.task,
        "parent": None if config.run is None else str(config.run.resolve()),
        "from_scratch": config.from_scratch or config.run is None,
        "num_parameters": model.num_parameters,
        "steps": config.steps,
    }


def interval_levels(corpus: Corpus) -> Tensor | None:
    """The interval that each code of the rhythm tokenizer's first facet stands for, 0 for "unknown"; else None."""
    if corpus.manifest["tokenizer"]["kind"] != "rhythm":
        return None
    facet = RHYTHM_FACETS[0].scale
    seconds = facet.decode(np.arange(facet.size, dtype=np.uint16))
    # the mask's code, which follows the tokenizer's, tells none either
    return torch.from_numpy(np.append(np.nan_to_num(seconds), 0).astype(np.float32))


def class_names(config: FinetuneConfig) -> tuple[str, ...]:
    """Names of the labels of the task."""
    return BEAT_TASK_CLASSES if config.task == "beats" else ("other", config.rhythm)


def labels_of(corpus: Corpus, task: str, rhythm: str, flutter: str) -> NDArray[np.int64]:
    """The label of every token of `corpus` for `task`, −1 to ignore; int64 `[num_tokens]`."""
    if task == "beats":
        return beat_labels(corpus.beat_class)
    return rhythm_labels(corpus.rhythm, rhythm, flutter)


def weighted_labels(
    corpus: Corpus, labels: NDArray[np.int64], rows: Iterable[int], num_classes: int, config: FinetuneConfig
) -> tuple[NDArray[np.int64], LabelLoss]:
    """Labels as `LabelLoss` reads them, and that loss: each class of each patient weighs as `config` says.

    Args:
        corpus: whose tokens the labels are.
        labels: class of every token, −1 to ignore, int64 `[num_tokens]`.
        rows: rows of the corpus that are trained on or validated with; labels of others do not count.
        num_classes: how many classes there are.
        config: the balances.
    """
    records = corpus.records
    patient = np.repeat(np.unique(records.patient_id, return_inverse=True)[1], records.num_tokens).astype(np.int64)
    used = np.repeat(np.isin(np.arange(len(records)), list(rows)), records.num_tokens)
    counted = np.where(used, labels, IGNORE)
    weight = label_weights(counted, patient, num_classes, config.class_balance, config.patient_balance)
    return np.where(labels == IGNORE, IGNORE, patient * num_classes + labels), LabelLoss(weight)


def check_tokenizer(corpus: Corpus, info: ModelInfo, run: Path) -> None:
    """Raise a HeartlmError unless `corpus` was made by the tokenizer that the model of `run` reads."""
    if corpus.tokenizer_hash != info.tokenizer_hash:
        raise HeartlmError(
            f"{corpus.folder}: made by tokenizer {corpus.tokenizer_hash[:12]}, but the model in {run} reads "
            f"{info.tokenizer_hash[:12]}: tokenize with  --tokenizer-from {run}"
        )


def labelled_rows(corpus: Corpus, labels: NDArray[np.int64], split: str) -> NDArray[np.int64]:
    """Rows of `split` in which at least one token has a label."""
    rows = [row for row in corpus.records.select(split) if (labels[corpus.tokens_of(int(row))] >= 0).any()]
    return np.array(rows, np.int64)


def rows_of_patients(corpus: Corpus, rows: NDArray[np.int64], patients: tuple[str, ...]) -> NDArray[np.int64]:
    """Those of `rows` that are of `patients`, or of their beats on drawn rhythms; all where no patient is named.

    Raises:
        HeartlmError: a patient has no row.
    """
    if not patients:
        return rows
    of_row = np.array([patient.replace("-retimed/", "/") for patient in corpus.records.patient_id[rows]], np.str_)
    if missing := sorted(set(patients) - set(of_row.tolist())):
        raise HeartlmError(
            f"patients: {missing[0]!r} found, but {corpus.folder} has no labels of that patient for training; it has "
            f"{', '.join(np.unique(of_row)[:3].tolist())} and so on"
        )
    return rows[np.isin(of_row, patients)]


def _name(config: FinetuneConfig, parent: RunFolder) -> str:
    start = "scratch" if config.from_scratch else parent.path.name
    return f"{config.task}-{start}-w{config.window}-s{config.seed}"
