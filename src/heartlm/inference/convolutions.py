"""`LeadsNetwork` of `heartlm.models.leads` in NumPy, with the batch normalisation folded into the weights.

Shapes: G groups (the members of a network), B windows, T tokens per window, C channels of a group. Channels are last,
so that a convolution is a product of rows.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from heartlm.inference.network import InferenceNetwork
from heartlm.inference.trees import trees_of
from heartlm.models.info import ModelInfo
from heartlm.models.sizes import (
    EPSILON,
    KERNEL,
    MIX_HIDDEN,
    NUM_FILTERS,
    STEM_KERNEL,
    STRIDES,
    directions,
    leads_channels,
)
from heartlm.models.weights import Weights

Codes = NDArray[np.integer]
Floats = NDArray[np.float32]

SAMPLES_AT_ONCE = 1 << 12
"""Samples of a batch of a network over leads: the activations of more no longer fit into the caches."""


class Convolution:
    """A convolution with zeros at the ends, followed by an affine map of each channel.

    Args:
        weight: float32 `[outer, inner, kernel]`, of all groups.
        stride: samples between outputs.
        groups: G, parts of the channels that are independent.
        scale: factor of each output, `[outer]`; None for 1.
        shift: addend of each output, `[outer]`; None for 0.
    """

    def __init__(
        self, weight: Floats, stride: int = 1, groups: int = 1, scale: Floats | None = None, shift: Floats | None = None
    ) -> None:
        if scale is not None:
            weight = weight * scale[:, None, None]
        outer, inner, self.kernel = weight.shape
        of_groups = weight.reshape(groups, outer // groups, inner, self.kernel)
        self.taps = np.ascontiguousarray(of_groups.transpose(3, 0, 2, 1))[:, :, None]  # [kernel, G, 1, inner, outer]
        self.shift = None if shift is None else shift.reshape(groups, 1, 1, -1)
        self.stride = stride

    def __call__(self, x: Floats) -> Floats:
        """Return `[G, B, ceil(T / stride), outer of a group]` of `[G, B, T, inner]`."""
        reach, stride = self.kernel // 2, self.stride
        last = (x.shape[2] - 1) // stride * stride + 1
        padded = np.pad(x, ((0, 0), (0, 0), (reach, reach), (0, 0))) if reach else x
        # A product for each sample of the kernel needs no copy of what each output sees.
        out: Floats = padded[:, :, :last:stride] @ self.taps[0]
        for place in range(1, self.kernel):
            out += padded[:, :, place : place + last : stride] @ self.taps[place]
        if self.shift is not None:
            out += self.shift
        return out


def normalised(
    convolution: Weights, name: str, norm: Weights, shape: tuple[int, int, int], stride: int, groups: int
) -> Convolution:
    """Return a convolution and the batch normalisation after it; `shape` is `[outer, inner of a group, kernel]`."""
    scale, shift = folded(norm, shape[0])
    return Convolution(convolution.take(name, *shape), stride, groups, scale, shift)


def folded(norm: Weights, num_channels: int) -> tuple[Floats, Floats]:
    """Return factor and addend of each channel of a batch normalisation."""
    weight, bias, mean, variance = (
        norm.take(name, num_channels) for name in ("weight", "bias", "running_mean", "running_var")
    )
    norm.drop("num_batches_tracked")
    scale = np.asarray(weight / np.sqrt(variance + EPSILON), np.float32)
    return scale, np.asarray(bias - mean * scale)


class LeadsInference(InferenceNetwork):
    """Names statements about windows of several leads."""

    def __init__(self, weights: Weights, info: ModelInfo) -> None:
        super().__init__(info)
        config, self.members = info.config, info.config.members
        sizes, channels, groups = config.facet_sizes, leads_channels(config), config.members
        self.num_places = len(sizes) - 1
        shapes = [weights.shape_of(f"embedding.places_{facet}") for facet in range(len(sizes))]
        places = [weights.take(f"embedding.places_{facet}", *shape) for facet, shape in enumerate(shapes)]
        self.levels = places[0][:, 0]
        stem = weights.under("stem.")
        self._scale, self._shift = folded(stem.under("norm."), channels[0])
        self.is_directed = config.network == "leads"
        if self.is_directed:
            self.stem = Convolution(_directed(stem, self.num_places, channels[0]), 2, 1, self._scale)
        else:
            shape = channels[0], self.num_places, STEM_KERNEL
            self.stem = Convolution(stem.take("conv.weight", *shape), 2, 1, self._scale)
        self.blocks = [
            FoldedResidualBlock(weights.under(f"trunk.blocks.{number}."), *each, groups)
            for number, each in enumerate(zip(channels[:-1], channels[1:], STRIDES, strict=True))
        ]
        self.head = None
        if self.num_classes:
            outputs, width = groups * self.num_classes, 2 * channels[-1] // groups
            weight = weights.take("class_head.weight", outputs, width, 1)
            self.head = weight.reshape(groups, self.num_classes, width), weights.take("class_head.bias", outputs)
        if weights.has("trees."):
            self.trees = trees_of(weights.under("trees."), self.num_classes)
        weights.drop("voltage_head.")

    def windows_at_once(self, width: int) -> int:
        """Return the number of windows of `width` tokens per batch, at least 1."""
        return max(1, SAMPLES_AT_ONCE // max(1, width))

    def probabilities(self, codes: Codes) -> Floats:
        """Return the probability of each statement about windows `[B, T, P + 1]`, `[B, num_classes]`."""
        assert self.head is not None, "a network without a head has no labels to predict"
        weight, bias = self.head
        features = self.hidden(codes).reshape(len(codes), self.members, -1)
        logits = np.einsum("bmf,mcf->bmc", features, weight) + bias.reshape(self.members, -1)
        return np.asarray(1 / (1 + np.exp(-logits.mean(axis=1))))

    def hidden(self, codes: Codes, layer: int = -1) -> Floats:
        """Return the features of the head, of each member mean and maximum over time, `[B, members × 2 × width]`.

        With `layer`, those of the output of that block, from 0, which has fewer channels.
        """
        x = self.frames(codes, layer)
        pooled = np.concatenate([x.mean(axis=2), x.max(axis=2)], axis=2)
        return np.asarray(pooled.swapaxes(0, 1).reshape(len(codes), -1))

    def frames(self, codes: Codes, layer: int = -1) -> Floats:
        """Return the output of a block, `[G, B, T / tokens of a frame, C]`."""
        places = codes[..., : self.num_places]
        known = places != 0
        mv = np.where(known, self.levels[places], np.float32(0))
        x: Floats = self.stem(mv[None])[0]
        if self.is_directed:
            # As much as of twelve leads, which would otherwise be louder than one.
            num_leads = np.maximum(known.any(axis=1).sum(axis=1), 1).astype(np.float32)
            x *= (np.sqrt(12 / num_leads) / np.float32(12**0.5 * NUM_FILTERS**0.5))[:, None, None]
        x += self._shift
        np.maximum(x, 0, out=x)
        y: Floats = np.ascontiguousarray(np.moveaxis(x.reshape(*x.shape[:2], self.members, -1), 2, 0))
        for block in self.blocks if layer < 0 else self.blocks[: layer + 1]:
            y = block(y)
        return y


def _directed(stem: Weights, num_places: int, num_channels: int) -> Floats:
    """Return the weights of the stem as one convolution over the leads, `[num_channels, num_places, STEM_KERNEL]`."""
    filters, mix = stem.take("filters", NUM_FILTERS, STEM_KERNEL), stem.under("mix.")
    x = directions() @ mix.take("0.weight", MIX_HIDDEN, 6).T + mix.take("0.bias", MIX_HIDDEN)
    num = num_channels * NUM_FILTERS
    mixed = _gelu(x) @ mix.take("2.weight", num, MIX_HIDDEN).T + mix.take("2.bias", num)
    mixed = (mixed + stem.take("of_place", num_places, num)).reshape(-1, num_channels, NUM_FILTERS)
    return np.asarray(np.einsum("pcf,fk->cpk", mixed, filters))


def _gelu(x: Floats) -> Floats:
    return np.asarray(x * (1 + np.vectorize(math.erf)(x / 2**0.5)) / 2, np.float32)


class FoldedResidualBlock:
    """Two convolutions and a shortcut (He et al. 2016, in one dimension)."""

    def __init__(self, weights: Weights, inner: int, outer: int, stride: int, groups: int) -> None:
        norms, shortcut = weights.under("norms."), weights.under("shortcut.")
        self.stride = stride
        self.first = normalised(
            weights, "first.weight", norms.under("0."), (outer, inner // groups, KERNEL), stride, groups
        )
        self.second = normalised(
            weights, "second.weight", norms.under("1."), (outer, outer // groups, KERNEL), 1, groups
        )
        self.shortcut = normalised(shortcut, "1.weight", shortcut.under("2."), (outer, inner // groups, 1), 1, groups)

    def __call__(self, x: Floats) -> Floats:
        """Return `[G, B, T / stride, outer]` of `[G, B, T, inner]`."""
        y = self.first(x)
        np.maximum(y, 0, out=y)
        y = self.second(y)
        y += self.shortcut(self._averaged(x))
        return np.maximum(y, 0, out=y)

    def _averaged(self, x: Floats) -> Floats:
        """Return means of `stride` samples; the last may have fewer."""
        if self.stride == 1:
            return x
        num = x.shape[2]
        sums = np.add.reduceat(x, np.arange(0, num, self.stride), axis=2)
        sums[:, :, : num // self.stride] /= self.stride
        if rest := num % self.stride:
            sums[:, :, -1] /= rest
        return sums
