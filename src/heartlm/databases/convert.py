"""Convert recordings of any format to WFDB, EDF+, ISHNE or Parquet: a recording or a folder, in parallel, resumable.

    database ─► recording ─► without identifying data? ─► files in a temporary folder ─► renamed, the main one last
                                                     └─► a line of the journal ─────► `convert.json`, at the end

Recordings of several sources may be converted to one folder, one after the other. The journal has one line for each
converted recording; each part of a conversion has a journal of its own. An interrupted conversion continues after the
recordings whose source is unchanged and whose files are there. A conversion with `anonymize` needs its secret key for
that, which lies in the user's cache until the conversion ends.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, get_args

import numpy as np

from heartlm.databases.anonymize import Anonymizer
from heartlm.databases.database import Database, locate, open_database
from heartlm.databases.each_recording import source_digest
from heartlm.databases.index import holds_recordings
from heartlm.databases.journals import Journals, header_of
from heartlm.databases.known import KNOWN_DATABASES, database_name
from heartlm.databases.splits import Split
from heartlm.ecg.recording import ARTEFACT, Damaged, Note, Recording, Repaired
from heartlm.errors import HeartlmError, needs
from heartlm.formats.annotation_file import others_of, read_annotation_file
from heartlm.formats.plausible import check_calibration
from heartlm.formats.whole_steps import LeadSteps, lead_steps
from heartlm.formats.write_edf import write_edf
from heartlm.formats.write_ishne import write_ishne
from heartlm.formats.write_recording import write_parquet, write_wfdb
from heartlm.storage.atomic import (
    append_line,
    atomic_file,
    cache_folder,
    explained,
    fsync_folder,
    write_json,
    write_text,
)
from heartlm.storage.reading import each_json_line, read_json
from heartlm.system.engine import ONE_PROCESS, PartOptions
from heartlm.system.processes import Lost, run_each, within_limit
from heartlm.system.progress import say, track

Target = Literal["wfdb", "edf", "ishne", "parquet"]
SCHEMA_VERSION = 1
ONE_CACHE = "its commands need one cache folder (XDG_CACHE_HOME); share it, or choose another folder"
REPORT, NAME = "convert.json", "convert"


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """Settings of a conversion.

    Attributes:
        source: recording, or folder of recordings.
        folder: output folder: new, empty, or of an earlier conversion with the same settings.
        to: format.
        flac: whether WFDB signals are compressed.
        anonymize: whether identifying data are dropped.
        damaged: treatment of recordings that show damage.
        repaired: treatment of recordings whose files must be repaired to be read.
    """

    source: Path
    folder: Path
    to: Target = "wfdb"
    flac: bool = False
    anonymize: bool = False
    damaged: Damaged = "refuse"
    repaired: Repaired = "warn"

    @property
    def settings(self) -> dict[str, Any]:
        """Settings that must be the same to continue a conversion."""
        return {"to": self.to, "flac": self.flac, "anonymize": self.anonymize}


@dataclass(frozen=True)
class Converted:
    """Result of a conversion.

    Attributes:
        records: entry of each converted recording in the report.
        left_out: recordings that were not converted, with the reason, one line each.
        report: path of the report; after a part of the recordings the folder, which has none yet.
        unwritten: files of the whole folder that could not be written, with the reason, one line each.
    """

    records: tuple[dict[str, Any], ...]
    left_out: tuple[str, ...]
    report: Path
    unwritten: tuple[str, ...] = ()


def convert_recordings(task: Conversion, options: PartOptions = ONE_PROCESS) -> Converted:
    """Convert a recording, or the recordings of a folder or a part of them by an engine, by default in this process.

    Raises:
        HeartlmError: there is no recording, none can be converted, or the folder holds other files or cannot be
            written.
    """
    options.check_engine()
    source, folder = task.source.absolute(), task.folder.absolute()
    if folder.resolve().is_relative_to(source.resolve()):
        raise HeartlmError(f"{task.folder}: lies in the source, whose recordings it would join; choose another folder")
    if task.flac and task.to != "wfdb":
        raise HeartlmError(f"flac: compresses WFDB signals, not {task.to}; leave it out")
    if task.flac:
        with needs("wfdb", "soundfile"):
            import soundfile  # noqa: F401
    if holds_recordings(source):
        database = open_database(source, repaired=task.repaired)
        record_ids = database.record_ids
    else:
        database, record_id = locate(task.source, repaired=task.repaired)
        record_ids = (record_id,)
    journals = Journals(task.folder, NAME, options)
    is_new = not folder.exists()
    try:
        with journals.held():
            return _convert(task, database, record_ids, options, journals)
    except BaseException:
        if is_new:
            with suppress(OSError):  # it holds something
                folder.rmdir()
        raise


def _convert(
    task: Conversion, database: Database, record_ids: Sequence[str], options: PartOptions, journals: Journals
) -> Converted:
    folder, journal, is_part = task.folder, journals.own, options.part is not None
    earlier = _earlier(task, journals)
    for path in folder.glob(f"{journals.stem}-*"):  # of a worker that was killed; parts leave those of others
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
    key = _Key(task) if task.anonymize else None
    if key is not None and earlier and not key.is_kept:
        if key.ended_with(_digest(database, record_ids)) and (folder / REPORT).is_file():
            journal.unlink(missing_ok=True)
            say("convert: the conversion was complete, and no source has changed since")
            if is_part:  # names of records do not tell which are of the part
                return Converted((), (), folder)
            report = read_json(folder / REPORT, dict[str, Any])
            return Converted(tuple(report["records"]), tuple(report["left_out"]), folder / REPORT)
        raise HeartlmError(
            f"{folder}: holds parts of an anonymized conversion whose key is not in {key.path.parent}: {ONE_CACHE}"
            if journals.of_parts()
            else f"{folder}: holds an anonymized conversion whose key is deleted, as at its end; choose another folder"
        )
    anonymizer = Anonymizer(key.read()) if key is not None else None
    sources = {record_id: str(database.files(record_id).signal) for record_id in record_ids}
    if anonymizer is None:
        names = _names(sources, earlier)
    else:
        names = [anonymizer.code("record", record_id) for record_id in record_ids]
    header: dict[str, Any] = {"settings": task.settings}
    if anonymizer is not None:
        header["key"] = anonymizer.code("key", "")
    if is_part:
        listed = json.dumps([*zip(names, sources.values(), strict=True), options.part_of[1]])
        header["recordings"] = hashlib.sha256(listed.encode()).hexdigest()
    try:
        _begin(journals, header, earlier.values())
    except HeartlmError:
        if key is not None and key.is_new:
            key.delete()
        raise
    work = _Work(task, database, anonymizer, f"{journals.stem}-")
    index, num_parts = options.part_of
    own = range(len(names))[index::num_parts]
    marks = {place: work.mark(record_ids[place]) for place in own}
    done = {
        names[place]: earlier[names[place]]
        for place, mark in marks.items()
        if earlier.get(names[place], {}).get("source_mark") == mark and _is_complete(folder, earlier[names[place]])
    }
    todo = [place for place in own if names[place] not in done]
    if done:
        say(f"convert: {len(done):,} of {len(own):,} recordings were converted before")
    records, left_out, unwritten = dict(done), list[str](), list[str]()
    items = [(record_ids[place], names[place], marks[place]) for place in todo]
    processes = options.processes_for(len(todo))
    outcomes = run_each(work, items, options, processes, start="fork")
    with closing(outcomes):
        for place, outcome in zip(todo, track(outcomes, len(todo), "convert"), strict=True):
            if isinstance(outcome, str | Lost):
                reason = outcome.reason if isinstance(outcome, Lost) else outcome
                left_out.append(f"{record_ids[place]}: {reason}")
                continue
            records[names[place]] = outcome
            try:
                append_line(journal, json.dumps(outcome))
            except HeartlmError as error:  # it is converted, and would be again
                unwritten = [str(error)]
            for stale in set(earlier.get(names[place], {}).get("files", ())) - set(outcome["files"]):
                (folder / Path(stale).name).unlink(missing_ok=True)
    for path in folder.glob(f"{work.temporary}*"):  # of a worker that was killed
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
    # what other sources left in the folder stays, and so do the files of a source that cannot be read any more
    others, listed_names = dict[str, dict[str, Any]](), set(names)
    if not is_part:
        for name, entry in earlier.items():
            if name not in records and (name not in listed_names or _is_complete(folder, entry)):
                others[name] = entry
    has_none = len(list(islice(each_json_line(journal), 2))) < 2 if is_part else not (records or others)
    if has_none:
        journal.unlink(missing_ok=True)
    if not records and (own or not is_part):
        if key is not None and not is_part:  # other parts may have it
            key.delete()
        if len(record_ids) == 1:
            raise HeartlmError(left_out[0].removeprefix(f"{record_ids[0]}: "))
        for line in left_out:
            say(f"left out: {line}")
        raise HeartlmError(f"{task.source}: none of {len(own)} recordings could be converted")
    if is_part:
        return Converted(tuple(records[name] for name in sorted(records)), tuple(left_out), folder, tuple(unwritten))
    entries = [entry for _, entry in sorted((others | records).items())]
    report = {"schema_version": SCHEMA_VERSION, "settings": task.settings, "num_records": len(entries)}
    # a message about a recording names it and its file
    reasons = [f"recording {place}" for place in range(1, len(left_out) + 1)] if task.anonymize else left_out
    try:
        _write_database_file(task, entries)
        write_json(folder / REPORT, report | {"left_out": reasons, "records": entries})
    except HeartlmError as error:  # what was converted is complete, and the journal stays
        unwritten.append(str(error))
    else:
        if key is not None:
            key.end(_digest(database, record_ids))
        journal.unlink(missing_ok=True)
    return Converted(
        tuple(records[name] for name in sorted(records)), tuple(left_out), folder / REPORT, tuple(unwritten)
    )


def _is_complete(folder: Path, entry: Mapping[str, Any]) -> bool:
    return all((folder / file).is_file() for file in entry["files"])


def _begin(journals: Journals, header: Mapping[str, Any], earlier: Collection[Mapping[str, Any]]) -> None:
    """Begin the journal of a part, or that of the whole, which takes over what the journals of the parts have.

    A part that begins writes its header before it reads those of the others: of two that do not fit together, at least
    one sees the other.

    Raises:
        HeartlmError: parts of another conversion are in the folder, or a file cannot be written.
    """
    folder, journal, parts = journals.folder, journals.own, journals.of_parts()
    is_part, is_new = journal != journals.whole, not header_of(journal)
    if is_part and is_new:
        journal.unlink(missing_ok=True)  # without a header it is of a command that was killed as it began
        append_line(journal, json.dumps(header))
    kept = ("settings", "key", "recordings") if is_part else ("key",)
    for other in filter(None, map(header_of, journals.of_parts())):
        if differing := [name for name in kept if other.get(name) != header.get(name)]:
            if is_part and is_new:
                journal.unlink(missing_ok=True)
            if "key" in differing:
                raise HeartlmError(f"{folder}: holds parts of a conversion with another secret key: {ONE_CACHE}")
            raise HeartlmError(
                f"{folder}: holds parts of other recordings, or another number of parts: join them by their command "
                "without --part, or choose another folder"
            )
    if is_part or (journal.exists() and not parts):
        return
    if not earlier:  # without a temporary file, for which the next command would refuse the folder after a kill
        journal.unlink(missing_ok=True)
        append_line(journal, json.dumps(header))
    else:
        with atomic_file(journal) as stream:
            stream.writelines(json.dumps(each) + "\n" for each in (header, *earlier))
    journals.remove_parts()


def _earlier(task: Conversion, journals: Journals) -> dict[str, dict[str, Any]]:
    """Return the entries of an earlier conversion to the same folder, by the names of their records.

    A part has those of its own journal, the whole those of all parts.

    Raises:
        HeartlmError: the folder holds something else, or a conversion with other settings.
    """
    folder, entries, settings = task.folder, list[Any](), list[Any]()
    # Before the journals are read: a part that runs begins its journal before it writes files.
    hidden = (f".{NAME}-", f".{NAME}.lock", journals.whole.name)
    others = [path.name for path in folder.iterdir() if not path.name.startswith(hidden)]
    if (folder / REPORT).is_file():
        report = read_json(folder / REPORT, dict[str, Any])
        settings.append(report.get("settings"))
        entries += listed if isinstance(listed := report.get("records"), list) else []
    parts = journals.of_parts()
    for journal in dict.fromkeys((journals.whole, *([journals.own] if journals.options.part else parts))):
        if journal.is_file():
            lines = each_json_line(journal)
            settings.append(next(lines, {}).get("settings"))
            entries += lines
    settings += [header_of(path).get("settings") for path in parts]
    settings = [each for each in settings if each is not None]
    if not settings and others:
        raise HeartlmError(f"{folder}: exists and holds other files, for example {min(others)}; choose another folder")
    if different := [each for each in settings if each != task.settings]:
        raise HeartlmError(f"{folder}: holds a conversion with other settings, {different[0]}; choose another folder")
    # what is not as it was written is converted again
    needed = {"record", "files", "source_mark"}
    splits = (*get_args(Split), *([None] if task.anonymize else []))
    return {
        entry["record"]: entry
        for entry in entries
        if isinstance(entry, dict)
        and needed <= set(entry)
        and isinstance(entry["record"], str)
        and isinstance(entry["files"], list)
        and all(isinstance(file, str) for file in entry["files"])
        and isinstance(entry.get("patient"), str)
        and entry.get("split") in splits
    }


def _digest(database: Database, record_ids: Sequence[str]) -> str:
    sources = "".join(source_digest(database, record_id) for record_id in record_ids)
    return hashlib.sha256(sources.encode()).hexdigest()


class _Key:
    """The secret key of a conversion with `anonymize`, kept in the user's cache until the conversion ends.

    Then a digest of the sources stays there, without the key: the same command again, for example after a kill at the
    very end, has nothing to do.
    """

    def __init__(self, task: Conversion) -> None:
        where = f"{task.source.absolute()}\0{task.folder.absolute()}".encode("utf-8", "surrogateescape")
        self.path = cache_folder() / "convert" / f"{hashlib.sha256(where).hexdigest()[:20]}.key"
        self.ended = self.path.with_suffix(".ended")
        self.is_kept, self.is_new = self.path.is_file(), False

    def read(self) -> bytes:
        """Return the key; it is made if there is none. Of parts that make one at the same time, the first wins."""
        if not self.is_kept:
            draft = self.path.with_name(f"{self.path.stem}-{secrets.token_hex(8)}")
            with atomic_file(draft, "wb") as stream:
                os.fchmod(stream.fileno(), 0o600)
                stream.write(secrets.token_bytes(32))
            try:
                os.link(draft, self.path)
                self.is_new = True
            except FileExistsError:
                pass
            except OSError:  # a filesystem without links, on which parts compare their keys in the journals
                draft.replace(self.path)
            draft.unlink(missing_ok=True)
        return self.path.read_bytes()

    def delete(self) -> None:
        """Delete the key, and copies of commands that were killed while they made it."""
        self.path.unlink(missing_ok=True)
        for draft in self.path.parent.glob(f"{self.path.stem}-*"):
            draft.unlink(missing_ok=True)

    def end(self, digest: str) -> None:
        """Delete the key of a complete conversion of sources with this digest, which is written first."""
        write_text(self.ended, digest)
        self.delete()

    def ended_with(self, digest: str) -> bool:
        return self.ended.is_file() and self.ended.read_text(encoding="utf-8", errors="replace") == digest


def _names(sources: Mapping[str, str], earlier: Mapping[str, dict[str, Any]]) -> list[str]:
    """Return the names of the records that are written: letters, digits, - and _, each for one source.

    Args:
        sources: file of each recording by its name.
        known: entries of an earlier conversion by the names of their records.
    """
    names = dict[str, None]()  # in order, and searched for each of maybe 100,000 records
    for record_id, source in sources.items():
        plain = re.sub(r"[^A-Za-z0-9_-]+", "_", record_id).strip("_") or "record"
        name, suffix = plain, 1
        while name in names or earlier.get(name, {}).get("source", source) != source:
            suffix += 1
            name = f"{plain}_{suffix}"
        names[name] = None
    return list(names)


@dataclass(frozen=True)
class _Work:
    """Conversion of one recording."""

    task: Conversion
    database: Database
    anonymizer: Anonymizer | None
    temporary: str
    """Beginning of the names of temporary folders."""

    def mark(self, record_id: str) -> str:
        """Return a digest of `Database.source`."""
        if self.anonymizer is not None:
            return self.anonymizer.code("source", self.database.source(record_id), 16)
        return source_digest(self.database, record_id)

    def __call__(self, recording: tuple[str, str, str]) -> dict[str, Any] | str:
        """Convert a recording: its name, that of its files, and its mark. Return its entry, or why there is none."""
        record_id, name, mark = recording
        try:
            with within_limit():
                return self.convert(record_id, name) | {"source_mark": mark}
        except HeartlmError as error:
            return str(error)

    def convert(self, record_id: str, name: str) -> dict[str, Any]:
        """Convert a recording, and return its entry in the report.

        Raises:
            HeartlmError: it cannot be read, is damaged, or cannot be written.
        """
        task = self.task
        original = recording = self.database.recording(record_id)
        if not recording.num_samples:
            recording.signal()  # says why there are none
            raise HeartlmError(f"{recording.path}: has no samples to convert")
        entry: dict[str, Any] = {"record": name, "files": [], "patient": recording.patient_id}
        if self.anonymizer is not None:
            recording, dropped = self.anonymizer.anonymous(recording)
            entry |= {"patient": recording.patient_id, "dropped": dropped}
        else:
            entry["source"] = str(recording.path)
        steps = list[LeadSteps]()
        if task.to == "parquet":
            for lead in range(recording.num_leads):
                recording.signal(leads=[lead])  # reading a whole lead verifies its checksum
        else:
            steps = lead_steps(recording, whole_zero=task.to != "edf", most_bits=32 if task.to == "wfdb" else 24)
            # values that no ECG has, as of a damaged file of floats, make a header that is refused on reading
            gain, zero = np.array([(each.gain, each.zero) for each in steps]).reshape(-1, 2).T
            check_calibration(recording.path, recording.lead_names, recording.units, gain, zero)
        annotations = recording.annotations
        if task.damaged == "refuse":
            recording.refuse_if_damaged()
        recording.warn_if_damaged()
        others = [
            each
            for path in self.database.annotation_paths(record_id)
            for each in others_of(
                read_annotation_file(path, recording.ticks_hz),
                recording.rate_hz,
                recording.num_samples,
                self.database.artefacts,
            )
        ]
        if self.anonymizer is not None:
            others = [(place, symbol, "") for place, symbol, _ in others]
        try:
            with TemporaryDirectory(prefix=self.temporary, dir=task.folder) as temporary:
                files, leads, changes = self._write(recording, Path(temporary), name, steps, others)
                # Contents before names: after a loss of power no name may stand for an empty file. The main file, a
                # header for example, is renamed last, so that whoever finds it finds the others.
                for path in files:
                    with path.open("rb") as stream:
                        os.fsync(stream.fileno())
                # An earlier header goes first: it must not stand next to new samples.
                (task.folder / files[-1].name).unlink(missing_ok=True)
                for path in files:
                    path.replace(task.folder / path.name)
                fsync_folder(task.folder)
        except OSError as error:
            raise explained(task.folder / name, error) from error
        if annotations is not None:
            changes += [f"{number} annotations {reason}" for reason, number in annotations.ignored.items()]
        left_out = [comment for comment in original.comments if comment.startswith("left out: ")]
        if self.anonymizer is None:
            changes += left_out
        elif left_out:  # they quote labels
            changes.append(f"{len(left_out)} channels left out")
        entry |= {
            "files": [path.name for path in files],
            "rate_hz": recording.rate_hz,
            "num_samples": recording.num_samples,
            "leads": leads,
            "changes": changes,
            "repairs": list(recording.repairs),
        }
        if annotations is not None and ARTEFACT in annotations.symbol:
            entry["artefacts"] = True
        if self.anonymizer is None:  # texts of damage name files
            entry |= {"damage": list(recording.faults), "split": self.database.split_of(record_id)}
        return entry

    def _write(
        self,
        recording: Recording,
        folder: Path,
        name: str,
        steps: Sequence[LeadSteps],
        others: Sequence[tuple[int, str, str]],
    ) -> tuple[list[Path], list[dict[str, Any]], list[str]]:
        """Write the files of a recording; return them, the facts of each lead, and what the format does not hold."""
        task, changes = self.task, list[str]()
        if task.to == "wfdb":
            files = write_wfdb(recording, folder, name, steps, flac=task.flac, others=others)
        elif task.to == "edf":
            notes = [Note(place, place, f"{symbol} {text}".strip()) for place, symbol, text in others]
            written = write_edf(recording, folder, name, steps, notes)
            files, steps, changes = [written.path], written.steps, written.changes
        elif task.to == "ishne":
            recording, files, steps, changes = write_ishne(recording, folder, name, steps, others=others)
        else:
            files = write_parquet(recording, folder, name, others=others)
        annotations = recording.annotations
        if task.to != "edf" and annotations is not None:
            if lasting := sum(note.stop > note.start for note in annotations.notes):
                changes.append(f"{lasting} notes without their duration, which WFDB annotations do not have")
            if long := sum(len(note.text) > 255 for note in annotations.notes):
                changes.append(f"{long} notes cut to 255 characters")
        leads = list[dict[str, Any]]()
        for place, (lead, unit) in enumerate(zip(recording.lead_names, recording.units, strict=True)):
            own = steps[place] if steps else None  # Parquet holds the samples as they are
            exact, error = (own.exact, own.error) if own else (True, 0.0)
            leads.append({"name": lead, "unit": unit, "exact": exact, "largest_error": error})
            if own:
                leads[-1]["invalid_samples"] = own.num_invalid
        return files, leads, changes


def _write_database_file(task: Conversion, entries: Sequence[dict[str, Any]]) -> None:
    """Write `database.json` with the patients, and unless names are hidden, the splits."""
    # without the name of the database; more slashes are those of recordings of one name in several folders
    patients = {entry["record"]: entry["patient"].split("/", 1)[-1] for entry in entries}
    about: dict[str, Any] = {"patients": patients}
    if not task.anonymize:
        # a patient of two splits, as the one of mitdb 201 and 202, belongs to the later one
        by_split = sorted(entries, key=lambda entry: get_args(Split).index(entry["split"]))
        about["splits"] = {patients[entry["record"]]: entry["split"] for entry in by_split}
    if any(entry.get("artefacts") for entry in entries):
        about["artefacts"] = True
    if (name := database_name(task.folder.absolute().name)) in KNOWN_DATABASES:
        about["name"] = f"{name}-converted"  # what is known of that database is not true of the files
    write_json(task.folder / "database.json", about)
