"""A database: a folder of recordings of one kind with their metadata.

`open_database` finds the records by the file RECORDS or by listing the folder. The `Database` returns the recording,
the annotations, the patient and the split of each record. Metadata that the files do not state come from
`heartlm.databases.known`, or from a file `database.json` in the folder with the optional fields `name`, `title`,
`beat_labels`, `artefacts` (annotated ones are a class of detections), `rhythm_labels`, `uncalibrated`, `rate_hz`,
`patients` (record to patient) and `splits` (patient to split).
"""

from __future__ import annotations

import difflib
import re
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from copy import copy
from dataclasses import replace
from functools import cached_property, partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from heartlm.databases.discovery import (
    NoRecordingsError,
    RecordFiles,
    beginning_of,
    find_records,
    printable,
    stream_records,
)
from heartlm.databases.index import is_index, stream_index, the_where
from heartlm.databases.known import KNOWN_DATABASES, UNKNOWN, database_name, same_recording_in_mitdb
from heartlm.databases.splits import Split, de_chazal_split, hash_split
from heartlm.databases.tables import PTB_XL, stated_patients, whole_record_rhythm
from heartlm.ecg.recording import Annotations, Recording, Repaired, RhythmSpan
from heartlm.errors import HeartlmError
from heartlm.formats.annotation_file import (
    OUTSIDE,
    AnnotationFile,
    beats_of,
    notes_of,
    positions_at_rate,
    read_annotation_file,
    rhythms_of,
)
from heartlm.formats.arrays import sidecar_of
from heartlm.formats.describe import describe
from heartlm.formats.plausible import check_rate
from heartlm.formats.read import read_recording
from heartlm.formats.registry import format_of
from heartlm.formats.stated import Stated
from heartlm.formats.wfdb_header import read_header
from heartlm.sources.address import source_path
from heartlm.sources.store import forget, known_below, remember, remember_record
from heartlm.storage.foreign import RemotePath, is_there, version_of
from heartlm.storage.reading import read_json


class _Settings(TypedDict, total=False):
    """Fields of `database.json`."""

    name: str
    title: str
    beat_labels: bool
    artefacts: bool
    rhythm_labels: bool
    uncalibrated: bool
    rate_hz: float
    patients: dict[str, str]
    splits: dict[str, Split]


# Number of parent folders in which `locate` looks for a database.
_LEVELS_UP = 4
# Records that are fetched ahead of the one that is opened, and the longest distance between two of them.
_AHEAD, _LONGEST_STEP = 12, 4096
# Usual endings of the signal files of a WFDB record.
_SIGNALS = ("dat", "mat")
# Maximum fraction of beats outside the recording; above it the file is damaged. Published files have a few.
_MOST_OUTSIDE = 0.1


def open_database(folder: Path, *, repaired: Repaired = "warn", stated: Stated | None = None) -> Database:
    """Open the database in `folder`.

    Args:
        folder: folder of recordings, its address, or an index of `heartlm data index`.
        repaired: treatment of recordings whose files must be repaired to be read.
        stated: rate, units and leads of files that do not state them; by default the options of the command.

    Raises:
        HeartlmError: the folder does not exist or has no recordings, a record listed in RECORDS is missing, or
            `database.json` is malformed.
    """
    folder, files = source_path(folder), None
    if _is_index(folder):
        folder, records = stream_index(folder)
        files = dict(records)
    if isinstance(folder, RemotePath):
        forget(folder)
    return Database(folder, files=files, repaired=repaired, stated=stated)


def stream_database(folder: Path, *, repaired: Repaired = "warn") -> tuple[Database, Iterator[tuple[str, RecordFiles]]]:
    """Open the database in `folder` without its records, and return it with id and files of each record, as a stream.

    `Database.with_files` gives the database with some of the records. Their order is that of their ids, unless the
    source is larger than `HELD`: see `stream_records` and `stream_index`.

    Raises:
        HeartlmError: as `open_database`; what concerns the records is raised by the stream.
    """
    folder = source_path(folder)
    if isinstance(folder, RemotePath):
        forget(folder)
    if _is_index(folder):
        folder, records = stream_index(folder)
    elif isinstance(folder, RemotePath) and (beginning_of(folder.files_below())[1] or is_there(folder / "RECORDS")):
        # What is listed whole is asked for no file, and RECORDS needs the whole listing.
        database = Database(folder, repaired=repaired)
        return database, ((record_id, database.files(record_id)) for record_id in database.record_ids)
    else:
        records = stream_records(folder)
    if isinstance(folder, RemotePath):
        forget(folder)
    return Database(folder, files={}, repaired=repaired), records


def _is_index(path: Path) -> bool:
    """Return whether a source is an index; refuse a condition on the rows of anything else."""
    if not path.is_dir() and is_index(path):
        return True
    if the_where():
        raise HeartlmError(f"{path}: --where chooses from an index; make one with  heartlm data index {path}")
    return False


class Database:
    """A folder of recordings.

    Attributes:
        folder: folder of the recordings.
        name: catalogue name, for example `"mitdb"`; the folder name if the database is not in the catalogue.
        title: title to show in text.
        record_ids: names of the records, ascending.
        known: properties that the files do not state, those of `database.json` in place of the published ones.
        repaired: treatment of recordings whose files must be repaired to be read.
        stated: rate, units and leads of files that do not state them.
    """

    def __init__(
        self,
        folder: Path,
        *,
        repaired: Repaired = "warn",
        stated: Stated | None = None,
        named: Path | None = None,
        given: Path | None = None,
        files: Mapping[str, RecordFiles] | None = None,
    ) -> None:
        """Find the records of a folder.

        Args:
            folder, repaired, stated: as in `open_database`.
            named: path of a recording in the folder, with or without ending, that alone is looked for.
            given: file in the folder that the user calls a recording, whatever its content.
            files: the files of the records, by their names; by default they are looked for.
        """
        if isinstance(folder, RemotePath) and (named or given or files) is None:
            deque(folder.files_below(), 0)  # all at once, so that it is not asked for one after the other
        if not folder.is_dir():
            raise HeartlmError(f"{folder}: no such folder; give the folder of a database")
        self.folder, self.repaired, self.stated = folder, repaired, stated or Stated.current()
        self._settings = _read_settings(folder / "database.json")
        self.name: str = self._settings.get("name") or database_name(folder.resolve().name)
        self.title: str = self._settings.get("title") or self.name
        known = KNOWN_DATABASES.get(self.name, UNKNOWN)
        self.known = replace(
            known,
            beats_labelled=self._settings.get("beat_labels", known.beats_labelled),
            uncalibrated=self._settings.get("uncalibrated", known.uncalibrated),
            rate_hz=self._settings.get("rate_hz", known.rate_hz),
        )
        with self.stated.used():
            self._files: Mapping[str, RecordFiles] = (
                {} if given is None else {printable(given.stem): RecordFiles(given.with_suffix(""), given)}
            )
            with suppress(*(() if given is None else (NoRecordingsError,))):
                if files is None:
                    files = find_records(folder, named or given) | self._files
                self._files = files
        self._patient_of: dict[str, str] = {}
        self._place, self._ahead = 0, set[int]()
        self.record_ids: tuple[str, ...] = tuple(sorted(self._files))

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes, with what is known of the files of an address, for another process."""
        listed = known_below(self.folder) if isinstance(self.folder, RemotePath) else ({}, set())
        return self.__dict__ | {"_listed": listed}

    def __setstate__(self, state: dict[str, Any]) -> None:
        remember(*state.pop("_listed"))
        self.__dict__ |= state

    def with_files(self, files: Mapping[str, RecordFiles]) -> Database:
        """Return the same database with other records, given by their files."""
        self._patients  # noqa: B018, read once for all copies
        other = copy(self)
        other._place, other._ahead = 0, set()
        other._files, other._patient_of, other.record_ids = files, {}, tuple(sorted(files))
        return other

    def versions(self) -> Iterator[str]:
        """Yield a line for each file at an address that changes with it.

        Of a database opened without its records: for the files that state more about them.
        """
        if not isinstance(self.folder, RemotePath):
            return
        if any(files.entries is None for files in self._files.values()):
            yield from (f"{path}\0{path.version()}\n" for path in sorted(self.folder.files_below()))
        else:
            entries = chain.from_iterable((files.entries or {}).items() for files in self._files.values())
            yield from (f"{path}\0{entry.size} {entry.version}\n" for path, entry in entries)
            stating = (self.folder / name for name in ("database.json", PTB_XL))
            yield from (f"{path}\0{version_of(path)}\n" for path in stating if is_there(path))

    def recording(self, record_id: str) -> Recording:
        """Open a recording; its samples are read lazily.

        Raises:
            HeartlmError: there is no such record, or its header is unreadable.
        """
        if isinstance(self.folder, RemotePath):
            self._fetch_ahead(record_id)
        recording = self._read_recording(self.files(record_id))
        return replace(
            recording,
            record_id=record_id,
            database=self.name,
            patient_id=self.patient_of(record_id, recording),
            read_annotations=partial(self.annotations, record_id),
        )

    def _fetch_ahead(self, record_id: str) -> None:
        """Begin to fetch the records that are probably opened next: those at the distance of the last two."""
        place = bisect_left(self.record_ids, record_id)
        step, self._place = place - self._place, place
        step = step if 0 < step <= _LONGEST_STEP else 1
        for ahead in range(place + step, min(place + _AHEAD * step + 1, len(self.record_ids)), step):
            if ahead not in self._ahead:
                self._ahead.add(ahead)
                files = self.files(self.record_ids[ahead])
                names = (*_SIGNALS, *self.known.beat_annotators, *self.known.rhythm_annotators)
                others = (files.stem.with_name(f"{files.stem.name}.{name}") for name in names)
                for path in (files.signal, *others):
                    if isinstance(path, RemotePath):
                        path.ahead()

    def annotations(self, record_id: str, recording: Recording | None = None) -> Annotations | None:
        """Read the heartbeats and rhythms of a record; return None if it is not annotated.

        If an open `recording` is given, its header is not read again and faults of the files are added to it.

        A record with a rhythm but no annotated beats has zero beats; the caller must detect them.

        Raises:
            HeartlmError: there is no such record, or an existing file is unreadable.
        """
        recording = recording or self.recording(record_id)
        paths = self._annotation_files(record_id)
        files = {path: read_annotation_file(path, recording.ticks_hz) for path in dict.fromkeys(paths) if path}
        beat_file, rhythm_file = (files[path] if path else None for path in paths)
        rate_hz, length = recording.rate_hz, recording.num_samples
        sources = [path.name for path in files]
        sample, symbol = np.zeros(0, np.int64), np.zeros(0, "<U1")
        rhythms: tuple[RhythmSpan, ...] = ()
        ignored: dict[str, int] = {}
        if beat_file is not None:
            sample, symbol, ignored = beats_of(beat_file, rate_hz, length, self.artefacts)
        if rhythm_file is not None:
            end = length or _end_of(rate_hz, beat_file, rhythm_file)
            rhythms, left_out = rhythms_of(rhythm_file, rate_hz, end, self.known.bracketed_rhythm)
            ignored |= left_out
        elif (stated := whole_record_rhythm(self.name, self.folder, recording)) is not None:
            rhythms = (RhythmSpan(0, length, stated[0]),)
            sources.append(stated[1])
        elif self.known.whole_rhythm is not None and beat_file is not None:
            rhythms = (RhythmSpan(0, length or _end_of(rate_hz, beat_file), self.known.whole_rhythm),)
        has_rhythms = self._settings.get("rhythm_labels", True)
        if not sources:  # the file of the signal may hold annotations too
            own, in_recording = self.files(record_id), None
            if recording.has_signal and own.signal is not None and own.signal.suffix != ".hea":
                in_recording = self._read_recording(own).annotations
            labelled = in_recording is not None and in_recording.beats_labelled and self.known.beats_labelled
            rhythms = in_recording.rhythms if in_recording is not None and has_rhythms else ()
            return in_recording and replace(in_recording, rhythms=rhythms, beats_labelled=labelled)
        if not has_rhythms:
            rhythms = ()
        annotator = beat_file.path.suffix.removeprefix(".") if beat_file is not None else None
        labelled = self.known.beats_labelled and annotator not in (None, *self.known.unlabelled_annotators)
        faults = [fault for file in files.values() for fault in file.faults]
        if (outside := sum(ignored.get(reason, 0) for reason in OUTSIDE)) > _MOST_OUTSIDE * (outside + len(sample)):
            faults.append(f"{sources[0]}: {outside} of {outside + len(sample)} beats are outside of the recording")
        recording.faults.extend(fault for fault in faults if fault not in recording.faults)
        notes = tuple(note for file in files.values() for note in notes_of(file, rate_hz, length))
        return Annotations(
            rate_hz, sample, symbol, rhythms, labelled, ", ".join(sources), ignored, tuple(faults), notes
        )

    def patient_of(self, record_id: str, recording: Recording | None = None) -> str:
        """Return the patient of a record as `database/patient`, unique over databases.

        A recording republished from mitdb has the patient of mitdb. If an open `recording` is given, its header is not
        read again.
        """
        if record_id in self._patient_of:
            return self._patient_of[record_id]
        files, known = self.files(record_id), self.known
        patient, name = self._patients.get(record_id), record_id.rpartition("/")[2]
        if patient is None:  # large archives have paths as ids, what is stated has names
            patient = self._patients.get(name)
        if patient is None and known.patient_in_name and (match := re.match(known.patient_in_name, name)):
            patient = match[1]
        if patient is None and known.patient_in_comment:
            comments = "\n".join((recording or self._read_recording(files)).comments)
            match = re.search(known.patient_in_comment, comments, re.IGNORECASE)
            patient = match[1] if match else None
        patient_id = f"{self.name}/{patient or record_id}"
        if patient is None and (in_mitdb := same_recording_in_mitdb(self.name, record_id)) is not None:
            patient_id = f"mitdb/{KNOWN_DATABASES['mitdb'].patients.get(in_mitdb, in_mitdb)}"
        self._patient_of[record_id] = patient_id
        return patient_id

    def split_of(self, record_id: str) -> Split:
        """Return the split of a record: from `database.json`, from de Chazal for mitdb recordings, else by patient."""
        patient_id = self.patient_of(record_id)
        stated = self._settings.get("splits", {}).get(patient_id.removeprefix(f"{self.name}/").removeprefix("mitdb/"))
        if stated is not None:
            return stated
        in_mitdb = same_recording_in_mitdb(self.name, record_id)
        published = de_chazal_split(in_mitdb) if in_mitdb is not None else None
        return published or hash_split(patient_id)

    def annotation_paths(self, record_id: str) -> list[Path]:
        """Return the annotation files of a record that are read, with the beat file first."""
        return [path for path in dict.fromkeys(self._annotation_files(record_id)) if path is not None]

    def _annotation_files(self, record_id: str) -> tuple[Path | None, Path | None]:
        """Return the files with the beats and with the rhythms of a record, often the same file."""
        files = self.files(record_id)
        return files.annotation(self.known.beat_annotators), files.annotation(self.known.rhythm_annotators)

    @property
    def artefacts(self) -> bool:
        """Whether annotated artefacts are detections of a class of their own."""
        return self._settings.get("artefacts", False)

    @cached_property
    def _patients(self) -> dict[str, str]:
        stated = self._settings.get("patients", {})
        return self.known.patients | stated_patients(self.name, self.folder) | stated

    def files(self, record_id: str) -> RecordFiles:
        """Return the files of a record.

        Raises:
            HeartlmError: there is no such record.
        """
        if (files := self._files.get(record_id)) is None:
            shown = ", ".join(self.record_ids[:5]) + (", ..." if len(self.record_ids) > 5 else "")
            raise HeartlmError(f"{self.folder}: no record {record_id!r}; it has {shown}")
        if files.entries is not None:
            remember_record(f"{files.stem}.", files.entries)
        return files

    def signal_paths(self, record_id: str) -> set[Path]:
        """Return the files with the signal of a record: a WFDB header and those it names, which may be missing.

        Of another format, the file and the `.json` file that may state more about it.
        """
        signal = self.files(record_id).signal
        if signal is None or signal.suffix != ".hea":
            return set() if signal is None else {signal, sidecar_of(signal)}
        paths = {signal}
        with suppress(HeartlmError):  # which opening the recording raises too
            for part in read_header(signal).parts:
                paths |= {part.path, *(file.path for file in part.files)}
        return paths

    def source(self, record_id: str) -> str:
        """Return a text that changes when a file of a record does: names, sizes and times, and what the user states."""
        paths = self.signal_paths(record_id) | {self.folder / "database.json", *self.annotation_paths(record_id)}
        facts = [str(self.folder.absolute()), record_id, repr(self.stated)]
        for path in sorted(filter(is_there, paths)):
            facts.append(f"{path.name} {version_of(path)}")
        return "\0".join(facts)

    def _read_recording(self, files: RecordFiles) -> Recording:
        if not str(files.stem).isprintable():
            raise HeartlmError(f"{printable(str(files.stem))}: the name of the file is not readable as text; rename it")
        if files.signal is not None:
            with self.stated.used():
                return read_recording(files.signal, accept_uncalibrated=self.known.uncalibrated, repaired=self.repaired)
        path = files.annotation_paths[0]
        rate_hz = self.known.rate_hz or read_annotation_file(path).ticks_hz or self.stated.rate_hz
        if rate_hz is None:
            raise HeartlmError(
                f'{path}: has no header and states no rate; give --rate, or write "rate_hz" into '
                f"{self.folder / 'database.json'}"
            )
        return Recording(rate_hz=check_rate(path, rate_hz), num_samples=0, path=path)


def locate(path: Path, *, repaired: Repaired = "warn", stated: Stated | None = None) -> tuple[Database, str]:
    """Return the database that contains `path`, a recording as in WFDB programs (`mitdb/100`), and the record id.

    The database is the nearest parent folder with RECORDS or `database.json`, so `ludb/data/1` belongs to `ludb`. If
    there is no such folder, the database is the folder of the recording. A recording in a folder below is also found by
    its name in the database: `ptb-xl/00001_hr`. `repaired` and `stated` are as in
    `open_database`.

    Raises:
        HeartlmError: there is no such recording. The message suggests similar names.
    """
    path = source_path(path).absolute()
    if the_where():
        raise HeartlmError(f"{path}: is one recording, and --where chooses from an index; leave it out")
    if isinstance(path, RemotePath):
        forget(path.with_suffix(""))
        deque(path.with_suffix("").files_beginning(), 0)  # so that it is not asked for each of its files
    stems = {path, path.with_suffix("")}
    marks = "RECORDS", "database.json"
    above = (folder for folder in path.parents[:_LEVELS_UP] if any((folder / mark).is_file() for mark in marks))
    marked = list(islice(above, 1))
    record_ids: dict[str, None] = {}
    with (stated or Stated.current()).used():
        is_recording = path.is_file() and format_of(path) is not None
    # of a remote database, which may have a million records, the one that is named is looked for first
    tries = (path, None) if isinstance(path, RemotePath) else (None,)
    places: list[tuple[Path, Path | None]] = [(folder, named) for folder in marked for named in tries]
    if path.parent not in marked:
        # What is named is opened alone, whatever else is in its folder; a name without a file may be of a record below.
        places += [(path.parent, path), *([] if path.is_file() else [(path.parent, None)])]
    for folder, named in places:
        if not folder.is_dir():
            continue
        try:
            database = Database(folder, repaired=repaired, stated=stated, named=named)
        except NoRecordingsError:
            if named is None and not path.is_file():
                raise
            continue
        files = {record_id: database.files(record_id) for record_id in database.record_ids}
        exact = (record_id for record_id, each in files.items() if each.signal == path)
        # An EDF file next to a WFDB record of its name is another recording, unless the header names it.
        of_name = (
            record_id
            for record_id, each in files.items()
            if each.stem in stems and not (is_recording and path not in database.signal_paths(record_id))
        )
        for record_id in chain(exact, of_name):
            return database, record_id
        if (name := path.relative_to(folder).as_posix()) in files:  # as the database names it, wherever it lies
            return database, name
        record_ids |= dict.fromkeys(database.record_ids)
    if path.is_file():
        with (stated or Stated.current()).used():
            form = format_of(path, is_given=True)
            if form is not None and (form.is_table or not is_there(path.with_name("RECORDS"))):
                if form.is_table:
                    read_recording(path)  # its error says what the table does not state
                # no record of the folder, as its content does not look like samples or as another file has its name
                database = Database(path.parent, repaired=repaired, stated=stated, given=path)
                return database, printable(path.stem)
            raise HeartlmError(f"{path}: no recording, but {describe(path)}")
    near = difflib.get_close_matches(path.stem, record_ids, n=3, cutoff=0.3) or list(record_ids)[:3]
    offer = f"; there are {len(record_ids)}, for example {', '.join(near)}" if record_ids else ": no such folder"
    raise HeartlmError(f"{path.parent if not record_ids else path}: no such recording{offer}")


def opened(source: Any, rate_hz: float | None = None) -> Recording:
    """Return a recording: `source` itself, that of a path, see `locate`, or of what another program has in memory.

    Raises:
        HeartlmError: there is no such recording, or `source` is no recording, or an array without its rate in Hz.
    """
    if isinstance(source, Recording):
        if rate_hz is not None and rate_hz != source.rate_hz:
            raise HeartlmError(f"rate_hz: {rate_hz:g} given, but {source.path} has {source.rate_hz:g} Hz")
        return source
    if not isinstance(source, str | Path):
        from heartlm.formats.exchange import recording_of

        return recording_of(source, rate_hz)
    database, record_id = locate(source_path(source), stated=Stated.of(rate_hz, None, None))
    return database.recording(record_id)


def _end_of(rate_hz: float, *files: AnnotationFile | None) -> int:
    """Return one past the last annotation of all files, used as the length if the header states none."""
    return max(
        (int(positions_at_rate(file, rate_hz).max()) + 1 for file in files if file is not None and len(file.sample)),
        default=0,
    )


def _read_settings(path: Path) -> _Settings:
    if not is_there(path):
        return {}
    settings = read_json(path, _Settings)
    if "rate_hz" in settings:
        check_rate(path, settings["rate_hz"], "rate_hz")
    for field, value in settings.items():
        texts = (*value, *value.values()) if isinstance(value, dict) else (value,)
        for text in texts:
            if isinstance(text, str) and not text.isprintable():
                raise HeartlmError(f"{path}: {field}: {text!r} found, text without control characters expected")
    return settings
