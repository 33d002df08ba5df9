"""Tokenizers on disk: the same after a round trip, named by their content, refused when tampered with."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from heartlm.corpus.config import TokenizeConfig
from heartlm.errors import HeartlmError
from heartlm.tokenizers.base import KINDS, Tokenizer, TokenizerSettings, load_tokenizer, tokenizer_class
from heartlm.tokenizers.beat import BeatTokenizer
from heartlm.tokenizers.millivolts import MillivoltTokenizer
from heartlm.tokenizers.rhythm import RhythmTokenizer
from heartlm.tokenizers.sample import SampleTokenizer
from heartlm.tokenizers.waveform import BeatWindow
from tests.synthetic_leads import heart_lead


def beat_tokenizer() -> BeatTokenizer:
    tokenizer = BeatTokenizer(num_levels=2, num_codes=8, window=BeatWindow(after_s=0.4))
    tokenizer.fit([heart_lead(20)])
    tokenizer.fitted_on = {"split": "train", "recordings": {"simdb": 1}, "seed": 0}
    return tokenizer


MAKERS: list[Callable[[], Tokenizer]] = [beat_tokenizer, RhythmTokenizer, SampleTokenizer]


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    beat_tokenizer().save(tmp_path / "tokenizer")
    return tmp_path / "tokenizer"


def edit(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def refused(folder: Path) -> str:
    with pytest.raises(HeartlmError) as error:
        load_tokenizer(folder)
    message = str(error.value)
    assert "\n" not in message and str(folder) in message
    return message


@pytest.mark.parametrize("make", MAKERS)
def test_a_tokenizer_is_the_same_after_a_round_trip(make: Callable[[], Tokenizer], tmp_path: Path) -> None:
    tokenizer, lead = make(), heart_lead(30, seed=3)
    tokenizer.save(tmp_path / "tokenizer")
    loaded = load_tokenizer(tmp_path / "tokenizer")
    assert type(loaded) is type(tokenizer)
    assert loaded.content_hash() == tokenizer.content_hash() and len(loaded.content_hash()) == 64
    assert loaded.facets == tokenizer.facets and loaded.fitted_on == tokenizer.fitted_on
    assert np.array_equal(loaded.encode(lead).codes, tokenizer.encode(lead).codes)
    assert all(map(np.array_equal, loaded.geometry(), tokenizer.geometry()))


def test_saving_twice_writes_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        beat_tokenizer().save(tmp_path / name)
    for name in ("tokenizer.json", "tensors.safetensors"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_the_hash_follows_codebooks_settings_and_origin() -> None:
    def with_other_codebook(tokenizer: BeatTokenizer) -> None:
        assert tokenizer.quantizer is not None
        tokenizer.quantizer.codebooks[0, 0, 0] += 1e-6

    changes: list[Callable[[BeatTokenizer], None]] = [
        with_other_codebook,
        lambda tokenizer: setattr(tokenizer, "decode_error", 0.25),
        lambda tokenizer: setattr(tokenizer, "fitted_on", {}),
    ]
    hashes = {beat_tokenizer().content_hash(), RhythmTokenizer().content_hash(), SampleTokenizer().content_hash()}
    for change in changes:
        tokenizer = beat_tokenizer()
        change(tokenizer)
        hashes.add(tokenizer.content_hash())
    assert len(hashes) == 6


def test_a_changed_codebook_is_refused(saved: Path) -> None:
    tensors = load_file(saved / "tensors.safetensors")
    tensors["shape.codebooks"][0, 0, 0] += 1
    save_file(tensors, saved / "tensors.safetensors")
    assert "does not match its content hash" in refused(saved)


def test_a_changed_setting_is_refused(saved: Path) -> None:
    edit(saved, lambda content: content["settings"].update(decode_error=0.75))
    assert "does not match its content hash" in refused(saved)


def test_another_schema_version_is_refused(saved: Path) -> None:
    edit(saved, lambda content: content.update(schema_version=2))
    assert "schema version 2 found, 1 expected" in refused(saved)


@pytest.mark.parametrize("field", ["kind", "settings", "fitted_on", "content_hash"])
def test_a_missing_field_is_named(saved: Path, field: str) -> None:
    edit(saved, lambda content: content.pop(field))
    assert field in refused(saved)


@pytest.mark.parametrize("text", ["", "[]", "{", '"text"'])
def test_what_is_no_tokenizer_is_refused(saved: Path, text: str) -> None:
    (saved / "tokenizer.json").write_text(text)
    refused(saved)


def test_truncated_or_missing_codebooks_and_folders_are_refused(saved: Path) -> None:
    tensors = saved / "tensors.safetensors"
    tensors.write_bytes(tensors.read_bytes()[:100])
    assert "cannot be read" in refused(saved)
    tensors.unlink()
    assert "cannot be read" in refused(saved)
    refused(saved.parent / "nowhere")


def test_every_kind_has_its_class() -> None:
    assert [tokenizer_class(kind).kind for kind in KINDS] == ["beat", "rhythm", "sample", "millivolts"]
    with pytest.raises(HeartlmError, match=r"'word' found, one of beat, rhythm, sample, millivolts expected"):
        tokenizer_class("word")


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"tokenizer": "word"}, "tokenizer: 'word' found, one of beat, rhythm, sample, millivolts expected"),
    ({"waveforms": True}, "waveforms: the beat tokenizer has no such setting: leave it out"),
    ({"tokenizer": "sample", "causal": True}, "causal: the sample tokenizer has no such setting: leave it out"),
    ({"tokenizer": "rhythm", "causal": True}, "causal: the rhythm tokenizer is always causal without waveforms"),
    ({"settings": {"num_code": 8}}, "num_code: the beat tokenizer has no such setting: leave it out"),
    ({"settings": {"num_codes": "8"}}, "num_codes: '8' found, a whole number expected"),
    ({"settings": {"num_codes": 0}}, "num_codes: 0 found, 1 to 1024 expected"),
    ({"tokenizer_from": "runs/a", "causal": True}, "causal: the tokenizer of runs/a has its settings: leave it out"),
    ({"tokenizer_from": "runs/a", "settings": {"num_codes": 8}}, "num_codes: the tokenizer of runs/a has its settings"),
]


@pytest.mark.parametrize(("given", "text"), REFUSED)
def test_settings_are_those_of_the_tokenizer(given: dict[str, Any], text: str) -> None:
    with pytest.raises(HeartlmError, match=f"^{re.escape(text)}"):
        TokenizeConfig(**given)


def test_a_new_tokenizer_has_its_settings() -> None:
    beat = TokenizeConfig(causal=True, settings={"num_codes": 8, "num_levels": 2}).new_tokenizer()
    assert beat == BeatTokenizer(causal_only=True, num_codes=8, num_levels=2)
    rhythm = TokenizeConfig(tokenizer="rhythm", waveforms=True, causal=True).new_tokenizer()
    assert rhythm == RhythmTokenizer(waveforms=True, causal_only=True)


def test_settings_of_a_tokenizer_are_known_to_its_file_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True)
    class StepSettings(TokenizerSettings):
        step_mv: float = 0.1

    @dataclass
    class StepTokenizer(MillivoltTokenizer):
        takes = StepSettings
        step_mv: float = 0.1

    monkeypatch.setattr("heartlm.tokenizers.millivolts.TOKENIZER", StepTokenizer)
    config = TokenizeConfig(tokenizer="millivolts", settings={"step_mv": 0.5})
    assert config.new_tokenizer() == StepTokenizer(step_mv=0.5)
