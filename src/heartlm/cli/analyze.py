"""`heartlm analyze`: find beats, rhythms and events in recordings; write tables and a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heartlm.cli.options import parse
from heartlm.errors import HeartlmError, require


@dataclass(frozen=True)
class AnalyzeOptions:
    """Options of `heartlm analyze`.

    Attributes:
        path: a WFDB recording (a file ending is ignored), or a folder of recordings.
        out: output folder. Recordings with complete results there are not analysed again.
        beats: beat model: a shipped model or a run folder.
        af: atrial fibrillation model: a shipped model or a run folder.
        waveform: model for ventricular fibrillation, asystole and noise: a shipped model or a run folder.
        page: write an HTML page of the results.
        anonymous: leave the patient data of the header and all dates out of the results.
        strict: refuse a recording whose file must be repaired to be read, instead of analysing it with a warning.
        processes: number of recordings analysed in parallel; by default one per core.
        causal: find the alarms that `heartlm monitor` would raise for the recording, with its causal models.
        rules: YAML file of alarm rules, or second-opinion; used with --causal.
    """

    path: Path
    out: Path = Path("analysis")
    beats: Path = Path("beats")
    af: Path = Path("af")
    waveform: Path = Path("waveform")
    page: bool = True
    anonymous: bool = False
    strict: bool = False
    processes: int | None = None
    causal: bool = False
    rules: Path | None = None


def run(arguments: Sequence[str]) -> int:
    """Find beats, rhythms and events in recordings with models that come with heartlm, and draw a page.

    The exit status is 1 if recordings of a folder were left out; the last line counts them.

    Examples:
        heartlm analyze mitdb/203
        heartlm analyze holter.edf --out patient-7 --anonymous
        heartlm analyze ptb-xl --out ptb-xl-analysis
        heartlm analyze mitdb --beats runs/beats
        heartlm analyze mitdb/207 --causal
    """
    options = parse(AnalyzeOptions, arguments, "analyze", run, positionals=["path"])
    require(options, lambda value: value >= 1, "at least 1", "processes")
    import torch

    torch.set_num_threads(1)
    if options.causal:
        return _causal(options)
    from heartlm import api

    found = api.analyze(**{name: value for name, value in vars(options).items() if name not in ("causal", "rules")})
    if options.path.is_dir():
        for line in found.left_out:
            print(f"left out: {line}")
        if apart := sum(bool(each["unlike"]) for each in found.summaries):
            print(f"{apart:,} unlike those that the models learned from, expect more errors there: column unlike")
    else:
        _print_findings(found.summaries[0])
    for line in found.unwritten:
        print(line)
    print(found.file)
    if options.path.is_dir():
        print(f"{len(found.summaries):,} recordings analysed, {len(found.left_out):,} left out")
    return 1 if found.left_out or found.unwritten else 0


def _print_findings(summary: dict[str, Any]) -> None:
    from heartlm.analysis.findings import KINDS

    beats = "  ".join(f"{name} {count:,}" for name, count in summary["beats"].items() if count)
    print(f"{summary['record']}, leads {', '.join(summary['leads'])}: {summary['num_beats']:,} beats  {beats}")
    if summary["unlike"]:
        print(f"  unlike the recordings that the models learned from, expect more errors: {summary['unlike']}")
    for kind, count in summary["events"].items():
        if count:
            print(f"  {kind}: {count:,} ({summary['seconds'][kind]:,.0f} s): {KINDS[kind]}")


def _causal(options: AnalyzeOptions) -> int:
    """Write a table of the alarms that `heartlm monitor` would raise for each recording."""
    from heartlm import api
    from heartlm.ecg.database import locate, open_database
    from heartlm.ecg.recording import Repaired
    from heartlm.files import write_csv
    from heartlm.monitor.alarms import read_rules
    from heartlm.monitor.stream import ecg_leads
    from heartlm.progress import track

    common, of_patients = read_rules(options.rules)
    repaired: Repaired = "refuse" if options.strict else "warn"
    if options.path.is_dir():
        database = open_database(options.path, repaired=repaired)
        record_ids = list(database.record_ids)
    else:
        database, record_id = locate(options.path, repaired=repaired)
        record_ids = [record_id]
    # Use the causal models unless others are given.
    beats = Path("beats-causal") if options.beats == Path("beats") else options.beats
    models = {"beats": beats, "af": options.af, "waveform": options.waveform}
    left_out = list[str]()
    for record_id in track(record_ids, len(record_ids), "analyze"):
        try:
            recording = database.recording(record_id)
            found = api.find_alarms(recording, of_patients.get(record_id, common), **models)
        except HeartlmError as error:
            if len(record_ids) == 1:
                raise
            left_out.append(f"{record_id}: {error}")
            continue
        rows = [alarm.to_json() for alarm in found]
        table = options.out / f"{record_id}.alarms.csv"
        write_csv(
            rows, table, ["key", "stream", "kind", "severity", "start_s", "raised_s", "stop_s", "confidence"], digits=4
        )
        lethal = sum(row["severity"] == "lethal" for row in rows)
        watched = ", ".join(recording.leads[lead] for lead in ecg_leads(recording))
        print(f"{table}: leads {watched}: {len(rows):,} alarms, {lethal:,} of them lethal")
        for row in rows:
            until = "lasts" if row["stop_s"] is None else f"until {row['stop_s']} s"
            print(f"  {row['severity']} {row['kind']}: from {row['start_s']} s, raised at {row['raised_s']} s, {until}")
    for line in left_out:
        print(f"left out: {line}")
    if left_out and len(left_out) == len(record_ids):
        raise HeartlmError(f"{options.path}: none of {len(record_ids)} recordings could be analysed")
    if left_out:
        print(f"{len(record_ids) - len(left_out):,} recordings analysed, {len(left_out):,} left out")
    return 1 if left_out else 0
