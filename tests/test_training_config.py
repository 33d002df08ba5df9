"""Settings: impossible ones are refused by name, and sizes follow from the dial."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from heartlm.errors import HeartlmError
from heartlm.tasks.task import FinetuneConfig
from heartlm.training.config import LAYOUT, PretrainConfig, TrainingConfig

IMPOSSIBLE: list[tuple[type[TrainingConfig], str, Any]] = [
    *((PretrainConfig, name, 0) for name in ("window", "steps", "accumulation", "batch_size", "threads")),
    *((PretrainConfig, name, -1) for name in ("log_every", "validate_every", "checkpoint_every", "keep_checkpoints")),
    *((PretrainConfig, "bucket_cap_mb", value) for value in (0.0, -1.0, math.nan, math.inf)),
    *((PretrainConfig, "timeout_s", value) for value in (0.0, math.nan, math.inf)),
    *((PretrainConfig, "spike_factor", value) for value in (-1.0, 0.5, 1.0, math.nan)),
    (PretrainConfig, "prefetch", -1),
    *((PretrainConfig, name, 0) for name in ("depth", "width", "heads", "mask_span")),
    *((PretrainConfig, "learning_rate", value) for value in (0.0, -1e-3, math.nan, math.inf)),
    *((PretrainConfig, "clip", value) for value in (0.0, math.nan)),
    *((PretrainConfig, "weight_decay", value) for value in (-0.1, math.nan)),
    *((PretrainConfig, "final_learning_rate", value) for value in (-0.1, 1.1)),
    *((PretrainConfig, "mask_share", value) for value in (0.0, 1.0)),
    *((PretrainConfig, "seed", value) for value in (-1, 2**31)),
    (PretrainConfig, "warmup_steps", -1),
    (PretrainConfig, "dropout", 1.0),
    *((FinetuneConfig, name, 1.0) for name in ("dropout", "facet_dropout", "waveform_dropout")),
    *((FinetuneConfig, f"{of}_balance", value) for of in ("class", "patient") for value in (-0.1, 1.5, math.nan)),
    (FinetuneConfig, "rhythm", "JAZZ"),
    (FinetuneConfig, "head", "window"),
]


@pytest.mark.parametrize(
    ("kind", "name", "value"), IMPOSSIBLE, ids=lambda value: str(getattr(value, "__name__", value))
)
def test_an_impossible_value_is_refused_by_name(kind: type[TrainingConfig], name: str, value: Any) -> None:
    settings = {"run": Path("runs/a"), name: value} if kind is FinetuneConfig else {name: value}
    with pytest.raises(HeartlmError, match=rf"^{name}: [^\n]+$"):
        kind(**settings)


def test_a_change_is_checked_too() -> None:
    with pytest.raises(HeartlmError, match=r"^steps: 0 found, at least 1 expected$"):
        replace(PretrainConfig(), steps=0)


@pytest.mark.parametrize(
    ("name", "value"), [("steps", "100"), ("steps", 1.5), ("device", "gpu"), ("weights", {"a": "b"})]
)
def test_a_value_of_another_type_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(HeartlmError, match=rf"^{name}[.a]*: .* found, .* expected$"):
        PretrainConfig(**{name: value})


def test_text_is_a_path() -> None:
    assert FinetuneConfig(run="runs/a").run == Path("runs/a")  # type: ignore[arg-type]


def test_what_a_run_starts_from_is_needed_by_name() -> None:
    corpus = Path("corpora/a")
    for config, name in ((PretrainConfig(), "corpus"), (FinetuneConfig(corpus=corpus), "run")):
        with pytest.raises(HeartlmError, match=rf"^{name}: nothing found, a \w+ folder expected"):
            config.required_corpus()
    assert FinetuneConfig(corpus=corpus, task="waveform").required_corpus() == corpus


def test_the_defaults_are_possible() -> None:
    PretrainConfig(bucket_cap_mb=4.0, spike_factor=3.0, prefetch=0)
    FinetuneConfig(run=Path("runs/a"))
    FinetuneConfig(run=Path("runs/a"), task="rhythm", head="window")


def test_accumulation_must_divide_the_batch() -> None:
    PretrainConfig(batch_size=8, accumulation=4)
    with pytest.raises(HeartlmError, match=r"^accumulation: 3 found; it must divide batch_size, which is 8"):
        PretrainConfig(batch_size=8, accumulation=3)


def test_ranks_and_accumulation_must_divide_the_batch() -> None:
    for num_ranks in (1, 2, 4):
        PretrainConfig(batch_size=8, accumulation=2).check_split(num_ranks)
    with pytest.raises(HeartlmError, match=r"^batch_size: 8 found, a multiple of 6 expected: 3 ranks with 2 micro"):
        PretrainConfig(batch_size=8, accumulation=2).check_split(3)


def test_what_may_change_when_a_run_is_resumed_is_a_setting() -> None:
    assert set(LAYOUT) <= {field.name for field in fields(TrainingConfig)}


def test_a_causal_window_holds_two_tokens() -> None:
    PretrainConfig(window=1)
    with pytest.raises(HeartlmError, match=r"^window: 1 found, at least 2"):
        PretrainConfig(window=1, objective="causal")


def test_what_is_not_set_follows_from_the_dial() -> None:
    config = PretrainConfig(window=128, accumulation=3, steps=5000, depth=4).resolved()
    assert (config.batch_size, config.learning_rate, config.warmup_steps) == (18, 1e-3, 100)
    deep = PretrainConfig(window=128, steps=50, depth=16).resolved()
    assert (deep.batch_size, deep.learning_rate, deep.warmup_steps) == (64, 5e-4, 5)


def test_what_is_set_by_hand_stays() -> None:
    config = PretrainConfig(batch_size=5, learning_rate=0.1, warmup_steps=0, depth=16).resolved()
    assert (config.batch_size, config.learning_rate, config.warmup_steps) == (5, 0.1, 0)
