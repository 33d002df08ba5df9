"""What the monitor does of many streams in one call: the numbers of the plain way, and of one stream in any company."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from heartlm.kernels.library import variants
from heartlm.models.waveform import WaveformNetwork
from heartlm.monitor.models import KEPT_BEATS, LiveModels, windows_kernel

pytestmark = pytest.mark.skipif(not variants(), reason="no compiled kernels")


@pytest.fixture(scope="module")
def models() -> LiveModels:
    torch.set_num_threads(1)
    return LiveModels.load()


@pytest.mark.parametrize("variant", variants())
def test_beats_are_judged_as_by_torch_and_alike_in_any_company(models: LiveModels, variant: str) -> None:
    in_c, plain = replace(models, beats_kernel=models.trunk.kernel(variant)), replace(models, beats_kernel=None)
    sizes, rng = np.array(models.beats.info.config.facet_sizes), np.random.default_rng(0)
    num = 37
    caches, others = ([models.trunk.empty(1)[0] for _ in range(num)] for _ in range(2))
    alone = models.trunk.empty(1)[0]
    for place in range(KEPT_BEATS + 6):
        codes = rng.integers(0, sizes, (num, len(sizes))).astype(np.uint16)
        found = in_c.judge_beats(codes, caches, [place] * num)
        assert np.array_equal(in_c.judge_beats(codes[33:34], [alone], [place])[0], found[33])
        if place < 3 or place >= KEPT_BEATS:
            expected = plain.judge_beats(codes, others, [place] * num)
            assert np.abs(np.log(found) - np.log(expected)).max() < 1e-4
        else:
            for own, each in zip(others, caches, strict=True):
                own.copy_(each)
    assert all(torch.allclose(*both, atol=1e-4) for both in zip(caches, others, strict=True))
    assert torch.equal(alone, caches[33])


@pytest.mark.parametrize("variant", variants())
def test_windows_are_judged_as_by_torch_and_alike_in_any_company(models: LiveModels, variant: str) -> None:
    network, rng = models.waveform.model, np.random.default_rng(1)
    assert isinstance(network, WaveformNetwork)
    in_c, plain = replace(models, windows_kernel=windows_kernel(network, variant)), replace(models, windows_kernel=None)
    steps = rng.integers(-20, 21, (41, 400, 1)) * rng.integers(0, 4, (41, 1, 1))
    windows = list(np.clip(np.cumsum(steps, axis=1) + 512, 1, 1023).astype(np.uint16))
    windows[3] = np.zeros_like(windows[3])  # no signal
    windows[4][200:] = 1023
    found = in_c.judge_windows(windows)
    assert np.abs(np.log(found) - np.log(plain.judge_windows(windows))).max() < 1e-4
    for place in (0, 4, 40):
        assert np.array_equal(in_c.judge_windows(windows[place : place + 1])[0], found[place])
