"""`heartlm trace`: where the time of each step of a run went, for Perfetto."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from heartlm.cli.options import existing, parse


@dataclass
class TraceOptions:
    """Which run to trace, and where to.

    Attributes:
        run: the run folder, trained with spans.
        out: the file to write; trace.json in the run folder if not given.
    """

    run: Path
    out: Path | None = None


def run(arguments: Sequence[str]) -> int:
    """Join the spans of all ranks of a run to one trace, which https://ui.perfetto.dev opens.

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
