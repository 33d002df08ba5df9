"""Alarms and delays of `heartlm monitor`, the number of streams per core, and the effect of hostile links.

    python benchmarks/monitor.py [--work FOLDER] [--study alarms|load|chunks|links]

Alarms: the shipped models run on recordings as streams, as in `analyze --causal`. Reported are annotated episodes with
an alarm, the delay of the alarm after the onset, and lethal alarms per patient-day. cudb and DS1 were used to choose
the models or rules, and so were most normal recordings of cinc2017 (none that a model was trained on); DS2 and 200 of
cinc2017 were not. Load:
recordings of mitdb at 250 Hz as streams in real time, one monitor per core, without a journal. Chunks: a load next to
the published method on the same cores, with the load that it holds: a request with 10 s of a stream to a server that
analyses it in Python (bench/chunks.py). Links: seeded faults.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import re
import resource
import time
from collections import Counter
from multiprocessing import Queue, get_context
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bench.chunks import CHUNK_S, measure_chunks
from bench.measure import Table, cores
from bench.output import write_results
from scipy.signal import resample_poly

import heartlm.ecg.splits as splits
from heartlm.ecg.database import Database, open_database
from heartlm.ecg.recording import BEAT_CLASSES, Recording, RhythmSpan
from heartlm.ecg.simulator.config import SimulationConfig
from heartlm.ecg.simulator.write import simulate_database
from heartlm.inference.finetuned import load_finetuned
from heartlm.models.pretrained import find_run
from heartlm.monitor.alarms import LETHAL, SEVERITIES, Alarm, AlarmRules
from heartlm.monitor.engine import Monitor, tune_garbage_collector
from heartlm.monitor.models import LiveModels
from heartlm.monitor.stream import Ward, ecg_leads
from heartlm.storage.atomic import write_json
from heartlm.storage.reading import read_json
from heartlm.system.parent import end_with_parent
from heartlm.tasks.waveform import runs_of

DATA = Path(os.environ.get("HEARTLM_TEST_DATA", "../shared/data"))
FAULTS = ("lost", "late", "double", "cut", "nulls", "stuck", "huge", "absurd", "outage", "rate")
ABSURD = (b"\x00" * 50, b"{}", b"null", b'{"stream": 3}', b"[" * 5000, b'{"mv": "x"}' * 10)
TOGETHER = 16
"""Recordings that are watched together."""
RATE_HZ = 250
MOST_BEDS, MADE_S = 240, 120
"""Different stretches of recordings in a load, and seconds of them; more streams, and a longer time, repeat them."""
BEGIN_S = 60
"""Seconds in which the streams of a load begin: patients are not admitted at once."""
CHUNKS_S = 60
"""Longest time in which each load of the published method is sent."""
EARLY_S, LATE_S = 5.0, 10.0
"""An alarm that begins so long before an episode or after its end still meets it."""


EPISODES = (
    ("VF or flutter of 4 s and more", ("VFIB", "VFL"), ("VF",), 4),
    ("VF or flutter of 4 s and more, alarms of VF or VT", ("VFIB", "VFL"), ("VF", "VT"), 4),
    ("VT of 5 beats and more", ("VT",), ("VT", "VF"), 2.5),
    ("AF of 60 s and more", ("AFIB",), ("AF",), 60),
    ("pauses of 2 s and more", ("pause",), ("pause", "asystole"), 0),
)
"""Episodes: a name, annotated rhythms, kinds of alarms that find them, and their least length in seconds."""
SHOWN_BY = {"VF": ("VFIB", "VFL"), "VT": ("VT", "VFIB", "VFL"), "extreme tachycardia": ("VFL",)}
"""Annotated rhythms that confirm an alarm. Beats of flutter are not annotated."""


def watched(models: LiveModels, database: Database, record_ids: list[str], work: Path) -> dict[str, list[Alarm]]:
    """The alarms of each recording, each with its end if it ended; those found before are read from `work`."""
    found, folder = dict[str, list[Alarm]](), work / database.name
    folder.mkdir(parents=True, exist_ok=True)
    missing = [record_id for record_id in record_ids if not (folder / f"{record_id}.json").exists()]
    for begin in range(0, len(missing), TOGETHER):
        ward, own = Ward(models), dict[str, dict[str, Alarm]]()
        for record_id in missing[begin : begin + TOGETHER]:
            recording = database.recording(record_id)
            leads = ecg_leads(recording)
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
    of_kind, delays, true = [alarm for alarm in alarms if alarm.kind in kinds], list[float](), 0
    for span in spans:
        hits = [
            alarm.raised
            for alarm in of_kind
            if alarm.raised <= span.stop + LATE_S * alarm.rate_hz
            and (alarm.stop or num_samples) >= span.start - EARLY_S * alarm.rate_hz
        ]
        if hits:
            delays.append(max(0.0, (min(hits) - span.start) / of_kind[0].rate_hz))  # 0: the alarm lasted already
    for alarm in of_kind:
        true += any(
            alarm.start <= span.stop + LATE_S * alarm.rate_hz
            and (alarm.stop or num_samples) >= span.start - EARLY_S * alarm.rate_hz
            for span in spans
        )
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
        sets.append(("cinc2017, 200 normal", open_database(cinc2017), normal_recordings(cinc2017)))
        others = normal_recordings(cinc2017, others=True)
        sets.append((f"cinc2017, {len(others):,} other normal (chosen by)", open_database(cinc2017), others))
    sets.append(("simulated, 60 patients", simulated_patients(work / "databases" / "simulated", 60, 2026), None))
    episodes = Table(
        "Annotated episodes and alarms of their kind",
        (
            "recordings",
            "episodes",
            "found",
            "s from onset to alarm, median",
            "95 %",
            "alarms",
            "of these in an episode",
        ),
    )
    lethal = [kind for kind in SEVERITIES if SEVERITIES[kind] == LETHAL]
    rates = Table(
        "Lethal alarms (of these, not confirmed by annotations)",
        (
            "recordings",
            "hours",
            *lethal,
            "not confirmed, a patient-day",
        ),
    )
    num_false, all_hours = 0, 0.0
    for name, database, record_ids in sets:
        record_ids = list(database.record_ids) if record_ids is None else record_ids
        found = watched(models, database, record_ids, work)
        hours = sum(database.recording(record_id).duration_s for record_id in found) / 3600
        count = Counter(alarm.kind for alarms in found.values() for alarm in alarms)
        false = Counter[str]()
        for record_id, alarms in found.items():
            recording = database.recording(record_id)
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
                recording = database.recording(record_id)
                spans = pauses(recording) if what.startswith("pause") else list(recording.annotations.rhythms)
                spans = [
                    span
                    for span in spans
                    if span.name in rhythms and span.stop - span.start >= shortest_s * recording.rate_hz
                ]
                if what.startswith("VT"):
                    spans = [span for span in spans if beats_in(recording.annotations.sample, span) >= 5]
                own, right, raised = met(alarms, spans, kinds, recording.num_samples)
                delays, true, num = delays + own, true + right, num + len(spans)
                alarmed += raised
            if num or alarmed:
                median, most = np.percentile(delays, [50, 95]) if delays else (float("nan"), float("nan"))
                episodes.add(f"{name}: {what}", num, len(delays), f"{median:.1f}", f"{most:.1f}", alarmed, true)
    rate = f"{24 * num_false / all_hours:.1f}"
    rates.add("mitdb, svdb, cinc2017 together", f"{all_hours:.1f}", *("" for _ in lethal), rate)
    return [episodes.close(), rates.close()]


def simulated_patients(folder: Path, num: int, seed: int) -> Database:
    """The database of this number of patients, ten minutes each; made if there is none."""
    if not folder.exists():
        simulate_database(folder, SimulationConfig(patients=num, minutes=10, seed=seed, name=folder.name))
    return open_database(folder)


def by_annotations(recording: Recording) -> list[Alarm]:
    """The alarms that the annotated beats deserve, each from its first beat to its last.

    VT is five annotated V beats in a row at its rate. No beats are annotated in VF and flutter, so no row reaches
    across them.
    """
    rules, rate_hz, beats = AlarmRules(), recording.rate_hz, recording.annotations
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
    for first, last in runs_of(is_v):
        add("VT", beats.sample[first:last], rules.vt_beats, 0, 60 / rules.vt_bpm)
    return found


def confirmed(alarm: Alarm, reference: list[Alarm], recording: Recording) -> bool:
    """Whether annotations show what the alarm says, within `LATE_S`: beats by the same rule, or a rhythm."""
    reach, rhythms = LATE_S * alarm.rate_hz, SHOWN_BY.get(alarm.kind, ())
    spans = [(span.start, span.stop) for span in recording.annotations.rhythms if span.name in rhythms]
    spans += [(each.start, each.stop or recording.num_samples) for each in reference if each.kind == alarm.kind]
    stop = alarm.stop or recording.num_samples
    return any(alarm.start <= last + reach and stop >= first - reach for first, last in spans)


def pauses(recording: Recording) -> list[RhythmSpan]:
    """Intervals of 2 s and more between annotated beats outside VF and flutter, from 2 s after the first beat."""
    rate_hz, sample = recording.rate_hz, recording.annotations.sample
    silent = [span for span in recording.annotations.rhythms if span.name in ("VFIB", "VFL")]
    return [
        RhythmSpan(int(first + 2 * rate_hz), int(last), "pause")
        for first, last in itertools.pairwise(sample)
        if last - first >= 2 * rate_hz and not any(span.start < last and span.stop > first for span in silent)
    ]


def beats_in(sample: np.ndarray, span: RhythmSpan) -> int:
    return int(np.searchsorted(sample, span.stop) - np.searchsorted(sample, span.start))


def normal_recordings(folder: Path, others: bool = False) -> list[str]:
    """200 recordings of cinc2017 labelled normal, drawn with seed 0 from those that no shipped model was trained on.

    With `others` those that were not drawn.
    """
    trained = set(load_finetuned(find_run(Path("waveform")), "last").folder.trained_on[0]["patients"])
    reference = next(path for path in (folder / "REFERENCE-v3-train.csv", folder / "REFERENCE-v3.csv") if path.exists())
    normal = [line.split(",")[0] for line in reference.read_text().split() if line.endswith(",N")]
    normal = [name for name in normal if not any(patient.endswith(name) for patient in trained)]
    drawn = set(random.Random(0).sample(normal, 200))
    return sorted(set(normal) - drawn if others else drawn)


def stretches(number: int, seconds: int) -> list[list[float]]:
    """Seconds of recordings of mitdb at `RATE_HZ`, in mV, one stretch for each bed."""
    database, signals = open_database(DATA / "mitdb"), []
    for place in range(number):
        turn, which = divmod(place, len(database.record_ids))
        recording = database.recording(database.record_ids[which])
        start, stop = (round((97 * turn + second) * recording.rate_hz) for second in (0, seconds))
        signal = recording.signal(start, stop, ecg_leads(recording, 1))[0].astype(float)
        signals.append(resample_poly(signal, RATE_HZ, round(recording.rate_hz)).round(4).tolist())
    return signals


def beds(number: int, seconds: int) -> list[list[bytes]]:
    """Of each second the end of a message for each bed."""
    signals = stretches(number, seconds)
    starts = range(0, seconds * RATE_HZ, RATE_HZ)
    return [[b'"mv": %s}' % json.dumps(own[start : start + RATE_HZ]).encode() for own in signals] for start in starts]


def watch(core: int, number: int, seconds: int, ready: Barrier, results: Queue[tuple[Any, ...]]) -> None:
    """Judge streams in real time on one core; their messages are made before, for senders make them elsewhere."""
    end_with_parent()
    os.sched_setaffinity(0, [core])
    torch.set_num_threads(1)
    tune_garbage_collector()
    made = beds(min(number, MOST_BEDS), min(seconds, MADE_S))
    monitor = Monitor(Ward(LiveModels()), log=lambda _: None)
    begins = [place * min(BEGIN_S, seconds) // number for place in range(number)]
    ready.wait()
    before, begin, delays = resource.getrusage(resource.RUSAGE_SELF), time.monotonic(), list[float]()
    memory = list[int]()
    for second in range(seconds):
        due, own = begin + second, made[second % len(made)]
        time.sleep(max(0.0, due - time.monotonic()))
        for place, first in enumerate(begins):
            if first <= second:
                head = b'{"stream": "%d", "rate_hz": %d, "start": %d, ' % (place, RATE_HZ, RATE_HZ * (second - first))
                monitor.receive(head + own[place % len(own)])
        monitor.run()
        delays.append(time.monotonic() - due)
        memory.append(resident_kib())
        if second % 60 == 59:
            print(f"core {core}, {second + 1} s: {max(delays[-60:]):.2f} s, {memory[-1] >> 10} MB", flush=True)
    took = time.monotonic() - begin
    after = resource.getrusage(resource.RUSAGE_SELF)
    busy_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    judged = sum(patient.stream.num_seconds for patient in monitor.patients.values())
    lost = sum(seconds - first for first in begins) - judged
    results.put((busy_s / took, took, delays, memory, lost + monitor.faults.total(), len(monitor.alarms)))


def resident_kib() -> int:
    """Memory of this process."""
    return int(re.search(r"VmRSS:\s+(\d+)", Path("/proc/self/status").read_text())[1])  # type: ignore[index]


def study_load(counts: list[int], seconds: int, num_cores: int) -> list[Table]:
    """Streams in real time, an equal share of them on each core."""
    own_cores = cores()[:num_cores]
    table = Table(
        f"Streams of mitdb in real time for {seconds} s, {RATE_HZ} Hz, frames of 1 s, cores: {len(own_cores)}",
        (
            "streams",
            "cores busy, %",
            "memory after a third, MB",
            "at the end, MB",
            "s from the last sample of a second to the last of its alarms: median",
            "95 %",
            "99 %",
            "seconds late at the end",
            "seconds of streams lost",
            "alarms",
            "ms of a core for a stream and second",
        ),
    )
    context = get_context("spawn")
    for number in counts:
        ready, results = context.Barrier(len(own_cores)), context.Queue()
        shares = [number // len(own_cores)] * len(own_cores)
        workers = [
            context.Process(target=watch, args=(core, share, seconds, ready, results), daemon=True)
            for core, share in zip(own_cores, shares, strict=True)
        ]
        for worker in workers:
            worker.start()
        busy, took, delays, memory, lost, alarms = zip(*(results.get() for _ in workers), strict=True)
        for worker in workers:
            worker.join()
        delays_s, memory_mb = np.concatenate(delays), np.sum(memory, axis=0) / 1024
        table.add(
            f"{sum(shares):,}",
            f"{100 * np.mean(busy):.0f}",
            *(f"{memory_mb[place]:.0f}" for place in (seconds // 3, -1)),
            *(f"{np.percentile(delays_s, share):.2f}" for share in (50, 95, 99)),
            f"{max(0.0, max(took) - seconds):.1f}",
            sum(lost),
            f"{sum(alarms):,}",
            f"{1000 * np.dot(busy, took) / seconds / sum(shares):.3f}",
        )
        print(f"{number} streams: {100 * np.mean(busy):.0f} %", flush=True)
    return [table.close()]


def study_chunks(counts: list[int], seconds: int, num_cores: int) -> list[Table]:
    """The load, and the published way with the load that it holds, one after the other on the same cores."""
    starts, length = range(0, MADE_S * RATE_HZ, CHUNK_S * RATE_HZ), CHUNK_S * RATE_HZ
    bodies = [
        [json.dumps({"rate_hz": RATE_HZ, "mv": own[start : start + length]}).encode() for start in starts]
        for own in stretches(MOST_BEDS, MADE_S)
    ]
    chunks = measure_chunks(bodies, cores()[:num_cores], min(seconds, CHUNKS_S))
    return [*study_load(counts, seconds, num_cores), chunks]


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
    return [table.close()]


def signal_of(database: Database, record_id: str) -> tuple[np.ndarray, float]:
    recording = database.recording(record_id)
    return recording.signal(0, round(40 * recording.rate_hz), ecg_leads(recording, 1))[0], recording.rate_hz


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
        own = {"stream": name, "rate_hz": rate_hz, "mv": mv}
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--study", choices=("alarms", "load", "chunks", "links"), action="append")
    parser.add_argument("--work", type=Path, default=Path("build/monitor"), help="keeps the alarms that were found")
    parser.add_argument("--cinc2017", type=Path, help="folder with the training recordings of the Challenge 2017")
    parser.add_argument("--streams", type=int, nargs="+", default=[50, 100, 150, 200, 300])
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--cores", type=int, default=1, help="of the load")
    parser.add_argument("--links", type=int, default=1000)
    settings = parser.parse_args()
    torch.set_num_threads(1)
    for study in settings.study or ("alarms", "load", "chunks", "links"):
        if study == "alarms":
            write_results("monitor-alarms", "Alarms of live streams", study_alarms(settings.cinc2017, settings.work))
        elif study == "load":
            write_results(
                "monitor-load",
                "Streams that cores hold",
                study_load(settings.streams, settings.seconds, settings.cores),
            )
        elif study == "chunks":
            title = "The published way next to heartlm"
            write_results("monitor-chunks", title, study_chunks(settings.streams, settings.seconds, settings.cores))
        else:
            write_results("monitor-links", "Hostile links", study_links(settings.links))


if __name__ == "__main__":
    main()
