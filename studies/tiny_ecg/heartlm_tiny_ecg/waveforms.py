"""Labelled waveforms of single heartbeats, for TinyECG.

The first lead with a signal of each recording is read (MLII for most of mitdb). A window around every annotated beat is
resampled to one rate for all databases. The median of the window is subtracted, and the result is divided by the
running amplitude of the previous beats of the recording. So no information leaks between recordings, from test to
training patients, or from the future.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from heartlm.databases.database import Database, open_database
from heartlm.evaluation.beats import SCORED_CLASSES
from heartlm.tokenizers.waveform import BeatWindow, beat_waveforms

WINDOW = BeatWindow(before_s=0.2, after_s=0.4, rate_hz=60.0)
"""Window around the R peak in s, and its sampling rate in Hz.

Selected by cross-validation over patients of DS1. The receptive field of TinyECG, 11 samples, is then as long as a wide
QRS complex, and the window contains little except the beat."""

NUM_CLASSES = len(SCORED_CLASSES)
"""N, S, V and F; paced and unclassifiable beats are neither learnt nor scored, as in de Chazal 2004."""


@dataclass(frozen=True)
class Labelled:
    """A recording with labelled beats, described by its annotations.

    Attributes:
        database: folder of the database.
        record_id: name of the recording in the database.
        patient_id: patient, unique over databases.
        split: train, validation or test.
        counts: number of beats of each class, int64 `[NUM_CLASSES]`.
    """

    database: Database
    record_id: str
    patient_id: str
    split: str
    counts: NDArray[np.int64]


@dataclass(frozen=True)
class BeatSet:
    """Waveforms and labels of beats.

    Attributes:
        waveform: waveforms, float32 `[num_beats, 1, num_samples]`.
        label: class index, int8 `[num_beats]`.
        patient: names of the patients, `[num_beats]`.
    """

    waveform: NDArray[np.float32]
    label: NDArray[np.int8]
    patient: NDArray[np.str_]


def labelled_records(folders: Sequence[str | Path]) -> tuple[list[Labelled], list[str]]:
    """Look through databases for recordings whose beats were classified.

    Returns:
        The recordings, in the order of `folders` and their names; and what was left out, one line each.

    Raises:
        HeartlmError: a folder is no database, or an annotation file is unreadable.
    """
    labelled, left_out = list[Labelled](), list[str]()
    for folder in folders:
        database = open_database(Path(folder))
        for record_id in database.record_ids:
            recording, split = database.recording(record_id), database.split_of(record_id)
            annotations = database.annotations(record_id, recording)
            labels = np.zeros(0, np.int8) if annotations is None else annotations.beat_classes()
            counts = np.bincount(labels[_is_scored(labels)], minlength=NUM_CLASSES)
            if split != "excluded" and counts.any() and recording.has_signal:
                labelled.append(Labelled(database, record_id, database.patient_of(record_id), split, counts))
                continue
            why = "excluded" if split == "excluded" else "no signal" if counts.any() else "no labelled beats"
            left_out.append(f"{database.name}/{record_id}: {why}")
    return labelled, left_out


def beat_set(records: Iterable[Labelled]) -> BeatSet:
    """Read the waveforms of all labelled beats of `records`.

    Raises:
        HeartlmError: a recording is unreadable.
    """
    waveforms = [np.zeros((0, len(WINDOW.times_s)), np.float32)]  # of no recording, so that there may be none
    labels, patients = [np.zeros(0, np.int8)], [np.zeros(0, np.str_)]
    for each in records:
        recording = each.database.recording(each.record_id)
        annotations = each.database.annotations(each.record_id, recording)
        assert annotations is not None, "it had labelled beats"
        label, signal = annotations.beat_classes(), recording.signal(leads=[0])[0]
        recording.refuse_if_damaged()
        scored = _is_scored(label)
        waveforms.append(beat_waveforms(signal, annotations.sample, recording.rate_hz, WINDOW).shape[scored])
        labels.append(label[scored])
        patients.append(np.full(len(labels[-1]), each.patient_id))
    return BeatSet(np.concatenate(waveforms)[:, None], np.concatenate(labels), np.concatenate(patients))


def _is_scored(label: NDArray[np.int8]) -> NDArray[np.bool_]:
    return (label >= 0) & (label < NUM_CLASSES)
