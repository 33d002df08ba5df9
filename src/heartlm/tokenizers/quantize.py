"""Residual vector quantisation: encode a waveform as a few codes, coarse to fine.

Level one is the nearest centroid of a codebook, level two quantises the residual, and so on. Decoding sums the selected
centroids. Codebooks are fitted by k-means. Distances weight each sample of the waveform, so that the QRS complex does
not dominate the small P wave.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from heartlm.kernels.quantize import Codebooks, prepare_codebooks, residual_codes, sums_by_code

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class ResidualQuantizer:
    """Codebooks of all levels.

    Attributes:
        codebooks: float32 `[num_levels, num_codes, num_points]`, in the units of the waveform.
        weight: factor of each waveform sample in distances, float32 `[num_points]`.
    """

    codebooks: Floats
    weight: Floats

    def encode(self, waveform: Floats) -> NDArray[np.uint16]:
        """Encode each waveform, coarse to fine; uint16 `[num_waveforms, num_levels]`."""
        return residual_codes(waveform, self.weight, self._prepared)

    @cached_property
    def _prepared(self) -> Codebooks:
        return prepare_codebooks(self.codebooks * self.weight)

    def decode(self, codes: NDArray[np.integer]) -> Floats:
        """Return the sum of the centroids of `codes` `[num_waveforms, num_levels]`; `[num_waveforms, num_points]`."""
        waveform = np.zeros((len(codes), self.codebooks.shape[2]), np.float32)
        for codebook, code in zip(self.codebooks, codes.T, strict=True):
            waveform += codebook[code]
        return waveform

    def relative_error(self, waveform: Floats) -> float:
        """Return the root mean square of the decoding error relative to the root mean square of `waveform`."""
        lost = waveform - self.decode(self.encode(waveform))
        return float(np.sqrt(np.mean(lost**2) / np.mean(waveform**2)))


def fit_quantizer(
    waveform: Floats, *, num_levels: int, num_codes: int, weight: Floats, seed: int, num_rounds: int = 20
) -> ResidualQuantizer:
    """Fit the codebooks of a `ResidualQuantizer` to `waveform` `[num_waveforms, num_points]`, level by level.

    If there are fewer waveforms than `num_codes`, the codebook contains repeated centroids.
    """
    generator = np.random.Generator(np.random.Philox(seed))
    rest = waveform * weight
    codebooks = []
    for _ in range(num_levels):
        codebook = k_means(rest, num_codes, generator, num_rounds)
        rest = rest - codebook[nearest_centroid(rest, codebook)]
        codebooks.append(codebook / weight)
    return ResidualQuantizer(np.stack(codebooks).astype(np.float32), weight.astype(np.float32))


def k_means(points: Floats, num_codes: int, generator: np.random.Generator, num_rounds: int) -> Floats:
    """Run Lloyd's algorithm from random points; an empty centroid restarts at the point with the largest error."""
    centroids = points[generator.choice(len(points), num_codes, replace=len(points) < num_codes)].copy()
    for _ in range(num_rounds):
        nearest = nearest_centroid(points, centroids)
        sums, counts = sums_by_code(points, nearest, num_codes), np.bincount(nearest, minlength=num_codes)
        filled, empty = np.flatnonzero(counts), np.flatnonzero(counts == 0)
        centroids[filled] = sums[filled] / counts[filled, None]
        if len(empty):
            error = ((points - centroids[nearest]) ** 2).sum(axis=1)
            worst = np.argsort(error)[-len(empty) :]
            centroids[empty[: len(worst)]] = points[worst]
    return centroids


def nearest_centroid(points: Floats, centroids: Floats) -> NDArray[np.uint16]:
    """Return the index of the nearest centroid of each point, the lower index of equals; uint16 `[num_points]`."""
    weight = np.ones(points.shape[1], np.float32)
    return residual_codes(points, weight, prepare_codebooks(centroids[None]))[:, 0]
