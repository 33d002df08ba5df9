"""The transformer of `heartlm.models.heart` in NumPy and the kernels of its training, forwards only.

Shapes: B windows, T tokens per window, F facets, D width, H heads, W = D/H.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from heartlm.inference.intervals import IntervalVectors
from heartlm.inference.network import InferenceNetwork
from heartlm.kernels.library import kernel
from heartlm.models.config import ModelConfig
from heartlm.models.info import ModelInfo
from heartlm.models.sizes import EPSILON
from heartlm.models.weights import Weights
from heartlm.system.cores import compute_threads

Codes = NDArray[np.integer]
Floats = NDArray[np.float32]

TOKENS_AT_ONCE = 1 << 12
"""Tokens of a batch: the activations of more no longer fit into the caches."""
_LOGITS_AT_ONCE = 1 << 22
"""Attention logits that are computed together without the kernel, whose heads are a multiple of 16 wide."""


class Transformer(InferenceNetwork):
    """A transformer over tokens of several facets.

    Args:
        weights: tensors of the model.
        info: its description.

    Attributes:
        table: embeddings of the codes of all facets, mask codes last in each, float32 `[num_rows, D]`.
        offset: first row of each facet in `table`, int64 `[F]`.
        frequency: rotation in radians per token of each pair of channels of a head, float64 `[W/2]`.
        norm: weights of the final norm, `[D]`.
        head: weights and biases of the class head, None for a foundation model.
    """

    def __init__(self, weights: Weights, info: ModelInfo) -> None:
        super().__init__(info)
        config, width = info.config, info.config.width
        assert width and config.heads, "resolve the config first"
        embedding = weights.under("embedding.")
        free = embedding.take("free", sum(config.facet_sizes) + len(config.facet_sizes), width)
        self.table, self.offset, first = free.copy(), np.empty(len(config.facet_sizes), np.int64), 0
        for facet, size in enumerate(config.facet_sizes):
            num_coordinates = embedding.shape_of(f"places_{facet}")[1]
            places = embedding.take(f"places_{facet}", size, num_coordinates)
            project = embedding.take(f"project.{facet}.weight", width, num_coordinates)
            self.table[first : first + size] += places @ project.T
            self.offset[facet], first = first, first + size + 1
        trunk = weights.under("trunk.")
        self.blocks = [InferenceBlock(trunk.under(f"blocks.{number}."), config) for number in range(config.depth)]
        self.norm = trunk.take("norm.weight", width)
        self.head = None
        if self.num_classes:
            head = weights.under("class_head.")
            self.head = head.take("weight", self.num_classes, width), head.take("bias", self.num_classes)
        self.statistics = None
        if weights.has("statistics."):
            self.statistics = IntervalVectors(weights.under("statistics."), config.facet_sizes[0], width)
        weights.drop("facet_heads.")
        self.frequency = 10000.0 ** (-np.arange(0, width // config.heads, 2) / (width // config.heads))

    def windows_at_once(self, width: int) -> int:
        """Return the number of windows of `width` tokens per batch, at least 1."""
        return max(1, TOKENS_AT_ONCE // max(1, width))

    def hidden(self, codes: Codes, layer: int = -1) -> Floats:
        """Return hidden states of windows `[B, T, F]`, of the output of block `layer` or of the model, `[B, T, D]`."""
        angle = np.arange(codes.shape[1])[:, None] * self.frequency
        angles = np.stack([np.cos(angle), np.sin(angle)]).astype(np.float32)
        x = self.embedded(codes)
        for block in self.blocks if layer < 0 else self.blocks[: layer + 1]:
            block(x, angles)
        return x if layer >= 0 else rms_norm(x, self.norm)

    def embedded(self, codes: Codes) -> Floats:
        """Return the sum of the embeddings of the facets of tokens `[..., F]`, `[..., D]`."""
        x: Floats = self.table[codes[..., 0] + self.offset[0]]
        for facet in range(1, len(self.offset)):
            x += self.table[codes[..., facet] + self.offset[facet]]
        return x

    def probabilities(self, codes: Codes) -> Floats:
        """Return class probabilities of windows `[B, T, F]`: `[B, T, num_classes]`, of a pooled head `[B, ...]`."""
        hidden = self.hidden(codes)
        if self.pooled:
            hidden = hidden.mean(axis=1)
            if self.statistics is not None:
                hidden += self.statistics(codes[..., 0])
        return self.classified(hidden)

    def classified(self, hidden: Floats) -> Floats:
        """Return class probabilities of hidden states `[..., D]`, `[..., num_classes]`."""
        assert self.head is not None, "a foundation model has no labels to predict"
        weight, bias = self.head
        return softmax(hidden @ weight.T + bias)


class InferenceBlock:
    """Attention, then SwiGLU, each after an RMSNorm and added to the residual stream."""

    def __init__(self, weights: Weights, config: ModelConfig) -> None:
        assert config.width and config.heads and config.feed_forward, "resolve the config first"
        width, inner = config.width, config.feed_forward
        self.heads, self.causal = config.heads, config.causal
        self.norm_attention = weights.take("norm_attention.weight", width)
        self.norm_feed = weights.take("norm_feed.weight", width)
        self.qkv = weights.take("qkv.weight", 3 * width, width)
        self.attention_out = weights.take("attention_out.weight", width, width)
        self.gate_up = weights.take("gate_up.weight", 2 * inner, width)
        self.feed_out = weights.take("feed_out.weight", width, inner)

    def __call__(self, x: Floats, angles: Floats) -> None:
        """Apply the block to the residual stream `x` `[B, T, D]`, in place."""
        batch, tokens, width = x.shape
        rows = x.reshape(-1, width)  # one product of all windows
        qkv = rms_norm(rows, self.norm_attention) @ self.qkv.T
        shape = batch, tokens, 3, self.heads, width // self.heads
        rows += attention(qkv.reshape(shape), angles, self.causal).reshape(-1, width) @ self.attention_out.T
        rows += swiglu(rms_norm(rows, self.norm_feed) @ self.gate_up.T) @ self.feed_out.T


def rms_norm(x: Floats, weight: Floats) -> Floats:
    """Divide `x` `[..., D]` by its RMS and multiply by `weight` `[D]`."""
    width = x.shape[-1]
    y, inverse = np.empty_like(x), np.empty(x.size // width, np.float32)
    kernel("rms_norm_forward")(x, weight, EPSILON, len(inverse), width, compute_threads(), y, inverse)
    return y


def swiglu(gate_up: Floats) -> Floats:
    """Return `silu(gate) * up` `[N, F]` of `[N, 2 F]`, gates first."""
    out = np.empty((len(gate_up), gate_up.shape[1] // 2), np.float32)
    kernel("swiglu_forward")(gate_up, *out.shape, compute_threads(), out)
    return out


def softmax(logits: NDArray[np.floating]) -> Floats:
    """Return probabilities over the last axis."""
    shares = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(shares / shares.sum(axis=-1, keepdims=True), np.float32)


def rotate(x: Floats, angles: Floats) -> Floats:
    """Rotate pairs of channels of `x` `[..., W]` by angles whose cosines and sines are `[2, ..., W/2]`."""
    cosine, sine = angles
    first, second = np.split(x, 2, axis=-1)
    return np.concatenate([first * cosine - second * sine, first * sine + second * cosine], axis=-1)


def attention(qkv: Floats, angles: Floats, causal: bool) -> Floats:
    """Compute attention with rotary positions of contiguous `[B, T, 3, H, W]`; `[B, T, H, W]`."""
    batch, tokens, _, heads, width = qkv.shape
    if width % 16:
        return _attention_without_kernel(qkv, angles, causal)
    threads, row = compute_threads(), 3 * heads * width
    scratch = np.empty(threads * kernel("attention_scratch")(tokens, width), np.float32)
    out, lse = np.empty((batch, tokens, heads, width), np.float32), np.empty((heads, batch * tokens), np.float32)
    query, key, value = (qkv.ctypes.data + part * heads * width * qkv.itemsize for part in range(3))
    cosine, sine = (np.ascontiguousarray(each) for each in angles)
    kernel("attention_forward")(
        *(query, row, key, value, row, cosine, sine, None, None, batch * tokens, batch, tokens, heads, width),
        *(causal, None, 0.0, threads, scratch, out, lse),
    )
    return out


def _attention_without_kernel(qkv: Floats, angles: Floats, causal: bool) -> Floats:
    batch, tokens, _, heads, width = qkv.shape
    out = np.empty((batch, tokens, heads, width), np.float32)
    rows = max(1, _LOGITS_AT_ONCE // (heads * tokens))
    for window, y in zip(qkv, out, strict=True):
        q, k, v = window.transpose(1, 2, 0, 3)  # [H, T, W] each
        q, k = rotate(q, angles) * np.float32(width**-0.5), rotate(k, angles).swapaxes(1, 2)
        for first in range(0, tokens, rows):
            logits = q[:, first : first + rows] @ k
            if causal:
                logits[:, ~np.tri(logits.shape[1], tokens, first, dtype=np.bool_)] = -np.inf
            y[first : first + rows] = (softmax(logits) @ v).swapaxes(0, 1)
    return out
