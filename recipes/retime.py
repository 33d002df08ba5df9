"""Real beats on simulated rhythms: training recordings of arrhythmias that are rare in databases.

    python -m recipes.retime DATABASE FOLDER [--copies 2] [--beats 1500] [--no-labels] [--seed 0]

    recording ─► normal beats, divided into P wave and QRST ─┐
              └► sinus intervals ─► simulated rhythm ────────┴─► beats at new times ─► WFDB record

Patients with sustained supraventricular tachycardia are rare in databases, and a model that was not trained on any
classifies it as normal. Therefore the beats of a patient are placed at new times. The new rhythms are isolated and
repeated premature atrial beats, atrial runs that end in pauses, and sustained supraventricular tachycardia (all
annotated A). Rhythms that resemble them are added as negative examples: sinus tachycardia with slow onset and end,
arousal, respiratory arrhythmia, blocked beats, and atrial fibrillation at any rate (all N). The P wave of an ectopic
atrial beat is inverted, late or missing; the T wave is shortened with the interval. Ventricular premature beats are the
patient's own.

Labels state which beats are normal. Without labels the signal decides: a beat is normal if it has the usual QRS complex
and is on time, and ventricular if it has another QRS complex and is early. Beats on a simulated rhythm have labels by
construction, so unlabelled recordings can also provide training data for supraventricular beats.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from heartlm.databases.database import open_database
from heartlm.ecg.leads import ecg_channels
from heartlm.ecg.recording import Annotations, Recording
from heartlm.errors import HeartlmError
from heartlm.simulate.randomness import stream
from heartlm.simulate.write import finish_database, write_record
from heartlm.storage.atomic import atomic_folder
from heartlm.system.progress import track
from recipes.patient_rhythms import INVERTED, LATE, NONE, NORMAL, OWN, VENTRICULAR, PatientRhythms, PlannedBeat

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]

P_S, QRS_S, T_END_S = -0.25, -0.06, 0.45
"""Limits of the parts of a beat in seconds from the R peak: P wave from the first to the second, QRST to the third."""
QRS_END_S = 0.10
"""Time in seconds from the R peak after which a beat is stretched or shortened with its interval."""

FEWEST_INTERVALS, MOST_IRREGULAR = 300, 0.08
"""Minimum number of intervals between normal beats, and maximum median change of their logarithms, for a recording to
be used."""
FEWEST_VENTRICULAR = 10
"""Minimum number of a patient's ventricular beats for them to be placed."""

USUAL, OTHER = 0.9, 0.8
"""Correlation with the median QRS complex, without labels: a beat is usual at or above the first value, and may be
ventricular below the second."""
IN_TIME, FEWEST_IN_TIME = 0.15, 0.7
"""Limits without labels: a beat is on time if its interval deviates from the local median by at most the first
fraction; a recording is irregular if the fraction of such beats is below the second."""


def _cut(signal_mv: Floats, sample: NDArray[np.int64], part: NDArray[np.int64], rate_hz: float) -> Floats:
    """Extract a part of each beat, minus the line between its ends, with faded ends; `[num_beats, len(part)]`."""
    piece = signal_mv[sample[:, None] + part]
    mean, fade = max(2, round(0.02 * rate_hz)), max(3, round(0.03 * rate_hz))
    begin, end = piece[:, :mean].mean(axis=1), piece[:, -mean:].mean(axis=1)
    weight = np.ones(piece.shape[1])
    weight[:fade], weight[-fade:] = np.linspace(0, 1, fade), np.linspace(1, 0, fade)
    faded: Floats = ((piece - np.linspace(begin, end, piece.shape[1], axis=1)) * weight).astype(np.float32)
    return faded


def lay_out(
    plan: list[PlannedBeat], signal_mv: Floats, annotations: Annotations, first_beat: int, rng: Generator
) -> tuple[Floats, NDArray[np.int64]]:
    """Place the beats of one lead at new times.

    Args:
        plan: beats to place.
        signal_mv: samples of the lead without NaN, `[num_samples]`.
        annotations: beats of the lead.
        first_beat: index of the patient's beat to place first; the others follow in their original order.
        rng: random generator of the noise.

    Returns:
        The new lead in mV and the position of every beat of `plan`.
    """
    rate_hz, sample, symbol = annotations.rate_hz, annotations.sample, annotations.symbol
    reach, after, start = (round(at * rate_hz) for at in (-P_S, T_END_S, QRS_S))
    inside = (sample > reach + 2) & (sample < len(signal_mv) - after - 2)
    interval_s = np.maximum(np.diff(sample, prepend=sample[0] - round(0.8 * rate_hz)) / rate_hz, 0.2)
    pools = {code: np.flatnonzero(inside & (symbol == code)) for code in (NORMAL, VENTRICULAR)}
    # P wave of each normal beat and the rest of every beat, `[num_beats, num_points]`
    p_waves = _cut(signal_mv, sample[pools[NORMAL]], np.arange(-reach, start + 1), rate_hz)
    qrst_of = {code: _cut(signal_mv, sample[pool], np.arange(start, after), rate_hz) for code, pool in pools.items()}
    usual_p = np.median(p_waves, axis=0)
    late = round(0.05 * rate_hz)
    ectopic_p = {OWN: 0 * usual_p, INVERTED: -1.8 * usual_p, LATE: np.roll(usual_p, late) - usual_p, NONE: -usual_p}
    position = np.array([round(beat.at_s * rate_hz) for beat in plan], np.int64)
    new = np.zeros(position[-1] + 2 * round(rate_hz), np.float32)

    def add(first: int, piece: Floats) -> None:
        if first >= 0:
            new[first : first + len(piece)] += piece[: len(new) - first]

    for place, (beat, at) in enumerate(zip(plan, position.tolist(), strict=True)):
        code = VENTRICULAR if beat.symbol == VENTRICULAR else NORMAL
        source = (first_beat + place) % len(pools[code])
        qrst = qrst_of[code][source]
        if code == NORMAL:
            add(at - reach, p_waves[source] + ectopic_p[beat.p_wave])
            before_s = beat.at_s - (plan[place - 1].at_s if place else 0.0)
            stretch = np.clip(np.sqrt(before_s / interval_s[pools[code][source]]), 0.62, 1.2)
            head, tail = np.split(qrst, [round((QRS_END_S - QRS_S) * rate_hz)])
            longer = np.linspace(0, len(tail) - 1, max(4, int(len(tail) * stretch)))
            qrst = np.concatenate([head, np.interp(longer, np.arange(len(tail)), tail).astype(np.float32)])
        add(at + start, qrst)
    wander = np.convolve(np.resize(signal_mv, len(new)), np.ones(round(0.6 * rate_hz)) / round(0.6 * rate_hz), "same")
    noise = rng.normal(0, np.median(np.abs(np.diff(signal_mv))) / 1.5, len(new))
    return (new + 0.5 * (wander - np.median(wander)) + noise).astype(np.float32), position


def retime_database(
    folder: Path, out: Path, *, copies: int = 2, num_beats: int = 1500, seed: int = 0, labels: bool = True
) -> list[str]:
    """Write a database with the beats of another database's training patients on simulated rhythms.

    Args:
        folder: folder of the source database. Only recordings of its training split are used.
        out: folder to write. The new database has the source's name with the suffix `-retimed`; all of its recordings
            are in the training split.
        copies: number of new recordings per source recording.
        num_beats: approximate number of beats in each new recording.
        seed: random seed. The random numbers depend on the seed, the name of the recording and the copy.
        labels: whether to identify normal and ventricular beats by their labels instead of by the signal.

    Returns:
        Names of the unusable training recordings: without a signal or beats (with `labels`: labelled beats), or with an
        irregular rhythm.

    Raises:
        HeartlmError: a recording is unreadable, no recording is usable, or `out` cannot be written.
    """
    database = open_database(folder)
    training = [record_id for record_id in database.record_ids if database.split_of(record_id) == "train"]
    patients, skipped = dict[str, str](), list[str]()
    with atomic_folder(out) as temporary:
        for record_id in track(training, len(training), "retime"):
            recording = database.recording(record_id)
            annotations = database.annotations(record_id, recording)
            beats = None if annotations is None else source_beats(recording, annotations, labels)
            if beats is None or (intervals_s := sinus_intervals_s(beats)) is None:
                skipped.append(record_id)
                continue
            for copy in range(copies):
                name = f"{record_id.replace('/', '_')}_{copy + 1}"  # in one folder
                rng = stream(seed, *record_id.encode(), copy)
                num_ventricular = int((beats.symbol == VENTRICULAR).sum())
                plan = PatientRhythms(intervals_s, num_ventricular >= FEWEST_VENTRICULAR, rng).draw(num_beats)
                first_beat = int(rng.integers(1 << 20))
                leads = ecg_channels(recording)
                signals = np.nan_to_num(recording.signal(leads=leads))
                laid = [lay_out(plan, lead, beats, first_beat, rng) for lead in signals]
                symbol = np.array([beat.symbol for beat in plan], "<U1")
                new = Annotations(recording.rate_hz, laid[0][1], symbol)
                names = tuple(recording.lead_names[index] for index in leads)
                comments = [f"Beats of {database.name}/{record_id} on a rhythm drawn by heartlm, not of a patient"]
                signal_mv = np.stack([signal for signal, _ in laid])
                write_record(temporary, name, signal_mv, names, recording.rate_hz, new, comments)
                patients[name] = database.patient_of(record_id).split("/", 1)[-1]
        if not patients:
            raise HeartlmError(
                f"{folder}: no training recording can be retimed: each needs a signal, {'labelled ' if labels else ''}"
                f"beats and {FEWEST_INTERVALS} regular intervals between normal ones"
            )
        about = {
            "name": f"{database.name}-retimed",
            "title": f"Beats of {database.title} on drawn rhythms",
            "simulated": True,
            "beat_labels": True,
            "rhythm_labels": False,
            "patients": patients,
            "splits": dict.fromkeys(patients.values(), "train"),
        }
        finish_database(temporary, patients, about)
    return skipped


def source_beats(recording: Recording, annotations: Annotations, labels: bool) -> Annotations | None:
    """Return the beats of a recording with code N, V or empty (not placed); None if the recording is unusable.

    Args:
        recording: recording with a signal.
        annotations: beats of the recording.
        labels: whether to use the labels of the beats instead of the signal.
    """
    leads = ecg_channels(recording)
    if not leads or not recording.has_signal or (labels and not annotations.beats_labelled):
        return None
    if labels:
        classes = annotations.beat_classes().tolist()
        symbol = np.array([{0: NORMAL, 2: VENTRICULAR}.get(each, "") for each in classes], "<U1")
        return Annotations(annotations.rate_hz, annotations.sample, symbol)
    lead = np.nan_to_num(recording.signal(leads=leads[:1])[0])
    qrs = np.arange(round(QRS_S * recording.rate_hz), round(QRS_END_S * recording.rate_hz))
    sample = annotations.sample
    sample = sample[(sample + qrs[0] >= 0) & (sample + qrs[-1] < len(lead))]
    if len(sample) < FEWEST_INTERVALS:
        return None
    pieces = lead[sample[:, None] + qrs].astype(np.float64)
    pieces -= pieces.mean(axis=1, keepdims=True)
    usual = np.median(pieces, axis=0)
    size = np.linalg.norm(pieces, axis=1) * np.linalg.norm(usual)
    correlation = pieces @ usual / np.maximum(size, 1e-12)
    interval = np.diff(sample, prepend=sample[0]).astype(np.float64)
    interval[0] = interval[1]
    around = np.median(np.lib.stride_tricks.sliding_window_view(np.pad(interval, 5, mode="edge"), 11), axis=1)
    in_time = np.abs(interval / around - 1) <= IN_TIME
    if in_time.mean() < FEWEST_IN_TIME:
        return None
    early = interval < (1 - IN_TIME) * around
    symbol = np.where(
        (correlation >= USUAL) & in_time, NORMAL, np.where((correlation < OTHER) & early, VENTRICULAR, "")
    )
    return Annotations(recording.rate_hz, sample, symbol.astype("<U1"))


def sinus_intervals_s(beats: Annotations) -> Doubles | None:
    """Return the intervals between consecutive normal beats; None if they are too few or irregular."""
    normal = beats.symbol == NORMAL
    intervals_s = (np.diff(beats.sample) / beats.rate_hz)[normal[1:] & normal[:-1]]
    kept: Doubles = intervals_s[(intervals_s > 0.35) & (intervals_s < 2.0)]
    if len(kept) < FEWEST_INTERVALS or np.median(np.abs(np.diff(np.log(kept)))) > MOST_IRREGULAR:
        return None
    return kept


def new_folder(text: str) -> Path:
    """A folder that does not exist or is empty, as it would be replaced."""
    folder = Path(text)
    if folder.exists() and (folder.is_file() or any(folder.iterdir())):
        raise argparse.ArgumentTypeError(f"{folder} exists and is not empty: choose another name or remove it first")
    return folder


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m recipes.retime", description=__doc__.splitlines()[0])
    parser.add_argument("database", type=Path, help="folder of a database with signals and beats")
    parser.add_argument("folder", type=new_folder, help="output folder, new or empty")
    parser.add_argument("--copies", type=int, default=2, help="new recordings per training recording")
    parser.add_argument("--beats", type=int, default=1500, help="approximate number of beats of a new recording")
    parser.add_argument("--labels", action=argparse.BooleanOptionalAction, default=True, help="tell beats by labels")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args(arguments)
    how = {"copies": chosen.copies, "num_beats": chosen.beats, "seed": chosen.seed, "labels": chosen.labels}
    skipped = retime_database(chosen.database, chosen.folder, **how)
    print(f"{chosen.folder}: {chosen.copies} recordings of each training recording of {chosen.database}")
    if skipped:
        print(f"left out, irregular or without signal or beats: {', '.join(skipped)}")


if __name__ == "__main__":
    main()
