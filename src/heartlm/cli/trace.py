"""`heartlm trace`: write a Perfetto trace of the step times of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from heartlm.cli.options import existing, parse


@dataclass
class TraceOptions:
    """Options of `heartlm trace`.

    Attributes:
        run: run folder of a training with spans.
        out: output file; by default trace.json in the run folder.
    """

    run: Path
    out: Path | None = None


def run(arguments: Sequence[str]) -> int:
    """Merge the spans of all ranks of a run into one trace for https://ui.perfetto.dev.

    Examples:
        heartlm trace runs/beats
        heartlm trace runs/beats --out beats.json
    """
    options = parse(TraceOptions, arguments, "trace", run, positionals=["run"])
    folder = existing(options.run, "run folder")
    out = options.out or folder / "trace.json"

    from heartlm.instrumentation.spans import span_files, write_trace

    num_spans = write_trace(folder / "spans", out)
    num_ranks = len(span_files(folder / "spans"))
    print(f"wrote {out}: {num_spans} spans of {num_ranks} rank{'s' * (num_ranks != 1)}; open https://ui.perfetto.dev")
    return 0
