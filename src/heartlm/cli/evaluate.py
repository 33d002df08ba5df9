"""`heartlm evaluate`: score a fine-tuned model on recordings, next to baselines."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from heartlm.cli.options import parse
from heartlm.errors import HeartlmError
from heartlm.evaluation.config import EvaluationConfig


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions(EvaluationConfig):
    """Options of `heartlm evaluate`.

    Attributes:
        run: run folder of the fine-tuned model, or name of a shipped model.
        on: corpus, or folder of recordings to tokenise with the run's tokenizer.
    """

    run: Path
    on: Path


def run(arguments: Sequence[str]) -> int:
    """Score a fine-tuned model: beats by ANSI/AAMI EC57, rhythms by window and by duration.

    Baselines are scored on the same data, and confidence intervals are over patients. Results are written to
    RUN/scores, or to scores/MODEL for a shipped model.

    Examples:
        heartlm evaluate beats --on data/mitdb
        heartlm evaluate runs/beats --on corpora/mitdb
        heartlm evaluate runs/beats --on corpora/mitdb --random-init runs/scratch
        heartlm evaluate runs/beats --on data/mitdb --beats detected
        heartlm evaluate runs/af --on corpora/mitdb-rhythm --split all --records 201,202,203,210,219,221,222 --window 41
        heartlm evaluate runs/vf --on data/vfdb --split all
    """
    if any(word.partition("=")[0] == "--folds" for word in arguments):
        raise HeartlmError("folds: a trained run is scored here; heartlm finetune --folds N trains and scores N models")
    options = parse(EvaluateOptions, arguments, "evaluate", run, positionals=["run"])
    from heartlm import api
    from heartlm.cli.score_table import score_table

    command = shlex.join(["heartlm", "evaluate", *arguments])
    scores = api.evaluate(options.run, options.on, options, command=command)
    print("\n".join(score_table(scores.content)))
    files = ", ".join(sorted(path.name for path in scores.folder.iterdir()))
    print(f"  wrote {scores.folder} ({files})\n")
    return 0
