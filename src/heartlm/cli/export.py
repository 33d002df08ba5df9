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
        run: a shipped model or a run folder: a causal beat model, or a model of the task waveform or statements.
        out: output file.
        to: file format; statements are written as onnx only.
        batch_size: number of streams or recordings per batch, fixed in the file.
        int8: store matrices as 8-bit integers; ONNX only, not for statements.
        rate_hz: samples per second of each lead, fixed in the file; waveform and statements only.
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
        heartlm export runs/beats-causal --out beats.int8.onnx --int8
        heartlm export beats-causal --out beats.pte --to executorch
    """
    options = parse(ExportOptions, arguments, "export", run, positionals=["run"])
    if not 1 <= options.batch_size <= 65_536:
        raise HeartlmError(f"batch_size: {options.batch_size} found, 1 to 65536 expected")
    check_out(options.out, ending={"onnx": ".onnx", "executorch": ".pte"}[options.to])
    from heartlm.models.pretrained import find_run
    from heartlm.monitor.export import export_model
    from heartlm.tasks.load import load_finetuned

    model = load_finetuned(find_run(options.run), "last")
    export_model(model, options.out, options.to, options.batch_size, options.int8, options.rate_hz)
    print(f"{options.out}: {options.out.stat().st_size / 1e6:.2f} MB")
    return 0
