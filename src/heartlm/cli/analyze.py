"""`heartlm analyze`: recordings in; beats, rhythms, events, tables and a page out."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heartlm.cli.options import parse
from heartlm.errors import HeartlmError, needs

EXAMPLES = (
    "heartlm analyze mitdb/203",
    "heartlm analyze holter.edf --out patient-7",
    "heartlm analyze ptb-xl --out ptb-xl-analysis",
    "heartlm analyze mitdb --beats runs/beats",
    "heartlm analyze mitdb/207 --causal",
)


@dataclass(frozen=True)
class AnalyzeOptions:
    """What to analyse, and where the results go.

    Attributes:
        path: a recording as WFDB programs name it (an ending is ignored), or a folder of recordings.
        out: the folder for the results. What is complete there is not analysed again.
        beats: the model of beats: a shipped one or a run folder.
        af: the model of atrial fibrillation.
        waveform: the model of ventricular fibrillation, asystole and noise.
        page: write the page too.
        processes: recordings analysed side by side; by default one a core.
        causal: find the alarms that `heartlm monitor` raises of the recording's stream instead, with its models.
        rules: of these alarms, a YAML file.
    """

    path: Path
    out: Path = Path("analysis")
    beats: Path = Path("beats")
    af: Path = Path("af")
    waveform: Path = Path("waveform")
    page: bool = True
    processes: int | None = None
    causal: bool = False
    rules: Path | None = None


def run(arguments: Sequence[str]) -> int:
    """Analyse as `arguments` say, and print what was found."""
    options = parse(
        AnalyzeOptions,
        arguments,
        command="analyze",
        summary="Find beats, rhythms and events in recordings with models that come with heartlm, and draw a page.",
        examples=EXAMPLES,
        positionals=["path"],
    )
    from heartlm.cores import usable_cores

    if options.processes is not None and options.processes < 1:
        raise HeartlmError(f"processes: {options.processes} found, at least 1 expected")
    try:
        import torch
    except ModuleNotFoundError as error:
        raise needs("train", error.name or "torch") from None
    torch.set_num_threads(1)
    if options.causal:
        return _causal(options)
    if not options.path.is_dir():
        return _one(options)
    return _folder(options, options.processes or len(usable_cores()))


def _one(options: AnalyzeOptions) -> int:
    """One recording, with its findings in words."""
    from heartlm.analysis.findings import KINDS
    from heartlm.ecg.locate import locate
    from heartlm.progress import track

    database, record_id = locate(options.path)
    recording = database.recording(record_id)
    summary = _analysed(options, _analyst(options), recording, lambda blocks: track(blocks, len(blocks), record_id))
    beats = "  ".join(f"{name} {count:,}" for name, count in summary["beats"].items() if count)
    print(f"{database.name}/{record_id}, leads {', '.join(summary['leads'])}: {summary['num_beats']:,} beats  {beats}")
    if summary["unlike"]:
        print(f"  unlike the recordings that the models learned from, expect more errors: {summary['unlike']}")
    for kind, count in summary["events"].items():
        if count:
            print(f"  {kind}: {count:,} ({summary['seconds'][kind]:,.0f} s): {KINDS[kind]}")
    print(options.out / f"{record_id}.html" if options.page else options.out / f"{record_id}.json")
    return 0


def _causal(options: AnalyzeOptions) -> int:
    """Alarms of recordings as their streams would give them, one table for each."""
    from heartlm.analysis.write import write_rows
    from heartlm.ecg.database import open_database
    from heartlm.ecg.locate import locate
    from heartlm.monitor.alarms import read_rules
    from heartlm.monitor.models import LiveModels
    from heartlm.monitor.stream import alarms_of
    from heartlm.progress import track

    common, of_patients = read_rules(options.rules)
    if options.path.is_dir():
        database = open_database(options.path)
        record_ids = list(database.record_ids)
    else:
        database, record_id = locate(options.path)
        record_ids = [record_id]
    # The causal models, unless others are named.
    beats = Path("beats-causal") if options.beats == Path("beats") else options.beats
    models = LiveModels.load(beats, options.af, options.waveform)
    left_out = list[str]()
    for record_id in track(record_ids, len(record_ids), "analyze"):
        try:
            found = alarms_of(database.recording(record_id), models, of_patients.get(record_id, common))
        except HeartlmError as error:
            if len(record_ids) == 1:
                raise
            left_out.append(f"{record_id}: {error}")
            continue
        rows = [alarm.to_json() for alarm in found]
        table = options.out / f"{record_id}.alarms.csv"
        write_rows(table, rows, ["key", "stream", "kind", "severity", "start_s", "raised_s", "stop_s", "confidence"])
        lethal = sum(row["severity"] == "lethal" for row in rows)
        print(f"{table}: {len(rows):,} alarms, {lethal:,} of them lethal")
    for line in left_out:
        print(f"left out: {line}")
    return 0


def _folder(options: AnalyzeOptions, processes: int) -> int:
    """All recordings of a folder, one row each in `summary.csv`; what cannot be analysed is listed."""
    from heartlm.analysis.write import write_rows
    from heartlm.ecg.database import open_database
    from heartlm.progress import track

    record_ids = open_database(options.path).record_ids
    rows, failed = list[dict[str, Any]](), list[str]()
    outcomes = _outcomes(options, record_ids, min(processes, len(record_ids)))
    for outcome in track(outcomes, len(record_ids), "analyze"):
        if isinstance(outcome, str):
            failed.append(outcome)
        else:
            rows.append(_flat(outcome))
    for line in failed:
        print(f"left out: {line}")
    if not rows:
        raise HeartlmError(f"{options.path}: none of {len(record_ids)} recordings could be analysed")
    table = options.out / "summary.csv"
    write_rows(table, rows)
    print(f"{len(rows):,} recordings analysed, {len(failed):,} left out")
    if apart := sum(bool(row["unlike"]) for row in rows):
        print(f"{apart:,} unlike those that the models learned from, expect more errors there: column unlike")
    print(table)
    return 0


def _outcomes(options: AnalyzeOptions, record_ids: Sequence[str], processes: int) -> Iterator[dict[str, Any] | str]:
    """The summary of each recording, in order, or why there is none."""
    if processes == 1:
        _start(options)
        yield from map(_try, record_ids)
        return
    from multiprocessing import get_context

    from heartlm.corpus.processes import AHEAD, in_order

    # Spawned, not forked: a forked process that computes with torch can hang.
    pool = ProcessPoolExecutor(processes, get_context("spawn"), _start_process, (options, os.getpid()))
    yield from in_order(pool, _try, record_ids, AHEAD * processes, "analyses")


_job: tuple[AnalyzeOptions, Any, Any] | None = None
"""Of a process that analyses recordings of a folder: options, database, models."""


def _start_process(options: AnalyzeOptions, parent: int) -> None:
    from heartlm.parent import end_with_parent

    # An interrupt ends this process at once and without a traceback: what it was writing is atomic.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    end_with_parent(parent)
    _start(options)


def _start(options: AnalyzeOptions) -> None:
    global _job
    import torch

    from heartlm.ecg.database import open_database

    torch.set_num_threads(1)
    _job = options, open_database(options.path), _analyst(options)


def _try(record_id: str) -> dict[str, Any] | str:
    assert _job is not None, "set when the process started"
    options, database, analyst = _job
    try:
        return _analysed(options, analyst, database.recording(record_id))
    except HeartlmError as error:
        return f"{record_id}: {error}"


def _analyst(options: AnalyzeOptions) -> Any:
    from heartlm.analysis.analyze import Analyst

    return Analyst.load(options.beats, options.af, options.waveform)


def _analysed(options: AnalyzeOptions, analyst: Any, recording: Any, watch: Any = iter) -> dict[str, Any]:
    """The summary of a recording; analysed now unless its results are there, made by the same models."""
    from heartlm.analysis.write import SCHEMA_VERSION, write_findings
    from heartlm.files import read_json

    path = options.out / f"{recording.record_id}.json"
    if path.is_file() and (not options.page or path.with_suffix(".html").is_file()):
        known = read_json(path, dict[str, Any])
        if known.get("schema_version") == SCHEMA_VERSION and known.get("made_by") == analyst.made_by:
            return dict(known["summary"])
    findings = analyst.analyze(recording, watch)
    page = None
    if options.page:
        from heartlm.report.holter import holter_page

        page = holter_page(findings)
    return write_findings(findings, options.out, page)


def _flat(summary: dict[str, Any]) -> dict[str, Any]:
    """A summary as one row of a table."""
    row = {key: value for key, value in summary.items() if not isinstance(value, dict)}
    row["leads"] = " ".join(summary["leads"])
    row |= {f"beats_{name}": count for name, count in summary["beats"].items()}
    row |= {f"{kind}_events": count for kind, count in summary["events"].items()}
    return row | {f"{kind}_s": seconds for kind, seconds in summary["seconds"].items()}
