"""Models of live streams in C: one beat, or one window, of each of many streams in one call.

Streams lie side by side in vectors, so that a stream gets the same numbers in any company. The references are
`heartlm.monitor.models.LiveTrunk` and `heartlm.models.waveform.WaveformNetwork`, which sum in another order.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from heartlm.kernels.library import kernel, struct_fields

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]

_ROWS = 8
"""Rows of a matrix that `product` of c/live.h takes together."""


def packed(weight: NDArray[np.floating]) -> Floats:
    """A matrix `[rows, depth]` in the order in which `product` of c/live.h reads it."""
    whole = len(weight) // _ROWS * _ROWS
    blocks = weight[:whole].reshape(-1, _ROWS, weight.shape[1]).swapaxes(1, 2)
    return np.concatenate([blocks.ravel(), weight[whole:].ravel()]).astype(np.float32)


class _Trunk(ctypes.Structure):
    """`struct trunk` of c/live_beats.c, which says what each field is."""

    _fields_ = struct_fields("trunk")


class _Network(ctypes.Structure):
    """`struct network` of c/live_windows.c."""

    _fields_ = struct_fields("network")


class BeatsKernel:
    """A causal transformer that reads one beat of each stream.

    Args:
        sizes: facets, width, depth, heads, head_width, feed, kept and classes.
        table: embeddings of all codes, `[num_codes, width]`.
        blocks: weights of all blocks, in the order of c/live_beats.c.
        norm: weight of the last norm, `[width]`.
        head: weight `[classes, width]`.
        bias: of the head, `[classes]`.
        frequency: of the rotary positions, `[head_width / 2]`.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        table: Floats,
        blocks: Sequence[Floats],
        norm: Floats,
        head: Floats,
        bias: Floats,
        frequency: Doubles,
    ) -> None:
        flat = np.concatenate([each if each.ndim == 1 else packed(each) for each in blocks])
        self._arrays = [np.ascontiguousarray(each) for each in (table, flat, norm, packed(head), bias, frequency)]
        self._trunk = _Trunk(*sizes, *(each.ctypes.data for each in self._arrays))
        self._num_classes = sizes[-1]
        self._run = kernel("live_beats")
        self._scratch = np.empty(kernel("live_beats_scratch")(ctypes.addressof(self._trunk)), np.float32)

    def judge(self, codes: NDArray[np.int64], position: NDArray[np.int64], caches: NDArray[np.int64]) -> Floats:
        """Probabilities of the classes of one beat of each stream, float32 `[num_streams, classes]`.

        Args:
            codes: rows of the table, `[num_streams, facets]`.
            position: beats before each, `[num_streams]`.
            caches: address of each stream's keys and values, float16 `[depth, 2, heads, kept, head_width]`; the beat is
                written into them.
        """
        out = np.empty((len(codes), self._num_classes), np.float32)
        assert len(codes) == len(position) == len(caches)
        self._run(ctypes.addressof(self._trunk), codes, position, caches, len(codes), self._scratch, out)
        return out


class WindowsKernel:
    """The network of the task waveform.

    Args:
        sizes: length of a window, bands, hidden and classes.
        volts: of each code, `[num_codes]`.
        waves: weight `[outer, inner, kernel]`, bias `[outer]` and stride of each convolution over time.
        lines: the same of those over lines of the spectrum.
        dense: weight and bias of each dense layer; the first reads `[place, channel]`.
        small: voltage that saturates.
        least: voltage added before dividing.
    """

    def __init__(
        self,
        sizes: tuple[int, int, int, int],
        volts: Floats,
        waves: Sequence[tuple[Doubles, Doubles, int]],
        lines: Sequence[tuple[Doubles, Doubles, int]],
        dense: Sequence[tuple[Floats, Floats]],
        small: float,
        least: float,
    ) -> None:
        self.length, bands, _, self._num_classes = sizes
        layers = [*waves, *lines]
        tables = zip(*((own.shape[1], own.shape[0], own.shape[2], stride) for own, _, stride in layers), strict=True)
        flat = [part for own, bias, _ in layers for part in (packed(own.swapaxes(1, 2).reshape(len(own), -1)), bias)]
        angle = 2 * np.pi * np.arange(1, bands + 1)[:, None] * np.arange(self.length) / self.length
        hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(self.length) / self.length)
        fourier = packed(np.concatenate([np.cos(angle) * hann, np.sin(angle) * hann]))
        flat_dense = np.concatenate([part for own, bias in dense for part in (packed(own), bias)])
        self._arrays = [
            np.ascontiguousarray(each, np.float32) for each in (volts, fourier, np.concatenate(flat), flat_dense)
        ]
        addresses = (each.ctypes.data for each in self._arrays)
        self._network = _Network(*sizes, len(waves), len(lines), *tables, *addresses, small, least)
        self._run = kernel("live_windows")
        self._scratch = np.empty(kernel("live_windows_scratch")(ctypes.addressof(self._network)), np.float32)

    def judge(self, codes: NDArray[np.uint16]) -> Floats:
        """Probabilities of the classes in windows `[num_windows, length]`; float32 `[num_windows, classes]`."""
        out = np.empty((len(codes), self._num_classes), np.float32)
        assert codes.shape[1] == self.length
        self._run(ctypes.addressof(self._network), codes, len(codes), self._scratch, out)
        return out
