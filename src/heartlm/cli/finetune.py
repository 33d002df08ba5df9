"""`heartlm finetune`: train a pretrained model to find arrhythmias."""

from __future__ import annotations

from collections.abc import Sequence

from heartlm.cli.pretrain import train
from heartlm.tasks.task import FinetuneConfig


def run(arguments: Sequence[str]) -> int:
    """Add a head to a pretrained model and train it on labels: heartlm finetune RUN --task beats

    Examples:
        heartlm finetune foundation --task beats --corpus corpora/mine --out runs/mine
        heartlm finetune runs/foundation --task beats --corpus corpora/mitdb --out runs/beats
        heartlm finetune runs/foundation --task beats --corpus corpora/mitdb --from-scratch --out runs/scratch
        heartlm finetune runs/rhythms --task rhythm --corpus corpora/afdb --window 41
        heartlm finetune --task waveform --corpus corpora/vf --out runs/vf
        heartlm finetune --resume runs/beats
    """
    words = list(arguments)
    if words and not words[0].startswith("-") and not words[0].endswith((".yaml", ".yml")):
        words[:1] = ["--run", words[0]]
    return train(FinetuneConfig, words, "finetune", run)
