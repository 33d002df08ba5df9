"""The delineator from samples to probabilities as one torch module, for export to other runtimes.

    samples_mv [B, 10 s] ─► 250 Hz ─► without wander, divided by its range ─► network ─► 4 classes every 8 ms

Each of the B leads is judged by itself. It computes what `heartlm.delineation.network.prepare` and the network do, with
the operations of other runtimes; the agreement of leads and the waves follow outside (`find_waves`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from heartlm.delineation.network import NETWORK_HZ, Layer, num_cells, resampling_taps
from heartlm.monitor.sampled_statements import SECONDS

# Constants of delineation/c/delineate_prepare.c: the samples of a moving average and of a window in which a range is
# measured, the windows on either side that count, the least range in mV, and the mV from which a sample is invalid.
_AVERAGED, _WINDOW, _NEAR, _LEAST_RANGE_MV, _INVALID_MV = 151, 512, 4, 0.05, 1e6
_NUM_DOWN, _NUM_UP = 4, 3
"""Times that the network halves and doubles the rate."""


class SampledDelineation(nn.Module):
    """Preparation of leads, and the network.

    Args:
        layers: layers of the network; see `heartlm.delineation.network.Network`.
        rate_hz: samples per second and lead.
    """

    def __init__(self, layers: Sequence[Layer], rate_hz: int) -> None:
        super().__init__()
        self.num_samples = SECONDS * rate_hz
        self.num_prepared = int((self.num_samples - 1) * NETWORK_HZ / rate_hz) + 1
        self.num_padding = 2 * num_cells(self.num_samples, rate_hz) - self.num_prepared
        assert self.num_prepared // _WINDOW <= _NEAR + 1, "the range of every window counts for every sample"
        phases = resampling_taps(rate_hz)  # [num_fractions of a sample, num_taps]
        place = (np.arange(self.num_prepared) * (rate_hz / NETWORK_HZ) * len(phases) + 0.5).astype(np.int64)
        used, row = np.unique(place % len(phases), return_inverse=True)
        # Row `row` of the filtered lead, [num_used, num_samples], at the whole sample before the place.
        picked = (row * self.num_samples + place // len(phases)).astype(np.int32)
        self.register_buffer("taps", torch.from_numpy(phases[used])[:, None])
        self.register_buffer("picked", None if rate_hz == NETWORK_HZ else torch.from_numpy(picked))
        self.layers = nn.ModuleList()
        for number, (weight, bias, dilation) in enumerate(layers):
            outer, inner, width = weight.shape
            stride = 2 if number < _NUM_DOWN else 1
            layer = nn.Conv1d(inner, outer, width, stride, width // 2 * dilation, dilation)
            layer.load_state_dict({"weight": torch.from_numpy(weight), "bias": torch.from_numpy(bias)})
            self.layers.append(layer)

    taps: Tensor
    picked: Tensor | None

    def forward(self, samples_mv: Tensor) -> Tensor:
        """Return the probability of each class in every cell of 8 ms, `[B, 4, num_cells]`.

        The cells fill a multiple of 16 samples of 250 Hz; those after the end of the lead say nothing.

        Args:
            samples_mv: ten seconds of each lead, float32 `[B, num_samples]`, NaN where invalid.
        """
        x = self._filled(samples_mv)[:, None]
        if self.picked is not None:
            x = F.conv1d(_with_ends(x, self.taps.shape[2] // 2), self.taps)
            x = x.flatten(1).index_select(1, self.picked)[:, None]
        baseline = x
        for _ in range(2):
            baseline = F.avg_pool1d(_with_ends(baseline, _AVERAGED // 2), _AVERAGED, 1)
        x = x - baseline
        num = self.num_prepared // _WINDOW
        windows = [x[..., place * _WINDOW : (place + 1) * _WINDOW] for place in range(num - 1)]
        windows.append(x[..., (num - 1) * _WINDOW :])
        ranges = torch.cat([each.amax(dim=2) - each.amin(dim=2) for each in windows], dim=1).sort(dim=1).values
        usual = (ranges[:, (num - 1) // 2] + ranges[:, num // 2]) / 2
        x = F.pad(x / usual.clamp(min=_LEAST_RANGE_MV)[:, None, None], (0, self.num_padding))
        return self.answer(x).softmax(dim=1)

    def answer(self, x: Tensor) -> Tensor:
        """Return the logits `[B, 4, num / 2]` of leads as the network reads them, `[B, 1, num]`."""
        layers, levels = list(self.layers), list[Tensor]()
        for layer in layers[:_NUM_DOWN]:
            x = layer(x).relu()
            levels.append(x)
        levels.pop()
        for layer in layers[_NUM_DOWN : -2 * _NUM_UP - 1]:
            x = x + layer(x).relu()
        for place in range(-2 * _NUM_UP - 1, -1, 2):
            x = (layers[place](x).repeat_interleave(2, dim=2) + levels.pop()).relu()
            x = layers[place + 1](x).relu()
        return torch.as_tensor(layers[-1](x))

    def _filled(self, samples_mv: Tensor) -> Tensor:
        """Return the samples with lines over invalid ones; before the first valid one and after the last, its value."""
        num, valid = self.num_samples, samples_mv.abs() < _INVALID_MV  # not of NaN
        index = torch.arange(1, num + 1, dtype=torch.int32)  # as `picked`: files hold them, of 64 bits twice as large
        # The last valid sample up to each, 0 for none, and the next one from it on, num + 1 for none.
        last, following = torch.where(valid, index, 0), torch.where(valid, index, num + 1)
        for power in range(num.bit_length()):
            last = torch.maximum(last, F.pad(last[:, : -(2**power)], (2**power, 0)))
            following = torch.minimum(following, F.pad(following[:, 2**power :], (0, 2**power), value=num + 1))
        known = F.pad(torch.where(valid, samples_mv, 0), (1, 1))
        before, after = known.gather(1, last.long()), known.gather(1, following.long())
        before = torch.where(last == 0, after, before)
        after = torch.where(following == num + 1, before, after)
        return before + (after - before) * (index - last) / (following - last).clamp(min=1)


def _with_ends(x: Tensor, reach: int) -> Tensor:
    """Return leads `[B, 1, num]` with their first and last values `reach` times more."""
    return torch.cat([x[..., :1].expand(-1, -1, reach), x, x[..., -1:].expand(-1, -1, reach)], dim=2)
