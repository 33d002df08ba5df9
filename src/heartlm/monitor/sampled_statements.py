"""The statements model from samples to probabilities as one torch module, for export to other runtimes.

    samples_mv [B, 18, 10 s] ─► 100 Hz ─► slow average subtracted ─► levels ─► windows of 6 s ─► mean probability ─┐
    summary [B, 513] ─► trees ──────────────────────────────────────────────────────► mean of both as logits ◄─────┘

It computes what the leads tokenizer and `statement_probabilities` do, with the operations of other runtimes. The
summary of the beats, `beat_summary`, needs detected beats and is computed outside; where it is NaN the network answers
alone.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from heartlm.corpus.windows import covering_windows
from heartlm.inference.beat_summary import NUM_FEATURES
from heartlm.inference.statements import LEAST, STRIDES_A_WINDOW
from heartlm.models.leads import LeadsNetwork
from heartlm.tokenizers.leads import PLACES
from heartlm.tokenizers.millivolts import KNEE_MV, NO_SIGNAL, NUM_LEVELS, STEP, grid
from heartlm.tokenizers.sample import GRID_HZ, KEEP
from heartlm.tokenizers.waveform import hann_weights

SECONDS = 10
"""Seconds of a call: the length of a resting ECG, of which the shipped model learnt."""


class SampledStatements(nn.Module):
    """Filters, leads tokenizer, network and trees.

    Args:
        network: network with a head, and trees or none.
        window: tokens per window of the network.
        rate_hz: samples per second and lead.
    """

    def __init__(self, network: LeadsNetwork, window: int, rate_hz: int) -> None:
        super().__init__()
        self.network, self.window, self.num_samples = network, window, SECONDS * rate_hz
        position, nearest = grid(self.num_samples, float(rate_hz))
        left = np.minimum(position.astype(np.int64), self.num_samples - 2)
        self.first = covering_windows(0, len(position), window, max(1, window // STRIDES_A_WINDOW)).first.tolist()
        weights = hann_weights(float(rate_hz), GRID_HZ)
        # The running average as a convolution: the weight of each grid point before, the last one at the end.
        average = (1 - KEEP) * KEEP ** np.arange(len(position), dtype=np.float64)[::-1]
        self.register_buffer("weights", torch.from_numpy(weights.astype(np.float32))[None, None])
        self.register_buffer("average", torch.from_numpy(average.astype(np.float32))[None, None])
        self.register_buffer("nearest", torch.from_numpy(nearest))
        self.register_buffer("left", torch.from_numpy(left))
        self.register_buffer("between", torch.from_numpy((position - left).astype(np.float32)))

    weights: Tensor
    average: Tensor
    nearest: Tensor
    left: Tensor
    between: Tensor

    def inputs(self, batch_size: int) -> dict[str, Tensor]:
        """Return examples of the arguments of `forward`."""
        samples = {"samples_mv": torch.zeros(batch_size, len(PLACES), self.num_samples)}
        if self.network.trees is None:
            return samples
        return samples | {"summary": torch.zeros(batch_size, NUM_FEATURES)}

    def forward(self, samples_mv: Tensor, summary: Tensor | None = None) -> Tensor:
        """Return the probability of each statement, `[B, num_statements]`.

        Args:
            samples_mv: ten seconds of each place of `PLACES`, float32 `[B, 18, num_samples]`; NaN where invalid, and of
                leads that are missing.
            summary: `beat_summary` of each recording, float32 `[B, 513]`; a row of NaN where there is none.
        """
        codes = self.codes(samples_mv)
        windows = torch.cat([codes[:, first : first + self.window] for first in self.first])
        probability = self.network.class_logits(windows).sigmoid().view(len(self.first), len(codes), -1).mean(dim=0)
        if summary is None or self.network.trees is None:
            return probability
        known = summary.isfinite().all(dim=1, keepdim=True)
        of_trees = self.network.trees(torch.where(known, summary, 0))
        of_network = torch.log(probability.clamp(min=LEAST)) - torch.log((1 - probability).clamp(min=LEAST))
        return torch.where(known, ((of_network + of_trees) / 2).sigmoid(), probability)

    def codes(self, samples_mv: Tensor) -> Tensor:
        """Return the codes of the places, int64 `[B, num_tokens, 18]`."""
        valid = samples_mv.isfinite()
        # The last valid sample up to each, 0 for none: a running maximum.
        last = torch.where(valid, torch.arange(1, self.num_samples + 1), 0)
        for power in range(self.num_samples.bit_length()):
            last = torch.maximum(last, F.pad(last[..., : -(2**power)], (2**power, 0)))
        filled = F.pad(samples_mv, (1, 0)).gather(2, last).flatten(0, 1)[:, None]  # [B × 18, 1, num_samples]
        reach = self.weights.shape[2] // 2
        ends = filled[..., :1].expand(-1, -1, reach), filled[..., -1:].expand(-1, -1, reach)
        smooth = F.conv1d(torch.cat([ends[0], filled, ends[1]], dim=2), self.weights)
        at_left, at_right = (smooth.index_select(2, place) for place in (self.left, self.left + 1))
        mv = at_left + (at_right - at_left) * self.between
        # The average starts at the first value, which therefore counts as zero.
        mv = mv - mv[..., :1]
        mv = mv - F.conv1d(F.pad(mv, (self.average.shape[2] - 1, 0)), self.average)
        level = (torch.asinh(mv / KNEE_MV) / STEP).round() + NUM_LEVELS // 2
        codes = level.clamp(1, NUM_LEVELS - 1).long().view(len(samples_mv), len(PLACES), -1)
        return torch.where(valid.index_select(2, self.nearest), codes, NO_SIGNAL).transpose(1, 2)
