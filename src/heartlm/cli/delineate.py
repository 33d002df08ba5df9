"""`heartlm delineate`: find P, QRS and T in recordings; write annotations, intervals and amplitudes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from heartlm.cli.options import parse
from heartlm.system.engine import PartOptions


@dataclass(frozen=True)
class DelineateOptions(PartOptions):
    """Options of `heartlm delineate`.

    Attributes:
        path: recordings, as files or DATABASE/RECORD, folders of recordings, or patterns such as 'ward/*.edf'.
        out: output folder. Recordings with complete results there are not delineated again.
        beats: found delineates the QRS complexes that the leads show, annotated those of the recording's annotations.
        tables: csv writes files for each recording and a table of all; parquet writes summaries, beats and waves of all
            recordings as Parquet datasets, for archives of any size.
        strict: refuse a recording whose file must be repaired to be read, instead of delineating it with a warning.
    """

    path: list[Path]
    out: Path = Path("delineation")
    beats: Literal["found", "annotated"] = "found"
    tables: Literal["csv", "parquet"] = "csv"
    strict: bool = False


def run(arguments: Sequence[str]) -> int:
    """Find onset, peak and end of P, QRS and T of each beat in each lead; measure intervals, amplitudes and ST levels.

    For each recording, RECORD.LEAD and RECORD.all are WFDB annotations. RECORD.beats.csv has intervals,
    RECORD.leads.csv positions and amplitudes, RECORD.hours.csv medians by hour, and RECORD.json the medians of the
    recording. The exit status is 1 if some of several recordings were left out; the last line counts them.

    Examples:
        heartlm delineate ludb/data/1
        heartlm delineate holter.edf --out waves --leads "II, V5"
        heartlm delineate mitdb --out mitdb-waves --beats annotated
    """
    options = parse(DelineateOptions, arguments, "delineate", run, positionals=["path"])
    from heartlm.delineation.recordings import DelineationTask, delineate_recordings, delineate_tables
    from heartlm.ecg.recording import Repaired

    repaired: Repaired = "refuse" if options.strict else "warn"
    task = DelineationTask(tuple(options.path), options.out, options.beats, repaired=repaired)
    if options.tables == "parquet":
        tables = delineate_tables(task, options)
        for line in tables.left_out:
            print(f"left out: {line}")
        print(task.out)
        print(f"{tables.num_recordings:,} recordings delineated, {len(tables.left_out):,} left out")
        return 1 if tables.left_out else 0
    done = delineate_recordings(task, options)
    for line in done.left_out:
        print(f"left out: {line}")
    if task.is_single:
        _print_summary(done.summaries[0])
    print(done.file)
    if not task.is_single:
        print(f"{len(done.summaries):,} recordings delineated, {len(done.left_out):,} left out")
    return 1 if done.left_out else 0


def _print_summary(summary: dict[str, Any]) -> None:
    share = "" if summary["p_share"] is None else f", P wave in {100 * summary['p_share']:.0f} %"
    print(f"{summary['record']}, leads {', '.join(summary['leads'])}: {summary['num_beats']:,} beats{share}")
    for name, values in summary["intervals"].items():
        if values["beats"]:
            low, high = values["quartiles"]
            title = name.removesuffix("_ms").replace("_", " ")
            print(
                f"  {title}: {values['median']:.0f} ms (quartiles {low:.0f} to {high:.0f}, {values['beats']:,} beats)"
            )
    if summary["axis_degrees"] is not None:
        print(f"  axis: {summary['axis_degrees']:.0f} degrees")
