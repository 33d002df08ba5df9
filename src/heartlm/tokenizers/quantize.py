"""Residual vector quantisation: a waveform as a few codes, coarse to fine.

Level one is the nearest of a codebook's centroids; level two quantises what is left; and so on. The sum of the chosen
centroids decodes the waveform again. Codebooks are fitted by k-means. Distances weight each sample of the waveform, so
that the small P wave is not drowned by the QRS complex.
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
    """Codebooks of every level.

    Attributes:
        codebooks: float32 `[num_levels, num_codes, num_points]`, in the units of the waveform.
        weight: float32 `[num_points]`; distances are taken between waveforms multiplied by it.
    """

    codebooks: Floats
    weight: Floats

    def encode(self, waveform: Floats) -> NDArray[np.uint16]:
        """Codes of each waveform, coarse to fine; uint16 `[num_waveforms, num_levels]`."""
        return residual_codes(waveform, self.weight, self._prepared)

    @cached_property
    def _prepared(self) -> Codebooks:
        return prepare_codebooks(self.codebooks * self.weight)

    def decode(self, codes: NDArray[np.integer]) -> Floats:
        """Sum of the centroids that `codes` `[num_waveforms, num_levels]` name; `[num_waveforms, num_points]`."""
        waveform = np.zeros((len(codes), self.codebooks.shape[2]), np.float32)
        for codebook, code in zip(self.codebooks, codes.T, strict=True):
            waveform += codebook[code]
        return waveform

    def relative_error(self, waveform: Floats) -> float:
        """Root mean square of what decoding loses, relative to the root mean square of `waveform` itself."""
        lost = waveform - self.decode(self.encode(waveform))
        return float(np.sqrt(np.mean(lost**2) / np.mean(waveform**2)))


def fit_quantizer(
    waveform: Floats, *, num_levels: int, num_codes: int, weight: Floats, seed: int, num_rounds: int = 20
) -> ResidualQuantizer:
    """Fit the codebooks of a `ResidualQuantizer` to `waveform` `[num_waveforms, num_points]`, level by level.

    With fewer waveforms than `num_codes` the codebook holds repeated centroids.
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
    """Lloyd's algorithm from randomly chosen points; an emptied centroid restarts at the worst represented point."""
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
    """Index of the centroid nearest to each point, the lower one of equals; uint16 `[num_points]`."""
    weight = np.ones(points.shape[1], np.float32)
    return residual_codes(points, weight, prepare_codebooks(centroids[None]))[:, 0]
