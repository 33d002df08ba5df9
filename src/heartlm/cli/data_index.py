"""`heartlm data index`: the headers of all recordings of a source in one Parquet file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from heartlm.cli.options import check_out, parse


@dataclass(frozen=True, kw_only=True)
class IndexOptions:
    """Options of `heartlm data index`.

    Attributes:
        source: folder of recordings, its address such as s3://bucket/path, or another index, to choose from it.
        out: the index to write, a Parquet file.
        sample: number of recordings to draw of those that fulfil --where; by default all.
        seed: seed of the drawing.
    """

    source: Path
    out: Path
    sample: int | None = None
    seed: int = 0


def run(argv: Sequence[str]) -> int:
    """Write the headers of all recordings into one Parquet file: rate, leads, length, start, patient, split, labels.

    Every command that takes a folder of recordings takes the index in its place. --where chooses by a condition on the
    columns: =, !=, <, <=, >, >=, in, is null, has (one of the leads or labels), and, or, not. The exit status is 1 if
    recordings were left out; the last line counts them.

    Examples:
        heartlm data index s3://physionet-open/ptb-xl/1.0.3 --out ptb-xl.parquet
        heartlm data index ptb-xl.parquet --where "rate_hz = 500 and labels has 'AFIB'" --sample 100 --out af.parquet
        heartlm analyze ptb-xl.parquet --where "duration_s >= 10 and num_leads = 12" --out findings
    """
    options = parse(IndexOptions, argv, "data index", run, positionals=["source"])
    check_out(options.out, options.source, ending=".parquet")
    from heartlm.databases.index import the_where
    from heartlm.databases.write_index import write_index

    done = write_index(
        options.source,
        options.out,
        where=the_where(),
        sample=options.sample,
        seed=options.seed,
        left_out=lambda line: print(f"left out: {line}"),
    )
    print(options.out)
    print(f"{done.num_records:,} recordings, {done.num_left_out:,} left out")
    return 1 if done.num_left_out else 0
