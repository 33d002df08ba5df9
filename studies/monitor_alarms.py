"""Alarms and delays of `heartlm monitor`, and the effect of hostile links.

    python -m studies.monitor_alarms --work FOLDER --cinc2017 FOLDER
    python -m studies.monitor_alarms --links 1000
    python -m studies.monitor_alarms --beats beats-causal RUN --cinc2017 FOLDER

The shipped models run on recordings as streams, as in `heartlm alarms`. Reported are annotated episodes with an
alarm, the delay of the alarm after the onset, lethal alarms per patient-day, and how often alarms are raised again
soon after they ended. cudb and DS1 were used to choose the
models or rules, and so were most normal recordings of cinc2017 (none that a model was trained on); DS2 and 200 of
cinc2017 were not. `--links` measures that number of links with seeded faults instead. `--beats` counts recordings of
cinc2017 in which causal models name V and S beats: normal ones, from which the class for what is no heartbeat was
chosen, and noisy ones (the same as in `strangers.py`).
"""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np

import heartlm.databases.splits as splits
from heartlm.databases.database import Database, open_database
from heartlm.ecg.definitions import ALARMS, LETHAL
from heartlm.ecg.recording import BEAT_CLASSES, Recording, RhythmSpan
from heartlm.ecg.spans import runs
from heartlm.evaluation.bootstrap import Resampling
from heartlm.monitor.alarms import Alarm, AlarmRules
from heartlm.monitor.engine import Monitor
from heartlm.monitor.models import LiveModels
from heartlm.monitor.stream import Ward, watched_leads
from heartlm.storage.atomic import write_json
from heartlm.storage.reading import read_json
from heartlm.system.cores import limit_threads
from lab.bedside_cases import normal_recordings, simulated_patients
from lab.intervals import shown
from lab.measure import Table
from lab.output import write_results
from lab.places import DATA, annotations_of, labels_of, options
from recipes.beats import by_hash
from studies.strangers import LABELS

TOGETHER = 16
"""Recordings that are watched together."""
FAULTS = ("lost", "late", "double", "cut", "nulls", "stuck", "huge", "absurd", "outage", "rate")
ABSURD = (b"\x00" * 50, b"{}", b"null", b'{"stream": 3}', b"[" * 5000, b'{"mv": "x"}' * 10)
EARLY_S, LATE_S = 5.0, 10.0
"""An alarm that begins so long before an episode or after its end still meets it."""
AGAIN_S = 30.0
"""An alarm that is raised so soon after the end of one of its kind is raised again."""
LIFE_COLUMNS = ("recordings", "hours", "alarms an hour", "raised again, %", *ALARMS)

EPISODES = (
    ("VF or flutter of 4 s and more", ("VFIB", "VFL"), ("VF",), 4),
    ("VF or flutter of 4 s and more, alarms of VF or VT", ("VFIB", "VFL"), ("VF", "VT"), 4),
    ("VT of 5 beats and more", ("VT",), ("VT", "VF"), 2.5),
    ("AF of 60 s and more", ("AFIB",), ("AF",), 60),
    ("pauses of 2 s and more", ("pause",), ("pause", "asystole", "extreme bradycardia"), 0),
)
"""Episodes: a name, annotated rhythms, kinds of alarms that find them, and their least length in seconds."""
SHOWN_BY = {"VF": ("VFIB", "VFL"), "VT": ("VT", "VFIB", "VFL"), "extreme tachycardia": ("VFIB", "VFL")}
"""Annotated rhythms that confirm an alarm. Beats of VF and flutter are not annotated, so no beats confirm it there."""


def watched(models: LiveModels, database: Database, record_ids: list[str], work: Path) -> dict[str, list[Alarm]]:
    """The alarms of each recording, each with its end if it ended; those found before are read from `work`."""
    found, folder = dict[str, list[Alarm]](), work / database.name
    folder.mkdir(parents=True, exist_ok=True)
    missing = [record_id for record_id in record_ids if not (folder / f"{record_id}.json").exists()]
    for begin in range(0, len(missing), TOGETHER):
        ward, own = Ward(models), dict[str, dict[str, Alarm]]()
        for record_id in missing[begin : begin + TOGETHER]:
            recording = database.recording(record_id)
            leads = watched_leads(recording)
            assert leads, f"{record_id} has an ECG lead"
            ward.add(record_id, recording.rate_hz, num_leads=len(leads))
            ward.push(record_id, recording.signal(0, recording.num_samples, leads))
            own[record_id] = {}
        for alarm in ward.run():
            own[alarm.stream][alarm.key] = alarm
        for record_id, alarms in own.items():
            write_json(folder / f"{record_id}.json", [vars(alarm) for alarm in alarms.values()])
        print(database.name, begin + len(own), "of", len(missing), flush=True)
    for record_id in record_ids:
        found[record_id] = [Alarm(**fields) for fields in read_json(folder / f"{record_id}.json")]
    return found


def met(
    alarms: list[Alarm], spans: list[RhythmSpan], kinds: tuple[str, ...], num_samples: int
) -> tuple[list[float], int, int]:
    """Delays of the episodes that were found, how many alarms meet one, and how many alarms there are."""
    of_kind, delays = [alarm for alarm in alarms if alarm.kind in kinds], list[float]()

    def meets(alarm: Alarm, begin: int, span: RhythmSpan) -> bool:
        last = alarm.stop or num_samples
        return begin <= span.stop + LATE_S * alarm.rate_hz and last >= span.start - EARLY_S * alarm.rate_hz

    for span in spans:
        if hits := [alarm.raised for alarm in of_kind if meets(alarm, alarm.raised, span)]:
            delays.append(max(0.0, (min(hits) - span.start) / of_kind[0].rate_hz))  # 0: the alarm lasted already
    true = sum(any(meets(alarm, alarm.start, span) for span in spans) for alarm in of_kind)
    return delays, true, len(of_kind)


def study_alarms(cinc2017: Path | None, work: Path) -> list[Table]:
    models = LiveModels()
    sets = [
        ("cudb (chosen by)", open_database(DATA / "cudb"), None),
        ("mitdb DS1 (chosen by)", open_database(DATA / "mitdb"), list(splits.DS1)),
        ("mitdb DS2", open_database(DATA / "mitdb"), list(splits.DS2)),
        ("svdb (half chosen by)", open_database(DATA / "svdb"), None),
    ]
    if cinc2017 is not None:
        tested, others = (normal_recordings(cinc2017, others) for others in (False, True))
        sets.append((f"cinc2017, {len(tested)} normal", open_database(cinc2017), tested))
        sets.append((f"cinc2017, {len(others):,} other normal (chosen by)", open_database(cinc2017), others))
    sets.append(("simulated, 60 patients", simulated_patients(work / "databases" / "simulated", 60, 2026), None))
    columns = ("recordings", "episodes", "found", "s from onset to alarm, median", "95 %", "alarms")
    episodes = Table("Annotated episodes and alarms of their kind", (*columns, "of these in an episode"))
    lethal = [kind for kind in ALARMS if ALARMS[kind] == LETHAL]
    rates = Table(
        "Lethal alarms (of these, not confirmed by annotations)",
        ("recordings", "hours", *lethal, "not confirmed, a patient-day"),
    )
    life = Table(
        "Alarms (of these, raised again within 30 s after the end of one of their kind; median s)", LIFE_COLUMNS
    )
    num_false, all_hours = 0, 0.0
    for name, database, record_ids in sets:
        record_ids = list(database.record_ids) if record_ids is None else record_ids
        found = watched(models, database, record_ids, work)
        recordings = {record_id: database.recording(record_id) for record_id in found}
        hours = sum(recording.duration_s for recording in recordings.values()) / 3600
        life.add(name, *life_of([(own, recordings[record_id].num_samples) for record_id, own in found.items()], hours))
        count = Counter(alarm.kind for alarms in found.values() for alarm in alarms)
        false = Counter[str]()
        for record_id, alarms in found.items():
            recording = recordings[record_id]
            annotated = recording.annotations is not None and recording.annotations.num_beats > 0
            reference = by_annotations(recording) if annotated else []
            false.update(a.kind for a in alarms if not annotated or not confirmed(a, reference, recording))
        own_false = sum(false[kind] for kind in lethal)
        counts = (f"{count[kind]} ({false[kind]})" for kind in lethal)
        rates.add(name, f"{hours:.1f}", *counts, f"{24 * own_false / hours:.1f}")
        if name.startswith(("mitdb", "svdb", "cinc2017")):
            num_false, all_hours = num_false + own_false, all_hours + hours
        for what, rhythms, kinds, shortest_s in EPISODES:
            delays, true, alarmed, num = list[float](), 0, 0, 0
            for record_id, alarms in found.items():
                recording, known = recordings[record_id], annotations_of(recordings[record_id])
                spans = pauses(recording) if what.startswith("pause") else list(known.rhythms)
                least = shortest_s * recording.rate_hz
                spans = [span for span in spans if span.name in rhythms and span.stop - span.start >= least]
                if what.startswith("VT"):
                    inside = [np.diff(np.searchsorted(known.sample, (span.start, span.stop)))[0] for span in spans]
                    spans = [span for span, num in zip(spans, inside, strict=True) if num >= 5]
                own, right, raised = met(alarms, spans, kinds, recording.num_samples)
                delays, true, num = delays + own, true + right, num + len(spans)
                alarmed += raised
            if num or alarmed:
                median, most = np.percentile(delays, [50, 95]) if delays else (float("nan"), float("nan"))
                episodes.add(f"{name}: {what}", num, len(delays), f"{median:.1f}", f"{most:.1f}", alarmed, true)
    rate = f"{24 * num_false / all_hours:.1f}"
    rates.add("mitdb, svdb, cinc2017 together", f"{all_hours:.1f}", *("" for _ in lethal), rate)
    return [episodes, rates, life]


def life_of(found: list[tuple[list[Alarm], int]], hours: float) -> list[str]:
    """The cells of `LIFE_COLUMNS` from the alarms and the number of samples of each recording."""
    durations_s, again = defaultdict[str, list[float]](list), Counter[str]()
    for alarms, num_samples in found:
        stops = dict[str, int]()
        for alarm in sorted(alarms, key=lambda each: each.raised):
            stop = num_samples if alarm.stop is None else alarm.stop
            durations_s[alarm.kind].append((stop - alarm.raised) / alarm.rate_hz)
            if alarm.kind in stops and alarm.raised - stops[alarm.kind] <= AGAIN_S * alarm.rate_hz:
                again[alarm.kind] += 1
            stops[alarm.kind] = stop
    num = sum(map(len, durations_s.values()))
    of_kinds = [
        f"{len(own)} ({again[kind]}; {np.median(own or [0]):.0f})" for kind in ALARMS for own in [durations_s[kind]]
    ]
    return [f"{hours:.1f}", f"{num / hours:.1f}", f"{100 * again.total() / max(num, 1):.0f}", *of_kinds]


def by_annotations(recording: Recording) -> list[Alarm]:
    """The alarms that the annotated beats deserve, each from its first beat to its last.

    VT is five annotated V beats in a row at its rate. No beats are annotated in VF and flutter, so no row reaches
    across them.
    """
    rules, rate_hz, beats = AlarmRules(), recording.rate_hz, annotations_of(recording)
    is_v, found = beats.beat_classes() == BEAT_CLASSES.index("V"), list[Alarm]()
    fibrillation = [(span.start, span.stop) for span in beats.rhythms if span.name in SHOWN_BY["VF"]]

    def add(kind: str, sample: np.ndarray, num_beats: int, least_s: float, most_s: float) -> None:
        """Add each row of beats whose mean interval is in the range."""
        for start, stop in zip(sample.tolist(), sample[num_beats - 1 :].tolist(), strict=False):
            row_s = (stop - start) / rate_hz / (num_beats - 1)
            if least_s <= row_s <= most_s and not any(start < last and stop > first for first, last in fibrillation):
                found.append(Alarm(recording.record_id, kind, start, stop, stop, 1.0, rate_hz))

    edges = [edge for span in fibrillation for edge in span]
    add("asystole", np.sort([*beats.sample, *edges, recording.num_samples]), 2, rules.asystole_s, np.inf)
    add("extreme bradycardia", beats.sample, rules.bradycardia_beats, 60 / rules.bradycardia_bpm, np.inf)
    add("extreme tachycardia", beats.sample, rules.tachycardia_beats, 0, 60 / rules.tachycardia_bpm)
    for first, last in runs(is_v).tolist():
        add("VT", beats.sample[first:last], rules.vt_beats, 0, 60 / rules.vt_bpm)
    return found


def confirmed(alarm: Alarm, reference: list[Alarm], recording: Recording) -> bool:
    """Whether annotations show what the alarm says, within `LATE_S`: beats by the same rule, or a rhythm."""
    reach, rhythms = LATE_S * alarm.rate_hz, SHOWN_BY.get(alarm.kind, ())
    spans = [(span.start, span.stop) for span in annotations_of(recording).rhythms if span.name in rhythms]
    spans += [(each.start, each.stop or recording.num_samples) for each in reference if each.kind == alarm.kind]
    stop = alarm.stop or recording.num_samples
    return any(alarm.start <= last + reach and stop >= first - reach for first, last in spans)


def pauses(recording: Recording) -> list[RhythmSpan]:
    """Intervals of 2 s and more between annotated beats outside VF and flutter, from 2 s after the first beat."""
    rate_hz, annotations = recording.rate_hz, annotations_of(recording)
    silent = [span for span in annotations.rhythms if span.name in ("VFIB", "VFL")]
    return [
        RhythmSpan(int(first + 2 * rate_hz), int(last), "pause")
        for first, last in itertools.pairwise(annotations.sample)
        if last - first >= 2 * rate_hz and not any(span.start < last and span.stop > first for span in silent)
    ]


def study_links(number: int) -> list[Table]:
    """Mutations of a link: lethal alarms that the clean stream does not have."""
    models, faults = LiveModels(), Counter[str]()
    database = open_database(DATA / "mitdb")
    clean = dict[str, set[str]]()
    table = Table("Seeded faults of a link, 40 s of a recording of DS1 each", ("what", "number"))
    records = ["101", "106", "112", "119", "122", "220"]
    sources = {name: signal_of(database, name) for name in records}
    for name, (signal, rate_hz) in sources.items():
        ward = Ward(models)
        ward.add(name, rate_hz)
        ward.push(name, signal)
        clean[name] = {alarm.kind for alarm in ward.run() if alarm.severity == LETHAL}
    done = 0
    while done < number:
        monitor = Monitor(Ward(models), log=lambda _: None)
        for place in range(min(TOGETHER, number - done)):
            choose = random.Random(done + place)
            name = records[(done + place) % len(records)]
            for message in mutated(f"{place}-{name}", *sources[name], choose, faults):
                monitor.receive(message)
        monitor.run()
        for entry in monitor.alarms.values():
            if entry["severity"] == LETHAL and entry["kind"] not in clean[entry["stream"].split("-")[1]]:
                faults[f"false lethal alarm: {entry['kind']}"] += 1
                print(f"seed {done + int(entry['stream'].split('-')[0])}: {entry}", flush=True)
        faults["messages refused"] += sum(monitor.faults.values())
        done += TOGETHER
    table.add("links", number)
    for name, count in sorted(faults.items()):
        table.add(name, count)
    table.add("false lethal alarms", sum(count for name, count in faults.items() if name.startswith("false")))
    return [table]


def study_beats(runs: list[str], cinc2017: Path) -> list[Table]:
    """Recordings in which V, S or an alarm is found that should not be there, by model."""
    database, label_of = open_database(cinc2017), labels_of(cinc2017)
    columns = ("V beat", "S beat", "run", "VT", "pause")
    kinds = {"N": "normal", "~": "too noisy"}
    heads = (f"{kind}: {column}" for kind in kinds.values() for column in columns)
    table = Table("Hand-held device, live: share of recordings with a finding", ("beats model", *heads))
    for run in runs:
        models, cells = LiveModels(Path(run)), list[str]()
        for label in kinds:
            chosen = by_hash(record for record, of in label_of.items() if of == label)[: LABELS[label]]
            found = np.zeros((len(chosen), len(columns)), np.int64)
            for begin in range(0, len(chosen), TOGETHER):
                ward, place = Ward(models), {name: begin + at for at, name in enumerate(chosen[begin:][:TOGETHER])}
                for name in place:
                    ward.add(name, database.recording(name).rate_hz)
                    ward.push(name, database.recording(name).signal(0, database.recording(name).num_samples, [0])[0])
                while ward.waiting:
                    streams, alarms = ward.step()
                    named = [(stream.name, f"{symbol} beat") for stream in streams for _, symbol in stream.beats]
                    for name, what in (*named, *((alarm.stream, alarm.kind) for alarm in alarms)):
                        if what in columns:
                            found[place[name], columns.index(what)] = 1
            drawn = Resampling(2000).resample(found) / len(found)
            cells += [shown(float(own.mean()), each, len(own)) for own, each in zip(found.T, drawn.T, strict=True)]
        table.add(Path(run).name, *cells)
    return [table]


def signal_of(database: Database, record_id: str) -> tuple[np.ndarray, float]:
    recording = database.recording(record_id)
    return recording.signal(0, round(40 * recording.rate_hz), watched_leads(recording, 1))[0], recording.rate_hz


def mutated(name: str, signal: np.ndarray, rate_hz: float, choose: random.Random, faults: Counter[str]) -> list[bytes]:
    """The frames of a stream, with faults of one kind or of several."""
    length = round(rate_hz)
    counted = choose.random() < 0.7
    clock = choose.choice([1.0, 0.99, 1.01])
    kinds = choose.sample(FAULTS, choose.randint(1, 3))
    faults.update(kinds)
    out, outage = list[bytes](), range(0)
    if "outage" in kinds:
        first = choose.randrange(5, 25)
        outage = range(first, first + choose.choice([2, 6, 12]))
    for place in range(len(signal) // length):
        mv = [round(float(value), 4) for value in signal[place * length : (place + 1) * length]]
        own: dict[str, Any] = {"stream": name, "rate_hz": rate_hz, "mv": mv}
        own |= {"start": place * length} if counted else {"t": 1e9 + place * clock}
        hit = choose.random() < 0.15
        if place in outage or (hit and "lost" in kinds):
            continue
        if hit and "nulls" in kinds:
            begin = choose.randrange(length)
            own["mv"] = [None if begin <= at < begin + length // 2 else value for at, value in enumerate(mv)]
        if hit and "stuck" in kinds:
            own["mv"] = [9.99] * length
        if hit and "huge" in kinds:
            own["mv"][choose.randrange(length)] = 1e30
        if hit and "rate" in kinds:
            out.append(json.dumps(own | {"rate_hz": rate_hz + 1, "stream": f"{name}-r"}).encode())
        message = json.dumps(own).encode()
        if hit and "cut" in kinds:
            out.append(message[: choose.randrange(len(message))])
        if hit and "absurd" in kinds:
            out.append(choose.choice(ABSURD))
        out.append(message)
        if hit and "double" in kinds:
            out.append(message)
        if hit and "late" in kinds and len(out) > 1:
            out[-1], out[-2] = out[-2], out[-1]
    return out


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--work", type=Path, default=Path("build/monitor"), help="keeps the alarms that were found")
    parser.add_argument("--cinc2017", type=Path, help="folder with the training recordings of the Challenge 2017")
    parser.add_argument("--links", type=int, default=0, help="number of hostile links")
    parser.add_argument("--beats", nargs="+", help="causal beats models whose beats are looked at")
    settings = parser.parse_args()
    limit_threads(1)
    if settings.beats:
        write_results("monitor-beats", "Beats named in live streams", study_beats(settings.beats, settings.cinc2017))
    elif settings.links:
        write_results("monitor-links", "Hostile links", study_links(settings.links))
    else:
        write_results("monitor-alarms", "Alarms of live streams", study_alarms(settings.cinc2017, settings.work))


if __name__ == "__main__":
    main()
