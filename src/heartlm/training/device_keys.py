"""Dropout keys computed on a device from the number of a step, so that a captured step needs nothing else for them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from heartlm.kernels.draws import Use

_FACTORS = 0xD2E7470EE14C6C93, 0xCA5A826395121157
_ADDED = 0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B
_NUM_ROUNDS = 10


class DeviceKeys:
    """Same as `learner.dropout_keys` of all windows of a batch, in operations of torch that can be captured.

    Philox4x64-10 as in `kernels/c/draws.c`; every uint64 there is the int64 of the same bits here. In single operations
    it takes about 850 of them, so a run that does not compile is faster with keys from the host.

    Args:
        seed: seed of the run.
        num_sites: dropout layers of the model.
        num_windows: windows of the batch.
        device: device of the keys.
        compiles: whether to compile a round of the generator into one kernel.
    """

    def __init__(
        self, seed: int, num_sites: int, num_windows: int, device: torch.device, compiles: bool = True
    ) -> None:
        self.num_sites, self.num_windows = num_sites, num_windows
        self._round: Callable[[Tensor, Tensor], Tensor] = _round
        if compiles:
            self._round = torch.compile(_round, fullgraph=True, dynamic=False)
        keys = [[_int64(seed + i * _ADDED[0]), _int64(Use.DROPOUT + i * _ADDED[1])] for i in range(_NUM_ROUNDS)]
        self._keys = torch.tensor(keys, device=device)
        self._counter = torch.zeros(4, -(-num_sites * num_windows // 4), dtype=torch.int64, device=device)
        self._counter[0] = torch.arange(1, self._counter.shape[1] + 1)  # block of four draws, counted from 1

    def __call__(self, step: Tensor) -> Tensor:
        """Return the keys, int32 `[num_sites, num_windows]`, of the step number `step`, int64 `[]`."""
        counter = torch.cat([self._counter[:3], step.expand_as(self._counter[3:])])
        for key in self._keys:
            counter = self._round(counter, key)
        drawn = counter.T.flatten()[: self.num_sites * self.num_windows]
        return drawn.to(torch.int32).view(self.num_windows, self.num_sites).T.contiguous()


def _round(counter: Tensor, key: Tensor) -> Tensor:
    """Return the counters of blocks `[4, N]` after a round with `key` `[2]`."""
    (high_0, low_0), (high_2, low_2) = _product(counter[0], _FACTORS[0]), _product(counter[2], _FACTORS[1])
    return torch.stack([high_2 ^ counter[1] ^ key[0], low_2, high_0 ^ counter[3] ^ key[1], low_0])


def _product(x: Tensor, factor: int) -> tuple[Tensor, Tensor]:
    """Return the high and the low 64 bits of the product of `x`, the bits of uint64, and `factor`.

    The digits of `factor` have 16 bits, so that no sum exceeds an int64: compilers assume that none does.
    """
    halves = x & 0xFFFFFFFF, (x >> 32) & 0xFFFFFFFF  # the shift copies the sign
    digits: list[Tensor] = []
    total = torch.zeros_like(x)
    for place in range(6):
        total = total >> 16
        for half, digit in zip(halves, (place, place - 2), strict=True):
            if 0 <= digit < 4:
                total = total + half * (factor >> 16 * digit & 0xFFFF)
        digits.append(total & 0xFFFF)
    high = digits[4] | total << 16
    return high, digits[0] | digits[1] << 16 | digits[2] << 32 | digits[3] << 48


def _int64(bits: int) -> int:
    """Return the int64 with the lowest 64 bits of `bits`."""
    return (bits + (1 << 63)) % (1 << 64) - (1 << 63)
