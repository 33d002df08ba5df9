"""Is a database whole? Every file is compared with what the database says of it, and every fault gets a line.

Checked are the list of SHA-256 sums, headers, lengths and checksums of signals, calibration, leads that hold nothing,
and annotations outside of the recording or out of order. Nothing is repaired.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from heartlm.ecg.database import Database, open_database
from heartlm.ecg.readers.annotation_file import positions_at_rate, read_annotation_file
from heartlm.ecg.readers.foreign import LIST_BYTES, read_bytes, stays_inside
from heartlm.ecg.readers.wfdb import checksums
from heartlm.ecg.readers.wfdb_header import Header, read_header
from heartlm.ecg.recording import Recording
from heartlm.errors import HeartlmError
from heartlm.files import sha256_of

_SUMS = ("SHA256SUMS.txt", "SHA256SUMS")


@dataclass(frozen=True)
class Finding:
    """A fault of a file: an error makes some of it unusable, a warning does not."""

    file: Path
    severity: Literal["error", "warning"]
    message: str


def verify_database(folder: Path) -> list[Finding]:
    """Check every file of the database in `folder`; an empty list means that nothing is wrong.

    Raises:
        HeartlmError: there is no such folder, or no recording in it.
    """
    database = open_database(folder)
    findings = list(verify_sums(database.folder))
    first_with = dict[bytes, str]()
    for record_id in database.record_ids:
        findings += verify_record(database, record_id, first_with)
    return findings


def verify_sums(folder: Path) -> Iterator[Finding]:
    """Compare the files with the SHA-256 sums that the database came with, where it came with any."""
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


def verify_record(database: Database, record_id: str, first_with: dict[bytes, str]) -> list[Finding]:
    """Check the files of one record; `first_with` gathers, by a digest of its samples, the first record with them."""
    try:
        recording = database.recording(record_id)
    except HeartlmError as error:
        return [_as_finding(database.files(record_id).stem, error)]
    findings: list[Finding] = []
    if recording.path.suffix == ".hea":
        findings += _wfdb_findings(read_header(recording.path), calibrated=not database.accepts_uncalibrated)
    if recording.has_signal:
        findings += _lead_findings(database, recording, first_with)
    told = {finding.message for finding in findings}
    findings += [Finding(recording.path, "error", fault) for fault in recording.faults if fault not in told]
    findings += _annotation_findings(database, recording)
    return findings


def _as_finding(file: Path, error: HeartlmError) -> Finding:
    """Turn `FILE: what is wrong` into a finding; `file` where the error names none."""
    name, separator, message = str(error).partition(": ")
    return Finding(Path(name), "error", message) if separator else Finding(file, "error", str(error))


def _wfdb_findings(header: Header, *, calibrated: bool) -> Iterator[Finding]:
    """Calibration and checksums of a record, or of each of its segments."""
    for part in header.parts:
        for lead in part.signals:
            if lead.calibrated:
                continue
            consequence = "its signal is refused" if calibrated else "200 adu/mV are assumed"
            severity: Literal["error", "warning"] = "error" if calibrated else "warning"
            yield Finding(part.path, severity, f"lead {lead.name} has gain 0 (uncalibrated): {consequence}")
        try:
            found = checksums(part)
        except HeartlmError:
            continue  # an unreadable signal is reported where its leads are looked at
        for checksum in found:
            if checksum.fault is not None:
                yield Finding(part.path, "warning" if checksum.stated == 0 else "error", checksum.fault)


def _lead_findings(database: Database, recording: Recording, first_with: dict[bytes, str]) -> Iterator[Finding]:
    """Leads without a valid sample, with gaps, or without any change; samples that are another record's."""
    try:
        signal = recording.signal()
    except HeartlmError as error:
        yield _as_finding(recording.path, error)
        return
    record_id, digest = recording.record_id, hashlib.blake2b(signal.tobytes()).digest()
    other = first_with.setdefault(digest, record_id)
    varies = signal.size > 0 and np.fmin.reduce(signal, axis=None) < np.fmax.reduce(signal, axis=None)
    if varies and database.patient_of(other) != recording.patient_id:
        severity: Literal["error", "warning"] = (
            "warning" if database.split_of(other) == database.split_of(record_id) else "error"
        )
        yield Finding(
            recording.path,
            severity,
            f"holds the samples of {other}, yet they count as two patients ({database.split_of(other)} and "
            f"{database.split_of(record_id)}); remove one, or give both one patient in database.json",
        )
    for name, lead in zip(recording.lead_names, signal, strict=True):
        valid = lead[np.isfinite(lead)]
        if len(valid) == 0:
            yield Finding(recording.path, "warning", f"lead {name} has no valid sample")
        elif valid.min() == valid.max():
            yield Finding(recording.path, "warning", f"lead {name} is flat throughout")
        elif len(valid) < len(lead):
            num_invalid = len(lead) - len(valid)
            yield Finding(recording.path, "warning", f"lead {name}: {num_invalid} of {len(lead)} samples are invalid")


def _annotation_findings(database: Database, recording: Recording) -> Iterator[Finding]:
    for path in database.annotation_paths(recording.record_id):
        try:
            file = read_annotation_file(path)
        except HeartlmError as error:
            yield _as_finding(path, error)
            continue
        yield from (Finding(path, "error", fault.removeprefix(f"{path.name}: ")) for fault in file.faults)
        sample = positions_at_rate(file, recording.rate_hz)
        disordered = int((np.diff(sample) < 0).sum())
        if disordered:
            yield Finding(
                path, "warning", f"{disordered} annotations stand before the one they follow; sorted on reading"
            )
        for reason, outside in (
            ("past the end", (sample >= recording.num_samples) & (recording.num_samples > 0)),
            ("before the start", sample < 0),
        ):
            if outside.any():
                worst = sample[outside][-1]
                yield Finding(
                    path,
                    "warning",
                    f"{int(outside.sum())} annotations {reason} of the recording ({recording.num_samples} samples), "
                    f"one at {worst}; left out on reading",
                )
