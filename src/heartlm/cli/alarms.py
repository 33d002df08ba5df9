"""`heartlm alarms`: the alarms that a monitor would have raised in recordings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from heartlm.cli.options import given_limits, limit_options, parse
from heartlm.ecg.definitions import LIVE
from heartlm.errors import HeartlmError


@dataclass(frozen=True, kw_only=True)
class AlarmsOptions(limit_options(LIVE)):  # type: ignore[misc]
    """Options of `heartlm alarms`.

    Attributes:
        path: a WFDB recording (a file ending is ignored), or a folder of recordings.
        out: output folder.
        beats: causal beat model: a shipped model or a run folder.
        af: atrial fibrillation model: a shipped model or a run folder.
        waveform: model for ventricular fibrillation, asystole and noise: a shipped model or a run folder.
        strict: refuse a recording whose file must be repaired to be read, instead of reading it with a warning.
        rules: YAML file of alarm rules as for the monitor, or second-opinion.
    """

    path: Path
    out: Path = Path("alarms")
    beats: Path = Path("beats-causal")
    af: Path = Path("af")
    waveform: Path = Path("waveform")
    strict: bool = False
    rules: Path | None = None


def run(arguments: Sequence[str]) -> int:
    """Find the alarms that `heartlm monitor` would raise in recordings, beat by beat, with its causal models.

    The exit status is 1 if recordings of a folder were left out; the last line counts them.

    Examples:
        heartlm alarms mitdb/207
        heartlm alarms cudb --out cudb-alarms --rules second-opinion
        heartlm alarms mitdb/232 --pause-s 2.5 --bradycardia-bpm 45
    """
    options = parse(AlarmsOptions, arguments, "alarms", run, positionals=["path"])
    from heartlm import api
    from heartlm.databases.database import locate, open_database
    from heartlm.databases.index import holds_recordings
    from heartlm.ecg.recording import Repaired
    from heartlm.monitor.alarms import ALARM_FIELDS, read_rules
    from heartlm.monitor.stream import watched_leads
    from heartlm.storage.atomic import write_csv
    from heartlm.system.cores import limit_threads
    from heartlm.system.progress import track

    limit_threads(1)
    common, rules_by_patient = read_rules(options.rules)
    given = given_limits(options)
    common, *patient_rules = (replace(each, **given) for each in (common, *rules_by_patient.values()))
    rules_by_patient = dict(zip(rules_by_patient, patient_rules, strict=True))
    repaired: Repaired = "refuse" if options.strict else "warn"
    if holds_recordings(options.path):
        database = open_database(options.path, repaired=repaired)
        record_ids = list(database.record_ids)
    else:
        database, record_id = locate(options.path, repaired=repaired)
        record_ids = [record_id]
    models = {"beats": options.beats, "af": options.af, "waveform": options.waveform}
    left_out = list[str]()
    for record_id in track(record_ids, len(record_ids), "alarms"):
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
        write_csv(rows, table, ALARM_FIELDS, digits=4)
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
