"""Building a corpus: fit the tokenizer on the training split, encode every lead, write, rename.

Memory holds a few recordings at a time, and an earlier corpus is replaced only when the new one is complete.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np

from heartlm.corpus.encode import LeftOut, Work, encode_all, readable_leads
from heartlm.corpus.manifest import CorpusWriter, write_manifest
from heartlm.corpus.schema import FILES
from heartlm.corpus.sources import Beats, Source, TrainingLeads, find_sources, open_sources
from heartlm.errors import HeartlmError
from heartlm.files import atomic_folder
from heartlm.progress import track
from heartlm.tokenizers.base import Lead, Tokenizer

FIT_RECORDINGS = 300
"""At most so many training recordings of each database fit the tokenizer."""


def build_corpus(
    folders: Sequence[Path],
    tokenizer: Tokenizer,
    out: Path,
    *,
    training_leads: TrainingLeads = "first",
    beats: Beats = "auto",
    fit: bool = True,
    skip_unreadable: bool = False,
    processes: int | None = None,
    seed: int = 0,
    command: str | None = None,
) -> dict[str, Any]:
    """Tokenise the databases in `folders` into the corpus folder `out`; return its manifest.

    Args:
        folders: one folder a database.
        tokenizer: fitted here on the training split, unless `fit` is false or there is nothing to fit.
        out: replaced when the corpus is complete, untouched before.
        training_leads: the first lead of training recordings, or all of them.
        beats: annotated beats, detected ones, or annotated where there are any.
        fit: false keeps the tokenizer as it is (another run's).
        skip_unreadable: list unreadable recordings in the manifest instead of stopping at the first.
        processes: how many encode side by side; by default as many as this process has cores.
        seed: of the choice of beats the codebooks are fitted on.
        command: noted in the manifest, so that others can do the same.

    Raises:
        HeartlmError: unreadable input, nothing to tokenise, or `out` cannot be written or holds something else.
    """
    databases = open_sources(folders)
    sources, dropped = find_sources(databases, tokenizer, training_leads, skip_unreadable)
    with atomic_folder(_replaceable(out)) as temporary, ExitStack() as stack:
        if fit and tokenizer.needs_fitting:
            _fit(tokenizer, sources, beats, seed, skip_unreadable)
        writer = CorpusWriter(temporary, dropped=[*dropped])
        streams = {name: stack.enter_context((temporary / name).open("wb")) for name in FILES}
        work = Work(sources, tokenizer, beats, skip_unreadable)
        results = stack.enter_context(closing(encode_all(work, processes or len(os.sched_getaffinity(0)))))
        for source, (leads, left_out) in zip(sources, track(results, len(sources), "tokenize"), strict=True):
            writer.dropped += left_out
            writer.append(streams, source, leads)
        stack.close()
        if writer.num_tokens == 0:
            raise HeartlmError(f"nothing to tokenise in {', '.join(map(str, folders))}: {_reasons(writer.dropped)}")
        tokenizer.save(temporary / "tokenizer")
        manifest = write_manifest(writer, tokenizer, command)
    return manifest


def _replaceable(out: Path) -> Path:
    """Return `out` unless something stands there that is no corpus, such as the recordings themselves."""
    is_corpus = (out / "manifest.json").is_file() and (out / "codes.bin").is_file()
    if out.exists() and not is_corpus and not (out.is_dir() and not any(out.iterdir())):
        raise HeartlmError(f"{out} exists and is no corpus: choose another name, or remove it first")
    return out


def _fit(tokenizer: Tokenizer, sources: Sequence[Source], beats: Beats, seed: int, skip_unreadable: bool) -> None:
    random = np.random.Generator(np.random.Philox(seed))
    chosen: list[Source] = []
    for name in sorted({source.recording.database for source in sources}):
        training = [s for s in sources if s.recording.database == name and s.split == "train"]
        pick = np.sort(random.permutation(len(training))[:FIT_RECORDINGS])
        chosen += [training[index] for index in pick]
    if not chosen:
        raise HeartlmError("no recording is in the training split, so there is nothing to fit the tokenizer on")
    tokenizer.fit(_leads_to_fit(chosen, tokenizer, beats, skip_unreadable), seed)
    counts = Counter(source.recording.database for source in chosen)
    tokenizer.fitted_on = {"split": "train", "recordings": dict(counts), "seed": seed}


def _leads_to_fit(
    sources: Sequence[Source], tokenizer: Tokenizer, beats: Beats, skip_unreadable: bool
) -> Iterator[Lead]:
    left_out, num_leads = list[LeftOut](), 0
    for source in track(sources, len(sources), f"fit the {tokenizer.kind} tokenizer"):
        for lead in readable_leads(source, tokenizer, beats, left_out, skip_unreadable):
            num_leads += 1
            yield lead
    if not num_leads:
        raise HeartlmError(f"no recording of the training split can be fitted on: {_reasons(left_out)}")


def _reasons(dropped: list[LeftOut]) -> str:
    counts = Counter(str(entry["reason"]) for entry in dropped)
    return "; ".join(f"{reason} ({count})" for reason, count in counts.most_common(3)) or "no recordings"
