"""Residual vector quantisation: encode a waveform as a few codes, coarse to fine.

Level one is the nearest centroid of a codebook, level two quantises the residual, and so on. Decoding sums the selected
centroids. Codebooks are fitted by k-means.

The choice is exact: of centroids that single precision cannot tell apart, the one with the highest score in double
precision is taken, and of equals the first. So codes do not depend on the processor.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from heartlm.kernels.library import kernel

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]

# Dimensions in which most centroids are ruled out.
_NUM_HEAD = 32
_POINTS_AT_ONCE, _CODES_AT_ONCE, _BATCH = 32, 64, 32
MOST_CODES = 1024
"""Of a codebook."""


@dataclass(frozen=True)
class Codebooks:
    """Codebooks as the kernel reads them; see residual_quantize.c.

    Attributes:
        centroids: float32 `[num_levels, num_codes, length]`, zeros after the points.
        half: half the square of each one's length, float64 `[num_levels, num_codes]`.
        bias: the same, negative, float32, −∞ for codes that fill up; `[num_levels, padded_codes]`.
        heads: coordinates in the basis, float32 `[num_levels, num_codes, num_head]`.
        columns: these, the lengths of the tails and what rounding may add, float32
            `[num_levels, num_head + 2, padded_codes]`.
        basis: orthonormal, float32 `[length, num_head]`.
    """

    centroids: Floats
    half: Doubles
    bias: Floats
    heads: Floats
    columns: Floats
    basis: Floats

    @cached_property
    def addresses(self) -> tuple[int, ...]:
        """Where the kernel finds the arrays: looked up once, which is a third of the time of coding one vector."""
        arrays = self.centroids, self.half, self.bias, self.heads, self.columns, self.basis
        return tuple(array.ctypes.data for array in arrays)


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
    waveform: Floats, num_levels: int, num_codes: int, seed: int, num_rounds: int = 20
) -> ResidualQuantizer:
    """Fit the codebooks of a `ResidualQuantizer` to `waveform` `[num_waveforms, num_points]`, level by level.

    If there are fewer waveforms than `num_codes`, the codebook contains repeated centroids.
    """
    generator = np.random.Generator(np.random.Philox(seed))
    rest, codebooks = waveform, []
    for _ in range(num_levels):
        codebooks.append(k_means(rest, num_codes, generator, num_rounds))
        rest = rest - codebooks[-1][nearest_centroid(rest, codebooks[-1])]
    shape = num_levels, num_codes, waveform.shape[1]  # also without levels
    return ResidualQuantizer(np.array(codebooks, np.float32).reshape(shape), np.ones(waveform.shape[1], np.float32))


def k_means(points: Floats, num_codes: int, generator: np.random.Generator, num_rounds: int) -> Floats:
    """Run Lloyd's algorithm from random points; an empty centroid restarts at the point with the largest error."""
    centroids = points[generator.choice(len(points), num_codes, replace=len(points) < num_codes)].copy()
    for _ in range(num_rounds):
        nearest = nearest_centroid(points, centroids)
        sums = sums_by_code(points, nearest, num_codes)
        counts = np.bincount(nearest, minlength=num_codes)
        filled, empty = np.flatnonzero(counts), np.flatnonzero(counts == 0)
        centroids[filled] = sums[filled] / counts[filled, None]
        if len(empty):
            error = ((points - centroids[nearest]) ** 2).sum(axis=1)
            worst = np.argsort(error)[-len(empty) :]
            centroids[empty[: len(worst)]] = points[worst]  # there may be fewer points than empty centroids
    return centroids


def nearest_centroid(points: Floats, centroids: Floats) -> NDArray[np.uint16]:
    """Return the index of the nearest centroid of each point, the lower index of equals; uint16 `[num_points]`."""
    weight = np.ones(points.shape[1], np.float32)
    return residual_codes(points, weight, prepare_codebooks(centroids[None]))[:, 0]


def prepare_codebooks(centroids: Floats) -> Codebooks:
    """Lay out `centroids`, float32 `[num_levels, num_codes, num_points]`, for `residual_codes`."""
    num_levels, num_codes, num_points = centroids.shape
    length, padded_codes = (
        -(-size // step) * step for size, step in ((num_points, _POINTS_AT_ONCE), (num_codes, _CODES_AT_ONCE))
    )
    padded = np.zeros((num_levels, padded_codes, length), np.float32)
    padded[:, :num_codes, :num_points] = centroids
    exact = padded.astype(np.float64)
    squared = np.add.reduce(np.moveaxis(exact**2, 2, 0), axis=0)
    flat = exact.reshape(-1, length)
    # the directions in which the centroids differ most: `eigh` returns the largest eigenvalues last
    basis = np.linalg.eigh(flat.T @ flat)[1][:, ::-1][:, :_NUM_HEAD].astype(np.float32)
    heads = exact @ basis
    tails = np.sqrt(np.maximum(squared - (heads**2).sum(axis=2), 0) + 1e-6 * squared)
    bias = np.where(np.arange(padded_codes) < num_codes, -0.5 * squared, -np.inf)
    columns = np.concatenate([np.moveaxis(heads, 2, 1), tails[:, None], 1e-5 * np.sqrt(squared)[:, None]], axis=1)
    return Codebooks(
        padded,
        0.5 * squared,
        bias.astype(np.float32),
        np.ascontiguousarray(heads, np.float32),
        np.ascontiguousarray(columns, np.float32),
        np.ascontiguousarray(basis),
    )


def residual_codes(vectors: Floats, weight: Floats, codebooks: Codebooks) -> NDArray[np.uint16]:
    """Code each vector, coarse to fine.

    Args:
        vectors: float32 `[num_vectors, num_points]`.
        weight: what they are multiplied by first, float32 `[num_points]`.
        codebooks: of the multiplied vectors.

    Returns:
        uint16 `[num_vectors, num_levels]`.
    """
    num_levels, padded_codes, length = codebooks.centroids.shape
    assert padded_codes <= MOST_CODES, "more codes than the kernel holds"
    codes = np.empty((len(vectors), num_levels), np.uint16)
    rest = np.empty((_BATCH, length), np.float32)
    vectors = np.ascontiguousarray(vectors, np.float32)
    assert vectors.shape[1] == len(weight)
    kernel("residual_quantize")(
        *(vectors, weight, *vectors.shape),
        *(*codebooks.addresses, num_levels, padded_codes, length, rest, codes),
    )
    return codes


def sums_by_code(vectors: Floats, codes: NDArray[np.uint16], num_codes: int) -> Doubles:
    """Sum of the vectors of each code, one added after the other.

    Args:
        vectors: float32 `[num_vectors, num_points]`.
        codes: below `num_codes`, `[num_vectors]`.
        num_codes: how many there are.

    Returns:
        float64 `[num_codes, num_points]`.
    """
    sums = np.zeros((num_codes, vectors.shape[1]))
    vectors, codes = np.ascontiguousarray(vectors, np.float32), np.ascontiguousarray(codes, np.uint16)
    kernel("sums_by_code")(vectors, codes, *vectors.shape, sums)
    return sums
