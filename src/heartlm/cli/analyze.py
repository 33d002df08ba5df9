"""`heartlm analyze`: find beats, rhythms and events in recordings; write tables and a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from heartlm.cli.options import parse
from heartlm.errors import HeartlmError, require
from heartlm.storage.reading import read_yaml
from heartlm.storage.typed import typed


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
        device: device of the models; auto uses a GPU if there is one, of which every process needs some memory. Beats
            and waves are found on the CPU.
        causal: find the alarms that `heartlm monitor` would raise for the recording, with its causal models.
        rules: YAML file with the limits below, or with --causal of alarm rules as for the monitor, or second-opinion.
        pause_s: seconds between two beats of a pause; 2 by default.
        asystole_s: seconds between two beats of an asystole; 4 by default.
        bradycardia_bpm: bradycardia is a mean rate below this value; 50 by default, 40 with --causal.
        bradycardia_beats: number of beats of bradycardia; 5 by default.
        tachycardia_bpm: tachycardia is a mean rate above this value; 100 by default, 140 with --causal.
        tachycardia_beats: number of beats of tachycardia; 16 by default, 17 with --causal.
        vt_bpm: least rate of ventricular tachycardia; 100 by default.
        run_beats: number of ventricular beats in a row of a run, which is VT if it is fast; 3 by default.
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
    device: Literal["auto", "cpu", "cuda"] = "cpu"
    causal: bool = False
    rules: Path | None = None
    pause_s: float | None = None
    asystole_s: float | None = None
    bradycardia_bpm: float | None = None
    bradycardia_beats: int | None = None
    tachycardia_bpm: float | None = None
    tachycardia_beats: int | None = None
    vt_bpm: float | None = None
    run_beats: int | None = None

    @property
    def given_limits(self) -> dict[str, Any]:
        """Limits that are given on the command line."""
        return {name: value for name, value in vars(self).items() if name in LIMITS and value is not None}


LIMITS = (
    *("pause_s", "asystole_s", "bradycardia_bpm", "bradycardia_beats"),
    *("tachycardia_bpm", "tachycardia_beats", "vt_bpm", "run_beats"),
)
"""Options that are fields of `heartlm.analysis.limits.Limits`, and with --causal of the monitor's `AlarmRules`."""


def run(arguments: Sequence[str]) -> int:
    """Find beats, rhythms and events in recordings with models that come with heartlm, and draw a page.

    The exit status is 1 if recordings of a folder were left out; the last line counts them.

    Examples:
        heartlm analyze mitdb/203
        heartlm analyze holter.edf --out patient-7 --anonymous
        heartlm analyze ptb-xl --out ptb-xl-analysis
        heartlm analyze mitdb --beats runs/beats
        heartlm analyze mitdb/232 --pause-s 2.5 --bradycardia-bpm 45
        heartlm analyze mitdb/207 --causal
    """
    options = parse(AnalyzeOptions, arguments, "analyze", run, positionals=["path"])
    require(options, lambda value: value >= 1, "at least 1", "processes")
    if options.causal and options.device == "cuda":
        raise HeartlmError("device: 'cuda' found, but --causal computes beat by beat, on the CPU: leave it out")
    import torch

    torch.set_num_threads(1)
    if options.causal:
        return _causal(options)
    from heartlm import api
    from heartlm.analysis.findings import definitions
    from heartlm.analysis.limits import Limits

    limit_values = {} if options.rules is None else read_yaml(options.rules, "limits")
    limit_values = typed(dict[str, Any], limit_values, options.rules or "") | options.given_limits
    limits = typed(Limits, limit_values, options.rules or "")
    settings = {name: value for name, value in vars(options).items() if name not in ("causal", "rules", *LIMITS)}
    result = api.analyze(**settings, limits=limits)
    if options.path.is_dir():
        for line in result.left_out:
            print(f"left out: {line}")
        if num_unlike := sum(bool(each["unlike"]) for each in result.summaries):
            print(f"{num_unlike:,} unlike those that the models learned from, expect more errors there: column unlike")
    else:
        _print_findings(result.summaries[0], definitions(limits))
    for line in result.unwritten:
        print(line)
    print(result.file)
    if options.path.is_dir():
        print(f"{len(result.summaries):,} recordings analysed, {len(result.left_out):,} left out")
    return 1 if result.left_out or result.unwritten else 0


def _print_findings(summary: dict[str, Any], kinds: dict[str, str]) -> None:
    beats = "  ".join(f"{name} {count:,}" for name, count in summary["beats"].items() if count)
    print(f"{summary['record']}, leads {', '.join(summary['leads'])}: {summary['num_beats']:,} beats  {beats}")
    if summary["unlike"]:
        print(f"  unlike the recordings that the models learned from, expect more errors: {summary['unlike']}")
    if summary["hum_removed"]:
        print(f"  mains hum removed before the analysis: {summary['hum_removed']}")
    if summary["num_left_out"]:
        print(f"  {summary['num_left_out']:,} detections left out that are artefacts: rates are of the other beats")
    for kind, count in summary["events"].items():
        if count:
            print(f"  {kind}: {count:,} ({summary['seconds'][kind]:,.0f} s): {kinds[kind]}")
    if summary["unexamined"]:
        print(f"  not examined for {summary['unexamined']}")


def _causal(options: AnalyzeOptions) -> int:
    """Write a table of the alarms that `heartlm monitor` would raise for each recording."""
    from heartlm import api
    from heartlm.databases.database import locate, open_database
    from heartlm.ecg.recording import Repaired
    from heartlm.monitor.alarms import read_rules
    from heartlm.monitor.stream import watched_leads
    from heartlm.storage.atomic import write_csv
    from heartlm.system.progress import track

    common, rules_by_patient = read_rules(options.rules)
    common, *patient_rules = (replace(each, **options.given_limits) for each in (common, *rules_by_patient.values()))
    rules_by_patient = dict(zip(rules_by_patient, patient_rules, strict=True))
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
            alarms = api.find_alarms(recording, rules_by_patient.get(record_id, common), **models)
        except HeartlmError as error:
            if len(record_ids) == 1:
                raise
            left_out.append(f"{record_id}: {error}")
            continue
        rows = [alarm.to_json() for alarm in alarms]
        table = options.out / f"{record_id}.alarms.csv"
        columns = ["key", "stream", "kind", "severity", "start_s", "raised_s", "stop_s", "confidence", "count"]
        write_csv(rows, table, columns, digits=4)
        lethal = sum(row["severity"] == "lethal" for row in rows)
        watched = ", ".join(recording.leads[lead] for lead in watched_leads(recording))
        print(f"{table}: leads {watched}: {len(rows):,} alarms, {lethal:,} of them lethal")
        for row in rows:
            until = "lasts" if row["stop_s"] is None else f"until {row['stop_s']} s"
            until += f", {row['count']} times" if row["count"] > 1 else ""
            print(f"  {row['severity']} {row['kind']}: from {row['start_s']} s, raised at {row['raised_s']} s, {until}")
    for line in left_out:
        print(f"left out: {line}")
    if left_out and len(left_out) == len(record_ids):
        raise HeartlmError(f"{options.path}: none of {len(record_ids)} recordings could be analysed")
    if left_out:
        print(f"{len(record_ids) - len(left_out):,} recordings analysed, {len(left_out):,} left out")
    return 1 if left_out else 0
