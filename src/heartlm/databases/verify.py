"""Verify a database: compare every file with the database's description of it, and report each fault on one line.

    lines of SHA256SUMS, recordings ─► workers ─► findings and a digest of the samples ─► compared across recordings
                                          └─ with a line of the same files and version in CHECKS ─► that line

The checks cover the list of SHA-256 sums, headers, lengths and checksums of signals, calibration, empty leads, and
annotations outside the recording or out of order. Repairs that the readers made are listed; files stay as they are.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from heartlm.databases.database import Database, open_database
from heartlm.databases.each_recording import build, source_digest
from heartlm.databases.journals import Journals, header_of
from heartlm.ecg.recording import Recording
from heartlm.errors import HeartlmError
from heartlm.formats.annotation_file import positions_at_rate, read_annotation_file
from heartlm.formats.wfdb_header import read_header
from heartlm.storage.atomic import append_line, atomic_file, sha256_of
from heartlm.storage.foreign import LIST_BYTES, read_bytes, stays_inside, version_of
from heartlm.storage.reading import each_json_line, parse_json
from heartlm.storage.typed import typed
from heartlm.system.engine import ONE_PROCESS, PartOptions
from heartlm.system.processes import Lost, run_each, within_limit
from heartlm.system.progress import track

_SUMS = ("SHA256SUMS.txt", "SHA256SUMS")
# Samples of a recording that are read at once, as many leads as fit, at least one: a day of a lead has 80 MB.
_READ_BYTES = 1 << 27
NAME, REPORT = "checks", "checks.jsonl"
Severity = Literal["error", "warning"]


@dataclass(frozen=True)
class Finding:
    """A fault of a file. An error makes part of the file unusable; a warning does not."""

    file: Path
    severity: Severity
    message: str


@dataclass(frozen=True)
class _Samples:
    """What is compared between recordings: those with the same samples must be of one patient.

    Attributes:
        path: path of the recording, relative to the database.
        patient, split: its patient and split.
        digest: digest of all samples, hexadecimal.
    """

    path: str
    patient: str
    split: str
    digest: str


@dataclass(frozen=True)
class _Checked:
    """What was found in a recording, or of a line of SHA256SUMS; a line of CHECKS.

    Attributes:
        of: name of the recording, or number and text of the line.
        source: digest of the files that were checked; empty if it is not known.
        findings: faults: file, relative to the database, severity and message.
        samples: those of a recording with a lead that is not flat.
    """

    of: str
    source: str
    findings: list[tuple[str, Severity, str]]
    samples: _Samples | None = None


def verify_database(folder: Path, options: PartOptions = ONE_PROCESS, out: Path | None = None) -> list[Finding]:
    """Check every file of the database in `folder`, or those of a part of it, by an engine.

    Args:
        folder: folder of the database.
        options: the engine.
        out: folder of what was found in each recording. What is there of the same files and version is kept. A part
            needs it; its recordings are compared with others by the command without a part.

    Returns:
        Faults, an empty list if there is none.

    Raises:
        HeartlmError: the folder does not exist or contains no recording, a scheduler was lost, or `out` is missing for
            a part, is of another database, or cannot be written.
    """
    options.check_engine()
    if out is None and options.part is not None:
        raise HeartlmError(f"part: {options.part} found without --out, the folder in which parts leave their results")
    database = open_database(folder, repaired="accept")
    sums, lines = _list_of_sums(database.folder)
    check, (index, num_parts) = _Check(database, sums, is_kept=out is not None), options.part_of
    units = list[_Unit](lines)
    units += database.record_ids
    units = units[index::num_parts]
    if out is None:
        return _findings(database.folder, units, _each_checked(check, units, {}, options))
    if out.resolve().is_relative_to(folder.resolve()):
        raise HeartlmError(f"out: {out} lies in the database; choose another folder")
    journals = Journals(out, NAME, options)
    header = {"folder": str(database.folder.absolute()), "heartlm": build()["heartlm"]}
    with journals.held():
        known = _known(journals, header)
        if header_of(journals.own) != header:
            journals.own.unlink(missing_ok=True)
            append_line(journals.own, json.dumps(header))
        checked = _each_checked(check, units, known, options, journals.own)
        if options.part is not None:
            return _findings(database.folder, units, checked, are_all=False)
        with atomic_file(out / REPORT) as stream:
            stream.write(f"{json.dumps(header)}\n")

            def written() -> Iterator[_Checked]:
                for each in checked:
                    if each.source:
                        stream.write(f"{json.dumps(asdict(each))}\n")
                    yield each

            findings = _findings(database.folder, units, written())
        journals.own.unlink()
        journals.remove_parts()
        return findings


def _known(journals: Journals, header: Mapping[str, str]) -> dict[str, str]:
    """Return the lines of earlier commands of this version, as JSON, by the names of what was checked.

    Raises:
        HeartlmError: the folder is of another database.
    """
    report, known = journals.folder / REPORT, dict[str, str]()
    for path in (report, journals.whole, *(journals.of_parts() if journals.options.part is None else [journals.own])):
        own = header_of(path)
        if own.get("folder", header["folder"]) != header["folder"] or (path == report and path.exists() and not own):
            raise HeartlmError(f"{path}: holds no checks of {header['folder']}; choose another folder with --out")
        if own == header:
            known |= {str(line.get("of")): json.dumps(line) for line in each_json_line(path)}
    return known


def _each_checked(
    check: _Check,
    units: Sequence[_Unit],
    known: Mapping[str, str],
    options: PartOptions,
    journal: Path | None = None,
) -> Iterator[_Checked]:
    """Yield what was found in each unit, from its line in `known` if nothing has changed; others go to a journal."""
    items = ((unit, known.get(check.name_of(unit))) for unit in units)
    processes = options.processes_for(len(units))
    with closing(run_each(check, items, options, processes)) as outcomes:
        for unit, outcome in zip(units, track(outcomes, len(units), "verify"), strict=True):
            if isinstance(outcome, Lost):  # which a repeated command tries again
                name = check.name_of(unit)
                file = check.database.files(name).stem if isinstance(unit, str) else check.sums
                yield _Checked(name, "", [(_name_in(check.database.folder, file), "error", outcome.reason)])
                continue
            checked, is_new = outcome
            if is_new and journal is not None:
                append_line(journal, json.dumps(asdict(checked)))
            yield checked


def _findings(
    folder: Path, units: Sequence[_Unit], each_checked: Iterator[_Checked], are_all: bool = True
) -> list[Finding]:
    """Return all findings; of all recordings also those with the samples of another one."""
    findings, first_with = list[Finding](), dict[bytes, tuple[int, str, str]]()
    for number, checked in enumerate(each_checked):
        findings += [Finding(folder / file, severity, message) for file, severity, message in checked.findings]
        if checked.samples is None or not are_all:
            continue
        samples = checked.samples
        own = number, sys.intern(samples.patient), sys.intern(samples.split)
        other, patient, split = first_with.setdefault(bytes.fromhex(samples.digest), own)
        if patient != samples.patient:
            findings.append(
                Finding(
                    folder / samples.path,
                    "warning" if split == samples.split else "error",
                    f"holds the samples of {units[other]}, yet they count as two patients ({split} and "
                    f"{samples.split}); remove one, or give both one patient in database.json",
                )
            )
    return findings


_Line = tuple[int, str]
_Unit = _Line | str
"""What is checked at a time: a line of SHA256SUMS with its number, or a recording."""


def _list_of_sums(folder: Path) -> tuple[Path, list[_Line]]:
    """Return the database's list of SHA-256 sums and its lines with their numbers; none if it has no list."""
    sums = next((folder / name for name in _SUMS if (folder / name).is_file()), None)
    if sums is None:
        return folder / _SUMS[0], []
    return sums, list(enumerate(read_bytes(sums, LIST_BYTES).decode("utf-8", "replace").splitlines(), 1))


@dataclass(frozen=True)
class _Check:
    """Check of a unit; returns what was found, and whether it was not known before."""

    database: Database
    sums: Path
    is_kept: bool

    def name_of(self, unit: _Unit) -> str:
        return unit if isinstance(unit, str) else f"{self.sums.name}, line {unit[0]}: {unit[1]}"

    def __call__(self, item: tuple[_Unit, str | None]) -> tuple[_Checked, bool]:
        unit, known = item
        folder, source = self.database.folder, self._source(unit) if self.is_kept else ""
        if known is not None:
            with suppress(HeartlmError, ValueError):
                checked = typed(_Checked, parse_json(known))
                bytes.fromhex(checked.samples.digest if checked.samples else "")
                if checked.source == source:
                    return checked, False
        samples = list[_Samples]()
        with within_limit():
            if isinstance(unit, str):
                file, found = self.database.files(unit).stem, _record_findings(self.database, unit, samples)
            else:
                file, found = self.sums, _sum_findings(self.sums, *unit)
            findings = [
                (_name_in(folder, each.file), each.severity, each.message) for each in _until_error(file, found)
            ]
        return _Checked(self.name_of(unit), source, findings, samples[0] if samples else None), True

    def _source(self, unit: _Unit) -> str:
        if isinstance(unit, str):
            return source_digest(self.database, unit)
        path = self.sums.parent / (name := _listed(unit[1])[1])
        return version_of(path) if stays_inside(name) and path.is_file() else "missing"


def _name_in(folder: Path, file: Path) -> str:
    return str(file.relative_to(folder) if file.is_relative_to(folder) else file.absolute())


def _until_error(file: Path, findings: Iterator[Finding]) -> Iterator[Finding]:
    """Yield `findings` and the error that ends them. An error message without `FILE: ` is attributed to `file`."""
    try:
        yield from findings
    except HeartlmError as error:
        name, separator, message = str(error).partition(": ")
        yield Finding(Path(name), "error", message) if separator else Finding(file, "error", str(error))


def _listed(line: str) -> tuple[str, str]:
    """Return the digest and the name of a file in a line of SHA256SUMS."""
    digest, _, name = line.partition(" ")
    return digest, name.strip(" *")


def _sum_findings(sums: Path, number: int, line: str) -> Iterator[Finding]:
    """Compare a file with its line in the database's list of SHA-256 sums."""
    digest, name = _listed(line)
    path = sums.parent / name
    if name and not stays_inside(name):
        yield Finding(sums, "error", f"line {number} names {name!r}, a file outside of the database")
    elif not name or len(digest) != 64:
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
    content, varies = hashlib.blake2b(digest_size=16), False
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
    if varies:
        path, split = _name_in(database.folder, recording.path), database.split_of(recording.record_id)
        samples.append(_Samples(path, recording.patient_id, split, content.hexdigest()))


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
