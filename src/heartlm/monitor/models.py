"""The models of a monitor. Each judges many streams in one call.

The result of a stream must not depend on the other streams, to the last bit (tested). Beats and windows are judged in
C, where streams lie side by side in vectors and the sums of a stream are separate. Rhythms are judged in batches of a
fixed size, padded with zeros, because matrix products may round differently for another number of rows.
"""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heartlm.errors import HeartlmError
from heartlm.inference.transformer import Transformer
from heartlm.inference.waveform_network import WaveformInference, packed
from heartlm.kernels.library import kernel, structure
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
AF_BEATS = (32, 64, 128)
"""Numbers of beats from which AF can be judged; the largest available one is used."""


class BeatsKernel:
    """A causal transformer in C that reads one token of each stream per call.

    Keys and values of the last `KEPT_BEATS` tokens of a stream are kept in a ring of half floats. Keys have rotary
    embeddings of their positions in the stream; attention depends on differences of positions only.

    Args:
        model: a causal model with a head for tokens.
        extra: rows by which the last hidden state is multiplied, float32 `[num_rows, width]`.
    """

    def __init__(self, model: Transformer, extra: Floats | None = None) -> None:
        assert model.head is not None and model.config.heads and model.config.width, "a fine-tuned model"
        weights = list[Floats]()
        for block in model.blocks:
            qkv, attention_out, gate_up, feed_out = map(
                packed, (block.qkv, block.attention_out, block.gate_up, block.feed_out)
            )
            weights += [block.norm_attention, qkv, attention_out, block.norm_feed, gate_up, feed_out]
        head, bias = model.head
        classes, extra = len(head), np.empty((0, head.shape[1]), np.float32) if extra is None else extra
        head, bias = np.concatenate([head, extra]), np.pad(bias, (0, len(extra)))
        self._arrays = model.table, np.concatenate(weights), model.norm, packed(head), bias, model.frequency
        width, heads, depth = model.config.width, model.config.heads, model.config.depth
        self._cache_shape = depth, 2, heads, KEPT_BEATS, width // heads
        feed, facets = weights[-1].size // width, len(model.offset)
        sizes = facets, width, depth, heads, width // heads, feed, KEPT_BEATS, classes, len(extra)
        # c/live_beats.c describes the fields.
        self._trunk: Any = structure("trunk")(*sizes, *(each.ctypes.data for each in self._arrays))
        self._run = kernel("live_beats")
        self._scratch = np.empty(kernel("live_beats_scratch")(ctypes.addressof(self._trunk)), np.float32)

    @property
    def cache_bytes(self) -> int:
        """Size of the cache of one stream."""
        return self.empty(1).nbytes

    def empty(self, num_streams: int) -> NDArray[np.float16]:
        """Return empty caches, float16 `[num_streams, depth, 2, heads, KEPT_BEATS, head_width]`."""
        return np.zeros((num_streams, *self._cache_shape), np.float16)

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
        trunk: the network of `beats`.
        beat_tokenizer: tokenizer of `beats`.
        rhythm_tokenizer: tokenizer of `af`.
        beats_kernel: `trunk` for one beat of each stream at a time.
        windows: the network of `waveform`.
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
        trunk, windows = self.beats.model, self.waveform.model
        assert isinstance(trunk, Transformer) and isinstance(windows, WaveformInference), "the networks of their tasks"
        self.trunk, self.windows = trunk, windows
        self.beat_tokenizer, self.rhythm_tokenizer = tokenizer, rhythm_tokenizer
        self.live_tokenizer = LiveTokenizer(tokenizer)
        self.af_onset = AfOnset()
        self.beats_kernel = BeatsKernel(self.trunk, self.af_onset.of_state)
        names = [facet.name for facet in tokenizer.facets]
        classes = [self.beats.info.classes.index(name) for name in CLASSES]
        self.af_measures = AfMeasures([names.index(name) for name in CODES], classes)

    def judge_beats(
        self, codes: Codes, positions: NDArray[np.int64], caches: NDArray[np.int64]
    ) -> tuple[Floats, Floats]:
        """Judge one beat of each stream.

        Args:
            codes: tokens, uint16 `[num_streams, num_facets]`.
            positions: number of beats before each.
            caches: address of the cache of each stream, see `BeatsKernel.empty`; the beat is added to it.

        Returns:
            Class probabilities, float32 `[num_streams, num_classes]`, and what `af_onset` reads of the hidden state.
        """
        return self.beats_kernel.judge(codes + self.trunk.offset, positions, caches)

    def judge_windows(self, windows: Codes) -> Floats:
        """Return the waveform class probabilities of windows `[num_windows, WINDOW]`, float32 `[num_windows, 5]`."""
        return self.windows.probabilities(windows)

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
                probabilities[rows] = np.asarray(self.af.model.probabilities(padded))[: len(rows), 1]
        return probabilities
