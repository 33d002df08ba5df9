"""Models as files for ONNX or ExecuTorch. The state of a live stream is an input and an output.

    beats       codes int64 [B, F], cache float32 [B, depth, 2, heads, KEPT_BEATS, head_width], position int64 [B]
                    ─► probabilities float32 [B, classes], cache_after
    waveform    samples_mv float32 [B, rate_hz], recent float32 [B, R], average float32 [B], codes int64 [B, 300]
                    ─► probabilities float32 [B, 5] of the last four seconds, recent_after, average_after, codes_after
    statements  samples_mv float32 [B, 18, 10 rate_hz], summary float32 [B, 513]
                    ─► probabilities float32 [B, statements]; no state: a call judges ten seconds (ONNX only)
    delineator  samples_mv float32 [B, 10 rate_hz]
                    ─► probabilities float32 [B, 4, cells]; no state: a call judges ten seconds of B leads (ONNX only)

A stream starts with a state of zeros. A call judges one beat of each stream, and the caller adds 1 to the position, or
one second. The file of beats does not contain the detector and the tokenizer, which are C code; that of statements not
the summary of the beats, without which the network answers without its trees; that of the delineator not the agreement
of leads and the waves. The metadata of an ONNX file say what made it, and its classes, thresholds and rate.
"""

from __future__ import annotations

import json
import logging
import math
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from heartlm import __version__
from heartlm.delineation.delineate import LOWEST_RATE_HZ as LOWEST_RATE_OF_WAVES_HZ
from heartlm.delineation.network import CELL_S, CLASSES, DELINEATOR, NETWORK_FILE, read_layers
from heartlm.ecg.detect import LOWEST_RATE_HZ
from heartlm.errors import HeartlmError, needs
from heartlm.inference.finetuned import FineTuned
from heartlm.labels.tokens import BEAT_TASK_CLASSES
from heartlm.labels.waveform import STRIDE, WINDOW
from heartlm.models.fused import rotate, swiglu
from heartlm.models.heart import HeartModel
from heartlm.models.leads import LeadsNetwork
from heartlm.models.pretrained import model_files, shipped_name
from heartlm.models.sizes import NUM_BANDS
from heartlm.models.store import load_model
from heartlm.models.transformer import Block
from heartlm.models.waveform import WaveformNetwork
from heartlm.monitor.link import HIGHEST_RATE_HZ
from heartlm.monitor.models import KEPT_BEATS
from heartlm.monitor.sampled_delineation import SampledDelineation
from heartlm.monitor.sampled_statements import SECONDS, SampledStatements
from heartlm.storage.atomic import atomic_file, digest_of_files
from heartlm.tokenizers.leads import PLACES
from heartlm.tokenizers.millivolts import KNEE_MV, NO_SIGNAL, NUM_LEVELS, STEP, high_pass
from heartlm.tokenizers.sample import GRID_HZ
from heartlm.tokenizers.waveform import hann_weights, interpolate, smooth

# The DFT of a window of 400 = 20 × 20 codes is two products with 20 × 20 matrices instead of one with 400 × 400.
_RADIX = math.isqrt(WINDOW)
# Matrices for which 8 bits are too few.
_EXACT = {"filters", "fourier_cos", "fourier_sin", "taps"}


class _Waveform(nn.Module):
    """Filters, millivolt tokenizer and network of the task waveform; reads one second of each stream per call.

    The low-pass, the interpolation and the subtraction of the slow average are linear, so `filters` holds all three.
    Its rows are the responses of the tokenizer's functions to unit samples.
    """

    def __init__(self, network: WaveformNetwork, rate_hz: int) -> None:
        super().__init__()
        self.network, self.rate_hz = network, rate_hz
        weights = hann_weights(rate_hz, GRID_HZ)
        self.num_recent = max(1, len(weights) // 2)
        place = np.arange(STRIDE, dtype=np.float64) * (rate_hz / GRID_HZ)
        units = np.eye(self.num_recent + rate_hz, dtype=np.float32)
        voltage = np.stack([interpolate(smooth(unit, weights), self.num_recent + place) for unit in units])
        # The average that `high_pass` subtracts starts at the first value, here a zero.
        centred = np.stack([high_pass(np.insert(response, 0, 0))[1:] for response in voltage])
        change = voltage[:, -1:] - centred[:, -1:]  # of the average, in this second
        self.register_buffer("filters", torch.from_numpy(np.hstack([centred, change])))
        self.register_buffer("weights", torch.from_numpy(weights.astype(np.float32)))
        # ExecuTorch has no complex numbers, and the DFT of ONNX Runtime changes logits by 1e-3.
        network.power = self.power  # type: ignore[method-assign]
        angle = 2 * np.pi / WINDOW * np.outer(np.arange(_RADIX), np.arange(_RADIX))
        for name, values in {"turn": angle, "fourier": _RADIX * angle}.items():
            self.register_buffer(f"{name}_cos", torch.from_numpy(np.cos(values).astype(np.float32)))
            self.register_buffer(f"{name}_sin", torch.from_numpy(np.sin(values).astype(np.float32)))
        nearest = np.rint(place).astype(np.int64).clip(max=rate_hz - 1)
        self.register_buffer("nearest", torch.from_numpy(nearest))

    filters: Tensor
    weights: Tensor
    nearest: Tensor
    turn_cos: Tensor
    turn_sin: Tensor
    fourier_cos: Tensor
    fourier_sin: Tensor

    def forward(self, samples_mv: Tensor, recent: Tensor, average: Tensor, codes: Tensor) -> tuple[Tensor, ...]:
        """Return the class probabilities of the last four seconds, and the state after this second.

        Args:
            samples_mv: the next second of each stream, float32 `[B, rate_hz]`, NaN where invalid.
            recent: last samples before it, float32 `[B, num_recent]`.
            average: slow average in mV, float32 `[B]`.
            codes: codes of the last three seconds, int64 `[B, WINDOW - STRIDE]`.
        """
        valid = samples_mv.isfinite()
        # The last valid sample up to each, 0 being the last of the previous second: a running maximum.
        last = torch.where(valid, torch.arange(1, self.rate_hz + 1), 0)
        for power in range(self.rate_hz.bit_length()):
            last = torch.maximum(last, F.pad(last[:, : -(2**power)], (2**power, 0)))
        filled = torch.cat([recent[:, -1:], samples_mv], dim=1).gather(1, last)

        starts = codes[:, -STRIDE:].amax(dim=1) == NO_SIGNAL
        signal = torch.cat([torch.where(starts[:, None], filled[:, :1], recent), filled], dim=1)
        first = (signal[:, : len(self.weights)] * self.weights).sum(dim=1)
        average = torch.where(starts, first, average)
        # Without the average, an electrode offset costs no digits.
        filtered = (signal - average[:, None]) @ self.filters
        level = (torch.asinh(filtered[:, :-1] / KNEE_MV) / STEP).round() + NUM_LEVELS // 2
        new = level.clamp(1, NUM_LEVELS - 1).long()
        known = samples_mv.index_select(1, self.nearest).isfinite()
        codes = torch.cat([codes, torch.where(known, new, NO_SIGNAL)], dim=1)
        answer = self.network.class_logits(codes[..., None]).softmax(dim=-1)
        return answer, filled[:, -self.num_recent :], average + filtered[:, -1], codes[:, STRIDE:]

    def power(self, windows: Tensor) -> Tensor:
        """Return `WaveformNetwork.power` of windows `[B, WINDOW]` without complex numbers (Cooley and Tukey, 1965)."""
        cos, sin = self.fourier_cos, self.fourier_sin
        points = windows.view(-1, _RADIX, _RADIX).transpose(1, 2)  # [B, n % 20, n // 20]
        real, imag = points @ cos, points @ sin  # [B, n % 20, band % 20]
        turned = real * self.turn_cos - imag * self.turn_sin, real * self.turn_sin + imag * self.turn_cos
        real, imag = (each.transpose(1, 2) for each in turned)
        power = (real @ cos - imag @ sin).square() + (real @ sin + imag @ cos).square()  # [B, band % 20, band // 20]
        return power.transpose(1, 2).flatten(1)[:, 1 : NUM_BANDS + 1]


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


class _Beats(nn.Module):
    """The model of beats with the whole cache as input and output."""

    def __init__(self, trunk: LiveTrunk) -> None:
        super().__init__()
        self.trunk = trunk

    def forward(self, codes: Tensor, cache: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
        """Return the class probabilities and the updated cache."""
        answer, new = self.trunk(codes, cache, position)
        written = position[:, None] % KEPT_BEATS == self.trunk.ring
        return answer, torch.where(written[:, None, None, None, :, None], new[..., None, :], cache)


_MEANING = {
    "samples_mv": "millivolts at rate_hz, NaN where invalid: the next second of each stream, or seconds of each lead",
    "summary": "what trees read of the beats (heartlm.inference.beat_summary), a row of NaN without it",
    "recent": "last samples before this second in mV, at first 0; then recent_after",
    "average": "running average in mV, at first 0; then average_after",
    "codes": "codes of the next beat; or of the voltages before this second, at first 0, then codes_after",
    "cache": "keys and values of earlier beats, at first 0; then cache_after",
    "position": "number of beats of each stream before this one",
    "probabilities": "probability of each class, in the order of classes; of waves in every cell_s of each lead",
}
"""What inputs and outputs hold; those that end in `_after` are the input of that name of the next call."""


def export_model(
    run: FineTuned, path: Path, to: Literal["onnx", "executorch"], batch_size: int, int8: bool, rate_hz: int = 250
) -> None:
    """Write a model as a file.

    Args:
        run: a causal model of beats, or a model of the task waveform or statements.
        path: path of the file.
        to: format of the file.
        batch_size: number of streams or recordings per call, which is fixed.
        int8: store matrices as 8-bit integers, quantised by row; activations are quantised at run time. ONNX only.
        rate_hz: samples per second and lead, for a model of the task waveform or statements.

    Raises:
        HeartlmError: the model has another task, the rate is not from 62 to 4000, int8 was asked for ExecuTorch,
            statements for anything but ONNX in single precision, or a package is missing.
    """
    model, wrapped = load_model(run.folder.model("last"))[0], nn.Module()
    facts = {"task": str(run.info.task), "classes": json.dumps(run.info.classes)}
    if isinstance(model, WaveformNetwork | LeadsNetwork):
        _check_rate(rate_hz, LOWEST_RATE_HZ)
        facts |= {"rate_hz": str(rate_hz), "thresholds": json.dumps(run.info.thresholds or run.info.threshold)}
    if isinstance(model, LeadsNetwork):
        if to != "onnx" or int8:
            what = "int8" if int8 else f"to: {to}"
            raise HeartlmError(f"{what}: a model of statements is exported by --to onnx only, without int8")
        wrapped = SampledStatements(model, run.info.window, rate_hz)
        inputs, outputs = wrapped.inputs(batch_size), ["probabilities"]
        facts |= {"leads": json.dumps(PLACES), "seconds": str(SECONDS)}
    elif isinstance(model, WaveformNetwork):
        wrapped = _Waveform(model, rate_hz)
        inputs = {
            "samples_mv": torch.zeros(batch_size, rate_hz),
            "recent": torch.zeros(batch_size, wrapped.num_recent),
            "average": torch.zeros(batch_size),
            "codes": torch.zeros(batch_size, WINDOW - STRIDE, dtype=torch.int64),
        }
        outputs = ["probabilities", "recent_after", "average_after", "codes_after"]
    elif model.config.causal and set(BEAT_TASK_CLASSES) <= set(run.info.classes):
        trunk = LiveTrunk(model)
        wrapped = _Beats(trunk)
        inputs = {
            "codes": torch.zeros(batch_size, len(model.config.facet_sizes), dtype=torch.int64),
            "cache": trunk.empty(batch_size),
            "position": torch.zeros(batch_size, dtype=torch.int64),
        }
        outputs = ["probabilities", "cache_after"]
    else:
        raise HeartlmError(
            f"{run.folder.path}: a causal model of beats, or a model of the task waveform or statements expected"
        )
    if to == "onnx":
        tokenizer = f"{run.info.tokenizer_kind} {run.info.tokenizer_hash}"
        facts |= {"name": shipped_name(run.folder.path), "tokenizer": tokenizer}
        facts |= _origin(*model_files(run.folder.model("last")))
        content = _onnx(wrapped.eval(), inputs, outputs, int8, facts)
    elif int8:
        raise HeartlmError("int8: supported by --to onnx only")
    else:
        content = _executorch(wrapped.eval(), inputs)
    with atomic_file(path, "wb") as file:
        file.write(content)


def export_delineator(network: Path, path: Path, num_leads: int, int8: bool, rate_hz: int) -> None:
    """Write the delineator as an ONNX file.

    Args:
        network: weights, as `recipes/train_delineator.py` writes them.
        path: path of the file.
        num_leads: number of leads per call, which is fixed.
        int8: store the weights of the network as 8-bit integers.
        rate_hz: samples per second and lead.

    Raises:
        HeartlmError: there are no such weights, the rate is not from 100 to 4000, or a package is missing.
    """
    _check_rate(rate_hz, LOWEST_RATE_OF_WAVES_HZ)
    wrapped = SampledDelineation(read_layers(network), rate_hz)
    facts = {"task": "delineation", "classes": json.dumps(CLASSES), "rate_hz": str(rate_hz), "seconds": str(SECONDS)}
    facts |= {"leads": json.dumps("any"), "cell_s": str(CELL_S)} | _origin(network)
    facts["name"] = DELINEATOR if network == NETWORK_FILE else network.stem
    content = _onnx(
        wrapped.eval(), {"samples_mv": torch.zeros(num_leads, wrapped.num_samples)}, ["probabilities"], int8, facts
    )
    with atomic_file(path, "wb") as file:
        file.write(content)


def _check_rate(rate_hz: int, lowest_hz: float) -> None:
    if not lowest_hz <= rate_hz <= HIGHEST_RATE_HZ:
        raise HeartlmError(f"rate_hz: {rate_hz} found, {lowest_hz:.0f} to {HIGHEST_RATE_HZ:.0f} expected")


def _origin(*files: Path) -> dict[str, str]:
    return {"model": digest_of_files(*files), "heartlm": __version__}


def _executorch(wrapped: nn.Module, inputs: dict[str, Tensor]) -> bytes:
    """Return a program for ExecuTorch that uses XNNPACK where it can."""
    with needs("executorch"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
        from executorch.exir import to_edge_transform_and_lower

        program = torch.export.export(wrapped, tuple(inputs.values()))
        return bytes(to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()]).to_executorch().buffer)


def _onnx(
    wrapped: nn.Module, inputs: dict[str, Tensor], outputs: list[str], int8: bool, facts: dict[str, str]
) -> bytes:
    """Return an ONNX model with `facts` as its metadata."""
    with needs("onnx"):
        import onnxscript  # noqa: F401  needed by torch.onnx
        from onnx.helper import set_model_props
        from onnxruntime.quantization import QuantType, quantize_dynamic
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    logging.getLogger().addFilter(lambda record: "pre-processing before quantization" not in record.getMessage())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            wrapped, tuple(inputs.values()), input_names=list(inputs), output_names=outputs, dynamo=True, verbose=False
        )
    assert program is not None, "the exporter based on torch.export returns a program"
    proto = program.model_proto
    for node in proto.graph.node:  # lines of source that it came from, with paths of this machine: as large as weights
        del node.metadata_props[:]
    proto.producer_name, proto.producer_version = "heartlm", __version__
    proto.doc_string = "Research software, not a medical device."
    for key, values in (("inputs", proto.graph.input), ("outputs", proto.graph.output)):
        for value in values:
            value.doc_string = _MEANING.get(value.name) or f"{value.name.removesuffix('_after')} of the next call"
        facts[key] = json.dumps({value.name: value.doc_string for value in values})
    set_model_props(proto, facts)
    content: bytes = proto.SerializeToString()
    if not int8:
        return content
    with TemporaryDirectory() as folder:
        small = Path(folder) / "int8.onnx"
        exact = [node.name for node in proto.graph.node if _EXACT.intersection(node.input)]
        quantize_dynamic(proto, small, nodes_to_exclude=exact, weight_type=QuantType.QInt8, per_channel=True)
        return small.read_bytes()
