"""Cases of bedside alarms, and what the rules of the monitor are given, by which its rules are chosen.

Cases are made of recordings: 90 s of two leads of mitdb and svdb that end with an alarm. In a true case the last
seconds show what it says: annotated VT and flutter, and beats of the patient set closer, further apart, in a row of
ventricular ones, or ended, for good or for 4 to 5 s; each of them once more with a fault in one lead. In a false one
they show the patient's own rhythm, one near the limits, or a fault: noise of nstdb at -6 to 6 dB, wander, steps, a lead
that falls off, lies flat, shrinks or sways, and movements of both electrodes at the rates of VF. VF is cudb's, of one
lead. Rules are chosen by DS1, the paced recordings, svdb and cudb.
"""

from __future__ import annotations

import pickle
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import heartlm.databases.splits as splits
from heartlm.databases.database import Database, open_database
from heartlm.ecg.recording import Recording
from heartlm.models.pretrained import find_run
from heartlm.monitor.alarms import Alarm
from heartlm.monitor.models import LiveModels
from heartlm.monitor.rules import JudgedSeconds, LeadSecond
from heartlm.monitor.stream import LiveStream, Ward, watched_leads
from heartlm.simulate.config import SimulationConfig
from heartlm.simulate.write import simulate_database
from heartlm.tasks.load import load_finetuned
from lab.places import DATA, annotations_of, labels_of

CASE_S = 90
LAST_S = 12.0
"""An alarm in the last seconds of a case belongs to it."""
PER_PATIENT = 2
TOGETHER = 16
"""Cases that are watched together."""
PACED = ("102", "104", "107", "217")

Seconds = list[tuple[int, list[LeadSecond], tuple[float, int] | None]]
"""What the rules get, second by second: the samples so far, the results of each lead, and the probability of AF."""


@dataclass
class Case:
    """`signal_mv` is float32 `[num_leads, num_samples]` and ends with an alarm, of `kinds` that are true."""

    name: str
    patient: str
    what: str
    kinds: tuple[str, ...]
    rate_hz: float
    signal_mv: np.ndarray


def cases(noise: Path, test: bool) -> list[Case]:
    """All cases of the test or of the choice, the same ones each time."""
    noises = noises_of(noise)
    mitdb, svdb = open_database(DATA / "mitdb"), open_database(DATA / "svdb")
    if test:
        return [case for name in splits.DS2 for case in of_recording(f"mitdb/{name}", mitdb.recording(name), noises)]
    out = list[Case]()
    for name in (*splits.DS1, *PACED):
        out += of_recording(f"mitdb/{name}", mitdb.recording(name), noises)
    for name in svdb.record_ids:
        out += of_recording(f"svdb/{name}", svdb.recording(name), noises)
    cudb = open_database(DATA / "cudb")
    for record_id in cudb.record_ids:
        recording = cudb.recording(record_id)
        spans = [span for span in annotations_of(recording).rhythms if span.name in ("VFIB", "VFL")]
        for span in spans[:1]:
            stop = min(span.stop, span.start + round(9 * recording.rate_hz), recording.num_samples)
            start = stop - round(CASE_S * recording.rate_hz)
            if start >= 0 and stop - span.start >= 6 * recording.rate_hz:
                signal = recording.signal(start, stop, watched_leads(recording))
                out.append(Case(f"cudb/{record_id}", f"cudb/{record_id}", "VF", ("VF",), recording.rate_hz, signal))
    return out


def noises_of(folder: Path) -> Noises:
    """Rate and signal of muscle noise and baseline wander of nstdb."""
    database, noises = open_database(folder), Noises()
    for name in ("ma", "bw"):
        recording = database.recording(name)
        noises[name] = recording.rate_hz, recording.signal(0, recording.num_samples, (0, 1))
    return noises


def of_recording(name: str, recording: Recording, noises: Noises) -> list[Case]:
    """Cases of one recording of two leads."""
    choose, out, rate_hz = random.Random(name), list[Case](), recording.rate_hz
    beats = annotations_of(recording)
    symbols = np.array(list("NSVFQ?"))[beats.beat_classes()]
    leads = watched_leads(recording)
    length = round(CASE_S * rate_hz)

    def cut(stop: int) -> np.ndarray:
        return recording.signal(stop - length, stop, leads).copy()

    def add(what: str, kinds: tuple[str, ...], signal: np.ndarray) -> None:
        """One case, and if it is true another one with a fault in one of its leads."""
        signal = signal[:, -length:].astype(np.float32)
        out.append(Case(f"{name} {what} {len(out)}", name, what, kinds, rate_hz, signal))
        if kinds:
            fault = choose.choice(OF_ONE_LEAD)
            other = spoiled(signal, fault, rate_hz, choose, noises).astype(np.float32)
            out.append(Case(f"{name} {what} {len(out)}", name, f"{what}, one lead disturbed", kinds, rate_hz, other))

    rhythms = [span for span in beats.rhythms if span.name in ("VT", "VFL", "VFIB")]
    for span in rhythms[:3]:
        inside = (beats.sample >= span.start) & (beats.sample < span.stop)
        stop = min(span.stop + round(rate_hz), recording.num_samples, span.start + round(9 * rate_hz))
        if stop < length:
            continue
        if span.name == "VT" and inside.sum() >= 5:
            add("annotated VT", ("VT",), cut(stop))
        elif span.name != "VT" and stop - span.start >= 6 * rate_hz:
            add("annotated flutter", ("VF", "VT"), cut(stop))
    for _ in range(PER_PATIENT):
        # 90 s of which the end shows what the patient always has
        stop = choose.randrange(length, recording.num_samples)
        near = (beats.sample > stop - 30 * rate_hz) & (beats.sample < stop)
        if any(span.start < stop and span.stop > stop - 30 * rate_hz for span in rhythms) or near.sum() < 12:
            continue
        if by_annotations(beats.sample[near], symbols[near], rate_hz):
            continue
        clean = cut(stop)
        add("clean", (), clean)
        for what in choose.sample(FAULTS, 4):
            add(what, (), spoiled(clean, what, rate_hz, choose, noises))
        for what in MOVEMENTS:  # numbers of their own, so that the other cases stay as they were
            signal = moved(clean, what, rate_hz, random.Random(f"{name} {what} {stop}"))
            out.append(Case(f"{name} {what} {len(out)}", name, what, (), rate_hz, signal))
        places = beats.sample[near] - (stop - length)
        normal, v = places[~np.isin(symbols[near], ["V", "F"])], places[symbols[near] == "V"]
        if len(normal) > 8:
            onset = int(normal[-4] + 0.45 * rate_hz)
            kept = clean[:, :onset]
            pieces = [beat_of(clean, int(place), rate_hz) for place in normal[-8:-4]]
            silence = np.hstack([kept, quiet_line(kept, choose.uniform(5.2, 8), rate_hz, choose)])
            add("ended", ("asystole",), silence)
            pause = np.hstack([kept, quiet_line(kept, choose.uniform(4.0, 5.0), rate_hz, choose)])
            add("pause", ("asystole",), chain(pause, pieces, 0.8, choose.randint(2, 4), rate_hz, choose))
            slow = chain(kept, pieces, choose.uniform(1.6, 2.3), choose.randint(5, 6), rate_hz, choose)
            add("slow", ("extreme bradycardia",), slow)
            less = chain(kept, pieces, choose.uniform(1.2, 1.35), 8, rate_hz, choose)
            add("less slow", (), less)
            fast = chain(kept, pieces, choose.uniform(0.34, 0.41), choose.randint(19, 26), rate_hz, choose)
            add("fast", ("extreme tachycardia",), fast)
            add("less fast", (), chain(kept, pieces, choose.uniform(0.48, 0.58), 24, rate_hz, choose))
        if len(v):
            kept = clean[:, : int(places[-6] + 0.4 * rate_hz)]
            pieces = [beat_of(clean, int(place), rate_hz, 0.3) for place in v[-3:]]
            pieces = [piece for piece in pieces if piece.shape[1]]
            if pieces:
                rr_s, num = choose.uniform(0.33, 0.55), choose.randint(6, 14)
                run = chain(kept, pieces, rr_s, num, rate_hz, choose)
                add("V in a row", ("VT",), run)
                usual = [beat_of(clean, int(place), rate_hz) for place in normal[-8:-4]]
                back = chain(run, usual, 0.8, 4, rate_hz, choose)
                add("V in a row, ended", ("VT",), back)
                few = chain(kept, pieces, rr_s, choose.randint(2, 3), rate_hz, choose)
                add("two or three V", (), chain(few, usual, 0.8, 4, rate_hz, choose))
    return out


OF_ONE_LEAD = ("muscle on one", "motion on one", "loose", "flat", "small on one", "sway on one")
FAULTS = (*OF_ONE_LEAD, "muscle", "motion", "small", "wander", "sway")
MOVEMENTS = ("regular movement", "irregular movement")
Noises = dict[str, tuple[float, np.ndarray]]


def spoiled(clean: np.ndarray, what: str, rate_hz: float, choose: random.Random, noises: Noises) -> np.ndarray:
    """The case with a fault in its last seconds."""
    signal, seconds = clean.copy(), choose.uniform(6, 18)
    num = round(seconds * rate_hz)
    tail = signal[:, -num:]
    hit = [choose.randrange(len(signal))] if what.endswith("one") or what in ("loose", "flat") else range(len(signal))
    times = np.arange(num) / rate_hz
    for lead in hit:
        own = tail[lead]
        height = float(np.percentile(np.abs(own - np.median(own)), 99))
        if what.startswith("muscle"):
            add_noise(own, noises["ma"], lead, height, rate_hz, choose)
        elif what.startswith("motion"):  # wander, and steps that decay, each of which may look like a beat
            add_noise(own, noises["bw"], lead, height, rate_hz, choose)
            for _ in range(round(seconds * choose.uniform(0.3, 2))):
                place = choose.randrange(num)
                after = times[: num - place]
                own[place:] += height * choose.uniform(-2, 2) * np.exp(-after / choose.uniform(0.05, 0.4))
        elif what == "loose":
            own[:] = choose.choice([5.0, -5.0, 0.0])
        elif what == "flat":
            own[:] = np.median(own) + 0.01 * np.random.default_rng(choose.randrange(99)).normal(size=num)
        elif what.startswith("small"):
            own[:] = np.median(own) + (own - np.median(own)) * choose.uniform(0.08, 0.3)
        elif what == "wander":
            own += height * choose.uniform(1, 4) * np.sin(2 * np.pi * choose.uniform(0.2, 0.7) * times)
        else:
            hz, wobble = choose.uniform(2.5, 7), choose.uniform(0.5, 1.5)
            phase = 2 * np.pi * hz * times + wobble * np.sin(2 * np.pi * 0.4 * times)
            own += height * choose.uniform(0.5, 1.5) * np.sin(phase)
    return signal


def moved(clean: np.ndarray, what: str, rate_hz: float, choose: random.Random, size: float = 0.0) -> np.ndarray:
    """The case with a movement of both electrodes in its last seconds, as large as beats or larger.

    With a `size` the movement is this number of times as large and lasts as long as the case.
    """
    signal, num = clean.copy(), round(choose.uniform(6, 18) * rate_hz)
    num, size = (signal.shape[1], size) if size else (num, 1.0)
    times = np.arange(num) / rate_hz
    for own in signal[:, -num:]:
        height = float(np.percentile(np.abs(own - np.median(own)), 99))
        if what == "regular movement":  # percussion, brushing, tremor: a rate that wanders, and two harmonics
            turns = 2 * np.pi * choose.uniform(1.5, 8) * times + choose.uniform(0, 6)
            turns += choose.uniform(0.2, 2) * np.sin(2 * np.pi * choose.uniform(0.1, 0.6) * times)
            wave = np.sin(turns)
            for harmonic, most in ((2, 0.6), (3, 0.4)):
                wave += choose.uniform(-most, most) * np.sin(harmonic * turns + choose.uniform(0, 6))
            wave *= 1 + choose.uniform(0, 0.8) * np.sin(2 * np.pi * choose.uniform(0.1, 0.8) * times)
            own += size * height * choose.uniform(0.4, 2.5) * wave
        else:
            noise = np.random.default_rng(choose.randrange(2**31))
            hz = np.fft.rfftfreq(num, 1 / rate_hz)
            passed = (hz > choose.uniform(0.3, 1.5)) & (hz < choose.uniform(3, 9))
            wave = np.fft.irfft(np.fft.rfft(noise.normal(size=num)) * passed, num)
            knots = np.arange(0, times[-1] + 1, 0.7)
            wave *= np.interp(times, knots, np.abs(noise.normal(size=len(knots)))) / wave.std()
            own += size * height * choose.uniform(0.3, 1.5) * wave
    return signal.astype(np.float32)


def add_noise(
    own: np.ndarray,
    noise: tuple[float, np.ndarray],
    lead: int,
    height: float,
    rate_hz: float,
    choose: random.Random,
    snr_db: float | None = None,
) -> None:
    """Add noise of nstdb, by default at -6 to 6 dB: its RMS to that of a sine as high as a beat, as nstdb counts."""
    noise_hz, signal = noise
    length = round(len(own) / rate_hz * noise_hz)
    first = choose.randrange(signal.shape[1] - length - 1)
    piece = signal[lead % 2, first : first + length]
    piece = np.interp(np.linspace(0, length - 1, len(own)), np.arange(length), piece)
    snr_db = choose.uniform(-6, 6) if snr_db is None else snr_db
    own += (piece - piece.mean()) / piece.std() * height / 8**0.5 * 10 ** (-snr_db / 20)


def beat_of(signal: np.ndarray, place: int, rate_hz: float, after_s: float = 0.26) -> np.ndarray:
    """One beat without most of its diastole; empty at the edge."""
    first, last = place - round(0.1 * rate_hz), place + round(after_s * rate_hz)
    return signal[:, first:last] if first >= 0 and last <= signal.shape[1] else signal[:, :0]


def quiet_line(kept: np.ndarray, seconds: float, rate_hz: float, choose: random.Random) -> np.ndarray:
    """A lead without beats: a slow wander and a little noise, from where the signal stands."""
    num, noise = round(seconds * rate_hz), np.random.default_rng(choose.randrange(2**31))
    times = np.arange(num) / rate_hz
    height = np.percentile(np.abs(kept[:, -num:] - np.median(kept, axis=1)[:, None]), 99, axis=1)
    slow = 0.08 * np.sin(2 * np.pi * choose.uniform(0.1, 0.35) * times) * height[:, None]
    fine = noise.normal(size=(5, len(kept), num)).mean(axis=0)
    level = np.median(kept[:, -round(2 * rate_hz) :], axis=1)[:, None]
    start = (kept[:, -1:] - level) * np.exp(-times / 0.15)
    line: np.ndarray = level + start + slow + 0.03 * height[:, None] * fine
    return line


def chain(
    kept: np.ndarray, pieces: list[np.ndarray], rr_s: float, num: int, rate_hz: float, choose: random.Random
) -> np.ndarray:
    """`kept`, and then `num` beats each `rr_s` after the one before, joined by straight lines."""
    parts, end = [kept], kept[:, -1]
    for place in range(num + 1):
        own = pieces[place % len(pieces)]
        step = max(own.shape[1] + 2, round(rr_s * rate_hz * choose.uniform(0.97, 1.03)))
        if own.shape[1] + 2 > rr_s * rate_hz:
            own = own[:, : round(rr_s * rate_hz) - 2]
            step = own.shape[1] + 2
        gap = step - own.shape[1]
        ramp = np.linspace(0, 1, gap)[None]
        parts.append(end[:, None] * (1 - ramp) + own[:, :1] * ramp)
        if place < num:
            parts.append(own)
            end = own[:, -1]
        else:  # a beat is known only when something came after it
            parts.append(np.repeat(own[:, :1], round(0.8 * rate_hz), axis=1))
    return np.hstack(parts)


def by_annotations(sample: np.ndarray, symbols: np.ndarray, rate_hz: float) -> bool:
    """Whether the patient's own rhythm comes near one of the alarms."""
    rr_s = np.diff(sample) / rate_hz
    runs = max((len(run) for run in "".join(symbols).replace("F", "V").split("N") if set(run) <= {"V"}), default=0)
    means = [np.convolve(rr_s, np.ones(num) / num, "valid") for num in (4, 16) if len(rr_s) >= num]
    return bool(rr_s.max() > 3 or runs >= 4 or means[0].max() > 1.35 or means[-1].min() < 60 / 130)


class RecordingWard(Ward):
    """A ward that keeps what its rules are given, second by second, by stream."""

    def __init__(self, models: LiveModels) -> None:
        super().__init__(models)
        self.given = defaultdict[str, Seconds](list)

    def _apply_rules(
        self, streams: list[LiveStream], seconds: JudgedSeconds, rhythms: Mapping[str, tuple[float, int]]
    ) -> dict[str, list[Alarm]]:
        lead = 0
        for stream in streams:
            own = [seconds.of_lead(lead + each) for each in range(len(stream.leads))]
            now, lead = stream.first_sample(stream.num_seconds), lead + len(own)
            self.given[stream.name].append((now, own, rhythms.get(stream.name)))
        return super()._apply_rules(streams, seconds, rhythms)


def judged(models: LiveModels, own_cases: list[Case]) -> dict[str, Seconds]:
    """What the rules get of cases that are watched together, second by second."""
    ward = RecordingWard(models)
    for case in own_cases:
        ward.add(case.name, case.rate_hz, num_leads=len(case.signal_mv))
        ward.push(case.name, case.signal_mv)
    ward.run()
    return {case.name: ward.given[case.name] for case in own_cases}


def judged_recordings(
    models: LiveModels, database: Database, record_ids: Sequence[str], together: int = TOGETHER
) -> Iterator[tuple[Case, Seconds]]:
    """Each recording as a case, and what the rules get of it."""
    for begin in range(0, len(record_ids), together):
        own_cases = list[Case]()
        for record_id in record_ids[begin : begin + together]:
            recording = database.recording(record_id)
            signal = recording.signal(0, recording.num_samples, watched_leads(recording))
            own_cases.append(Case(record_id, record_id, database.name, (), recording.rate_hz, signal))
        found = judged(models, own_cases)
        print(database.name, begin + len(own_cases), "of", len(record_ids), flush=True)
        for case in own_cases:
            yield case, found[case.name]


def given(models: LiveModels, all_cases: list[Case], work: Path) -> dict[str, Seconds]:
    """What the rules get of each case; kept in `work`."""
    path = work / "given.pickle"
    found: dict[str, Seconds] = pickle.loads(path.read_bytes()) if path.exists() else {}
    left = [case for case in all_cases if case.name not in found]
    for begin in range(0, len(left), TOGETHER):
        found |= judged(models, left[begin : begin + TOGETHER])
        if begin % 160 == 0 or begin + TOGETHER >= len(left):
            path.write_bytes(pickle.dumps(found))
            print(begin, "of", len(left), flush=True)
    return found


def normal_recordings(folder: Path, others: bool = False) -> list[str]:
    """Recordings of cinc2017 labelled normal that no live model was trained on: those of 200 drawn with seed 0.

    With `others` those that were not drawn. The 200 were drawn before the beats model learnt from cinc2017.
    """
    by_waveform, by_beats = (
        {patient.split("/")[-1] for patient in load_finetuned(run, "last").folder.trained_on[0]["patients"]}
        for run in (find_run(Path("waveform")), find_run(Path("beats-causal")))
    )
    normal = [name for name, label in labels_of(folder).items() if label == "N" and name not in by_waveform]
    drawn = set(random.Random(0).sample(normal, 200))
    return sorted((set(normal) - drawn if others else drawn) - by_beats)


def simulated_patients(folder: Path, num: int, seed: int) -> Database:
    """The database of this number of patients, ten minutes each; made if there is none."""
    if not folder.exists():
        simulate_database(folder, SimulationConfig(patients=num, minutes=10, seed=seed, name=folder.name))
    return open_database(folder)
