"""`heartlm finetune`: train a pretrained model to find arrhythmias."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from heartlm.cli.options import parse
from heartlm.cli.pretrain import train
from heartlm.review.config import TeachConfig
from heartlm.runs.run_folder import RunFolder
from heartlm.tasks.task import FinetuneConfig


def run(arguments: Sequence[str]) -> int:
    """Add a head to a pretrained model and train it on labels: heartlm finetune RUN --task beats

    With --folds 5, five models are trained, each is scored on a fifth of the patients, which it did not see, and then
    all together. The folder of a killed command continues with --resume.

    With --reviews FOLDER, a model of beats learns from recordings that were corrected in heartlm review; see heartlm
    finetune --reviews FOLDER --help.

    Examples:
        heartlm finetune foundation --task beats --corpus corpora/mine --out runs/mine
        heartlm finetune runs/foundation --task beats --corpus corpora/mitdb --out runs/beats
        heartlm finetune runs/foundation --task beats --corpus corpora/mitdb --from-scratch --out runs/scratch
        heartlm finetune runs/rhythms --task rhythm --corpus corpora/afdb --window 41
        heartlm finetune --task waveform --corpus corpora/vf --out runs/vf
        heartlm finetune runs/foundation --task beats --corpus corpora/mitdb --folds 5 --out runs/five
        heartlm finetune --resume runs/beats
        heartlm finetune beats --reviews analysis --out runs/ours
    """
    words = list(arguments)
    if any(word.partition("=")[0] == "--reviews" for word in words):
        return _teach(words)
    if words and not words[0].startswith("-") and not words[0].endswith((".yaml", ".yml")):
        words[:1] = ["--run", words[0]]
    return train(FinetuneConfig, words, "finetune", run, _show)


def _show(path: Path) -> None:
    """Print the run folder; of a cross-validation, print the scores of each fold and of all together."""
    if RunFolder(path).run_json["kind"] == "folds":
        from heartlm.cli.score_table import aligned, score_table
        from heartlm.report.scores import key_scores
        from heartlm.tasks.folds import scores_of

        *folds, pooled = scores_of(path)
        rows = [["fold", "patients", *(name for name, _, _ in key_scores(pooled))]]
        for number, each in enumerate(folds, 1):
            values = [score.text for _, score, _ in key_scores({**pooled, **each})]
            rows.append([str(number), str(each["scores"]["num_patients"]), *values])
        print("\n".join([*aligned(rows), "", *score_table(pooled)]))
    print(path)


def _teach(words: Sequence[str]) -> int:
    """Train a model of beats on reviewed recordings, and print scores before and after on those held back.

    Beats as they stand in the reviews are the labels, deleted ones are artefacts. The weights are averaged with those
    of the model before, so that what it knew stays.

    Examples:
        heartlm finetune beats --reviews analysis --out runs/ours
        heartlm finetune runs/ours --reviews more --out runs/newer
        heartlm analyze holter --beats runs/ours
    """
    options = parse(TeachConfig, words, "finetune", _teach, positionals=["run"])
    from heartlm.review.teach import in_words, teach

    print("\n".join(in_words(teach(options))))
    return 0
