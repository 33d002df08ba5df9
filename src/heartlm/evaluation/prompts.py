"""Who writes, and what is to be continued: a causal model, and the last tokens of a recording."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from heartlm.corpus.corpus import Corpus
from heartlm.ecg.database import Database
from heartlm.ecg.recording import Recording
from heartlm.errors import HeartlmError
from heartlm.evaluation.annotate import ready_lead
from heartlm.evaluation.scored import lead_of_row
from heartlm.models.heart import HeartModel
from heartlm.models.store import ModelInfo, load_model
from heartlm.runs.run_folder import RunFolder
from heartlm.tokenizers.base import Tokenizer, Tokens, load_tokenizer
from heartlm.training.finetune import check_tokenizer


@dataclass(frozen=True)
class Writer:
    """A causal model and the tokenizer it reads.

    Attributes:
        run: the pretraining run that they are of.
        model: in evaluation mode.
        info: what the model says of itself.
        tokenizer: encodes its prompts and decodes what it writes.
    """

    run: Path
    model: HeartModel
    info: ModelInfo
    tokenizer: Tokenizer

    @property
    def context(self) -> int:
        """How many tokens it has learnt to look back at."""
        return self.info.window - 1

    def training_corpus(self) -> Corpus:
        """Open the corpus it was trained on.

        Raises:
            HeartlmError: it is gone.
        """
        return RunFolder(self.run).corpus()


@dataclass(frozen=True)
class Prompt:
    """The tokens to continue, and the recording they are of.

    Attributes:
        recording: its samples are drawn before the seam.
        name: `database/record`.
        lead: index of the lead.
        tokens: the prompt, at least one token.
    """

    recording: Recording
    name: str
    lead: int
    tokens: Tokens

    @property
    def end(self) -> int:
        """Sample of the last token."""
        return int(self.tokens.sample[-1])

    def signal_mv(self, start: int, stop: int) -> NDArray[np.float32]:
        """Samples of the lead, float32 `[stop - start]`, NaN where invalid."""
        signal: NDArray[np.float32] = self.recording.signal(start, stop, [self.lead])[0]
        return signal


def load_writer(run: Path) -> Writer:
    """Load the causal model of a run; of a fine-tuned one the model that it was made from.

    Raises:
        HeartlmError: no run, or the model is not causal.
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
    return Writer(foundation.path, model, info, load_tokenizer(foundation.tokenizer))


def prompt_of_record(writer: Writer, database: Database, record_id: str, lead: str | None, num_tokens: int) -> Prompt:
    """The last `num_tokens` tokens of a recording, its beats annotated or else detected.

    Raises:
        HeartlmError: no such record or lead, or one that cannot be read or gives no token.
    """
    recording, ready = ready_lead(writer.tokenizer, database, record_id, "auto", lead)
    tokens = writer.tokenizer.encode(ready)
    if not tokens.num_tokens:
        raise HeartlmError(f"{recording.path}: too short for a single token, so there is nothing to continue")
    return Prompt(recording, f"{database.name}/{record_id}", ready.index, _part(tokens, tokens.num_tokens, num_tokens))


def prompts_of_corpus(writer: Writer, corpus: Corpus, num_recordings: int, num_tokens: int, seed: int) -> list[Prompt]:
    """Prompts that end anywhere in recordings of the test split, all chosen by the seed.

    Raises:
        HeartlmError: the corpus is of another tokenizer, has no test recordings, or its recordings are gone.
    """
    check_tokenizer(corpus, writer.info, writer.run)
    rows = corpus.records.select("test")
    if not len(rows):
        raise HeartlmError(f"{corpus.folder}: no recording in the test split to continue: give --record")
    random = np.random.Generator(np.random.Philox(seed))
    prompts = []
    for row in random.permutation(rows)[:num_recordings]:
        lead = lead_of_row(corpus, int(row))
        stop = int(random.integers(min(num_tokens, lead.tokens.num_tokens), lead.tokens.num_tokens + 1))
        prompts.append(Prompt(lead.open_recording(), lead.name, lead.lead_index, _part(lead.tokens, stop, num_tokens)))
    return prompts


def _part(tokens: Tokens, stop: int, num_tokens: int) -> Tokens:
    """The `num_tokens` tokens before `stop`, or as many as there are."""
    part = slice(max(0, stop - num_tokens), stop)
    return Tokens(
        tokens.codes[part], tokens.sample[part], tokens.beat_class[part], tokens.rhythm[part], tokens.scale_mv[part]
    )
