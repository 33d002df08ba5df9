"""`heartlm analyze`: find beats, rhythms and events in recordings; write tables and a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from heartlm.cli.options import given_limits, limit_options, parse
from heartlm.ecg.definitions import LIMITS, REPORT, definitions
from heartlm.storage.reading import read_yaml
from heartlm.storage.typed import typed
from heartlm.system.engine import PartOptions


@dataclass(frozen=True, kw_only=True)
class AnalyzeOptions(limit_options(REPORT), PartOptions):  # type: ignore[misc]
    """Options of `heartlm analyze`.

    Attributes:
        path: recordings (of WFDB a file ending is ignored), folders of recordings, or patterns such as 'ward/*.edf'.
        out: output folder. Recordings with complete results there are not analysed again.
        beats: beat model: a shipped model or a run folder.
        af: atrial fibrillation model: a shipped model or a run folder.
        waveform: model for ventricular fibrillation, asystole and noise: a shipped model or a run folder.
        statements: model that judges short recordings of eight leads or more as a whole: a shipped model or a run
            folder.
        page: write an HTML page of the results.
        pages: recordings with a page of their own: none, those with findings, or all; by default all, and none with
            Parquet tables.
        tables: csv writes files for each recording and a table of all; parquet writes summaries, events, beats and
            waves of all recordings as Parquet datasets and a page of totals, for archives of any size.
        anonymous: leave the patient data of the header and all dates out of the results.
        strict: refuse a recording whose file must be repaired to be read, instead of analysing it with a warning.
        device: device of the models; auto uses a GPU if there is one, of which every process needs some memory. Beats
            and waves are found on the CPU.
        rules: YAML file with limits of the rules; options go before it.
    """

    path: list[Path]
    out: Path = Path("analysis")
    beats: Path = Path("beats")
    af: Path = Path("af")
    waveform: Path = Path("waveform")
    statements: Path = Path("statements")
    page: bool = True
    pages: Literal["none", "findings", "all"] | None = None
    tables: Literal["csv", "parquet"] = "csv"
    anonymous: bool = False
    strict: bool = False
    device: Literal["auto", "cpu", "cuda"] = "cpu"
    rules: Path | None = None


def run(arguments: Sequence[str]) -> int:
    """Find beats, rhythms and events in recordings with models that come with heartlm, and draw a page.

    The exit status is 1 if some of several recordings were left out; the last line counts them.

    Examples:
        heartlm analyze mitdb/203
        heartlm analyze holter.edf --out patient-7 --anonymous
        heartlm analyze ptb-xl --out ptb-xl-analysis
        heartlm analyze mitdb/100 mitdb/203 'ward/*.edf'
        heartlm analyze mitdb --beats runs/beats
        heartlm analyze mitdb/232 --pause-s 2.5 --bradycardia-bpm 45
        heartlm analyze archive --out findings --tables parquet --engine dask --scheduler tcp://node1:8786
    """
    options = parse(AnalyzeOptions, arguments, "analyze", run, positionals=["path"])
    options.check_engine()
    from heartlm.system.cores import limit_threads

    limit_threads(1)
    from heartlm import api
    from heartlm.analysis.limits import Limits

    limit_values = {} if options.rules is None else read_yaml(options.rules, "limits")
    limit_values = typed(dict[str, Any], limit_values, options.rules or "") | given_limits(options)
    limits = typed(Limits, limit_values, options.rules or "")
    settings = {name: value for name, value in vars(options).items() if name not in ("rules", *LIMITS)}
    result = api.analyze(**settings, limits=limits)
    if not result.is_single:
        for line in result.left_out:
            print(f"left out: {line}")
        if num_unlike := sum(bool(each["unlike"]) for each in result.summaries):
            print(f"{num_unlike:,} unlike those that the models learned from, expect more errors there: column unlike")
    else:
        _print_findings(result.summaries[0], definitions(vars(limits)))
    for line in result.unwritten:
        print(line)
    print(result.file)
    if not result.is_single:
        num = result.tables.num_recordings if result.tables is not None else len(result.summaries)
        print(f"{num:,} recordings analysed, {len(result.left_out):,} left out")
    return 1 if result.left_out or result.unwritten else 0


def _print_findings(summary: dict[str, Any], kinds: dict[str, str]) -> None:
    beats = "  ".join(f"{name} {count:,}" for name, count in summary["beats"].items() if count)
    print(summary["reading"])
    print(f"{summary['record']}, leads {', '.join(summary['leads'])}: {summary['num_beats']:,} beats  {beats}")
    if summary["unlike"]:
        print(f"  unlike the recordings that the models learned from, expect more errors: {summary['unlike']}")
    if summary["warnings"]:
        print(f"  {summary['warnings']}")
    if summary["hum_removed"]:
        print(f"  mains hum removed before the analysis: {summary['hum_removed']}")
    if summary["num_left_out"]:
        print(f"  {summary['num_left_out']:,} detections left out that are artefacts: rates are of the other beats")
    for kind, count in summary["events"].items():
        if count:
            print(f"  {kind}: {count:,} ({summary['seconds'][kind]:,.0f} s): {kinds[kind]}")
    if summary["stated"]:
        print(f"  stated by all leads together: {summary['stated']}")
    if summary["unexamined"]:
        print(f"  not examined for {summary['unexamined']}")
