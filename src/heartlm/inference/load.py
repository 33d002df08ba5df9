"""Loads a model to answer with: in NumPy and the kernels for a CPU, without torch; by torch for a GPU."""

from __future__ import annotations

import re
from pathlib import Path

from heartlm.errors import HeartlmError, needs
from heartlm.inference.convolutions import LeadsInference
from heartlm.inference.network import Device, InferenceNetwork
from heartlm.inference.transformer import Transformer
from heartlm.inference.waveform_network import WaveformInference
from heartlm.models.info import ModelInfo
from heartlm.models.weights import Tensors, Weights, one_line, read_weights, unfitting

GPU_FILES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
"""Files of drivers: NVIDIA, AMD, and Windows below Linux. Without one there is no GPU, and torch need not be asked."""

KINDS: dict[str, type[Transformer | LeadsInference | WaveformInference]] = {
    "transformer": Transformer,
    "waveform": WaveformInference,
    "leads": LeadsInference,
    "residual": LeadsInference,
}
_IS_CONSTANT = re.compile(r"\.places_\d+$|^statistics\.seconds$|^trees\.|\.running_|\.num_batches_tracked$")


def chosen_device(device: str) -> Device:
    """Return the device to compute on; auto is a GPU if torch and one are there.

    Raises:
        HeartlmError: the device is unknown, or there is no torch or no GPU.
    """
    if device not in ("auto", "cpu", "cuda"):
        raise HeartlmError(f"device: {device!r} found, auto, cpu or cuda expected")
    if device == "cpu" or (device == "auto" and not any(Path(file).exists() for file in GPU_FILES)):
        return "cpu"
    try:
        with needs("train", "torch"):
            from heartlm.distributed.device import device_and_precision
    except HeartlmError:
        if device == "auto":
            return "cpu"
        raise
    return "cuda" if device_and_precision(device, "fp32")[0].type == "cuda" else "cpu"


def load_network(folder: Path, device: Device = "cpu") -> tuple[InferenceNetwork, ModelInfo]:
    """Load the model in `folder`, and its description.

    Raises:
        HeartlmError: the model is missing, has another schema version, or is damaged.
    """
    if device != "cpu":
        from heartlm.models.answering import load_answering

        return load_answering(folder, device)
    tensors, info = read_weights(folder)
    try:
        return network_of(tensors, info), info
    except (AssertionError, IndexError, ValueError) as error:
        raise unfitting(folder, one_line(error)) from error


def network_of(tensors: Tensors, info: ModelInfo) -> InferenceNetwork:
    """Return the network of tensors as they are on disk.

    Raises:
        ValueError: a tensor is missing, has another shape than `info` states, or is not part of the network.
    """
    weights = Weights(tensors)
    network = KINDS[info.config.network](weights, info)
    weights.check_all_taken()
    network.num_weights = sum(each.size for name, each in tensors.items() if not _IS_CONSTANT.search(name))
    return network
