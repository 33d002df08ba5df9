"""The network of the waveform task: classifies the rhythm in four seconds of one lead, without beat detection.

    codes [B, 400] ─► mV ─┬─► over its RMS, and clipped at 0.1 mV ─► convolutions ─► mean, maximum over time ─┐
                          ├─► spectrum to 25 Hz ─► convolutions ───────────────────────────────────────────────┼─► head
                          └─► RMS and crest in mV (asystole is a voltage) ──────────────────────────────────────┘

It is small enough for a server that classifies each second of thousands of streams. A window
ends at the present, so the network is causal. Batch normalisation gives better scores than normalisation per window or
none (docs/log/vf.md). It needs whole batches in training, so one process trains this network.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from heartlm.models.config import ModelConfig
from heartlm.models.convolutional import ConvolutionalModel
from heartlm.models.dropout import dropped
from heartlm.models.sizes import (
    LEAST_MV,
    NUM_BANDS,
    NUM_HIDDEN,
    SMALL_MV,
    SPECTRUM_CHANNELS,
    SPECTRUM_KERNELS,
    SPECTRUM_STRIDES,
    WAVEFORM_KERNELS,
    WAVEFORM_STRIDES,
    waveform_channels,
)


class WaveformNetwork(ConvolutionalModel):
    """Classifies whole windows of the millivolt tokenizer; same interface as `HeartModel`, but predicts no codes.

    Args:
        config: sizes; `depth` is the number of convolutions, 4, and `width` the number of channels of the last.
        geometry: coordinates of the codes of the only facet, the voltage first, float32 `[num_codes, num_coordinates]`.
        num_classes: number of classes.
    """

    samples_per_token = 16  # the rate on a CPU is nearly flat around it (docs/log/models.md)

    def __init__(self, config: ModelConfig, geometry: Sequence[Tensor], num_classes: int = 0) -> None:
        super().__init__(config, geometry, num_classes, len(WAVEFORM_KERNELS))
        channels = waveform_channels(config)
        self.trunk = nn.ModuleDict(  # type: ignore[assignment]
            {"blocks": nn.Sequential(*_convolutions((2, *channels), WAVEFORM_KERNELS, WAVEFORM_STRIDES))}
        )
        self.spectrum = nn.Sequential(
            *_convolutions((1, SPECTRUM_CHANNELS, SPECTRUM_CHANNELS), SPECTRUM_KERNELS, SPECTRUM_STRIDES)
        )
        self.of_spectrum = nn.Linear(SPECTRUM_CHANNELS * NUM_BANDS // 4, NUM_HIDDEN)
        self.hidden_layer = nn.Linear(2 * channels[-1] + NUM_HIDDEN + 2, NUM_HIDDEN)
        self.class_head = nn.Linear(NUM_HIDDEN, num_classes) if num_classes else None

    @property
    def num_dropout_sites(self) -> int:
        """Number of dropout layers, each with one key per window; 0 without dropout."""
        return 2 if self.config.dropout else 0

    def class_logits(self, codes: Tensor, valid: Tensor | None = None, keys: Tensor | None = None) -> Tensor:
        """Return class logits `[B, num_classes]` of windows `[B, T, 1]`; see `HeartModel.hidden`."""
        assert self.class_head is not None, "a network without a head has no labels to predict"
        mv = self.embedding.get_buffer("places_0")[codes[..., 0], 0]
        mv = mv - mv.mean(dim=1, keepdim=True)
        rms = mv.square().mean(dim=1, keepdim=True).sqrt() + LEAST_MV
        crest = mv.abs().amax(dim=1, keepdim=True) + LEAST_MV
        waves = self.trunk.blocks(torch.stack([mv / rms, torch.tanh(mv / SMALL_MV)], dim=1))
        hann = torch.hann_window(mv.shape[1], device=mv.device)
        power = self.power((mv / rms * hann).float())
        bands = F.relu(self.of_spectrum(self.spectrum(torch.log1p(power)[:, None] - 3).flatten(1)))
        features = torch.cat([waves.mean(dim=2), waves.amax(dim=2), bands, rms.log(), crest.log() - rms.log()], dim=1)
        first, second = (None, None) if keys is None or not self.config.dropout else (keys[0], keys[1])
        hidden = F.relu(self.hidden_layer(dropped(features, first, self.config.dropout)))
        logits: Tensor = self.class_head(dropped(hidden, second, self.config.dropout))
        return logits

    def power(self, windows: Tensor) -> Tensor:
        """Return the power of windows `[B, T]` in the lowest bands above 0 Hz, `[B, NUM_BANDS]`."""
        power: Tensor = torch.fft.rfft(windows).abs().square()
        return power[:, 1 : NUM_BANDS + 1]


def _convolutions(channels: Sequence[int], kernels: Sequence[int], strides: Sequence[int]) -> list[nn.Module]:
    return [
        nn.Sequential(
            nn.Conv1d(inner, outer, kernel, stride, kernel // 2, bias=False),
            nn.BatchNorm1d(outer),
            nn.ReLU(),
        )
        for inner, outer, kernel, stride in zip(channels[:-1], channels[1:], kernels, strides, strict=True)
    ]
