"""The statements task: which of several statements a report makes about a recording, by a network over all its leads.

recordings ─► windows of 6 s ─► probability of each statement ─► mean of the recording ─► scores by patient
                                                                                      └► thresholds (validation)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from heartlm.corpus.corpus import Corpus
from heartlm.ecg.recording import Annotations, Recording
from heartlm.errors import HeartlmError, needs, require
from heartlm.evaluation.bootstrap import Resampling
from heartlm.evaluation.config import EvaluationConfig
from heartlm.evaluation.results import Predictions, ScoreSet, attempt
from heartlm.evaluation.statements import best_thresholds, logistic_probabilities, score_statements
from heartlm.inference.beat_summary import beat_summary
from heartlm.inference.finetuned import FineTuned, check_tokenizer
from heartlm.labels.statements import BATCH, CONTINUED_RATE, LEARNING_RATE, WINDOW, learnable, stated_labels, stated_of
from heartlm.models.info import ModelInfo
from heartlm.system.progress import say
from heartlm.tasks.task import Answer, FinetuneConfig, Leads, Task
from heartlm.tokenizers.base import Lead, Tokens
from heartlm.tokenizers.leads import LeadsTokenizer
from heartlm.tokenizers.sample import GRID_HZ
from heartlm.training.job import TrainingTask

if TYPE_CHECKING:
    from heartlm.inference.trees import TreeArrays
    from heartlm.models.config import ModelConfig
    from heartlm.models.heart import HeartModel

Floats = NDArray[np.float64]

PIECE, LONGEST = 1000, 6000
"""Tokens of the pieces of long recordings, 10 s, and of the longest recording that is not cut into pieces."""
WIDTH = 128
"""Channels of the last residual block."""


class Statements(Task):
    """A network over all leads, several labels for each recording; scores of each statement."""

    name = "statements"
    scored = "recordings"
    heading = ("{num_recordings:,} recordings", "nothing")
    heads = (True,)
    continues = False

    def check(self, config: FinetuneConfig) -> None:
        """Refuse what a network of its own leaves no choice of."""
        if config.run is not None and config.network != "leads":
            raise HeartlmError(f"network: {config.network} found, leads expected with a run to start from")
        if config.window not in (FinetuneConfig.window, WINDOW):
            raise HeartlmError(f"window: {config.window} found, {WINDOW} expected by the task statements (6 s)")

    def learning(self, config: FinetuneConfig, corpus: Corpus, validates: bool = True) -> TrainingTask:
        """Learn the statements with enough examples, or those that `config` names."""
        kind = corpus.manifest["tokenizer"]["kind"]
        if kind != LeadsTokenizer.kind:
            raise HeartlmError(
                f"{corpus.folder}: tokens of the {kind} tokenizer found, the task statements reads all leads: tokenize "
                "with  --tokenizer leads"
            )
        if config.trees:
            with needs("score"):
                import sklearn  # noqa: F401 - before hours of training, not after
        import torch

        from heartlm.tasks.finetune import rows_of_patients
        from heartlm.training.statements import StatementBatches, StatementLoss

        stated, records = stated_of(corpus), corpus.records
        training = rows_of_patients(corpus, records.select("train"), config.patient_ids)
        names = config.statement_names or learnable(corpus, training)
        labels = stated_labels(stated, names)
        rows = training[(labels[training] >= 0).any(axis=1)]
        if not names or not len(rows):
            raise HeartlmError(
                f"{corpus.folder}: no statement has enough training recordings: tokenize a database that states them, "
                "or with  --labels TABLE.csv"
            )
        for place, name in enumerate(names):
            if not (labels[rows, place] == 1).any() or not (labels[rows, place] == 0).any():
                raise HeartlmError(f"statements: {name} is not both present and absent in training recordings")
        held_out = records.select("validation") if validates else rows[:0]
        model, shape = _network(config, corpus, names)
        usual = LEARNING_RATE if config.run is None or config.from_scratch else CONTINUED_RATE
        batch_size, rate = config.batch_size or BATCH, config.learning_rate or usual
        present, absent = (np.maximum((labels[rows] == each).sum(axis=0), 1) for each in (1, 0))
        weight = (absent / present) ** config.class_balance
        return TrainingTask(
            replace(config, window=WINDOW, batch_size=batch_size, learning_rate=rate).sized(shape),
            model,
            ModelInfo(shape, corpus.tokenizer_hash, kind, "labels", WINDOW, self.name, names, pooled=True),
            StatementLoss(torch.from_numpy(weight.astype(np.float32))),
            rows,
            lambda seed: StatementBatches(corpus, labels, seed),
            held_out=held_out[(labels[held_out] >= 0).any(axis=1)],
        )

    def finish(self, run: Path, config: FinetuneConfig) -> None:
        """Fit the trees, and choose the thresholds by the validation split, if there is one."""
        from heartlm.models.answering import answering
        from heartlm.models.leads import LeadsNetwork
        from heartlm.models.store import load_model, save_model
        from heartlm.models.trees import tensors_of
        from heartlm.runs.run_folder import RunFolder
        from heartlm.tasks.finetune import rows_of_patients

        if config.measure:
            return
        folder = RunFolder(run)
        corpus = folder.corpus()
        training, held_out = (corpus.records.select(split) for split in ("train", "validation"))
        training = rows_of_patients(corpus, training, config.patient_ids)
        stated, trees = stated_of(corpus), None
        for checkpoint in ("best", "last"):
            path = folder.model(checkpoint)
            model, info = load_model(path)
            assert isinstance(model, LeadsNetwork)
            labels = stated_labels(stated, info.classes)
            if config.trees:
                trees = trees or _trees(corpus, training, labels, config.seed)
                model.trees = None if trees is None else tensors_of(trees)
            if len(held_out):
                codes = [corpus.codes[corpus.tokens_of(row)] for row in held_out.tolist()]
                found = probabilities_of(answering(model), codes, info)
                info = replace(info, thresholds=best_thresholds(found, labels[held_out]))
            save_model(path, model, info)

    def check_model(self, info: ModelInfo) -> None:
        """Check the names and thresholds."""
        require(info, lambda value: value == (), "no text for task statements", "positive")
        require(info, lambda value: value in self.heads, "true for task statements", "pooled")
        num = len(info.classes)
        require(info, lambda value: len(value) in (0, num), f"none or {num} numbers for task statements", "thresholds")

    def score(self, leads: Leads, tuned: FineTuned, rival: FineTuned | None, config: EvaluationConfig) -> ScoreSet:
        """Score the network and its baselines on the recordings of `leads`."""
        names, patients = tuned.info.classes, np.array([lead.patient_id for lead in leads])
        labels = stated_labels([lead.statements for lead in leads], names)
        if (labels < 0).all():
            raise HeartlmError(f"on: no recording of the {config.split} split has a statement of the model")

        def scores(found: Floats, thresholds: tuple[float, ...]) -> dict[str, Any]:
            return score_statements(found, labels, names, thresholds, patients, config.resampling)

        def by_model(other: FineTuned) -> dict[str, Any]:
            found = probabilities_of(other.model, [lead.tokens.codes for lead in leads], other.info)
            return scores(found, thresholds_of(other.info))

        def fitted(kind: str) -> dict[str, Any]:
            from heartlm.inference.trees import fitted_trees

            training = tuned.training_leads()
            learnt = stated_labels([lead.statements for lead in training], names)
            known, others = (_summaries([lead.tokens.codes for lead in each]) for each in (training, leads))
            if kind == "boosting":
                trees = fitted_trees(known, learnt, config.seed)
                both = [1 / (1 + np.exp(-trees(each))) for each in (known, others)]
            else:
                both = [logistic_probabilities(known, learnt, each) for each in (known, others)]
            return scores(both[1], best_thresholds(both[0], learnt))

        methods: dict[str, Callable[[], dict[str, Any]]] = {}
        if config.baselines:
            methods["logistic regression on beats"] = lambda: fitted("logistic")
            methods["gradient boosting on beats"] = lambda: fitted("boosting")
        if rival is not None:
            methods["random initialisation"] = lambda: by_model(rival)
        notes = list[str]()
        own = probabilities_of(tuned.model, [lead.tokens.codes for lead in leads], tuned.info)
        present = own >= np.array(thresholds_of(tuned.info))

        def listed(flags: NDArray[np.bool_]) -> NDArray[np.object_]:
            rows = [" ".join(name for name, is_it in zip(names, row, strict=True) if is_it) for row in flags]
            return np.array(rows, object)

        return ScoreSet(
            about={"beats": None},
            scores=scores(own, thresholds_of(tuned.info)),
            baselines=attempt(methods, notes),
            notes=notes,
            columns={
                "database": np.array([lead.database for lead in leads]),
                "record": np.array([lead.record_id for lead in leads]),
                "patient": patients,
                "reference": listed(labels == 1),
                "absent": listed(labels == 0),
                "predicted": listed(present),
                "probabilities": own.astype(np.float32),
            },
            classes=names,
        )

    def score_predictions(
        self, predictions: Predictions, evaluations: Sequence[Mapping[str, Any]], resampling: Resampling
    ) -> dict[str, Any]:
        """Score statements; a recording without a column `absent` lacks those that are not present."""
        names = predictions.classes

        def flags(column: str) -> NDArray[np.bool_]:
            rows = [text.split() for text in predictions.columns[column].tolist()]
            return np.array([[name in row for name in names] for row in rows])

        present = flags("reference")
        absent = flags("absent") if "absent" in predictions.columns else ~present
        labels = np.select([present, absent], [1, 0], -1)
        by_statement = [each["scores"]["per_class"] for each in evaluations]
        thresholds = [
            float(np.mean([own[name]["threshold"] for own in by_statement if name in own] or 0.5)) for name in names
        ]
        patients, found = predictions.patients, predictions.probabilities.astype(np.float64)
        return score_statements(found, labels, names, thresholds, patients, resampling, flags("predicted"))

    def annotate(self, tuned: FineTuned, recording: Recording, lead: Lead, tokens: Tokens) -> Answer:
        """Return the probability and threshold of each statement; no annotations.

        A recording of more than `LONGEST` tokens is read in pieces as long as those that the thresholds are of.
        """
        num, edges = tokens.num_tokens, [0]
        if num > LONGEST:
            # The last piece takes what is left.
            edges = list(range(0, num - PIECE + 1, PIECE))
        spans = list(zip(edges, [*edges[1:], num], strict=True))
        by_piece = probabilities_of(tuned.model, [tokens.codes[first:stop] for first, stop in spans], tuned.info)
        found = by_piece.mean(axis=0)
        none = Annotations(lead.annotations.rate_hz, np.empty(0, np.int64), np.empty(0, "<U1"), source="heartlm")
        facts = zip(tuned.info.classes, found.tolist(), thresholds_of(tuned.info), strict=True)
        statements = {name: (each, threshold) for name, each, threshold in facts}
        if len(spans) == 1:
            return Answer(none, statements=statements)
        return Answer(none, statements=statements, pieces=by_piece, piece_s=np.array(spans) / GRID_HZ)


def probabilities_of(model: Any, recordings: list[NDArray[np.uint16]], info: ModelInfo) -> Floats:
    """Return the probability of each statement about each recording, float64 `[num_recordings, num_statements]`."""
    from heartlm.inference.statements import statement_probabilities

    return np.array(list(statement_probabilities(model, recordings, info.window))).reshape(-1, len(info.classes))


def _network(config: FinetuneConfig, corpus: Corpus, names: tuple[str, ...]) -> tuple[HeartModel, ModelConfig]:
    """Return a network for statements with the weights of `config.run`, or random ones, and its sizes."""
    import torch

    from heartlm.models.config import ModelConfig
    from heartlm.models.leads import LeadsNetwork
    from heartlm.models.sizes import STRIDES
    from heartlm.models.store import build_model, load_foundation
    from heartlm.runs.run_folder import RunFolder

    torch.manual_seed(config.seed)
    if config.run is None:
        geometry = [torch.from_numpy(coordinates) for coordinates in corpus.tokenizer().geometry()]
        shape = ModelConfig(
            tuple(map(len, geometry)), len(STRIDES), WIDTH, dropout=config.dropout, network=config.network
        )
        shape = replace(shape, members=config.members).resolve()
        return build_model(shape, geometry, len(names), pooled=True), shape
    model, foundation = load_foundation(
        RunFolder(config.run).model("best"),
        classes=names,
        pooled=True,
        dropout=config.dropout,
        keep_weights=not config.from_scratch,
        members=config.members,
    )
    check_tokenizer(corpus, foundation, config.run)
    if not isinstance(model, LeadsNetwork):
        raise HeartlmError(f"run: {config.run} has a {foundation.config.network}, a network of leads expected")
    model.trees = None
    return model, foundation.config


def _trees(corpus: Corpus, rows: NDArray[np.int64], labels: NDArray[np.int64], seed: int) -> TreeArrays | None:
    """Return trees fitted on those of `rows` that have all leads; None if a statement has no two classes there."""
    from heartlm.inference.trees import fitted_trees

    summaries = [beat_summary(corpus.codes[corpus.tokens_of(row)]) for row in rows.tolist()]
    known = [place for place, summary in enumerate(summaries) if summary is not None]
    own = labels[rows[known]]
    if not ((own == 1).any(axis=0) & (own == 0).any(axis=0)).all():
        say("statements: too few recordings have I, II and V1 to V6, so the network answers without trees")
        return None
    return fitted_trees(np.stack([each for each in summaries if each is not None]), own, seed)


def _summaries(recordings: list[NDArray[np.uint16]]) -> NDArray[np.float32]:
    rows = [beat_summary(codes) for codes in recordings]
    if any(row is None for row in rows):
        raise HeartlmError("a recording lacks one of the leads I, II and V1 to V6")
    return np.stack([row for row in rows if row is not None])


def thresholds_of(info: ModelInfo) -> tuple[float, ...]:
    """Return the threshold of each statement, 0.5 for a model that was trained without validation."""
    return info.thresholds or (0.5,) * len(info.classes)


TASK = Statements()
