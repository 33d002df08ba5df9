"""Training data for detections that are no heartbeat: recordings with noise, and what the beat detector marks in them.

    python -m recipes.noisy_pieces DATABASE FOLDER [--noise FOLDER] [--pieces 24] [--seed 0]

    recording ─► pieces of one lead, 10 or 30 s ─► noise, pulses, electrode steps ─► detected beats
                                                              near a known beat: its class ┤
                                                              elsewhere: `|`, no heartbeat ┘─► WFDB record

Hand-held and bedside recordings hold movement pulses, settling electrodes and muscle noise, in which a detector marks
beats. A model whose classes are all heartbeats must name them, and names most of them ventricular.

The known beats are those of the annotators. In a recording that is labelled normal or atrial fibrillation as a whole,
without annotated beats, they are the detected ones that look alike: these are N; a detection that is unlike its
neighbours, and whose height or position no beat has, is `|`; all others are left unlabelled (`Q`). Such labels are
weak, but of thousands of people.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from heartlm.analysis.signal_quality import lead_quality
from heartlm.databases.database import Database, open_database
from heartlm.ecg.detect import detect_beats
from heartlm.ecg.leads import ecg_channels
from heartlm.ecg.matching import match_beats
from heartlm.ecg.recording import ARTEFACT, BEAT_CLASSES, Annotations, Recording
from heartlm.errors import HeartlmError
from heartlm.simulate.randomness import log_uniform, stream
from heartlm.simulate.write import finish_database, write_record
from heartlm.storage.atomic import atomic_folder
from heartlm.system.progress import track
from recipes.retime import new_folder

Floats = NDArray[np.float32]
Places = NDArray[np.int64]

PIECES_S = (10.0, 30.0)
"""Lengths in seconds of a new recording, drawn; shorter recordings are used whole."""
FEWEST_BEATS = 5
"""Pieces with fewer detected beats are left out."""
UNCHANGED = 0.2
"""Fraction of pieces to which no noise is added."""
ALIKE, UNLIKE = 0.85, 0.6
"""Without annotated beats: smallest correlation with a neighbour of a normal beat, and greatest of no beat."""
USUAL_HEIGHT = (0.5, 1.8)
NO_BEAT_HEIGHT = (0.35, 2.5)
"""Without annotated beats: heights, as fractions of the usual one, between which a normal beat lies, and outside which
a detection is no beat."""
EXTRA = 1.35
"""Without annotated beats: a detection whose neighbours are closer than this number of usual intervals is no beat."""
MOST_DOUBTFUL = 0.3
"""Recordings with a greater fraction of doubtful detections are left out."""


def noisy_database(folder: Path, out: Path, *, noise: Path | None = None, pieces: int = 24, seed: int = 0) -> list[str]:
    """Write a database of noisy pieces of another database's training recordings.

    Args:
        folder: folder of the source database: with labelled beats, or with recordings labelled normal or AF as a whole
            (CinC 2017). Only recordings of its training split are used.
        out: folder to write. The new database has the source's name with the suffix `-noisy`; all of its recordings
            are in the training split.
        noise: folder of recordings of noise alone, for example `bw` and `ma` of nstdb; None for pulses and steps only.
        pieces: number of pieces per source recording, half of them with an ectopic beat if there are any.
        seed: random seed. The random numbers depend on the seed, the name of the recording and the piece.

    Returns:
        Names of the unusable training recordings: without a signal or known beats.

    Raises:
        HeartlmError: a recording is unreadable, no recording is usable, or `out` cannot be written.
    """
    database = open_database(folder)
    sources = [] if noise is None else _noise(open_database(noise))
    training = [record_id for record_id in database.record_ids if database.split_of(record_id) == "train"]
    patients, skipped = dict[str, str](), list[str]()
    with atomic_folder(out) as temporary:
        for record_id in track(training, len(training), "noisy"):
            recording = database.recording(record_id)
            leads = ecg_channels(recording)
            if not leads or not (beats_by_lead := _known_beats(database, recording, leads)):
                skipped.append(record_id)
                continue
            for piece in range(pieces):
                rng = stream(seed, *record_id.encode(), piece)
                lead = list(beats_by_lead)[int(rng.integers(len(beats_by_lead)))]
                start, stop = _stretch(recording, beats_by_lead[lead], rng)
                clean = np.nan_to_num(recording.signal(start, stop, [lead])[0])
                beats = beats_by_lead[lead]
                inside = (beats.sample >= start) & (beats.sample < stop)
                known = Annotations(beats.rate_hz, beats.sample[inside] - start, beats.symbol[inside])
                heights = _heights(clean, known.sample, recording.rate_hz) if known.num_beats else np.ptp(clean)
                height = float(np.median(heights))
                signal = clean
                if rng.random() >= UNCHANGED:
                    signal = add_noise(clean, recording.rate_hz, height, sources, rng)
                beats = detections(signal, known)
                if beats.num_beats < FEWEST_BEATS:
                    continue
                name = f"{record_id.replace('/', '_')}_{piece + 1}"  # in one folder
                comments = [f"{database.name}/{record_id} from sample {start} on, noise added by heartlm"]
                names = (recording.lead_names[lead],)
                write_record(temporary, name, signal[None], names, recording.rate_hz, beats, comments)
                patients[name] = database.patient_of(record_id).split("/", 1)[-1]
        if not patients:
            raise HeartlmError(
                f"{folder}: no training recording can be used: each needs a signal, and labelled beats or the rhythm N "
                "or AFIB"
            )
        about = {
            "name": f"{database.name}-noisy",
            "title": f"{database.title} with noise",
            "simulated": True,
            "beat_labels": True,
            "rhythm_labels": False,
            "artefacts": True,
            "patients": patients,
            "splits": dict.fromkeys(patients.values(), "train"),
        }
        finish_database(temporary, patients, about)
    return skipped


def _noise(database: Database) -> list[tuple[Floats, float]]:
    """Return the leads of recordings of noise, each with its rate."""
    recordings = [database.recording(record_id) for record_id in database.record_ids]
    noise = [
        (np.nan_to_num(lead), each.rate_hz)
        for each in recordings
        if not (each.annotations and each.annotations.num_beats)
        for lead in each.signal()
    ]
    if not noise:
        raise HeartlmError(f"{database.folder}: no recording without annotated beats, so there is no noise alone")
    return noise


def _known_beats(database: Database, recording: Recording, leads: list[int]) -> dict[int, Annotations]:
    """Return the known beats of each lead that has any."""
    annotations = database.annotations(recording.record_id, recording)
    if annotations is None or recording.num_samples < FEWEST_BEATS * recording.rate_hz:
        return {}
    if annotations.num_beats:
        return dict.fromkeys(leads, annotations) if annotations.beats_labelled else {}
    rhythms = [span.name for span in annotations.rhythms]
    if rhythms not in (["N"], ["AFIB"]):
        return {}
    signals, regular = np.nan_to_num(recording.signal(leads=leads)), rhythms == ["N"]
    weak = {lead: weak_labels(signal, recording.rate_hz, regular) for lead, signal in zip(leads, signals, strict=True)}
    return {lead: beats for lead, beats in weak.items() if beats.num_beats >= FEWEST_BEATS}


def weak_labels(signal_mv: Floats, rate_hz: float, regular: bool = True) -> Annotations:
    """Return the detections in a lead without ectopic beats, as N, `|` or Q; none if too many are doubtful.

    Where beats are `regular`, an early detection may be no beat; in atrial fibrillation its time tells nothing.
    """
    quality = lead_quality(signal_mv, rate_hz)
    sample, height = quality.sample, _heights(signal_mv, quality.sample, rate_hz)
    nothing = Annotations(rate_hz, sample[:0], np.empty(0, "<U1"))
    if len(sample) < FEWEST_BEATS:
        return nothing
    height = height / np.median(height)
    interval = np.diff(sample)
    around = np.convolve(np.pad(interval, 1, mode="edge"), np.ones(2), "valid")  # of both intervals of each beat
    normal = (quality.likeness > ALIKE) & (height > USUAL_HEIGHT[0]) & (height < USUAL_HEIGHT[1])
    odd = (height < NO_BEAT_HEIGHT[0]) | (height > NO_BEAT_HEIGHT[1])
    if regular:
        odd |= around < EXTRA * np.median(interval)
    symbol = np.where(normal, "N", np.where((quality.likeness < UNLIKE) & odd, ARTEFACT, "Q")).astype("<U1")
    return nothing if np.mean(symbol == "Q") > MOST_DOUBTFUL else Annotations(rate_hz, sample, symbol)


def detections(signal_mv: Floats, known: Annotations) -> Annotations:
    """Return the detected beats of a lead: with the symbol of the known beat within 150 ms, or `|` without one."""
    sample = detect_beats(signal_mv, known.rate_hz)
    match = match_beats(known.sample, sample, known.rate_hz)
    symbol = np.full(len(sample), ARTEFACT, "<U1")
    symbol[match.detected] = known.symbol[match.reference]
    return Annotations(known.rate_hz, sample, symbol)


def add_noise(
    signal_mv: Floats, rate_hz: float, height_mv: float, sources: list[tuple[Floats, float]], rng: Generator
) -> Floats:
    """Add noise of the body and the electrodes to a lead: bursts of recorded noise, pulses, and a settling electrode.

    Args:
        signal_mv: lead in millivolts, `[num_samples]`.
        rate_hz: sampling rate in Hz.
        height_mv: usual height of a QRS complex, of which all heights are fractions.
        sources: recorded noise, each with its rate; may be empty.
        rng: random generator.
    """
    num = len(signal_mv)
    time_s, noise = np.arange(num) / rate_hz, np.zeros(num)
    if sources and rng.random() < 0.6:
        recorded, noise_hz = sources[int(rng.integers(len(sources)))]
        start = rng.uniform(0, max(0.0, len(recorded) / noise_hz - time_s[-1]))
        burst = np.interp((start + time_s) * noise_hz, np.arange(len(recorded)), recorded)
        burst -= burst.mean()
        if rng.random() < 0.6:
            begin = rng.uniform(0, time_s[-1])
            inside = (time_s >= begin) & (time_s < begin + rng.uniform(1, 10))
            ramp = max(1, round(0.2 * rate_hz))
            burst *= np.convolve(inside, np.ones(ramp) / ramp, "same")
        noise += burst * height_mv * log_uniform(rng, 0.05, 0.6) / max(2 * float(burst.std()), 1e-6)
    for _ in range(rng.poisson(1.5)):
        width_s, height = log_uniform(rng, 0.05, 0.35), log_uniform(rng, 0.5, 6.0) * rng.choice([-1, 1])
        phase = np.clip((time_s - rng.uniform(0, time_s[-1])) / width_s, -1, 1)
        shape = np.cos(np.pi * phase / 2) ** 2
        if rng.random() < 0.5:  # of several waves
            shape *= np.interp(phase, np.linspace(-1, 1, 12), rng.normal(0, 1, 12))
        elif rng.random() < 0.5:  # up and down
            shape *= np.sin(np.pi * phase)
        noise += height * height_mv * shape
    if rng.random() < 0.35:
        begin = 0.0 if rng.random() < 0.6 else rng.uniform(0, time_s[-1])
        height, decay_s = log_uniform(rng, 0.5, 8.0) * rng.choice([-1, 1]), log_uniform(rng, 0.05, 1.5)
        after = time_s >= begin
        noise[after] += height * height_mv * np.exp((begin - time_s[after]) / decay_s)
    return (signal_mv + noise).astype(np.float32)


def _stretch(recording: Recording, beats: Annotations, rng: Generator) -> tuple[int, int]:
    """Return first and last sample of a piece; half of the pieces hold an ectopic beat, if there are any."""
    length = min(recording.num_samples, round(rng.choice(PIECES_S) * recording.rate_hz))
    last = recording.num_samples - length
    ectopic = beats.sample[np.isin(beats.beat_classes(), [BEAT_CLASSES.index("S"), BEAT_CLASSES.index("V")])]
    start = int(rng.integers(0, last + 1))
    if len(ectopic) and rng.random() < 0.5:
        start = int(np.clip(rng.choice(ectopic) - rng.uniform(0, length), 0, last))
    return start, start + length


def _heights(signal_mv: Floats, sample: Places, rate_hz: float) -> NDArray[np.float64]:
    """Return the range of the signal within 0.1 s of each beat in millivolts, `[num_beats]`."""
    reach = round(0.1 * rate_hz)
    around = np.clip(sample[:, None] + np.arange(-reach, reach + 1), 0, len(signal_mv) - 1)
    return np.asarray(np.ptp(signal_mv[around], axis=1), np.float64)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m recipes.noisy_pieces", description=__doc__.splitlines()[0])
    parser.add_argument("database", type=Path, help="folder with labelled beats, or with recordings labelled normal")
    parser.add_argument("folder", type=new_folder, help="output folder, new or empty")
    parser.add_argument("--noise", type=Path, help="folder of recordings of noise alone, such as bw and ma of nstdb")
    parser.add_argument("--pieces", type=int, default=24, help="pieces per training recording")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args(arguments)
    how = {"noise": chosen.noise, "pieces": chosen.pieces, "seed": chosen.seed}
    skipped = noisy_database(chosen.database, chosen.folder, **how)
    print(f"{chosen.folder}: up to {chosen.pieces} pieces of each training recording of {chosen.database}")
    if skipped:
        print(f"left out, without signal or known beats: {len(skipped)} ({', '.join(skipped[:10])})")


if __name__ == "__main__":
    main()
