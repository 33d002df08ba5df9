"""Inputs of generation: a causal model, and prompts of the last tokens of recordings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from heartlm.corpus.corpus import Corpus
from heartlm.ecg.database import Database
from heartlm.errors import HeartlmError
from heartlm.evaluation.annotate import ready_lead
from heartlm.evaluation.finetuned import RunModel
from heartlm.evaluation.scored import ScoredLead, encoded, lead_of_row
from heartlm.models.store import load_model
from heartlm.runs.run_folder import RunFolder
from heartlm.tokenizers.base import Tokens
from heartlm.tokenizers.rhythm import RhythmTokenizer
from heartlm.training.finetune import check_tokenizer


def load_writer(run: Path) -> RunModel:
    """Load the causal model of a run; for a fine-tuned run, its pretrained parent.

    Raises:
        HeartlmError: the folder is not a run, the model is not causal, has no heads that predict codes, or its tokens
            hold no waveform.
    """
    folder = RunFolder(run)
    parent = folder.about.get("parent")
    foundation = RunFolder(Path(parent)) if parent else folder
    model, info = load_model(foundation.model("best"))
    if not info.config.causal:
        raise HeartlmError(
            f"{run}: a {info.objective} model fills gaps and cannot write on: pretrain another with --objective causal"
        )
    if not model.facet_heads:
        raise HeartlmError(f"{run}: a shipped model has no heads that predict codes: pretrain one yourself")
    writer = RunModel(foundation, foundation.about, model, info)
    if isinstance(writer.tokenizer(), RhythmTokenizer):
        raise HeartlmError(f"{run}: rhythm tokens hold no waveform that could be drawn: pretrain on beat tokens")
    return writer


def prompt_of_record(
    writer: RunModel, database: Database, record_id: str, lead: str | None, num_tokens: int
) -> ScoredLead:
    """Return the last `num_tokens` tokens of a recording. Beats are detected if none are annotated.

    Raises:
        HeartlmError: the record or lead does not exist, cannot be read, or gives no token.
    """
    tokenizer = writer.tokenizer()
    recording, ready = ready_lead(tokenizer, database, record_id, "auto", lead)
    whole = encoded(recording, ready, tokenizer)
    if not whole.tokens.num_tokens:
        raise HeartlmError(f"{recording.path}: too short for a single token, so there is nothing to continue")
    return _ending_at(whole, whole.tokens.num_tokens, num_tokens)


def prompts_of_corpus(
    writer: RunModel, corpus: Corpus, num_recordings: int, num_tokens: int, seed: int
) -> list[ScoredLead]:
    """Return prompts that end at random positions of random recordings of the test split, drawn with `seed`.

    Raises:
        HeartlmError: the corpus has another tokenizer, or no test recordings.
    """
    check_tokenizer(corpus, writer.info, writer.folder.path)
    rows = corpus.records.select("test")
    if not len(rows):
        raise HeartlmError(f"{corpus.folder}: no recording in the test split to continue: give --record")
    random = np.random.Generator(np.random.Philox(seed))
    prompts = []
    for row in random.permutation(rows)[:num_recordings]:
        lead = lead_of_row(corpus, int(row))
        stop = int(random.integers(min(num_tokens, lead.tokens.num_tokens), lead.tokens.num_tokens + 1))
        prompts.append(_ending_at(lead, stop, num_tokens))
    return prompts


def _ending_at(lead: ScoredLead, stop: int, num_tokens: int) -> ScoredLead:
    """Return the lead with only the `num_tokens` tokens before `stop`, or fewer if there are fewer."""
    part = slice(max(0, stop - num_tokens), stop)
    return replace(lead, tokens=Tokens(**{name: column[part] for name, column in vars(lead.tokens).items()}))
