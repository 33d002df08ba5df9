"""Write a simulated database as WFDB records and a `database.json` with their patients."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from heartlm.ecg.recording import Annotations
from heartlm.formats.write_annotations import wfdb_annotations
from heartlm.formats.write_wfdb import annotation_bytes, write_signals
from heartlm.simulate.config import SimulationConfig
from heartlm.simulate.patients import PROFILES, SimulatedPatient, draw_splits, num_recordings
from heartlm.simulate.synthesis import simulate_recording
from heartlm.storage.atomic import atomic_folder, sha256_of, write_json

GAIN = 200.0
"""Analogue-to-digital units (adu) per mV, as in mitdb."""

BASELINE = 1024
"""The adu value of 0 mV. With 11 bits the range is −5.12 to 5.115 mV, as in mitdb."""

VERSION = "1.0.0"
"""Version of the simulated database; it changes if the same settings produce different bytes."""


def simulate_database(folder: Path, config: SimulationConfig) -> None:
    """Write a simulated database to `folder` atomically, replacing an existing one.

    Each recording is written as `.hea`, `.dat` (format 212) and `.atr`. The folder also contains `RECORDS`,
    `SHA256SUMS.txt`, and `database.json` with patients and splits.

    Raises:
        HeartlmError: the folder cannot be written.
    """
    with atomic_folder(folder) as temporary:
        patients = {}
        for index in range(config.patients):
            for session in range(num_recordings(config.seed, index)):
                record_id = f"s{index + 1:04d}" + ("b" if session else "")
                signal, annotations = simulate_recording(config, index, session)
                patient = SimulatedPatient(config.seed, index)
                diagnoses = PROFILES[patient.profile].diagnosis
                comments = [
                    f"<age>: {patient.age}  <sex>: {patient.sex}  <diagnoses>: {diagnoses}",
                    f"Simulated by heartlm (patient {index + 1} of seed {config.seed}): no human being's heart",
                ]
                write_record(temporary, record_id, signal, config.leads, config.rate_hz, annotations, comments)
                patients[record_id] = f"p{index + 1:04d}"
        splits = draw_splits(config.seed, config.patients)
        about = {
            "name": config.name,
            "title": "Simulated electrocardiograms with beat and rhythm annotations",
            "version": VERSION,
            "simulated": True,
            "seed": config.seed,
            "beat_labels": True,
            "rhythm_labels": True,
            "patients": patients,
            "splits": {f"p{index + 1:04d}": split for index, split in enumerate(splits)},
        }
        finish_database(temporary, patients, about)


def digitise(signal_mv: NDArray[np.float32]) -> NDArray[np.int64]:
    """Convert mV to 11-bit adu with saturation; same shape as `signal_mv`."""
    return np.asarray(np.clip(np.rint(signal_mv * GAIN) + BASELINE, 0, 2047), np.int64)


def write_record(
    folder: Path,
    record_id: str,
    signal_mv: NDArray[np.float32],
    leads: Sequence[str],
    rate_hz: float,
    annotations: Annotations,
    comments: list[str],
) -> None:
    """Write `.hea`, `.dat` (format 212) and `.atr` of one record; `signal_mv` is `[num_leads, num_samples]`."""
    write_signals(
        folder,
        record_id,
        digitise(signal_mv),
        signal_format="212",
        rate_hz=rate_hz,
        leads=leads,
        gain=GAIN,
        baseline=BASELINE,
        comments=comments,
    )
    content = annotation_bytes(*wfdb_annotations(annotations), rate_hz)
    (folder / f"{record_id}.atr").write_bytes(content)


def finish_database(folder: Path, record_ids: Iterable[str], about: Mapping[str, object]) -> None:
    """Write RECORDS, `database.json` and the SHA-256 of every file in the format of `sha256sum` and PhysioNet."""
    (folder / "RECORDS").write_text("".join(f"{record_id}\n" for record_id in record_ids))
    write_json(folder / "database.json", about)
    files = sorted(folder.iterdir())
    text = "".join(f"{sha256_of(file)} {file.name}\n" for file in files)
    (folder / "SHA256SUMS.txt").write_text(text)
