"""The models of a monitor. Each judges many streams in one call.

The result of a stream must not depend on the other streams, to the last bit (tested). Beats and windows are judged in
C, where streams lie side by side in vectors and the sums of a stream are separate. Rhythms are judged by torch in
batches of a fixed size, padded with zeros, because its matrix products may round differently for another number of
rows.
"""

from __future__ import annotations

import ctypes
import functools
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from heartlm.errors import HeartlmError
from heartlm.kernels.library import kernel, structure
from heartlm.labels.waveform import WINDOW
from heartlm.models.fused import rotate, swiglu
from heartlm.models.heart import HeartModel
from heartlm.models.transformer import Block
from heartlm.models.waveform import LEAST_MV, NUM_BANDS, NUM_HIDDEN, SMALL_MV, WaveformNetwork
from heartlm.monitor.af_onset import CLASSES, CODES, AfMeasures, AfOnset
from heartlm.tasks.load import load_of_tasks
from heartlm.tokenizers.beat import BeatTokenizer
from heartlm.tokenizers.live import LiveTokenizer
from heartlm.tokenizers.rhythm import RhythmTokenizer

Codes = NDArray[np.uint16]
Floats = NDArray[np.float32]

RHYTHM_BATCH_BEATS = 1024
"""Beats of a batch of the model of AF: eight windows of 128, 32 of 32."""
KEPT_BEATS = 32
"""Beats whose keys and values are kept for attention. The model was trained on 128: with 32, F1 of V is 0.942 instead
of 0.943 and F1 of S 0.894 instead of 0.897. With 64 they are 0.944 and 0.895, for twice the memory
(docs/log/monitor-alarms.md)."""
# Rows of a matrix that `product` of c/live.h processes together.
_ROWS = 8
AF_BEATS = (32, 64, 128)
"""Numbers of beats from which AF can be judged; the largest available one is used."""


class LiveTrunk(nn.Module):
    """A causal transformer that reads one token of each stream per call, with a cache of keys and values.

    The cache is a ring buffer of `KEPT_BEATS` entries. Keys have rotary embeddings of their positions in the stream;
    attention depends on differences of positions only.

    Args:
        model: a causal model with a head for tokens.
    """

    def __init__(self, model: HeartModel) -> None:
        super().__init__()
        assert model.class_head is not None and model.config.heads, "a fine-tuned model with its config resolved"
        self.trunk, self.head = model.trunk, model.class_head
        self.depth, self.heads, self.head_width = model.config.depth, model.config.heads, model.trunk.head_width
        with torch.no_grad():
            self.register_buffer("table", model.embedding.table())
        self.register_buffer("offset", model.embedding.offset)
        half = self.head_width // 2
        self.register_buffer("frequency", 10000.0 ** (-torch.arange(half, dtype=torch.float64) / half))
        self.register_buffer("ring", torch.arange(KEPT_BEATS))

    table: Tensor
    offset: Tensor
    frequency: Tensor
    ring: Tensor

    @property
    def cache_bytes(self) -> int:
        """Size of the cache of one stream in half floats."""
        return 2 * self.depth * 2 * self.heads * KEPT_BEATS * self.head_width

    def empty(self, num_streams: int) -> Tensor:
        """Return an empty cache, float32 `[num_streams, depth, 2, heads, KEPT_BEATS, head_width]`."""
        return torch.zeros(num_streams, self.depth, 2, self.heads, KEPT_BEATS, self.head_width)

    def forward(self, codes: Tensor, cache: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
        """Judge one token of each stream.

        Args:
            codes: int64 `[B, num_facets]`.
            cache: see `empty`.
            position: number of tokens before each, int64 `[B]`.

        Returns:
            Probabilities of the classes `[B, num_classes]`, and the entry `position % KEPT_BEATS` of the cache,
            `[B, depth, 2, heads, head_width]`.
        """
        angle = position[:, None].double() * self.frequency
        # float32 is exact enough within one turn, and ONNX has no sine and cosine of float64
        angle = (angle - 2 * math.pi * torch.floor(angle / (2 * math.pi))).float()
        turn = torch.stack([angle.cos(), angle.sin()])[:, :, None]
        # The entry of the new beat still holds the oldest one.
        seen = (self.ring < position[:, None]) & (position[:, None] % KEPT_BEATS != self.ring)
        x = F.embedding(codes + self.offset, self.table).sum(dim=1)
        new = []
        for layer, block in enumerate(self.trunk.blocks):
            assert isinstance(block, Block), "a trunk is made of blocks"
            qkv = block.qkv(block.norm_attention(x)).view(len(x), 3, self.heads, self.head_width)
            query, key, value = rotate(qkv[:, 0], turn), rotate(qkv[:, 1], turn), qkv[:, 2]
            new.append(torch.stack([key, value], dim=1))
            query = query * self.head_width**-0.5
            score = (cache[:, layer, 0] @ query[..., None])[..., 0].masked_fill(~seen[:, None], -torch.inf)
            weight = torch.cat([score, (key * query).sum(dim=-1, keepdim=True)], dim=-1).softmax(dim=-1)
            mixed = (weight[..., None, :-1] @ cache[:, layer, 1])[..., 0, :] + weight[..., -1:] * value
            x = x + block.attention_out(mixed.flatten(1))
            x = x + block.feed_out(swiglu(block.gate_up(block.norm_feed(x))))
        return self.head(self.trunk.norm(x)).softmax(dim=-1), torch.stack(new, dim=1)


def _packed(weight: NDArray[np.floating]) -> Floats:
    """Return a matrix `[rows, depth]` in the order in which `product` of c/live.h reads it."""
    whole = len(weight) // _ROWS * _ROWS
    blocks = weight[:whole].reshape(-1, _ROWS, weight.shape[1]).swapaxes(1, 2)
    return np.concatenate([blocks.ravel(), weight[whole:].ravel()]).astype(np.float32)


class BeatsKernel:
    """`LiveTrunk.forward` in C, equal up to rounding. It also writes beats into the caches, which are half floats.

    Args:
        live: the model.
        extra: rows by which the last hidden state is multiplied, float32 `[num_rows, width]`.
    """

    def __init__(self, live: LiveTrunk, extra: Floats | None = None) -> None:
        weights = list[Floats]()
        for block in live.trunk.blocks:
            assert isinstance(block, Block), "a trunk is made of blocks"
            products = block.qkv, block.attention_out, block.gate_up, block.feed_out
            qkv, attention_out, gate_up, feed_out = (_packed(each.weight.detach().numpy()) for each in products)
            norms = (each.weight.detach().numpy() for each in (block.norm_attention, block.norm_feed))
            weights += [next(norms), qkv, attention_out, next(norms), gate_up, feed_out]
        ends = live.trunk.norm.weight, live.head.weight, live.head.bias, live.frequency
        norm, head, bias, frequency = (each.detach().numpy() for each in ends)
        table = np.ascontiguousarray(live.table.numpy())
        classes, extra = len(head), np.empty((0, head.shape[1]), np.float32) if extra is None else extra
        head, bias = np.concatenate([head, extra]), np.pad(bias, (0, len(extra)))
        self._arrays = table, np.concatenate(weights), norm, _packed(head), bias, frequency
        width = table.shape[1]
        feed = weights[-1].size // width
        sizes = len(live.offset), width, live.depth, live.heads, live.head_width, feed, KEPT_BEATS, classes, len(extra)
        # c/live_beats.c describes the fields.
        self._trunk: Any = structure("trunk")(*sizes, *(each.ctypes.data for each in self._arrays))
        self._run = kernel("live_beats")
        self._scratch = np.empty(kernel("live_beats_scratch")(ctypes.addressof(self._trunk)), np.float32)

    def judge(
        self, codes: NDArray[np.int64], position: NDArray[np.int64], caches: NDArray[np.int64]
    ) -> tuple[Floats, Floats]:
        """Judge one beat of each stream.

        Args:
            codes: rows of the table, `[num_streams, facets]`.
            position: number of beats before each, `[num_streams]`.
            caches: address of the cache of each stream, float16 `[depth, 2, heads, kept, head_width]`.

        Returns:
            Class probabilities, float32 `[num_streams, classes]`, and products with `extra`, `[num_streams, num_rows]`.
        """
        out, rest = (np.empty((len(codes), num), np.float32) for num in (self._trunk.classes, self._trunk.extra))
        assert len(codes) == len(position) == len(caches)
        self._run(ctypes.addressof(self._trunk), codes, position, caches, len(codes), self._scratch, out, rest)
        return out, rest


class WindowsKernel:
    """`WaveformNetwork.class_logits` followed by a softmax in C, equal up to rounding."""

    def __init__(self, network: WaveformNetwork) -> None:
        tables, flat = list[tuple[int, ...]](), list[Floats]()
        for convolution, normalisation, _ in (*network.trunk.blocks, *network.spectrum):
            scale = normalisation.weight / torch.sqrt(normalisation.running_var + normalisation.eps)
            weight = (convolution.weight * scale[:, None, None]).detach().double().numpy()
            bias = (normalisation.bias - normalisation.running_mean * scale).detach().double().numpy()
            outer, inner, width = weight.shape
            tables.append((inner, outer, width, convolution.stride[0]))
            flat += [_packed(weight.swapaxes(1, 2).reshape(outer, -1)), bias]
        assert network.class_head is not None, "a fine-tuned network"
        # the first dense layer reads [place, channel]
        of_spectrum = network.of_spectrum.weight.view(NUM_HIDDEN, tables[-1][1], -1).swapaxes(1, 2).flatten(1)
        others = ((layer.weight, layer.bias) for layer in (network.hidden_layer, network.class_head))
        dense = list[Floats]()
        for weight, bias in ((of_spectrum, network.of_spectrum.bias), *others):
            dense += [_packed(weight.detach().numpy()), bias.detach().numpy()]
        angle = 2 * np.pi * np.arange(1, NUM_BANDS + 1)[:, None] * np.arange(WINDOW) / WINDOW
        hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(WINDOW) / WINDOW)
        fourier = _packed(np.concatenate([np.cos(angle) * hann, np.sin(angle) * hann]))
        volts = network.embedding.get_buffer("places_0")[:, 0].numpy()
        self._arrays = [
            np.ascontiguousarray(each, np.float32)
            for each in (volts, fourier, np.concatenate(flat), np.concatenate(dense))
        ]
        sizes = WINDOW, NUM_BANDS, NUM_HIDDEN, network.num_classes, len(network.trunk.blocks), len(network.spectrum)
        addresses = (each.ctypes.data for each in self._arrays)
        # c/live_windows.c describes the fields.
        self._network: Any = structure("network")(*sizes, *zip(*tables, strict=True), *addresses, SMALL_MV, LEAST_MV)
        self._run = kernel("live_windows")
        self._scratch = np.empty(kernel("live_windows_scratch")(ctypes.addressof(self._network)), np.float32)

    def judge(self, codes: Codes) -> Floats:
        """Return the class probabilities of windows `[num_windows, WINDOW]`, float32 `[num_windows, classes]`."""
        out = np.empty((len(codes), self._network.classes), np.float32)
        assert codes.shape[1] == WINDOW
        self._run(ctypes.addressof(self._network), codes, len(codes), self._scratch, out)
        return out


@functools.lru_cache(maxsize=1)
def live_models(beats: Path, af: Path, waveform: Path) -> LiveModels:
    """Return the models of live streams, kept for the next call with the same models; see `LiveModels`."""
    return LiveModels(beats, af, waveform)


class LiveModels:
    """The models of beats, AF and waveform for live streams.

    Args:
        beats: causal model of beats, as the name of a shipped model or a run folder.
        af: model of atrial fibrillation.
        waveform: model of the task waveform.

    Attributes:
        trunk: `beats` for one beat of each stream at a time.
        beat_tokenizer: tokenizer of `beats`.
        rhythm_tokenizer: tokenizer of `af`.
        beats_kernel: `trunk` in C.
        windows_kernel: `waveform` in C.
        live_tokenizer: `beat_tokenizer` for one beat of each stream at a time.
        af_onset: judges whether AF begins at a beat.
        af_measures: measures the beats for it.

    Raises:
        HeartlmError: a model cannot be read, has another task, or needs later beats.
    """

    def __init__(
        self, beats: Path = Path("beats-causal"), af: Path = Path("af"), waveform: Path = Path("waveform")
    ) -> None:
        self.beats, self.af, self.waveform = load_of_tasks({"beats": beats, "rhythm": af, "waveform": waveform})
        tokenizer, rhythm_tokenizer = self.beats.tokenizer, self.af.tokenizer
        if not isinstance(tokenizer, BeatTokenizer) or not tokenizer.causal or not self.beats.info.config.causal:
            raise HeartlmError(
                f"{self.beats.folder.path}: the model needs later beats, which a live stream does not have: "
                "train a causal model"
            )
        if not isinstance(rhythm_tokenizer, RhythmTokenizer) or rhythm_tokenizer.waveforms:
            raise HeartlmError(f"{self.af.folder.path}: rhythm tokens without waveforms expected")
        network = self.waveform.model
        assert isinstance(network, WaveformNetwork), "the network of the task waveform"
        self.beat_tokenizer, self.rhythm_tokenizer = tokenizer, rhythm_tokenizer
        self.trunk, self.live_tokenizer = LiveTrunk(self.beats.model).eval(), LiveTokenizer(tokenizer)
        self.af_onset = AfOnset()
        self.beats_kernel = BeatsKernel(self.trunk, self.af_onset.of_state)
        self.windows_kernel, names = WindowsKernel(network), [facet.name for facet in tokenizer.facets]
        classes = [self.beats.info.classes.index(name) for name in CLASSES]
        self.af_measures = AfMeasures([names.index(name) for name in CODES], classes)

    def judge_beats(
        self, codes: Codes, positions: NDArray[np.int64], caches: NDArray[np.int64]
    ) -> tuple[Floats, Floats]:
        """Judge one beat of each stream.

        Args:
            codes: tokens, uint16 `[num_streams, num_facets]`.
            positions: number of beats before each.
            caches: address of the cache of each stream in half floats, see `LiveTrunk.empty`; the beat is added to it.

        Returns:
            Class probabilities, float32 `[num_streams, num_classes]`, and what `af_onset` reads of the hidden state.
        """
        return self.beats_kernel.judge(codes + self.trunk.offset.numpy(), positions, caches)

    def judge_windows(self, windows: Codes) -> Floats:
        """Return the waveform class probabilities of windows `[num_windows, WINDOW]`, float32 `[num_windows, 5]`."""
        return self.windows_kernel.judge(windows)

    @torch.inference_mode()
    def judge_rhythms(self, codes: list[Codes]) -> Floats:
        """Return the probability of AF of each window of rhythm tokens, uint16 `[num_beats, num_facets]`."""
        probabilities = np.zeros(len(codes), np.float32)
        for length in {len(tokens) for tokens in codes}:
            of_length = [index for index, tokens in enumerate(codes) if len(tokens) == length]
            batch_size = RHYTHM_BATCH_BEATS // length
            for begin in range(0, len(of_length), batch_size):
                rows = of_length[begin : begin + batch_size]
                batch = np.stack([codes[index] for index in rows]).astype(np.int64)
                padded = np.pad(batch, ((0, batch_size - len(rows)), (0, 0), (0, 0)))
                logits = self.af.model.class_logits(torch.from_numpy(padded)).float()
                probabilities[rows] = logits[: len(rows)].softmax(dim=-1)[:, 1].numpy()
        return probabilities
