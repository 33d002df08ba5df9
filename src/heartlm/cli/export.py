"""`heartlm export`: write a model as a file for other runtimes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from heartlm.cli.options import check_out, parse
from heartlm.errors import HeartlmError


@dataclass(frozen=True)
class ExportOptions:
    """Options of `heartlm export`.

    Attributes:
        run: a shipped model or a run folder: a causal beat model, or a model of the task waveform or statements; or
            delineator, which is the shipped one, or the file of weights of another one.
        out: output file.
        to: file format; statements and the delineator are written as onnx only.
        batch_size: number of streams, recordings or (delineator) leads per batch, fixed in the file.
        int8: store matrices as 8-bit integers; ONNX only, not for statements.
        rate_hz: samples per second of each lead, fixed in the file; not for beats.
    """

    run: Path
    out: Path
    to: Literal["onnx", "executorch"] = "onnx"
    batch_size: int = 1
    int8: bool = False
    rate_hz: int = 250


def run(arguments: Sequence[str]) -> int:
    """Write a model for ONNX Runtime or ExecuTorch; the state of a live stream is an input and an output.

    Examples:
        heartlm export beats-causal --out beats.onnx
        heartlm export waveform --out waveform.onnx --batch-size 64 --rate-hz 250
        heartlm export statements --out statements.onnx --rate-hz 500
        heartlm export delineator --out delineator.int8.onnx --batch-size 12 --rate-hz 500 --int8
        heartlm export runs/beats-causal --out beats.int8.onnx --int8
        heartlm export beats-causal --out beats.pte --to executorch
    """
    options = parse(ExportOptions, arguments, "export", run, positionals=["run"])
    if not 1 <= options.batch_size <= 65_536:
        raise HeartlmError(f"batch_size: {options.batch_size} found, 1 to 65536 expected")
    check_out(options.out, ending={"onnx": ".onnx", "executorch": ".pte"}[options.to])
    from heartlm.delineation.network import DELINEATOR, NETWORK_FILE
    from heartlm.models.pretrained import find_run
    from heartlm.monitor.export import export_delineator, export_model
    from heartlm.tasks.load import load_finetuned

    is_shipped_delineator = str(options.run) == DELINEATOR and not (options.run / "run.json").is_file()
    if is_shipped_delineator or options.run.suffix == ".safetensors":
        if options.to != "onnx":
            raise HeartlmError(f"to: {options.to} found, onnx expected: the delineator is exported by it only")
        network = NETWORK_FILE if is_shipped_delineator else options.run
        export_delineator(network, options.out, options.batch_size, options.int8, options.rate_hz)
    else:
        model = load_finetuned(find_run(options.run), "last")
        export_model(model, options.out, options.to, options.batch_size, options.int8, options.rate_hz)
    print(f"{options.out}: {options.out.stat().st_size / 1e6:.2f} MB")
    return 0
