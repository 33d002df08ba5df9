"""Exported models in ONNX Runtime and ExecuTorch: the numbers of torch, streamed as in a batch."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

import heartlm
from heartlm.cli.main import main
from heartlm.delineation.network import CLASSES, NETWORK_FILE, Network, load_network, shipped_network
from heartlm.models.pretrained import FOLDER, model_files
from heartlm.monitor.models import KEPT_BEATS, LiveModels
from heartlm.monitor.signal import SecondsKernel
from heartlm.storage.atomic import digest_of_files
from heartlm.tasks.load import load_finetuned
from recipes.train_delineator import DelineationNetwork
from tests.untrained import spread_norms

SLOW = pytest.mark.slow


def _session(tmp_path: Path, *options: str) -> Any:
    runtime = pytest.importorskip("onnxruntime")
    path = tmp_path / "model.onnx"
    assert main(["export", *options, "--out", str(path)]) == 0
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    check_facts(session, options[0])
    return session


def check_facts(session: Any, name: str) -> None:
    """Check that the file tells what made it, and what goes in and comes out."""
    facts, run = session.get_modelmeta().custom_metadata_map, load_finetuned(FOLDER / name, "last")
    assert (facts["heartlm"], facts["name"]) == (heartlm.__version__, name)
    assert facts["model"] == digest_of_files(*model_files(run.folder.model("last")))
    assert facts["tokenizer"] == f"{run.tokenizer.kind} {run.tokenizer.content_hash()}"
    assert json.loads(facts["classes"]) == list(run.info.classes)
    assert ("rate_hz" in facts) == (name != "beats-causal"), "codes of beats have no rate"
    for key, values in (("inputs", session.get_inputs()), ("outputs", session.get_outputs())):
        meaning = json.loads(facts[key])
        assert list(meaning) == [value.name for value in values]
        assert all(len(text.split()) > 3 for text in meaning.values())


def _waves_session(tmp_path: Path, *options: str) -> Any:
    runtime = pytest.importorskip("onnxruntime")
    path = tmp_path / "waves.onnx"
    assert main(["export", *options, "--out", str(path)]) == 0
    return runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def _leads(rate_hz: int) -> np.ndarray:
    """Ten seconds of ECG, VF and a weak ECG with gaps, of a flat lead and of a missing one, `[5, num_samples]`."""
    leads = np.zeros((5, 10 * rate_hz), np.float32)
    leads[:3] = _seconds(3, 10, rate_hz).swapaxes(0, 1).reshape(3, -1)
    leads[0, :9], leads[1, -5:], leads[2, 77], leads[4] = np.nan, np.inf, -1e7, np.nan
    return leads


def _probabilities(network: Network, leads: np.ndarray, rate_hz: int) -> np.ndarray:
    logits = np.exp(network.answers(leads, rate_hz))
    return logits / logits.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("rate_hz", [pytest.param(100, marks=SLOW), pytest.param(250, marks=SLOW), 360])
def test_the_delineator_answers_as_in_numpy(tmp_path: Path, rate_hz: int) -> None:
    session = _waves_session(tmp_path, "delineator", "--batch-size", "5", "--rate-hz", str(rate_hz))
    (found,) = session.run(None, {"samples_mv": _leads(rate_hz)})
    np.testing.assert_allclose(found, _probabilities(shipped_network(), _leads(rate_hz), rate_hz), atol=1e-4)
    facts = session.get_modelmeta().custom_metadata_map
    assert (facts["task"], facts["name"], facts["heartlm"]) == ("delineation", "delineator", heartlm.__version__)
    assert facts["model"] == digest_of_files(NETWORK_FILE)
    assert json.loads(facts["classes"]) == list(CLASSES) and json.loads(facts["leads"]) == "any"
    assert found.shape[2] * float(facts["cell_s"]) == pytest.approx(float(facts["seconds"]), abs=0.05)
    assert int(facts["rate_hz"]) * int(facts["seconds"]) == session.get_inputs()[0].shape[1]


@pytest.mark.slow
def test_a_trained_delineator_answers_as_in_numpy_and_near_with_int8(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = DelineationNetwork()
    spread_norms(network)
    network.eval().save(tmp_path / "mine.safetensors")
    words = str(tmp_path / "mine.safetensors"), "--batch-size", "5"
    expected = _probabilities(load_network(tmp_path / "mine.safetensors"), _leads(250), 250)
    (found,) = _waves_session(tmp_path, *words).run(None, {"samples_mv": _leads(250)})
    np.testing.assert_allclose(found, expected, atol=1e-4)
    size, own_path = (tmp_path / "waves.onnx").stat().st_size, str(Path(heartlm.__file__).parent).encode()
    assert own_path not in (tmp_path / "waves.onnx").read_bytes()
    (near,) = _waves_session(tmp_path, *words, "--int8").run(None, {"samples_mv": _leads(250)})
    assert (tmp_path / "waves.onnx").stat().st_size < 0.7 * size
    assert 0 < np.abs(near - expected).mean() < 0.02


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("delineator --to executorch --out a.pte", "to: executorch found, onnx expected"),
        ("delineator --rate-hz 99 --out a.onnx", "rate_hz: 99 found, 100 to 4000 expected"),
        ("none.safetensors --out a.onnx", "none.safetensors: no network of recipes/train_delineator.py"),
        ("text.safetensors --out a.onnx", "text.safetensors: no network of recipes/train_delineator.py"),
        ("other.safetensors --out a.onnx", "other.safetensors: no network of recipes/train_delineator.py"),
    ],
)
def test_what_is_no_delineator_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: str, reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text.safetensors").write_text("weights")
    layer = {"0.weight": np.zeros((2, 1, 3), np.float32), "0.bias": np.zeros(2, np.float32)}
    save_file(layer, "other.safetensors", {"dilations": "[1]"})
    assert main(["export", *words.split()]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert reason in line and not list(tmp_path.glob("a.*"))


def _beats(models: LiveModels, num_beats: int, num_streams: int) -> np.ndarray:
    sizes = np.array(models.beats.info.config.facet_sizes)
    return np.random.default_rng(0).integers(0, sizes, (num_beats, num_streams, len(sizes)))


def _streamed(session: Any, models: LiveModels, codes: np.ndarray) -> np.ndarray:
    cache, out = models.beats_kernel.empty(codes.shape[1]).astype(np.float32), []
    for place, own in enumerate(codes):
        position = np.full(codes.shape[1], place)
        answer, cache = session.run(None, {"codes": own, "cache": cache, "position": position})
        out.append(answer)
    return np.stack(out, axis=1)


def test_beats_streamed_are_those_of_the_whole_window(tmp_path: Path, models: LiveModels) -> None:
    codes = _beats(models, KEPT_BEATS, 2)
    found = _streamed(_session(tmp_path, "beats-causal", "--batch-size", "2"), models, codes)
    whole = np.asarray(models.trunk.probabilities(codes.swapaxes(0, 1)))
    assert np.abs(np.log(found) - np.log(whole)).max() < 1e-4  # logits, up to what softmax cannot tell


@pytest.mark.slow
def test_beats_beyond_the_ring_are_those_of_the_monitor(tmp_path: Path, models: LiveModels) -> None:
    codes = _beats(models, 150, 1)
    found = _streamed(_session(tmp_path, "beats-causal"), models, codes)[0]
    cache = models.beats_kernel.empty(1)
    address = np.array([cache.ctypes.data])
    for place, own in enumerate(codes[:, 0].astype(np.uint16)):
        answer, _ = models.judge_beats(own[None], np.array([place]), address)
        assert np.abs(np.log(found[place]) - np.log(answer[0])).max() < 0.02  # the monitor keeps half floats


def _seconds(num_streams: int, num_seconds: int, rate_hz: int) -> np.ndarray:
    """ECG, VF and a weak ECG with electrode offsets and gaps, float32 `[num_seconds, num_streams, rate_hz]`."""
    rng, time_s = np.random.default_rng(rate_hz), np.arange(num_seconds * rate_hz) / rate_hz
    signals = np.empty((num_streams, len(time_s)), np.float32)
    for number, signal in enumerate(signals):
        beats_s = np.cumsum(rng.uniform(0.3, 1.1, 4 * num_seconds))
        ecg = sum(np.exp(-(((time_s - beat_s) / 0.02) ** 2)) for beat_s in beats_s)
        shape = (ecg, 0.5 * np.sin(2 * np.pi * 5 * time_s), 0.02 * ecg)[number % 3]
        signal[:] = shape + rng.normal(0, 0.02, len(time_s)) + np.sin(time_s) / 4 + rng.uniform(-2, 2)
        for _ in range(3):
            signal[(start := rng.integers(len(time_s))) : start + rng.integers(1, 0.3 * rate_hz)] = np.nan
    return np.ascontiguousarray(signals.reshape(num_streams, num_seconds, rate_hz).swapaxes(0, 1))


def _windows_of_monitor(models: LiveModels, seconds: np.ndarray) -> np.ndarray:
    window, rate_hz = models.beat_tokenizer.window, float(seconds.shape[2])
    kernel = SecondsKernel(rate_hz, window.rate_hz, tuple(window.times_s.tolist()))
    memory = np.zeros((seconds.shape[1], -(-kernel.num_bytes // 16) * 16), np.uint8)
    addresses = np.array([own.ctypes.data for own in memory])
    return np.stack([kernel.take(addresses, list(own)).windows for own in seconds])[3:]


def _judged(
    run: Callable[[list[np.ndarray]], list[np.ndarray]], recent: int, seconds: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities `[num_seconds - 3, num_streams, 5]` and windows of a stream of a file with `recent` samples."""
    num, out, windows = seconds.shape[1], [], []
    recents, average, codes = np.zeros((num, recent), np.float32), np.zeros(num, np.float32), np.zeros((num, 300), int)
    for own in seconds:
        answer, recents, average, new = run([own, recents, average, codes])
        out.append(answer)
        windows.append(np.concatenate([codes, new[:, -100:]], axis=1))
        codes = new
    return np.stack(out)[3:], np.stack(windows)[3:].astype(np.uint16)


def _judged_by_onnx(session: Any, seconds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    names = [each.name for each in session.get_inputs()]
    recent = session.get_inputs()[1].shape[1]
    return _judged(lambda given: session.run(None, dict(zip(names, given, strict=True))), recent, seconds)


def _assert_as_in_monitor(models: LiveModels, seconds: np.ndarray, found: np.ndarray, windows: np.ndarray) -> None:
    """The filters round in another order, so a voltage at the border of two codes may get the other one."""
    theirs = _windows_of_monitor(models, seconds)
    differ = np.abs(windows.astype(int) - theirs)
    assert differ.max() <= 1 and differ.mean() < 1e-3
    expected = models.judge_windows(theirs.reshape(-1, 400)).reshape(found.shape)
    same = ~differ.any(axis=2)
    assert np.abs(np.log(found) - np.log(expected))[same].max() < 1e-4
    assert same.mean() > 0.9 and np.abs(found - expected).max() < 0.01


@pytest.mark.parametrize(("rate_hz", "num_streams"), [(62, 1), (250, 64), (360, 16)])
def test_seconds_are_judged_as_by_the_monitor(
    tmp_path: Path, models: LiveModels, rate_hz: int, num_streams: int
) -> None:
    session = _session(tmp_path, "waveform", "--batch-size", str(num_streams), "--rate-hz", str(rate_hz))
    seconds = _seconds(num_streams, 12, rate_hz)
    _assert_as_in_monitor(models, seconds, *_judged_by_onnx(session, seconds))


def test_seconds_of_other_streams_and_before_a_lost_second_change_nothing(tmp_path: Path) -> None:
    session = _session(tmp_path, "waveform", "--batch-size", "2")
    seconds = np.nan_to_num(_seconds(2, 12, 250))
    seconds[6, 1] = np.nan
    others = seconds.copy()
    others[:, 0] = np.random.default_rng(1).normal(0, 9, (12, 250))
    others[:6, 1] = np.nan
    stream, restarted = (_judged_by_onnx(session, own) for own in (seconds, others))
    for found, alone in zip(stream, restarted, strict=True):
        assert np.array_equal(found[-2:, 1], alone[-2:, 1]) and not np.array_equal(found[:-2, 1], alone[:-2, 1])


@pytest.mark.slow
def test_int8_is_smaller_and_near(tmp_path: Path, models: LiveModels) -> None:
    codes = _beats(models, 20, 1)
    session = _session(tmp_path, "beats-causal", "--int8")
    small = (tmp_path / "model.onnx").stat().st_size
    found = _streamed(session, models, codes)[0]
    whole = _streamed(_session(tmp_path, "beats-causal"), models, codes)[0]
    assert small < 0.6 * (tmp_path / "model.onnx").stat().st_size
    assert np.abs(found - whole).mean() < 0.05


@pytest.mark.slow
def test_int8_filters_windows_exactly(tmp_path: Path) -> None:
    seconds = _seconds(3, 12, 250)
    found, windows = _judged_by_onnx(_session(tmp_path, "waveform", "--batch-size", "3", "--int8"), seconds)
    small = (tmp_path / "model.onnx").stat().st_size
    whole, windows_of_whole = _judged_by_onnx(_session(tmp_path, "waveform", "--batch-size", "3"), seconds)
    assert np.array_equal(windows, windows_of_whole)
    assert small < 0.7 * (tmp_path / "model.onnx").stat().st_size
    assert np.abs(found - whole).max() < 0.05


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
    cache, found = torch.from_numpy(models.beats_kernel.empty(2)).float(), []
    for place, own in enumerate(codes):
        answer, cache = method.execute([own, cache, torch.full((2,), place)])
        found.append(answer.clone())
        cache = cache.clone()
    whole = torch.from_numpy(models.trunk.probabilities(codes.numpy().swapaxes(0, 1)))
    assert (torch.stack(found, dim=1).log() - whole.log()).abs().max() < 1e-4


@pytest.mark.slow
def test_executorch_judges_seconds_as_the_monitor(tmp_path: Path, models: LiveModels) -> None:
    _kept, method = _program(tmp_path, "waveform", "--batch-size", "3", "--rate-hz", "360")

    def run(given: list[np.ndarray]) -> list[np.ndarray]:
        return [each.numpy().copy() for each in method.execute([torch.from_numpy(own) for own in given])]

    seconds = _seconds(3, 12, 360)
    _assert_as_in_monitor(models, seconds, *_judged(run, 3, seconds))


@pytest.mark.parametrize("rate_hz", ["61", "4001", "250.5", "-250"])
def test_other_rates_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], rate_hz: str) -> None:
    assert main(["export", "waveform", "--out", str(tmp_path / "a.onnx"), f"--rate-hz={rate_hz}"]) == 2
    error = capsys.readouterr().err
    assert "rate_hz" in error and rate_hz in error and error.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_executorch_has_no_int8(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["export", "waveform", "--out", str(tmp_path / "a.pte"), "--to", "executorch", "--int8"]
    assert main(words) == 2
    assert "int8: supported by --to onnx only" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_other_models_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "af", "--out", str(tmp_path / "a.onnx")]) == 2
    assert "causal model of beats" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
