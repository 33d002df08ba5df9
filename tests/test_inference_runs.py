"""Saved runs answer in NumPy as by torch: of every task with every tokenizer that it reads, and foundation models.

Tasks and tokenizers are those of the registries: a new one is tested as soon as it has a name there. A task of which
the recordings here have no labels fails until `database` has some.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from heartlm.corpus.build import build_corpus
from heartlm.corpus.config import TokenizeConfig
from heartlm.corpus.corpus import Corpus, open_corpus
from heartlm.databases.database import open_database
from heartlm.errors import HeartlmError
from heartlm.inference.load import load_network
from heartlm.models.answering import load_answering
from heartlm.models.heart import HeartModel
from heartlm.models.info import ModelInfo
from heartlm.runs.run_folder import RunFolder
from heartlm.simulate.config import SimulationConfig
from heartlm.simulate.write import simulate_database
from heartlm.tasks.annotate import ready_lead
from heartlm.tasks.load import load_finetuned
from heartlm.tasks.registry import TaskName
from heartlm.tasks.task import Answer, FinetuneConfig, task_of
from heartlm.tokenizers.base import KINDS, tokenizer_class
from heartlm.training.config import PretrainConfig
from heartlm.training.pretrain import pretraining
from tests.test_inference_networks import assert_same_answers
from tests.untrained import spread_answers, write_run

TASKS = get_args(TaskName)
CLOSE = 1e-4
LEADS = ("I", "II", "V1", "V2", "V3", "V4", "V5", "V6")


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Recordings with beats, rhythms and, in a table next to them, statements."""
    folder = tmp_path_factory.mktemp("labelled") / "simdb"
    simulate_database(folder, SimulationConfig(patients=8, minutes=0.5, seed=3, leads=LEADS))
    records = open_database(folder).record_ids
    rows = [f"{record},{place % 2},{place // 2 % 2}" for place, record in enumerate(records)]
    (folder.parent / "labels.csv").write_text("\n".join(["record,EVEN,HALF", *rows]))
    return folder


@pytest.fixture(scope="module")
def corpora(database: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Corpus]:
    folder = tmp_path_factory.mktemp("corpora")

    @cache
    def corpus_of(kind: str) -> Corpus:
        settings = TokenizeConfig(processes=1, labels=database.parent / "labels.csv")
        build_corpus([database], tokenizer_class(kind)(), folder / kind, settings)
        return open_corpus(folder / kind)

    return corpus_of


@pytest.fixture(scope="module")
def foundations(corpora: Callable[[str], Corpus], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folder = tmp_path_factory.mktemp("foundations")

    @cache
    def run_of(kind: str) -> Path:
        corpus = corpora(kind)
        learnt = pretraining(PretrainConfig(corpus=corpus.folder, width=32, heads=2), corpus)
        return saved(folder / kind, learnt.model, learnt.info, corpus)

    return run_of


def saved(folder: Path, model: HeartModel, info: ModelInfo, corpus: Corpus) -> Path:
    spread_answers(model, times=2)
    return write_run(folder, model.eval(), info, corpus.tokenizer())


def first_tokens(corpus: Corpus) -> np.ndarray:
    """The first codes of two leads, uint16 `[2, 25, num_facets]`."""
    return np.stack([corpus.codes[corpus.tokens_of(row)][:25] for row in (0, 1)])


@pytest.mark.parametrize("kind", KINDS)
def test_foundations_have_the_vectors_of_torch(
    kind: str, corpora: Callable[[str], Corpus], foundations: Callable[[str], Path]
) -> None:
    folder, codes = RunFolder(foundations(kind)).model("best"), first_tokens(corpora(kind))
    (network, _), (reference, _) = load_network(folder), load_answering(folder, "cpu")
    expected = np.asarray(reference.hidden(codes))
    assert np.ptp(expected) > 0.1
    np.testing.assert_allclose(network.hidden(codes), expected, atol=CLOSE * np.abs(expected).max())


@pytest.mark.parametrize(("name", "pooled"), [(name, pooled) for name in TASKS for pooled in task_of(name).heads])
def test_runs_answer_as_by_torch(
    name: TaskName,
    pooled: bool,
    database: Path,
    corpora: Callable[[str], Corpus],
    foundations: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    task, num_read = task_of(name), 0
    for kind in KINDS:
        corpus, run = corpora(kind), foundations(kind) if task.continues else None
        config = FinetuneConfig(
            corpus=corpus.folder, run=run, task=name, head="window" if pooled else "token", statements="EVEN,HALF"
        )
        config.check()
        try:
            learnt = task.learning(replace(config, trees=False), corpus)
        except HeartlmError as refused:  # one line says which tokenizer the task reads
            assert "\n" not in str(refused) and " reads " in str(refused), refused
            continue
        num_read += 1
        tuned = load_finetuned(saved(tmp_path / kind, learnt.model, learnt.info, corpus))
        by_torch = replace(tuned, model=load_answering(tuned.folder.model("best"), "cpu")[0])
        if tuned.info.config.network != "waveform":  # its windows have one width
            assert_same_answers(tuned.model, by_torch.model, first_tokens(corpus))
        recording, lead = ready_lead(tuned.tokenizer, open_database(database), "s0001", "auto", None)
        tokens = tuned.tokenizer.encode(lead)
        found, expected = (task.annotate(each, recording, lead, tokens) for each in (tuned, by_torch))
        assert found.found.symbol.tolist() == expected.found.symbol.tolist()
        assert found.found.rhythms == expected.found.rhythms
        assert found.statements.keys() == expected.statements.keys()
        for one, other in zip(probabilities(found), probabilities(expected), strict=True):
            np.testing.assert_allclose(one, other, atol=CLOSE)
    assert num_read, f"no tokenizer is read by the task {name}"


def probabilities(answer: Answer) -> list[np.ndarray]:
    given = list(answer.statements.values()), answer.seconds, answer.pieces
    return [np.asarray(each) for each in given if each is not None]
