"""Noise is no VF, and VT is no VF: false alarms and events in noise, by hour, and what long VT is called.

    python -m studies.noise_alarms --work FOLDER --noise FOLDER [--every 3]

The recordings are those of lab/noisy_rhythms.py: DS1, svdb, cudb and simulated patients with faults, and VT made of
beats of DS1. `heartlm monitor` judges them as streams, `heartlm analyze` as recordings. Models and rules were
chosen by these patients, so the figures are no promise.

`--every 3` takes every third recording. An alarm or event is false if it begins in a fault, or up to 8 s after it, and
no rhythm that it may name is annotated within 10 s. Faults within 10 s of VF do not count as noise.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from heartlm.analysis.analyze import Analyst
from heartlm.ecg.recording import Recording
from heartlm.monitor.alarms import Alarm
from heartlm.monitor.models import LiveModels
from heartlm.monitor.stream import Ward
from heartlm.system.cores import limit_threads
from lab.measure import Table
from lab.noisy_rhythms import Fault, NoisyRhythm, noisy_rhythms, ventricular_tachycardias
from lab.output import write_results
from lab.places import options
from studies.monitor_alarms import LIFE_COLUMNS, SHOWN_BY, TOGETHER, life_of, met

KINDS = ("VF", "VT", "extreme tachycardia")
AFTER_S, NEAR_S, LEAST_VF_S = 8, 10, 4
VF_NAMES = ("VFIB", "VFL")


class Judged(NamedTuple):
    """A recording with faults, its alarms, and the start and stop in samples of each event of `analyze`, by kind."""

    rhythm: NoisyRhythm
    alarms: list[Alarm]
    events: list[Alarm]


def judged(models: LiveModels, analyst: Analyst, rhythms: Iterator[NoisyRhythm]) -> Iterator[Judged]:
    while batch := list(islice(rhythms, TOGETHER)):
        ward, alarms = Ward(models), defaultdict[str, dict[str, Alarm]](dict)
        for rhythm in batch:
            signal = rhythm.case.signal_mv
            ward.add(rhythm.case.name, rhythm.case.rate_hz, num_leads=len(signal))
            ward.push(rhythm.case.name, signal)
        for alarm in ward.run():
            alarms[alarm.stream][alarm.key] = alarm
        for rhythm in batch:
            rate_hz, name = rhythm.case.rate_hz, rhythm.case.name
            recording = Recording.from_array(rhythm.case.signal_mv, rate_hz=rate_hz, record_id="noisy")
            events = [
                Alarm(name, each.kind, each.start, each.start, each.stop, each.confidence, rate_hz)
                for each in analyst.analyze(recording).events
                if each.kind in KINDS
            ]
            yield Judged(rhythm, list(alarms[name].values()), events)
        print(batch[-1].case.name, flush=True)


def is_true(alarm: Alarm, rhythm: NoisyRhythm) -> bool:
    """Whether a rhythm that the alarm may name is annotated near it."""
    reach, end = NEAR_S * alarm.rate_hz, rhythm.case.signal_mv.shape[1]
    spans = [span for span in rhythm.rhythms if span.name in (*SHOWN_BY["VT"], *SHOWN_BY.get(alarm.kind, ()))]
    if alarm.kind == "VF":
        spans = [span for span in spans if span.name in VF_NAMES]
    return any(alarm.start <= span.stop + reach and (alarm.stop or end) >= span.start - reach for span in spans)


def noise_of(rhythm: NoisyRhythm) -> list[Fault]:
    """The faults that are not near VF."""
    reach = NEAR_S * rhythm.case.rate_hz
    vf = [span for span in rhythm.rhythms if span.name in VF_NAMES]
    return [
        fault
        for fault in rhythm.faults
        if not any(fault.start < span.stop + reach and fault.stop > span.start - reach for span in vf)
    ]


def in_noise(found: list[Judged]) -> Table:
    hours, false = defaultdict[str, float](float), Counter[tuple[str, str, str]]()
    for rhythm, alarms, events in found:
        num_leads, rate_hz = len(rhythm.case.signal_mv), rhythm.case.rate_hz
        for fault in noise_of(rhythm):
            whole = fault.everywhere or num_leads == 1
            rows = fault.what if whole else f"{fault.what}, one of two leads", f"all, {fault.strength_db} dB", "all"
            last = fault.stop + AFTER_S * rate_hz
            for row in rows:
                hours[row] += (fault.stop - fault.start) / rate_hz / 3600
                for by, own in (("alarms", alarms), ("events", events)):
                    inside = (each for each in own if fault.start < each.raised <= last)
                    false.update((row, by, each.kind) for each in inside if not is_true(each, rhythm))
    columns = [(by, kind) for by in ("alarms", "events") for kind in KINDS[: 3 if by == "alarms" else 2]]
    table = Table(
        "False ones in noise that is not VF: number (an hour of noise)",
        ("fault", "hours", *(f"{by}: {kind}" for by, kind in columns)),
    )
    for row in sorted(hours, key=lambda row: (row.startswith("all"), row)):
        counts = (false[row, by, kind] for by, kind in columns)
        table.add(row, f"{hours[row]:.2f}", *(f"{num} ({num / hours[row]:.1f})" for num in counts))
    return table


def of_vf(found: list[Judged]) -> Table:
    """Annotated VF with and without a fault over its first seconds."""
    columns = ("VF of 4 s and more", "episodes", "found", "s from onset to alarm, median", "95 %")
    table, groups = Table("True VF, by alarms of VF", columns), defaultdict[str, list[tuple[list[float], int]]](list)
    for rhythm, alarms, _ in found:
        rate_hz = rhythm.case.rate_hz
        for span in rhythm.rhythms:
            if span.name not in VF_NAMES or span.stop - span.start < LEAST_VF_S * rate_hz:
                continue
            reach = span.start + AFTER_S * rate_hz
            is_hit = any(fault.start < reach and fault.stop > span.start for fault in rhythm.faults)
            delays, _, _ = met(alarms, [span], ("VF",), rhythm.case.signal_mv.shape[1])
            groups["with a fault" if is_hit else "without"].append((delays, 1))
    for name, own in sorted(groups.items()):
        delays_s = [each for delays, _ in own for each in delays]
        median, most = np.percentile(delays_s, [50, 95]) if delays_s else (np.nan, np.nan)
        table.add(name, len(own), len(delays_s), f"{median:.1f}", f"{most:.1f}")
    return table


def of_tachycardias(found: list[Judged]) -> Table:
    """What made VT is called."""
    columns = [(by, kind) for by in ("alarms", "events") for kind in ("VT", "VF")]
    table = Table(
        "VT of 20 s made of V beats: called, %", ("what", "number", *(f"{by}: {kind}" for by, kind in columns))
    )
    rows = defaultdict[str, list[list[bool]]](list)
    for rhythm, alarms, events in found:
        (span,), end = rhythm.rhythms, rhythm.case.signal_mv.shape[1]
        last = span.stop + 5 * rhythm.case.rate_hz
        called = [
            any(each.kind == kind and each.raised <= last and (each.stop or end) >= span.start for each in own)
            for own in (alarms, events)
            for kind in ("VT", "VF")
        ]
        rows[rhythm.case.what + (", with a fault" if rhythm.faults else "")].append(called)
    for what, of_row in sorted(rows.items()):
        table.add(what, len(of_row), *(f"{100 * share:.0f}" for share in np.mean(of_row, axis=0)))
    return table


def main() -> None:
    settings = options(__doc__, "work", "noise", every=1).parse_args()
    limit_threads(1)
    models, analyst = LiveModels(), Analyst.load(Path("beats"), Path("af"), Path("waveform"))
    noisy = list(judged(models, analyst, islice(noisy_rhythms(settings.noise, settings.work), 0, None, settings.every)))
    made = list(judged(models, analyst, islice(ventricular_tachycardias(settings.noise), 0, None, settings.every)))
    life = Table(
        "Alarms (of these, raised again within 30 s after the end of one of their kind; median s)", LIFE_COLUMNS
    )
    lists = [(each.alarms, each.rhythm.case.signal_mv.shape[1]) for each in noisy]
    hours = sum(each.rhythm.case.signal_mv.shape[1] / each.rhythm.case.rate_hz for each in noisy) / 3600
    life.add("DS1, svdb, cudb and simulated patients, with faults", *life_of(lists, hours))
    write_results("noise-alarms", "Alarms in noise", [in_noise(noisy), of_vf(noisy), of_tachycardias(made), life])


if __name__ == "__main__":
    main()
