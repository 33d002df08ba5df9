"""Every event that is reported keeps to the definition of its kind, which the page states."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
from numpy.random import Generator
from numpy.typing import NDArray

from heartlm.analysis import analyze
from heartlm.analysis.analyze import Analyst
from heartlm.analysis.findings import KINDS, QUALITY_S, Event, Findings
from heartlm.analysis.flutter import SHARE
from heartlm.analysis.limits import Limits
from heartlm.analysis.stages import DOUBTFUL, UNREADABLE, AnalysedBlock
from heartlm.analysis.unlike import USUAL
from heartlm.delineation.delineate import Delineation
from heartlm.delineation.intervals import Intervals, measure
from heartlm.ecg.recording import Patient, Recording
from heartlm.labels.waveform import ASYSTOLE, CLASSES, NOISE, VF, VT
from heartlm.simulate.config import SimulationConfig
from heartlm.simulate.synthesis import simulate_recording

LEADS = ("I", "V1")
CASES = 50


class Seconds(NamedTuple):
    """Which seconds of a made recording the models mark, which have a poor signal, and which have none in part."""

    marked: dict[str, NDArray[np.bool_]]
    poor: NDArray[np.bool_]
    lost: NDArray[np.bool_]


def numbers(text: str) -> list[float]:
    """Numbers of a definition; V1 and V6 are names of leads."""
    return [float(each) for each in re.findall(r"\b\d+(?:\.\d+)?", text)]


def broken(findings: Findings, seconds: Seconds | None = None) -> list[str]:
    """Sentences on events that do not keep to the definition of their kind in `findings.kinds`."""
    faults = list[str]()
    sample, symbol, rate_hz = findings.sample, findings.symbol, findings.recording.rate_hz
    readable, num_samples = findings.readable(), findings.recording.num_samples
    is_male = findings.recording.patient.sex == "male"
    for event in findings.events:
        limits = numbers(findings.kinds[event.kind])
        first, stop = np.searchsorted(sample, [event.start, event.stop]).tolist()
        inside, num = symbol[first:stop], stop - first
        rr_s = np.diff(sample[first:stop]) / rate_hz
        rate = 60 / rr_s.mean() if num > 1 else float("nan")
        lasting_s = (event.stop - event.start) / rate_hz
        between_s = (sample[stop - 1] - sample[first]) / rate_hz if num else 0.0

        def require(holds: bool, what: str, event: Event = event) -> None:
            if not holds:
                faults.append(f"{event}: {what}")

        require(0 <= event.start < event.stop <= num_samples, "outside of the recording")
        require(0 <= event.confidence <= 1 + 1e-6, "confidence")
        require(event.num_beats in (0, num), f"{num} beats are in it")
        require(np.isnan(event.rate_bpm) or abs(event.rate_bpm - rate) < 1e-6 * rate, f"its beats have {rate}/min")
        of_beats = event.num_beats > 0 and sample[first] == event.start and sample[stop - 1] + 1 == event.stop
        is_clear = bool(readable[first : stop - 1].all())

        def wave_lasts(shortest: float, event: Event = event, lasting_s: float = lasting_s) -> None:
            require(lasting_s >= shortest - 1 / rate_hz, f"lasts {lasting_s} s", event)
            if seconds is not None:
                edges = np.minimum(np.round(np.arange(len(seconds.poor) + 1) * rate_hz), num_samples)
                within = (edges[:-1] >= event.start) & (edges[1:] <= event.stop) & (np.diff(edges) > 0)
                # VF has no beats by which a signal is good
                is_vf = event.kind in ("VF", "VT") and bool((within & seconds.marked["VF"]).any())
                unread = seconds.lost if is_vf else seconds.lost | seconds.poor
                may_be_unread = is_vf or event.kind == "unreadable"
                own = within & seconds.marked[event.kind] & ~(unread & (event.kind != "unreadable"))
                own_s = np.diff(edges)[own].sum() / rate_hz
                require(own_s >= shortest - 1 / rate_hz, f"{own_s} s of it are so", event)
                require(may_be_unread or not (within & unread).any(), "unreadable in part", event)

        match event.kind, limits:
            case "VF" | "flutter", [*_, shortest]:
                wave_lasts(shortest)
            case "asystole", [shortest]:
                if of_beats:
                    require(num == 2 and between_s >= shortest and is_clear, f"{between_s} s between {num} beats")
                else:
                    wave_lasts(shortest)
                    require(num == 0, f"{num} beats")
            case "VT", [fewest, slowest, shortest]:
                require(np.isnan(event.rate_bpm) or event.rate_bpm >= slowest, "slow")
                if not (of_beats and (inside == "V").all() and num >= fewest and is_clear):
                    wave_lasts(shortest)
            case "IVR", [fewest, fastest]:
                require(of_beats and (inside == "V").all() and num >= fewest and is_clear, "no run")
                require(event.rate_bpm < fastest, "fast")
            case "SVT", [fewest, slowest]:
                require(of_beats and (inside == "S").all() and num >= fewest and is_clear, "no run")
                require(event.rate_bpm >= slowest, "slow")
            case "AF", [shortest]:
                is_all = (first, stop) == (0, len(sample))
                require(is_all or between_s >= shortest - 1 / rate_hz, f"{between_s} s, not all beats")
                require(is_clear or bool(findings.short_af), "unreadable in part")
            case "pause", [shortest]:
                require(num == 2 and between_s >= shortest and is_clear, f"{between_s} s between {num} beats")
            case "bradycardia", [fastest, fewest]:
                require(num >= fewest and is_clear and event.rate_bpm < fastest, f"{num} beats")
            case "tachycardia", [slowest, fewest]:
                require(num >= fewest and is_clear and event.rate_bpm > slowest, f"{num} beats")
            case "bigeminy" | "trigeminy" | "quadrigeminy" as kind, [repeats]:
                period = {"bigeminy": 2, "trigeminy": 3, "quadrigeminy": 4}[kind]
                ventricular = np.flatnonzero(inside == "V")
                require(np.array_equal(ventricular, np.arange(0, num, period)), "another pattern")
                require(len(ventricular) >= repeats and is_clear, f"{len(ventricular)} ventricular beats")
            case "couplet", []:
                require(num == 2 and (inside == "V").all() and is_clear, "no couplet")
            case "AV block I", [above]:
                require(event.interval_ms > above, "short")
            case "AV block III", [fastest, fewest]:
                require(num >= fewest and is_clear and event.rate_bpm <= fastest, f"{num} beats")
            case "junctional", [slowest, fastest, fewest]:
                require(num >= fewest and is_clear and (inside == "N").all(), f"{num} beats")
                require(slowest - 1 < event.rate_bpm <= fastest, "another rate")
            case "LBBB" | "long QT", [others, men, *_]:
                require(event.interval_ms >= (men if is_male else others), "short")
            case "RBBB" | "wide QRS", [least]:
                require(event.interval_ms >= least, "short")
            case "unreadable", [shortest, shortest_lost]:
                if longest_lost_s(findings, event) < shortest_lost:
                    wave_lasts(shortest)
            case _:
                faults.append(f"{event}: no check of {limits}")
    return faults


def longest_lost_s(findings: Findings, event: Event) -> float:
    """Longest stretch in an event in which no analysed lead has a valid sample, in seconds."""
    signal = findings.recording.signal(event.start, event.stop, findings.leads)
    lost = np.flatnonzero(np.diff(np.isnan(signal).all(axis=0), prepend=False, append=False)).reshape(-1, 2)
    return float(np.diff(lost, axis=1).max(initial=0)) / findings.recording.rate_hz


def drawn_runs(rng: Generator, num: int, values: Sequence[float], longest: int) -> NDArray[np.float64]:
    """Draw `num` values that stay the same for up to `longest` places."""
    lengths = rng.integers(1, longest + 1, num)
    return np.repeat(rng.choice(values, num), lengths)[:num]


def drawn_beats(rng: Generator, duration_s: float, rate_hz: float) -> tuple[NDArray[np.int64], NDArray[np.str_]]:
    """Draw beats of many rhythms, some with rates and pauses that are just at a limit."""
    rr_s, symbols = list[float](), ""
    rhythms = ("N", "S", "SS", "SSSN", "V", "VV", "VVV", "VN", "VNN", "VNNN", "NV", "SVN", "F", "NSSVN", "VVNVN")
    while sum(rr_s) < duration_s:
        part = (str(rng.choice(rhythms)) * int(rng.integers(1, 20)))[: int(rng.integers(1, 40))]
        usual = float(rng.choice([0.3, 0.45, 0.59, 60 / 101, 0.6, 0.61, 0.8, 1.0, 1.19, 1.2, 1.21, 1.5]))
        spread = float(rng.choice([0, 0.002, 0.05, 0.3]))
        rr_s += (usual * (1 + spread * rng.uniform(-1, 1, len(part)))).tolist()
        if rng.random() < 0.3:
            rr_s[-1] = float(rng.choice([1.9, 1.999, 2.0, 2.5, 3.999, 4.0, 6.0, 9.0]))
        symbols += part
    sample = np.round(np.cumsum(rr_s) * rate_hz).astype(np.int64)
    kept = sample < duration_s * rate_hz - 1
    return sample[kept], np.array(list(symbols))[kept]


def drawn_waves(rng: Generator, recording: Recording, sample: NDArray[np.int64]) -> Intervals:
    """Draw waves of beats whose intervals differ from stretch to stretch, around the limits of the findings."""
    rate_hz, num = recording.rate_hz, len(sample)
    pr, qrs, qt = (
        np.round(drawn_runs(rng, num, values, 400) / 1000 * rate_hz + rng.integers(-1, 2, num)).astype(np.int64)
        for values in ([150.0, 195.0, 205.0, 300.0], [90.0, 119.0, 121.0, 131.0, 145.0], [380.0, 475.0, 485.0, 500.0])
    )
    scattered = drawn_runs(rng, num, [0.0, 0.0, 1.0], 60) > 0
    pr[scattered] = np.round(rng.uniform(0.1, 0.6, num) * rate_hz).astype(np.int64)[scattered]
    waves = np.full((num, 3, 3), -1, np.int64)
    onset = sample - round(0.05 * rate_hz)
    waves[:, 1] = np.stack([onset, sample, onset + qrs], axis=1)
    waves[:, 2] = (onset + qt)[:, None] - np.array([2, 1, 0])
    with_p = drawn_runs(rng, num, [0.0, 1.0], 60) > 0
    waves[with_p, 0] = (onset - pr)[with_p, None] + np.array([0, 1, 2])
    waves = np.where((waves < 0) | (waves >= recording.num_samples), -1, waves)
    leads = tuple(range(recording.num_leads))
    sure = np.ones((num, len(leads), 3), np.float32)
    of_leads = np.repeat(waves[:, None], len(leads), axis=1)
    return measure(Delineation(recording, leads, sample, of_leads, sure, waves, sure[:, 0], ()))


def drawn_case(rng: Generator) -> tuple[Recording, AnalysedBlock, Seconds]:
    """Draw a recording and all that the models, detectors and delineation may say of it."""
    rate_hz = float(rng.choice([90.0, 127.97, 128.0, 250.0, 360.0]))
    duration_s = float(
        rng.choice([rng.uniform(2, 45), rng.uniform(2, 45), rng.uniform(45, 200), rng.uniform(45, 200), 700.0])
    )
    num_samples = round(duration_s * rate_hz)
    num_seconds, piece = -int(-num_samples // rate_hz), round(QUALITY_S * rate_hz)
    sample, symbol = drawn_beats(rng, num_samples / rate_hz, rate_hz)
    start, num = np.round(np.arange(num_seconds) * rate_hz), len(sample)

    lost = np.zeros(num_samples, np.bool_)
    for lasting_s in rng.choice([0.2, 1.0, 1.3, 3.0], int(rng.integers(0, 3))):
        begin = int(rng.integers(num_samples))
        lost[begin : begin + round(lasting_s * rate_hz)] = True
    stretches = np.flatnonzero(np.diff(lost, prepend=False, append=False)).reshape(-1, 2)
    after_lost, is_lost = np.zeros(num, np.bool_), np.zeros(num_seconds, np.bool_)
    for first, stop in stretches.tolist():
        after_lost[(sample <= first) & (np.append(sample[1:], sample[-1:]) > first)] = True
        is_lost |= (stop - first >= rate_hz) & (start < stop) & (np.append(start[1:], num_samples) > first)

    low, doubtful = UNREADABLE - 0.2, (UNREADABLE + DOUBTFUL) / 2
    quality = drawn_runs(rng, -(-num_samples // piece), [1.0, 1.0, 1.0, doubtful, low], 3)
    of_second = quality[np.minimum(start // piece, len(quality) - 1).astype(np.int64)]
    wave = drawn_runs(rng, num_seconds, [0, 0, 0, VT, VF, ASYSTOLE, NOISE], int(rng.integers(2, 12))).astype(np.int64)
    probability = np.full((num_seconds, len(CLASSES)), 0.01)
    probability[np.arange(num_seconds), wave] = rng.choice([0.55, 0.96])
    flutter = drawn_runs(rng, num_seconds, [0.0, 0.0, SHARE + 0.2], 12)
    of_beats = np.full((num, 4), 0.02, np.float32)
    of_beats[np.arange(num), ["NSVF".index(each) for each in symbol]] = 0.94

    signal = np.zeros((len(LEADS), num_samples), np.float32)
    ends = np.array([[0.3], [-0.3]]) * rng.choice([-1, 1])  # of QRS complexes, whose signs tell the side of a block
    for beat in sample.tolist():
        signal[:, beat + round(0.02 * rate_hz) : beat + round(0.12 * rate_hz)] = ends
    signal[:, lost] = np.nan
    num_leads = int(rng.integers(1, len(LEADS) + 1))
    recording = Recording.from_array(signal[:num_leads], rate_hz=rate_hz, leads=LEADS[:num_leads])
    recording = replace(recording, patient=Patient(sex=str(rng.choice(["male", "female", ""]))))
    block = AnalysedBlock(
        sample=sample,
        no_beat=rng.random(num) < rng.choice([0, 0.02]),
        disputed=rng.random(num) < 0.1,
        lost=after_lost,
        probability=of_beats,
        paced=np.zeros(num, np.bool_),
        likeness=np.full(num, np.nan, np.float32),
        several=np.zeros(num, np.bool_),
        shape=np.full((num, 2, num_leads), [[rng.choice([0.9, 0.9, 0.2])], [1.0]], np.float32),
        seconds=probability,
        waves=drawn_runs(rng, num_seconds, [0.0, 0.0, 1.0], 12),
        regular=drawn_runs(rng, num_seconds, [0.0, 0.0, 1.0], 12) > 0,
        flutter=flutter,
        atrial=np.maximum(flutter, drawn_runs(rng, num_seconds, [0.0, 0.4], 60)),
        quality=np.repeat(quality.astype(np.float32)[:, None], num_leads, axis=1),
        readable=np.repeat(quality.astype(np.float32)[:, None], num_leads, axis=1),
        stretches=stretches.astype(np.int64),
        all_off=np.empty((0, 2), np.int64),
        measures=np.empty((0, len(USUAL))),
    )
    poor = (of_second == low) | ((wave == NOISE) & (of_second == doubtful))
    marked = {"VF": wave == VF, "asystole": wave == ASYSTOLE, "flutter": flutter > 0, "unreadable": poor | is_lost}
    marked["VT"] = (wave == VT) | marked["VF"]  # VF with regular waves is VT
    return recording, block, Seconds(marked, poor, is_lost)


def drawn_limits(rng: Generator) -> Limits:
    """Draw the usual limits, or others."""
    if rng.random() < 0.5:
        return Limits()
    return Limits(
        pause_s=float(rng.choice([1.5, 2.5])),
        asystole_s=float(rng.choice([3.0, 6.0])),
        bradycardia_bpm=float(rng.choice([40, 60])),
        bradycardia_beats=int(rng.integers(2, 12)),
        tachycardia_bpm=float(rng.choice([90, 130])),
        tachycardia_beats=int(rng.integers(2, 30)),
        vt_bpm=float(rng.choice([100, 120.5])),
        run_beats=int(rng.integers(3, 6)),
    )


def test_every_event_of_drawn_beats_and_seconds_keeps_to_its_definition(
    analyst: Analyst, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng, kinds = np.random.default_rng(0), set[str]()

    def af_answers(_: object, codes: Iterator[NDArray[np.uint16]], __: int) -> Iterator[NDArray[np.float32]]:
        for each in codes:
            score = drawn_runs(rng, len(each), [0.02, 0.98], 120)
            yield np.stack([1 - score, score], axis=1).astype(np.float32)

    monkeypatch.setattr(analyze, "recording_probabilities", af_answers)
    monkeypatch.setattr(analyze, "best_leads", lambda recording, candidates: tuple(range(recording.num_leads)))
    for case in range(CASES):
        recording, block, seconds = drawn_case(rng)
        monkeypatch.setattr(Analyst, "_block", lambda *_, block=block: block)
        monkeypatch.setattr(
            analyze,
            "_waves",
            lambda recording, sample, _: drawn_waves(rng, recording, sample) if len(sample) > 5 else None,
        )
        findings = analyst.analyze(recording, limits=drawn_limits(rng))
        assert not broken(findings, seconds), f"case {case}: {recording.rate_hz:g} Hz, {recording.duration_s} s"
        kinds |= {event.kind for event in findings.events}
    # these need the shape of P waves, or few beats without one: tests/test_analysis_av_block.py
    assert kinds | {"junctional"} == set(KINDS) - {"AV block II", "Wenckebach"}


@pytest.mark.parametrize(
    ("patient", "seconds", "gap_s"),
    [
        (12, 59.7, 0.0),
        (14, 60.0, 3.2),
        (33, 29.4, 0.0),
        (34, 45.0, 1.0),
        (35, 40.3, 0.0),
        (19, 10.1, 0.0),
        (19, 3.7, 0.0),
    ],
)
def test_every_event_of_simulated_recordings_keeps_to_its_definition(
    analyst: Analyst, patient: int, seconds: float, gap_s: float
) -> None:
    config = SimulationConfig(minutes=1.0, seed=3)
    signal = simulate_recording(config, patient)[0][:, : round(seconds * config.rate_hz)]
    signal[:, round(20 * config.rate_hz) : round((20 + gap_s) * config.rate_hz)] = np.nan
    findings = analyst.analyze(Recording.from_array(signal, rate_hz=config.rate_hz, leads=config.leads))
    assert not broken(findings)
