"""`WaveformNetwork` of `heartlm.models.waveform` by its kernel in C, with the batch normalisation folded in."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heartlm.inference.convolutions import folded
from heartlm.inference.network import InferenceNetwork
from heartlm.kernels.library import kernel, structure
from heartlm.labels.waveform import WINDOW
from heartlm.models.info import ModelInfo
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
from heartlm.models.weights import Weights

Codes = NDArray[np.uint16]
Floats = NDArray[np.float32]

WINDOWS_AT_ONCE = 256
# Rows of a matrix that `product` of c/live.h processes together.
_ROWS = 8


def packed(weight: NDArray[np.floating]) -> Floats:
    """Return a matrix `[rows, depth]` in the order in which `product` of c/live.h reads it."""
    whole = len(weight) // _ROWS * _ROWS
    blocks = weight[:whole].reshape(-1, _ROWS, weight.shape[1]).swapaxes(1, 2)
    return np.concatenate([blocks.ravel(), weight[whole:].ravel()]).astype(np.float32)


class WaveformInference(InferenceNetwork):
    """Classifies windows of the millivolt tokenizer.

    The probabilities of a window do not depend on the others, to the last bit.
    """

    def __init__(self, weights: Weights, info: ModelInfo) -> None:
        super().__init__(info)
        channels = waveform_channels(info.config)
        tables, flat = list[tuple[int, ...]](), list[Floats]()
        spectrum = 1, SPECTRUM_CHANNELS, SPECTRUM_CHANNELS
        for part, widths, kernels, strides in (
            (weights.under("trunk.blocks."), (2, *channels), WAVEFORM_KERNELS, WAVEFORM_STRIDES),
            (weights.under("spectrum."), spectrum, SPECTRUM_KERNELS, SPECTRUM_STRIDES),
        ):
            for number, sizes in enumerate(zip(widths[:-1], widths[1:], kernels, strides, strict=True)):
                inner, outer, width, _ = sizes
                layer = part.under(f"{number}.")
                scale, shift = folded(layer.under("1."), outer)
                weight = layer.take("0.weight", outer, inner, width) * scale[:, None, None]
                tables.append(sizes)
                flat += [packed(weight.swapaxes(1, 2).reshape(outer, -1)), shift]
        dense = list[Floats]()
        num_bands = SPECTRUM_CHANNELS * NUM_BANDS // 4
        for name, inner, outer in (
            ("of_spectrum", num_bands, NUM_HIDDEN),
            ("hidden_layer", 2 * channels[-1] + NUM_HIDDEN + 2, NUM_HIDDEN),
            ("class_head", NUM_HIDDEN, self.num_classes),
        ):
            weight = weights.take(f"{name}.weight", outer, inner)
            if name == "of_spectrum":  # the kernel reads [place, channel]
                weight = weight.reshape(outer, SPECTRUM_CHANNELS, -1).swapaxes(1, 2).reshape(outer, inner)
            dense += [packed(weight), weights.take(f"{name}.bias", outer)]
        angle = 2 * np.pi * np.arange(1, NUM_BANDS + 1)[:, None] * np.arange(WINDOW) / WINDOW
        hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(WINDOW) / WINDOW)
        fourier = packed(np.concatenate([np.cos(angle) * hann, np.sin(angle) * hann]))
        volts = weights.take("embedding.places_0", *weights.shape_of("embedding.places_0"))[:, 0]
        self._arrays = [
            np.ascontiguousarray(each, np.float32)
            for each in (volts, fourier, np.concatenate(flat), np.concatenate(dense))
        ]
        counts = WINDOW, NUM_BANDS, NUM_HIDDEN, self.num_classes, len(WAVEFORM_KERNELS), len(SPECTRUM_KERNELS)
        addresses = (each.ctypes.data for each in self._arrays)
        # monitor/c/live_windows.c describes the fields.
        self._network: Any = structure("network")(*counts, *zip(*tables, strict=True), *addresses, SMALL_MV, LEAST_MV)
        self._run = kernel("live_windows")
        self._scratch = np.empty(kernel("live_windows_scratch")(ctypes.addressof(self._network)), np.float32)

    def windows_at_once(self, width: int) -> int:
        """Return the number of windows per batch; the kernel holds few at a time itself."""
        return WINDOWS_AT_ONCE if width > 1 else WINDOWS_AT_ONCE * WINDOW

    def probabilities(self, codes: NDArray[np.integer]) -> Floats:
        """Return the class probabilities of windows `[B, WINDOW, 1]` or `[B, WINDOW]`, float32 `[B, num_classes]`."""
        assert codes.shape[1] == WINDOW
        out = np.empty((len(codes), self.num_classes), np.float32)
        own = np.ascontiguousarray(codes.reshape(len(codes), WINDOW), np.uint16)
        self._run(ctypes.addressof(self._network), own, len(own), self._scratch, out)
        return out
