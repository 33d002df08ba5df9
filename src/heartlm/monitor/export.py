"""Models of live streams as files for ONNX or ExecuTorch. Their state is an input and an output.

    beats       codes int64 [B, F], cache float32 [B, depth, 2, heads, KEPT_BEATS, head_width], position int64 [B]
                    ─► probabilities float32 [B, classes], cache_after
    waveform    codes int64 [B, 400, 1] ─► probabilities float32 [B, 5]

A stream starts with a cache of zeros and position 0; each beat adds 1 to the position. The tokenizer, which maps beats
and voltages to codes, is not part of the file.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import torch
from torch import Tensor, nn

from heartlm.errors import HeartlmError, needs
from heartlm.evaluation.finetuned import FineTuned
from heartlm.files import atomic_file
from heartlm.models.waveform import NUM_BANDS, WaveformNetwork
from heartlm.monitor.models import KEPT_BEATS, LiveTrunk
from heartlm.training.waveform import WINDOW


class _Waveform(nn.Module):
    """The network of the task waveform, with probabilities instead of logits."""

    def __init__(self, network: WaveformNetwork) -> None:
        super().__init__()
        self.network = network

    def forward(self, codes: Tensor) -> Tensor:
        """Return the class probabilities of windows."""
        return self.network.class_logits(codes).softmax(dim=-1)


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


def export_model(run: FineTuned, path: Path, to: Literal["onnx", "executorch"], batch_size: int, int8: bool) -> None:
    """Write a model of live streams as a file.

    Args:
        run: a causal model of beats, or a model of the task waveform.
        path: path of the file.
        to: format of the file.
        batch_size: number of streams per call, which is fixed.
        int8: store matrices as 8-bit integers, quantised by row; activations are quantised at run time. ONNX only.

    Raises:
        HeartlmError: the model has another task, int8 was asked for ExecuTorch, or a package is missing.
    """
    model, wrapped = run.model, nn.Module()
    if isinstance(model, WaveformNetwork):
        if to == "executorch":
            model.power = _power_without_complex()  # type: ignore[method-assign,assignment]
        wrapped = _Waveform(model)
        inputs = {"codes": torch.zeros(batch_size, WINDOW, 1, dtype=torch.int64)}
        outputs = ["probabilities"]
    elif run.info.task == "beats" and model.config.causal:
        trunk = LiveTrunk(model)
        wrapped = _Beats(trunk)
        inputs = {
            "codes": torch.zeros(batch_size, len(model.config.facet_sizes), dtype=torch.int64),
            "cache": trunk.empty(batch_size),
            "position": torch.zeros(batch_size, dtype=torch.int64),
        }
        outputs = ["probabilities", "cache_after"]
    else:
        raise HeartlmError(f"{run.folder.path}: a causal model of beats or a model of the task waveform expected")
    if to == "onnx":
        content = _onnx(wrapped.eval(), inputs, outputs, int8)
    elif int8:
        raise HeartlmError("int8: supported by --to onnx only")
    else:
        content = _executorch(wrapped.eval(), inputs)
    with atomic_file(path, "wb") as file:
        file.write(content)


def _power_without_complex() -> Callable[[Tensor], Tensor]:
    """Return `WaveformNetwork.power` without complex numbers, which ExecuTorch lacks."""
    turns = torch.outer(torch.arange(1, NUM_BANDS + 1), torch.arange(WINDOW)) % WINDOW
    angle = turns * (2 * math.pi / WINDOW)
    cos, sin = angle.cos(), angle.sin()
    return lambda windows: nn.functional.linear(windows, cos).square() + nn.functional.linear(windows, sin).square()


def _executorch(wrapped: nn.Module, inputs: dict[str, Tensor]) -> bytes:
    """Return a program for ExecuTorch that uses XNNPACK where it can."""
    with needs("executorch"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
        from executorch.exir import to_edge_transform_and_lower
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(wrapped, tuple(inputs.values()))
        return bytes(to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()]).to_executorch().buffer)


def _onnx(wrapped: nn.Module, inputs: dict[str, Tensor], outputs: list[str], int8: bool) -> bytes:
    """Return an ONNX model."""
    with needs("onnx"):
        import onnx
        import onnxscript  # noqa: F401  needed by torch.onnx
        from onnxruntime.quantization import QuantType, quantize_dynamic
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    logging.getLogger().addFilter(lambda record: "pre-processing before quantization" not in record.getMessage())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            wrapped,
            tuple(inputs.values()),
            input_names=list(inputs),
            output_names=outputs,
            dynamo=True,
            verbose=False,
        )
    assert program is not None, "the exporter based on torch.export returns a program"
    proto = program.model_proto
    proto.producer_name, proto.doc_string = "heartlm", "Research software, not a medical device."
    content: bytes = proto.SerializeToString()
    if not int8:
        return content
    with TemporaryDirectory() as folder:
        small = Path(folder) / "int8.onnx"
        quantize_dynamic(onnx.load_from_string(content), small, weight_type=QuantType.QInt8, per_channel=True)
        return small.read_bytes()
