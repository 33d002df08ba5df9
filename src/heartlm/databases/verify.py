"""Verify a database: compare every file with the database's description of it, and report each fault on one line.

The checks cover the list of SHA-256 sums, headers, lengths and checksums of signals, calibration, empty leads, and
annotations outside the recording or out of order. Repairs that the readers made are listed; files stay as they are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from heartlm.databases.database import Database, open_database
from heartlm.ecg.recording import Recording
from heartlm.errors import HeartlmError
from heartlm.formats.annotation_file import positions_at_rate, read_annotation_file
from heartlm.formats.wfdb_header import read_header
from heartlm.storage.atomic import sha256_of
from heartlm.storage.foreign import LIST_BYTES, read_bytes, stays_inside
from heartlm.system.engine import ONE_PROCESS, EngineOptions
from heartlm.system.processes import Lost, run_each, within_limit
from heartlm.system.progress import track

_SUMS = ("SHA256SUMS.txt", "SHA256SUMS")
# Samples of a recording that are read at once, as many leads as fit, at least one: a day of a lead has 80 MB.
_READ_BYTES = 1 << 27


@dataclass(frozen=True)
class Finding:
    """A fault of a file. An error makes part of the file unusable; a warning does not."""

    file: Path
    severity: Literal["error", "warning"]
    message: str


@dataclass(frozen=True)
class _Samples:
    """What is compared between recordings: one with the same samples must be of the same patient.

    Attributes:
        path: path of the recording.
        patient_id, split: its patient and split.
        digest: digest of all samples.
        varies: whether a lead is not flat.
    """

    path: Path
    patient_id: str
    split: str
    digest: bytes
    varies: bool


def verify_database(folder: Path, options: EngineOptions = ONE_PROCESS) -> list[Finding]:
    """Check every file of the database in `folder` by an engine; return an empty list if no fault is found.

    Raises:
        HeartlmError: the folder does not exist or contains no recording, or a scheduler was lost.
    """
    database = open_database(folder, repaired="accept")
    findings, first_with = list(_sum_findings(database.folder)), dict[bytes, tuple[str, _Samples]]()
    record_ids = database.record_ids
    processes = options.processes_for(len(record_ids))
    with closing(run_each(_Check(database), record_ids, options, processes)) as outcomes:
        for record_id, outcome in zip(record_ids, track(outcomes, len(record_ids), "verify"), strict=True):
            if isinstance(outcome, Lost):
                findings.append(Finding(database.files(record_id).stem, "error", outcome.reason))
                continue
            of_record, samples = outcome
            findings += of_record
            if samples is None or not samples.varies:
                continue
            other_id, other = first_with.setdefault(samples.digest, (record_id, samples))
            if other.patient_id != samples.patient_id:
                findings.append(
                    Finding(
                        samples.path,
                        "warning" if other.split == samples.split else "error",
                        f"holds the samples of {other_id}, yet they count as two patients ({other.split} and "
                        f"{samples.split}); remove one, or give both one patient in database.json",
                    )
                )
    return findings


@dataclass(frozen=True)
class _Check:
    """Check of one record; returns the faults of its files, and its samples if it has any."""

    database: Database

    def __call__(self, record_id: str) -> tuple[list[Finding], _Samples | None]:
        samples = list[_Samples]()
        with within_limit():
            found = _record_findings(self.database, record_id, samples)
            findings = list(_until_error(self.database.files(record_id).stem, found))
        return findings, samples[0] if samples else None


def _until_error(file: Path, findings: Iterator[Finding]) -> Iterator[Finding]:
    """Yield `findings` and the error that ends them. An error message without `FILE: ` is attributed to `file`."""
    try:
        yield from findings
    except HeartlmError as error:
        name, separator, message = str(error).partition(": ")
        yield Finding(Path(name), "error", message) if separator else Finding(file, "error", str(error))


def _sum_findings(folder: Path) -> Iterator[Finding]:
    """Compare the files with the database's list of SHA-256 sums, if it has one."""
    sums = next((folder / name for name in _SUMS if (folder / name).is_file()), None)
    if sums is None:
        return
    for number, line in enumerate(read_bytes(sums, LIST_BYTES).decode("utf-8", "replace").splitlines(), 1):
        digest, _, name = line.partition(" ")
        name = name.strip(" *")
        path = folder / name
        if name and not stays_inside(name):
            yield Finding(sums, "error", f"line {number} names {name!r}, a file outside of the database")
            continue
        if not name or len(digest) != 64:
            yield Finding(sums, "warning", f"line {number} is not a SHA-256 sum and a file name")
        elif not path.is_file():
            yield Finding(path, "warning", f"listed in {sums.name} and missing")
        elif sha256_of(path) != digest.lower():
            yield Finding(path, "error", f"differs from its SHA-256 in {sums.name}: damaged or changed, fetch it again")


def _record_findings(database: Database, record_id: str, samples: list[_Samples]) -> Iterator[Finding]:
    """Check the files of one record, and add its samples to `samples`."""
    recording = database.recording(record_id)
    if recording.path.suffix == ".hea":
        refused = not database.known.uncalibrated
        consequence = "its signal is refused" if refused else "200 adu/mV are assumed"
        for part in read_header(recording.path).parts:
            for lead in part.signals:
                if not lead.calibrated:
                    message = f"lead {lead.name} has gain 0 (uncalibrated): {consequence}"
                    yield Finding(part.path, "error" if refused else "warning", message)
    if recording.has_signal:
        yield from _until_error(recording.path, _lead_findings(database, recording, samples))
    yield from (Finding(recording.path, "error", fault) for fault in recording.faults)
    yield from (Finding(recording.path, "warning", repair) for repair in recording.repairs)
    for path in database.annotation_paths(record_id):
        yield from _until_error(path, _annotation_findings(path, recording))


def _lead_findings(database: Database, recording: Recording, samples: list[_Samples]) -> Iterator[Finding]:
    """Find leads that are empty, have gaps or are flat."""
    content, varies = hashlib.blake2b(), False
    at_once = max(1, _READ_BYTES // (4 * max(1, recording.num_samples)))
    for first in range(0, recording.num_leads, at_once):
        leads = list(range(first, min(first + at_once, recording.num_leads)))
        for index, lead in zip(leads, recording.signal(leads=leads), strict=True):
            name, valid = recording.lead_names[index], lead[np.isfinite(lead)]
            content.update(lead.tobytes())
            is_flat = len(valid) == 0 or valid.min() == valid.max()
            varies |= not is_flat
            if len(valid) == 0:
                yield Finding(recording.path, "warning", f"lead {name} has no valid sample")
            elif is_flat:
                yield Finding(recording.path, "warning", f"lead {name} is flat throughout")
            elif len(valid) < len(lead):
                what = f"lead {name}: {len(lead) - len(valid)} of {len(lead)} samples are invalid"
                yield Finding(recording.path, "warning", what)
    split = database.split_of(recording.record_id)
    samples.append(_Samples(recording.path, recording.patient_id, split, content.digest(), varies))


def _annotation_findings(path: Path, recording: Recording) -> Iterator[Finding]:
    file = read_annotation_file(path, recording.ticks_hz)
    yield from (Finding(path, "error", fault.removeprefix(f"{path.name}: ")) for fault in file.faults)
    sample = positions_at_rate(file, recording.rate_hz)
    if disordered := int((np.diff(sample) < 0).sum()):
        yield Finding(path, "warning", f"{disordered} annotations stand before the one they follow; sorted on reading")
    past_end = (sample >= recording.num_samples) & (recording.num_samples > 0)
    for reason, outside in (("past the end", past_end), ("before the start", sample < 0)):
        if outside.any():
            yield Finding(
                path,
                "warning",
                f"{int(outside.sum())} annotations {reason} of the recording ({recording.num_samples} samples), "
                f"one at {sample[outside][-1]}; left out on reading",
            )
