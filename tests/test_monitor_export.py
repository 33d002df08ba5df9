"""Exported models in ONNX Runtime and ExecuTorch: the numbers of torch, streamed as in a batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from heartlm.cli.main import main
from heartlm.monitor.models import KEPT_BEATS, LiveModels


@pytest.fixture(scope="module")
def models() -> LiveModels:
    torch.set_num_threads(1)
    return LiveModels()


def _session(tmp_path: Path, *options: str) -> Any:
    runtime = pytest.importorskip("onnxruntime")
    path = tmp_path / "model.onnx"
    assert main(["export", *options, "--out", str(path)]) == 0
    return runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def _beats(models: LiveModels, num_beats: int, num_streams: int) -> np.ndarray:
    sizes = np.array(models.beats.info.config.facet_sizes)
    return np.random.default_rng(0).integers(0, sizes, (num_beats, num_streams, len(sizes)))


def _streamed(session: Any, models: LiveModels, codes: np.ndarray) -> np.ndarray:
    cache, out = models.trunk.empty(codes.shape[1]).numpy(), []
    for place, own in enumerate(codes):
        position = np.full(codes.shape[1], place)
        answer, cache = session.run(None, {"codes": own, "cache": cache, "position": position})
        out.append(answer)
    return np.stack(out, axis=1)


def test_beats_streamed_are_those_of_the_whole_window(tmp_path: Path, models: LiveModels) -> None:
    codes = _beats(models, KEPT_BEATS, 2)
    found = _streamed(_session(tmp_path, "beats-causal", "--batch-size", "2"), models, codes)
    with torch.inference_mode():
        whole = models.beats.model.class_logits(torch.from_numpy(codes.swapaxes(0, 1))).softmax(dim=-1)
    assert np.abs(np.log(found) - np.log(whole.numpy())).max() < 1e-4  # logits, up to what softmax cannot tell


@pytest.mark.slow
def test_beats_beyond_the_ring_are_those_of_the_monitor(tmp_path: Path, models: LiveModels) -> None:
    codes = _beats(models, 150, 1)
    found = _streamed(_session(tmp_path, "beats-causal"), models, codes)[0]
    cache = models.trunk.empty(1).numpy().astype(np.float16)
    address = np.array([cache.ctypes.data])
    for place, own in enumerate(codes[:, 0].astype(np.uint16)):
        answer = models.judge_beats(own[None], np.array([place]), address)
        assert np.abs(np.log(found[place]) - np.log(answer[0])).max() < 0.02  # the monitor keeps half floats


def test_windows_are_judged_alike(tmp_path: Path, models: LiveModels) -> None:
    codes = np.random.default_rng(0).integers(400, 624, (3, 400, 1))
    answer = _session(tmp_path, "waveform", "--batch-size", "3").run(None, {"codes": codes})[0]
    expected = models.judge_windows(codes[:, :, 0].astype(np.uint16))
    assert np.abs(np.log(answer) - np.log(expected)).max() < 1e-4


@pytest.mark.slow
def test_int8_is_smaller_and_near(tmp_path: Path, models: LiveModels) -> None:
    codes = _beats(models, 20, 1)
    session = _session(tmp_path, "beats-causal", "--int8")
    small = (tmp_path / "model.onnx").stat().st_size
    found = _streamed(session, models, codes)[0]
    whole = _streamed(_session(tmp_path, "beats-causal"), models, codes)[0]
    assert small < 0.6 * (tmp_path / "model.onnx").stat().st_size
    assert np.abs(found - whole).mean() < 0.05


def _program(tmp_path: Path, *options: str) -> Any:
    """A method of ExecuTorch, and its program, which must live as long."""
    runtime = pytest.importorskip("executorch.runtime").Runtime.get()
    path = tmp_path / "model.pte"
    assert main(["export", *options, "--out", str(path), "--to", "executorch"]) == 0
    program = runtime.load_program(path)
    return program, program.load_method("forward")


@pytest.mark.slow
def test_executorch_streams_the_same_beats(tmp_path: Path, models: LiveModels) -> None:
    codes = torch.from_numpy(_beats(models, 8, 2))
    _kept, method = _program(tmp_path, "beats-causal", "--batch-size", "2")
    cache, found = models.trunk.empty(2), []
    for place, own in enumerate(codes):
        answer, cache = method.execute([own, cache, torch.full((2,), place)])
        found.append(answer.clone())
        cache = cache.clone()
    with torch.inference_mode():
        whole = models.beats.model.class_logits(codes.swapaxes(0, 1)).softmax(dim=-1)
    assert (torch.stack(found, dim=1).log() - whole.log()).abs().max() < 1e-4


def test_executorch_judges_windows_alike(tmp_path: Path, models: LiveModels) -> None:
    codes = np.random.default_rng(0).integers(400, 624, (3, 400, 1))
    _kept, method = _program(tmp_path, "waveform", "--batch-size", "3")
    (answer,) = method.execute([torch.from_numpy(codes)])
    expected = models.judge_windows(codes[:, :, 0].astype(np.uint16))
    assert np.abs(np.log(answer.numpy()) - np.log(expected)).max() < 1e-4


def test_executorch_has_no_int8(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["export", "waveform", "--out", str(tmp_path / "a.pte"), "--to", "executorch", "--int8"]
    assert main(words) == 2
    assert "int8: supported by --to onnx only" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_other_models_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "af", "--out", str(tmp_path / "a.onnx")]) == 2
    assert "causal model of beats" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
