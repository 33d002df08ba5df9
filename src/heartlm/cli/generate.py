"""`heartlm generate`: continue recordings with a causal model and draw the result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from heartlm.cli.options import parse
from heartlm.errors import HeartlmError, require
from heartlm.models.pretrained import find_run


@dataclass(frozen=True)
class GenerateOptions:
    """Options of `heartlm generate`.

    Attributes:
        run: run folder of a model pretrained with --objective causal, or of a model fine-tuned from it.
        record: a WFDB recording to continue at its end.
        lead: lead of the recording; by default MLII, II or the first ECG lead.
        corpus: corpus with test recordings to continue from a random position; by default the training corpus.
        num_recordings: number of recordings of the corpus.
        num_tokens: number of tokens to generate: heartbeats, or hundredths of a second with the sample tokenizer.
        prompt_tokens: number of tokens in the prompt; the model uses at most one window of them.
        temperature: sampling temperature: lower values favour probable tokens, 0 always takes the most probable.
        top_p: sample each code from the smallest set of most probable codes with this total probability.
        seed: random seed of the selection and of the first recording; it increases by 1 for each further recording.
        out: output file, .svg or .png; further files are numbered; by default in the run folder.
    """

    run: Path
    record: Path | None = None
    lead: str | None = None
    corpus: Path | None = None
    num_recordings: int = 3
    num_tokens: int = 16
    prompt_tokens: int = 64
    temperature: float = 1.0
    top_p: float | None = None
    seed: int = 0
    out: Path | None = None


def run(arguments: Sequence[str]) -> int:
    """Continue recordings with a causal model; draw the prompt and the continuation.

    Examples:
        heartlm generate runs/foundation --record mitdb/100
        heartlm generate runs/foundation --corpus corpora/mitdb --num-recordings 5 --seed 1
        heartlm generate runs/foundation --record mitdb/208 --temperature 0.8 --top-p 0.95 --out 208.svg
    """
    options = parse(GenerateOptions, arguments, "generate", run, positionals=["run"])
    require(options, lambda number: number >= 1, "at least 1", "num_recordings", "num_tokens", "prompt_tokens")
    if options.record is not None and options.corpus is not None:
        raise HeartlmError("corpus: found together with record: give one of the two")
    if options.lead is not None and options.record is None:
        raise HeartlmError("lead: found without record: a corpus has its leads chosen already")
    from heartlm.corpus.corpus import open_corpus
    from heartlm.ecg.locate import locate
    from heartlm.evaluation.continuation import continue_recording
    from heartlm.evaluation.prompts import load_writer, prompt_of_record, prompts_of_corpus
    from heartlm.files import write_json
    from heartlm.models.generate import Sampling
    from heartlm.report.continuation import continuation_drawings
    from heartlm.report.figures import save_drawings

    folder = find_run(options.run)
    sampling = Sampling(options.temperature, options.top_p, options.seed)
    writer = load_writer(folder)
    if options.record is not None:
        prompts = [prompt_of_record(writer, *locate(options.record), options.lead, options.prompt_tokens)]
    else:
        corpus = writer.folder.corpus() if options.corpus is None else open_corpus(options.corpus)
        prompts = prompts_of_corpus(writer, corpus, options.num_recordings, options.prompt_tokens, options.seed)
    entries = [
        continue_recording(writer, prompt, options.num_tokens, replace(sampling, seed=options.seed + place))
        for place, prompt in enumerate(prompts)
    ]
    for place, entry in enumerate(entries):
        picture = options.out or folder / "continuation.svg"
        picture = picture.with_stem(f"{picture.stem}-{place + 1}") if place else picture
        title = f"{entry['record']} {entry['lead']}".strip() + f", continued by {entry['num_tokens']} tokens"
        rows = [(title if not number else "", row) for number, row in enumerate(continuation_drawings(entry))]
        save_drawings(rows, picture)
        print(f"{entry['record']}: {entry['num_prompt_tokens']} tokens continued by {entry['num_tokens']}: {picture}")
    write_json(folder / "generation.json", entries)
    return 0
