"""What the monitor does of many streams in one call: the numbers of the plain way, and of one stream in any company."""

from __future__ import annotations

import json
from copy import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heartlm.errors import HeartlmError
from heartlm.inference.load import load_network
from heartlm.kernels.library import using, variants
from heartlm.models.answering import load_answering
from heartlm.models.pretrained import FOLDER
from heartlm.models.store import load_model
from heartlm.monitor.af_onset import AfMeasures, AfOnset, interval_measures
from heartlm.monitor.export import LiveTrunk
from heartlm.monitor.link import read_frame, usual_content
from heartlm.monitor.models import KEPT_BEATS, BeatsKernel, LiveModels
from heartlm.monitor.signal import SecondsKernel
from heartlm.monitor.state import packed
from heartlm.monitor.stream import LiveStream, Ward
from heartlm.storage.reading import parse_json
from tests.plain_lead import PlainLead, take_plain_seconds


@pytest.fixture(scope="module")
def by_torch() -> LiveTrunk:
    return LiveTrunk(load_model(FOLDER / "beats-causal/models/last")[0]).eval()


@pytest.mark.parametrize("variant", variants())
def test_beats_are_judged_as_by_torch_and_alike_in_any_company(
    models: LiveModels, by_torch: LiveTrunk, variant: str
) -> None:
    in_c, num, rng = copy(models), 37, np.random.default_rng(0)
    with using(variant):
        in_c.beats_kernel = BeatsKernel(models.trunk)
    sizes = np.array(models.beats.info.config.facet_sizes)
    caches = models.beats_kernel.empty(num + 1)
    addresses = caches.ctypes.data + caches.strides[0] * np.arange(num + 1)
    for place in range(KEPT_BEATS + 6):
        codes, position = rng.integers(0, sizes, (num, len(sizes))), np.full(num, place)
        before = torch.from_numpy(caches[:num].astype(np.float32))
        found, _ = in_c.judge_beats(codes.astype(np.uint16), position, addresses[:num])
        alone, _ = in_c.judge_beats(codes[33:34].astype(np.uint16), position[:1], addresses[num:])
        assert np.array_equal(alone[0], found[33])
        if place < 3 or place >= KEPT_BEATS:
            with torch.inference_mode():
                expected, new = by_torch(torch.from_numpy(codes), before, torch.from_numpy(position))
            assert np.abs(np.log(found) - np.log(expected.numpy())).max() < 2e-3  # its own beat, too, is a half float
            kept = caches[:num, :, :, :, place % KEPT_BEATS]
            assert np.abs(kept - new.numpy()).max() < 2e-3 * np.abs(kept).max()
    assert np.array_equal(caches[num], caches[33])


@pytest.mark.parametrize("variant", variants())
def test_beats_are_measured_for_af_as_by_numpy_and_alike_in_any_company(models: LiveModels, variant: str) -> None:
    rng, num, network = np.random.default_rng(0), 9, models.af_onset
    with using(variant):
        measurer, in_c = AfMeasures([5, 2, 7], [1, 3]), AfOnset()
    histories = np.zeros((num, AfMeasures.num_bytes), np.uint8)
    addresses = histories.ctypes.data + histories.strides[0] * np.arange(num)
    sample, rates_hz = np.zeros((num, 0), np.int64), rng.choice([128.0, 250.0, 360.0], num)
    answers = np.zeros((num, 0, 4), np.float32)
    for place in range(20):
        last = sample[:, -1] if place else np.zeros(num, np.int64)
        own = last + rng.integers(10, 900, num)
        answer, codes = rng.random((num, 4), np.float32), rng.integers(0, 32, (num, 8)).astype(np.uint16)
        faint = np.arange(num) == place % 13
        found, known = measurer.take(addresses, own, rates_hz, answer, codes, faint)
        assert np.array_equal(known, ~faint & (histories[:, :8].view(np.int64)[:, 0] > 6))
        for row in np.flatnonzero(faint):  # as if it had not been
            own[row], answer[row] = last[row], answers[row, -1] if place else 0
        sample = np.column_stack([sample, own])
        answers = np.concatenate([answers, answer[:, None]], axis=1)
        for row in np.flatnonzero(known):
            beats = np.flatnonzero(np.diff(sample[row], prepend=0) > 0)[-7:]
            expected = interval_measures(np.diff(sample[row, beats])[None] / rates_hz[row])[0]
            of_classes = answers[row, beats[:-4:-1]][:, [1, 3]].ravel()
            assert np.allclose(found[row], [*expected, *codes[row, [5, 2, 7]], *of_classes], atol=1e-6)
    measures = (31 * rng.random((50, len(network.edges)))).astype(np.float32)
    measures[:, :19] = rng.normal(size=(50, 19))
    measures[::3, -8:] = np.nan
    states = rng.normal(size=(50, len(network.bias))).astype(np.float32)
    odds = in_c.judge(measures, states)
    levels = np.where(np.isnan(measures), 0, 1 + (measures[..., None] >= network.edges).sum(axis=-1))
    hidden = network.table[np.arange(len(network.edges)), levels].sum(axis=1) + network.bias + states
    assert np.allclose(odds, np.maximum(hidden, 0) @ network.weight + network.offset, atol=1e-4)
    alone = [in_c.judge(measures[place : place + 1], states[place : place + 1])[0] for place in range(50)]
    assert np.array_equal(odds, alone) and len(np.unique(odds)) == 50


@pytest.mark.parametrize("variant", variants())
def test_what_is_kept_of_beats_is_the_nearest_half_float(models: LiveModels, by_torch: LiveTrunk, variant: str) -> None:
    rng, cache = np.random.default_rng(2), models.beats_kernel.empty(1)
    sizes = np.array(models.beats.info.config.facet_sizes)
    codes = rng.integers(0, sizes, (1, len(sizes)))
    with using(variant):
        kernel = BeatsKernel(models.trunk)
    kernel.judge(codes + models.trunk.offset, np.zeros(1, np.int64), np.array([cache.ctypes.data]))
    with torch.inference_mode():
        new = by_torch(torch.from_numpy(codes), by_torch.empty(1), torch.zeros(1, dtype=torch.int64))[1].numpy()
    first_layer, exact = cache[0, 0, :, :, 0].ravel(), new[0, 0].ravel()
    low, high = (np.abs(first_layer + step - exact) for step in (-np.spacing(first_layer), np.spacing(first_layer)))
    away = np.abs(first_layer - exact)
    assert (away <= np.minimum(low, high) + 1e-6).all() and away.max() > 0


@pytest.mark.parametrize("variant", variants())
def test_windows_are_judged_as_by_torch_and_alike_in_any_company(models: LiveModels, variant: str) -> None:
    folder, rng = models.waveform.folder.model("last"), np.random.default_rng(1)
    in_c = copy(models)
    with using(variant):
        in_c.windows = load_network(folder)[0]  # type: ignore[assignment]
    steps = rng.integers(-20, 21, (41, 400, 1)) * rng.integers(0, 4, (41, 1, 1))
    windows = np.clip(np.cumsum(steps[:, :, 0], axis=1) + 512, 1, 1023).astype(np.uint16)
    windows[3], windows[4, 200:] = 0, 1023
    found = in_c.judge_windows(windows)
    expected = np.asarray(load_answering(folder, "cpu")[0].probabilities(windows[:, :, None]))
    assert np.abs(np.log(found) - np.log(expected)).max() < 1e-4
    for place in (0, 4, 40):
        assert np.array_equal(in_c.judge_windows(windows[place : place + 1])[0], found[place])


@pytest.mark.parametrize("variant", variants())
@pytest.mark.parametrize("rate_hz", [62.5, 250.0, 360.0, pytest.param(1000.0, marks=pytest.mark.slow)])
def test_seconds_are_those_of_one_lead_in_numpy(models: LiveModels, rate_hz: float, variant: str) -> None:
    """To the last bit, of signals with gaps, steps, spikes, flat stretches, and every second sample lost."""
    rng, tokenizer, num_leads = np.random.default_rng(int(rate_hz)), models.beat_tokenizer, 5
    seconds = 60 if rate_hz < 1000 else 30  # NumPy takes long
    length = round(seconds * rate_hz)
    signals = [_signal_with_faults(rng, length, rate_hz) for _ in range(num_leads)]
    plain = [PlainLead(tokenizer, rate_hz) for _ in signals]
    window = tokenizer.window
    with using(variant):
        kernel = SecondsKernel(rate_hz, window.rate_hz, tuple(window.times_s.tolist()))
    memory = np.zeros((num_leads, -(-kernel.num_bytes // 16) * 16), np.uint8)
    addresses, num_beats = np.array([own.ctypes.data for own in memory]), 0
    for second in range(seconds):
        samples = [own[round(second * rate_hz) : round((second + 1) * rate_hz)] for own in signals]
        found, expected = kernel.take(addresses, samples), take_plain_seconds(plain, samples)
        known = expected.has_window
        assert np.array_equal(found.has_window, known)
        assert np.array_equal(found.windows[known], expected.windows[known])
        for name in ("valid", "range_mv", "of_lead", "beats"):
            assert np.array_equal(getattr(found, name), getattr(expected, name), equal_nan=True), name
        assert np.array_equal(found.waves, expected.waves.reshape(found.waves.shape))
        num_beats += len(found.beats)
    assert num_beats > seconds


def _signal_with_faults(rng: np.random.Generator, length: int, rate_hz: float) -> np.ndarray:
    time_s = np.arange(length) / rate_hz
    beats = np.cumsum(rng.uniform(0.5, 1.1, 2 * int(time_s[-1]) + 2))
    signal = sum(np.exp(-(((time_s - beat) / 0.012) ** 2)) for beat in beats) + rng.normal(0, 0.01, length)
    for _ in range(12):
        start, size = rng.integers(0, length), int(rate_hz * rng.choice([0.02, 0.2, 2, 6])) + 1
        fault = signal[start : start + size]
        match rng.integers(0, 6):
            case 0:
                fault[:] = np.nan
            case 1:
                fault[:] = fault[0]
            case 2:
                signal[start:] += rng.normal(0, 8)
            case 3:
                fault[:3] = 50
            case 4:
                fault[::2] = np.nan
            case _:
                fault[:] = 0
    return signal.astype(np.float32)


def test_streams_of_several_rates_are_judged_together_as_alone(models: LiveModels) -> None:
    rates, rng = {"a": 250.0, "b": 360.0, "c": 250.0, "d": 100.0}, np.random.default_rng(5)
    signals = {name: _signal_with_faults(rng, round(20 * rate), rate) for name, rate in rates.items()}

    def judged(*names: str) -> dict[str, LiveStream]:
        ward = Ward(models)
        for name in names:
            ward.add(name, rates[name])
            ward.push(name, signals[name])
        ward.run()
        return ward.streams

    together = judged(*rates)
    for name in rates:
        assert packed(together[name]) == packed(judged(name)[name])


NUMBERS = st.one_of(
    st.floats(-600, 600, width=64).map(repr),
    st.decimals(-600, 600, places=4).map(str),
    st.integers(-(10**20), 10**20).map(str),
    st.sampled_from(
        ["null", "NaN", "-0", "1e3", "2.50E-02", "0.1e+2", "1e-30", "1e400", "01", "1.", ".5", "-", "true"]
    ),
)


def _text(fields: list[tuple[str, str]], gap: str) -> str:
    pairs = (f'{gap}"{name}"{gap}:{gap}{value}{gap}' for name, value in fields)
    return f"{gap}{{{','.join(pairs)}}}{gap}"


@pytest.mark.parametrize("variant", variants())
@settings(max_examples=300, deadline=None)
@given(leads=st.lists(st.lists(NUMBERS, max_size=6), min_size=1, max_size=4), flat=st.booleans(), data=st.data())
def test_what_c_reads_of_a_message_is_what_json_reads(
    variant: str, leads: list[list[str]], flat: bool, data: st.DataObject
) -> None:
    gap = data.draw(st.sampled_from(["", " ", "\t\r\n "]))
    lists = [f"[{gap}" + f"{gap},{gap}".join(own) + f"{gap}]" for own in leads]
    mv = lists[0] if flat else f"[{gap}" + f"{gap},".join(lists) + f"{gap}]"
    names = st.sampled_from(["a", "bed-7", "", "mv", "}", "é", "a\\n", "\\u0041", '\\"', "\x7f", "\t"])
    fields = [("mv", mv), ("stream", f'"{data.draw(names)}"')]
    others = data.draw(st.lists(st.sampled_from(["rate_hz", "start", "t", "x"])))
    fields += [(name, data.draw(NUMBERS)) for name in others]
    text = _text(data.draw(st.permutations(fields)), gap)
    text = text[: data.draw(st.integers(0, len(text)))] if data.draw(st.booleans()) else text
    with using(variant):
        found = usual_content(text.encode())
    if found is None:
        return
    content, values = found
    whole = parse_json(text)
    samples = np.array(whole.pop("mv"), np.float32, ndmin=2)
    samples[~(np.abs(samples) <= 500)] = np.nan
    assert content == {name: value for name, value in whole.items() if value is not None}
    assert np.array_equal(values, samples, equal_nan=True)


def test_usual_messages_are_read_in_c_and_unusual_ones_alike() -> None:
    mv = np.random.default_rng(0).normal(0, 1, (2, 250)).round(4).tolist()
    mv[1][7] = None
    for own in (mv, mv[0], mv[1]):
        text = json.dumps(own)
        for form, usual in (
            ('{"stream": "a", "rate_hz": 250, "start": 0, "mv": %s}', True),
            ('{"mv" : %s, "stream": "mv", "t": 1.5e0, "start":null,"rate_hz": 250.0}\n', True),
            ('{"note": "\\"mv\\": [1]", "mv": %s, "stream": "a", "start": 0, "rate_hz": 250}', False),
        ):
            message = (form % text).encode()
            assert (usual_content(message) is not None) is usual
            frame = read_frame(message)
            assert np.array_equal(frame.mv, np.array(own, np.float32, ndmin=2), equal_nan=True)
            assert frame.rate_hz == 250 and (frame.start, frame.t) in ((0, None), (None, 1.5))
    for wrong in (
        '{"x": {"mv": [1]}, "stream": "a", "start": 0, "rate_hz": 250}',
        '{"mv": [1], "mv": [1], "stream": "a", "start": 0, "rate_hz": 250}',
        '{"mv": [1], "stream": "a", "start": 0, "start": 0, "rate_hz": 250}',
        '{"mv": [1], "stream": "a", "start": 0.5, "rate_hz": 250}',
        '{"mv": [1], "stream": "a", "start": 0, "rate_hz": 250} 1',
        '{"mv": [1]',
    ):
        with pytest.raises(HeartlmError):
            read_frame(wrong.encode())
