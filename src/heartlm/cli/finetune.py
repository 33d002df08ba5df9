"""`heartlm finetune`: a pretrained model and labels in, a model that finds arrhythmias out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from heartlm.cli.options import parse
from heartlm.cli.pretrain import run_or_resume
from heartlm.models.pretrained import find_run
from heartlm.training.config import FinetuneConfig


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
    config_given = bool(words) and words[0].endswith((".yaml", ".yml"))
    if words and not words[0].startswith("-") and not config_given:
        words[:1] = ["--run", words[0]]

    def settings() -> FinetuneConfig:
        config = parse(FinetuneConfig, words, "finetune", run, config_file=True)
        if config.run is not None:
            config.run = find_run(config.run)
        return config

    def work(config: FinetuneConfig) -> Path:
        from heartlm import api

        return api.finetune(**vars(config)).path

    return run_or_resume(settings, work, words)
