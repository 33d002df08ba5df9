"""`heartlm data convert`: write recordings of any format as WFDB, EDF+, ISHNE or Parquet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from heartlm.cli.options import parse
from heartlm.system.engine import PartOptions


@dataclass(frozen=True)
class ConvertOptions(PartOptions):
    """Options of `heartlm data convert`.

    Attributes:
        source: a recording, as a file or DATABASE/RECORD, or a folder of recordings.
        folder: output folder; new, empty, or of a conversion with the same options, which is continued.
        to: format of the output.
        flac: compress the signals of WFDB records, without loss.
        anonymize: drop names, identifiers, birth dates and free text; replace record names; move dates by a number of
            days for each patient that is stored nowhere.
        damaged: action for a recording that shows damage: refuse leaves it out, warn converts it with a warning.
        strict: leave out a recording whose file must be repaired to be read, instead of converting it with a warning.
    """

    source: Path
    folder: Path
    to: Literal["wfdb", "edf", "ishne", "parquet"] = "wfdb"
    flac: bool = False
    anonymize: bool = False
    damaged: Literal["refuse", "warn"] = "refuse"
    strict: bool = False


def run(argv: Sequence[str]) -> int:
    """Write recordings of any format as WFDB records, EDF+, ISHNE or Parquet files; convert.json reports on each.

    An interrupted conversion continues with the same command. The exit status is 1 if recordings of a folder were left
    out; the last line counts them. After parts (--part 3/64), which may run at the same time on machines that share the
    folders and the user's cache, the same command without --part joins them.

    Examples:
        heartlm data convert holter.ecg converted
        heartlm data convert exports converted --to edf --rate 130 --units uV
        heartlm data convert ward shared --to parquet --anonymize
    """
    options = parse(ConvertOptions, argv, "data convert", run, positionals=["source", "folder"])
    from heartlm.databases.convert import Conversion, convert_recordings

    task = Conversion(
        source=options.source,
        folder=options.folder,
        to=options.to,
        flac=options.flac,
        anonymize=options.anonymize,
        damaged=options.damaged,
        repaired="refuse" if options.strict else "warn",
    )
    done = convert_recordings(task, options)
    for line in done.left_out:
        print(f"left out: {line}")
    inexact = [each["record"] for each in done.records if not all(lead["exact"] for lead in each["leads"])]
    if inexact:
        shown = ", ".join(inexact[:5]) + (" …" if len(inexact) > 5 else "")
        print(f"not with the same samples: {len(inexact):,} ({shown}); largest_error of their leads is in the report")
    for line in done.unwritten:
        print(line)
    print(done.report if options.part is None else f"{done.report}: part {options.part}")
    print(f"{len(done.records):,} recordings converted, {len(done.left_out):,} left out")
    return 1 if done.left_out or done.unwritten else 0
