"""The models of a monitor, each judging many streams at once.

Beats and windows are judged in C (`heartlm.kernels.live`), where a stream's sums do not depend on other streams. What
torch judges comes in batches of one size, filled up with zeros, because its matrix products may round differently for
another number of rows. So a stream gets the same answers to the last bit in any company (tested).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from heartlm.errors import HeartlmError
from heartlm.evaluation.finetuned import FineTuned, load_of_tasks
from heartlm.kernels.live import BeatsKernel, WindowsKernel
from heartlm.models.fused import rotate, swiglu
from heartlm.models.heart import HeartModel
from heartlm.models.transformer import Block
from heartlm.models.waveform import LEAST_MV, NUM_BANDS, NUM_HIDDEN, SMALL_MV, WaveformNetwork
from heartlm.tokenizers.beat import BeatTokenizer
from heartlm.tokenizers.live import LiveTokenizer
from heartlm.tokenizers.rhythm import RhythmTokenizer
from heartlm.training.waveform import WINDOW

Codes = NDArray[np.uint16]
Floats = NDArray[np.float32]

WINDOWS_AT_ONCE, RHYTHMS_AT_ONCE = 16, 8
"""Rows of a batch of each model that torch judges."""
KEPT_BEATS = 32
"""Beats whose keys and values are kept for attention. Trained on 128, the model loses little by it: V F1 0.942 against
0.943, S F1 0.894 against 0.897; 64 would give 0.944 and 0.895 for twice the memory (LOG.md)."""
AF_BEATS = (32, 64, 128)
"""Beats that AF is judged from: the most that there are."""


class LiveTrunk(nn.Module):
    """A causal transformer that reads one token of each stream and keeps what it must of those before.

    Keys and values stay in a ring of `KEPT_BEATS` places, turned by their position in the stream; only differences of
    positions matter to attention.

    Args:
        model: causal, with a head for tokens.
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
    def kept_bytes(self) -> int:
        """Memory of one stream's cache in half floats."""
        return 2 * self.depth * 2 * self.heads * KEPT_BEATS * self.head_width

    def empty(self, num_streams: int) -> Tensor:
        """Cache of streams without a token, float32 `[num_streams, depth, 2, heads, KEPT_BEATS, head_width]`."""
        return torch.zeros(num_streams, self.depth, 2, self.heads, KEPT_BEATS, self.head_width)

    def forward(self, codes: Tensor, cache: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
        """Judge one token of each stream.

        Args:
            codes: int64 `[B, num_facets]`.
            cache: see `empty`.
            position: how many tokens came before each, int64 `[B]`.

        Returns:
            probabilities of the classes `[B, num_classes]`, and what belongs into place `position % KEPT_BEATS` of
            the cache, `[B, depth, 2, heads, head_width]`.
        """
        angle = position[:, None].double() * self.frequency
        # within one turn float32 is exact enough, and ONNX has no sine and cosine of float64
        angle = (angle - 2 * math.pi * torch.floor(angle / (2 * math.pi))).float()
        turn = torch.stack([angle.cos(), angle.sin()])[:, :, None]
        # The place of the new beat holds the one that leaves.
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
            share = torch.cat([score, (key * query).sum(dim=-1, keepdim=True)], dim=-1).softmax(dim=-1)
            found = (share[..., None, :-1] @ cache[:, layer, 1])[..., 0, :] + share[..., -1:] * value
            x = x + block.attention_out(found.flatten(1))
            x = x + block.feed_out(swiglu(block.gate_up(block.norm_feed(x))))
        return self.head(self.trunk.norm(x)).softmax(dim=-1), torch.stack(new, dim=1)

    def kernel(self, variant: str | None = None) -> BeatsKernel:
        """The same in C, up to rounding, for caches in half floats, into which beats are written, too."""
        blocks = list[Tensor]()
        for block in self.trunk.blocks:
            assert isinstance(block, Block), "a trunk is made of blocks"
            products = block.qkv, block.attention_out, block.gate_up, block.feed_out
            qkv, attention_out, gate_up, feed_out = (each.weight for each in products)
            blocks += [block.norm_attention.weight, qkv, attention_out, block.norm_feed.weight, gate_up, feed_out]
        width, feed = self.table.shape[1], blocks[-1].shape[1]
        sizes = len(self.offset), width, self.depth, self.heads, self.head_width, feed, KEPT_BEATS
        ends = self.trunk.norm.weight, self.head.weight, self.head.bias, self.frequency
        norm, head, bias, frequency = (each.detach().numpy() for each in ends)
        flat = [each.detach().numpy() for each in blocks]
        shape = (*sizes, len(head))
        return BeatsKernel(shape, self.table.numpy(), flat, norm, head, bias, frequency, variant)


def windows_kernel(network: WaveformNetwork, variant: str | None = None) -> WindowsKernel:
    """`WaveformNetwork.class_logits` and softmax in C, up to rounding."""
    layers = []
    for convolution, normalisation, _ in (*network.trunk.blocks, *network.spectrum):
        scale = normalisation.weight / torch.sqrt(normalisation.running_var + normalisation.eps)
        weight = (convolution.weight * scale[:, None, None]).detach().double().numpy()
        bias = (normalisation.bias - normalisation.running_mean * scale).detach().double().numpy()
        layers.append((weight, bias, convolution.stride[0]))
    num_waves, channels = len(network.trunk.blocks), len(layers[-1][1])
    assert network.class_head is not None, "a fine-tuned network"
    of_spectrum = network.of_spectrum.weight.view(NUM_HIDDEN, channels, -1).swapaxes(1, 2).flatten(1)
    others = ((layer.weight, layer.bias) for layer in (network.hidden_layer, network.class_head))
    dense = ((of_spectrum, network.of_spectrum.bias), *others)
    return WindowsKernel(
        (WINDOW, NUM_BANDS, NUM_HIDDEN, network.num_classes),
        network.embedding.get_buffer("places_0")[:, 0].numpy(),
        layers[:num_waves],
        layers[num_waves:],
        [(weight.detach().numpy(), bias.detach().numpy()) for weight, bias in dense],
        SMALL_MV,
        LEAST_MV,
        variant,
    )


@dataclass(frozen=True)
class LiveModels:
    """Beats, AF and waveform for live streams.

    Attributes:
        beats: the causal model of beats.
        af: the model of atrial fibrillation.
        waveform: the network of the task waveform.
        beats_kernel: `trunk` in C.
        windows_kernel: `waveform` in C, None of another network than that of the task.
        live_tokenizer: `beat_tokenizer` for single beats.
    """

    beats: FineTuned
    af: FineTuned
    waveform: FineTuned
    trunk: LiveTrunk
    beat_tokenizer: BeatTokenizer
    rhythm_tokenizer: RhythmTokenizer
    beats_kernel: BeatsKernel
    windows_kernel: WindowsKernel | None
    live_tokenizer: LiveTokenizer

    @classmethod
    def load(
        cls, beats: Path = Path("beats-causal"), af: Path = Path("af"), waveform: Path = Path("waveform")
    ) -> LiveModels:
        """Load three models, each shipped, by its name, or of a run folder.

        Raises:
            HeartlmError: one cannot be read, is of another task, or needs later beats.
        """
        models = load_of_tasks({"beats": beats, "rhythm": af, "waveform": waveform})
        tokenizer, rhythm = models[0].tokenizer(), models[1].tokenizer()
        if not isinstance(tokenizer, BeatTokenizer) or not tokenizer.causal or not models[0].info.config.causal:
            raise HeartlmError(
                f"{models[0].folder.path}: needs later beats, so it cannot read a live stream: train a causal model"
            )
        if not isinstance(rhythm, RhythmTokenizer) or rhythm.waveforms:
            raise HeartlmError(f"{models[1].folder.path}: rhythm tokens of intervals alone expected")
        trunk, network = LiveTrunk(models[0].model).eval(), models[2].model
        of_windows = windows_kernel(network) if isinstance(network, WaveformNetwork) else None
        return cls(
            models[0],
            models[1],
            models[2],
            trunk,
            tokenizer,
            rhythm,
            trunk.kernel(),
            of_windows,
            LiveTokenizer(tokenizer),
        )

    def judge_beats(self, codes: Codes, positions: NDArray[np.int64], caches: NDArray[np.int64]) -> Floats:
        """Class probabilities of one beat of each stream.

        Args:
            codes: of each, uint16 `[num_streams, num_facets]`.
            positions: how many beats came before each.
            caches: address of each one's keys and values, see `LiveTrunk.empty`, in half floats; the beat is
                written into them.

        Returns:
            float32 `[num_streams, num_classes]`.
        """
        return self.beats_kernel.judge(codes + self.trunk.offset.numpy(), positions, caches)

    @torch.inference_mode()
    def judge_windows(self, windows: Codes) -> Floats:
        """Probabilities of each waveform class of windows `[num_windows, WINDOW]`; float32 `[num_windows, 5]`."""
        if self.windows_kernel is not None:
            return self.windows_kernel.judge(windows)
        return _in_batches(self.waveform.model, list(windows[:, :, None]), WINDOWS_AT_ONCE, WINDOW)

    @torch.inference_mode()
    def judge_rhythms(self, codes: list[Codes]) -> Floats:
        """Probability of AF in each window of rhythm tokens `[num_beats, num_facets]`; `[num_windows]`."""
        answer = np.zeros(len(codes), np.float32)
        for length in {len(each) for each in codes}:
            own = [place for place, each in enumerate(codes) if len(each) == length]
            answer[own] = _in_batches(self.af.model, [codes[place] for place in own], RHYTHMS_AT_ONCE, length)[:, 1]
        return answer


def _in_batches(model: HeartModel, windows: list[Codes], at_once: int, length: int) -> Floats:
    answers = []
    for begin in range(0, len(windows), at_once):
        own = np.stack(windows[begin : begin + at_once]).astype(np.int64)
        assert own.shape[1] == length, "windows of one length"
        filled = np.pad(own, ((0, at_once - len(own)), (0, 0), (0, 0)))
        logits = model.class_logits(torch.from_numpy(filled)).float()
        answers.append(logits[: len(own)].softmax(dim=-1).numpy())
    return np.concatenate(answers)
