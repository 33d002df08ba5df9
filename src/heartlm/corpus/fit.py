"""Fitting a tokenizer on the training split, and on nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from heartlm.corpus.encode import LeftOut, readable_leads
from heartlm.corpus.plan import BuildPlan, BuildSettings
from heartlm.corpus.sources import Source, find_source
from heartlm.errors import HeartlmError
from heartlm.progress import track
from heartlm.tokenizers.base import Lead, Tokenizer

FIT_RECORDINGS = 300
"""Most training recordings of each database that the tokenizer is fitted on."""


def fit_on_training(tokenizer: Tokenizer, plan: BuildPlan, choice: BuildSettings) -> None:
    """Fit `tokenizer` on leads of the training split, and note on what.

    Raises:
        HeartlmError: there is no such recording, one is unreadable, or none can be used.
    """
    random = np.random.Generator(np.random.Philox(choice.seed))
    chosen: list[Source] = []
    for database in sorted(plan.databases, key=lambda database: database.name):
        training = [record_id for record_id in database.record_ids if database.split_of(record_id) == "train"]
        usable: dict[int, Source] = {}
        for place in random.permutation(len(training)).tolist():
            if len(usable) == FIT_RECORDINGS:
                break
            source = find_source(database, training[place], tokenizer, choice.training_leads, choice.skip_unreadable)
            if isinstance(source, Source):
                usable[place] = source
        chosen += [usable[place] for place in sorted(usable)]
    if not chosen:
        raise HeartlmError("no recording is in the training split, so there is nothing to fit the tokenizer on")
    tokenizer.fit(_leads_to_fit(chosen, tokenizer, choice), choice.seed)
    counts = Counter(source.recording.database for source in chosen)
    tokenizer.fitted_on = {"split": "train", "recordings": dict(counts), "seed": choice.seed}


def _leads_to_fit(sources: Sequence[Source], tokenizer: Tokenizer, choice: BuildSettings) -> Iterator[Lead]:
    left_out, num_leads = LeftOut(), 0
    for source in track(sources, len(sources), f"fit the {tokenizer.kind} tokenizer"):
        for lead in readable_leads(source, tokenizer, choice, left_out):
            num_leads += 1
            yield lead
    if not num_leads:
        reasons = commonest(entry["reason"] for entry in left_out.entries)
        raise HeartlmError(f"no recording of the training split can be fitted on: {reasons}")


def commonest(reasons: Iterable[Any]) -> str:
    """The three reasons that are given most, and how often."""
    counts = Counter(map(str, reasons))
    return "; ".join(f"{reason} ({count})" for reason, count in counts.most_common(3)) or "no recordings"
