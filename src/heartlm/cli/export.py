"""`heartlm export`: write a model of live streams as an ONNX file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from heartlm.cli.options import parse
from heartlm.errors import HeartlmError


@dataclass(frozen=True)
class ExportOptions:
    """Options of `heartlm export`.

    Attributes:
        run: a shipped model or a run folder: a causal beat model or a model of the task waveform.
        out: output file.
        batch_size: number of streams per batch, fixed in the file.
    """

    run: Path
    out: Path
    batch_size: int = 1


def run(arguments: Sequence[str]) -> int:
    """Write a model of live streams for ONNX Runtime; its state is an input and an output.

    Examples:
        heartlm export beats-causal --out beats.onnx
        heartlm export waveform --out waveform.onnx --batch-size 64
    """
    options = parse(ExportOptions, arguments, "export", run, positionals=["run"])
    if not 1 <= options.batch_size <= 65_536:
        raise HeartlmError(f"batch_size: {options.batch_size} found, 1 to 65536 expected")
    from heartlm.evaluation.finetuned import load_finetuned
    from heartlm.models.pretrained import find_run
    from heartlm.monitor.export import export_model

    model = load_finetuned(find_run(options.run), "last")
    export_model(model, options.out, options.batch_size)
    print(f"{options.out}: {options.out.stat().st_size / 1e6:.2f} MB")
    return 0
