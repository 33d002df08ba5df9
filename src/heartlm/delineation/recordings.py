"""Delineate a recording or a folder of recordings; write annotations, tables and a summary of each."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from heartlm.delineation.delineate import OFFSET, ONSET, PEAK, QRS, Delineation, P, T, delineate
from heartlm.delineation.intervals import INTERVALS, Intervals, measure
from heartlm.ecg.database import Database, locate, open_database
from heartlm.ecg.each_recording import build, known_summary, source_digest
from heartlm.ecg.recording import Repaired
from heartlm.ecg.write_wfdb import annotation_bytes
from heartlm.errors import HeartlmError
from heartlm.storage.atomic import atomic_file, write_csv, write_json
from heartlm.system.processes import encode_all
from heartlm.system.progress import say, track

SCHEMA_VERSION = 2
"""Results of another version are not kept: raised where the same recording and settings give other results."""
ALL_LEADS = "all"
"""Annotator of the waves of all leads together."""
_TAKEN = frozenset((ALL_LEADS, "dat", "hea", "json", "csv", "atr"))
_SYMBOLS = {P: "p", QRS: "N", T: "t"}

Beats = Literal["found", "annotated"]


@dataclass(frozen=True)
class Delineations:
    """Results of several recordings.

    Attributes:
        summaries: summary of each delineated recording, see `Intervals.summary`, with its name as `record`.
        left_out: recordings that were not delineated, with the reason, one line each.
        file: summary of a single recording, or table of all recordings of a folder.
    """

    summaries: tuple[dict[str, Any], ...]
    left_out: tuple[str, ...]
    file: Path


@dataclass(frozen=True)
class DelineationTask:
    """Settings of the delineation of a recording or a folder.

    Attributes:
        path: recording, or folder of recordings.
        out: folder of the results. Complete results of the same files, settings and build are kept.
        beats: whether beats are found, or are those of the recording's annotations.
        repaired: treatment of recordings whose files must be repaired to be read.
    """

    path: Path
    out: Path
    beats: Beats = "found"
    repaired: Repaired = "warn"

    def of(self, database: Database, record_id: str) -> dict[str, Any]:
        """Return the summary of a recording; unless its results exist, delineate it and write them.

        RECORD.LEAD and RECORD.all have the waves in WFDB format, RECORD.beats.csv one beat per row, RECORD.leads.csv
        one beat and lead per row, RECORD.hours.csv one hour per row. RECORD.json, the summary, is written last: if it
        exists, the other files are complete.

        Raises:
            HeartlmError: see `delineate`; also if the recording has no annotated beats, or a file cannot be written.
        """
        stem = self.out / record_id
        recording = database.recording(record_id)
        if recording.path.resolve().parent == stem.resolve().parent:
            raise HeartlmError(
                f"{self.out}: is the folder of the recording, where files may be replaced; choose another"
            )
        path = stem.with_name(f"{stem.name}.json")
        made = {"schema_version": SCHEMA_VERSION, "made_by": build()}
        made |= {"source": source_digest(database, record_id)}
        made |= {"settings": {"leads": list(recording.lead_names), "beats": self.beats}}
        if (known := known_summary(path, made)) is not None:
            return known
        beats = None
        if self.beats == "annotated":
            if recording.annotations is None or not recording.annotations.num_beats:
                raise HeartlmError(f"{recording.path}: no annotated beats; leave out --beats annotated to find them")
            beats = np.unique(recording.annotations.sample)
        found = measure(delineate(recording, beats))
        write_waves(found.delineation, stem)
        self._write_tables(found, stem)
        summary = {"record": record_id, "rate_hz": recording.rate_hz} | found.summary()
        notes = [f"repaired: {repair}" for repair in recording.repairs]
        notes += [f"damaged: {fault}" for fault in recording.faults]
        write_json(path, made | {"summary": summary, "notes": notes})
        return summary

    @staticmethod
    def _write_tables(found: Intervals, stem: Path) -> None:
        beat_rows, lead_rows, hour_rows = found.beat_rows(), found.lead_rows(), found.hour_rows()
        for name, rows, first in (
            ("beats", beat_rows, ("sample", "time_s", *INTERVALS)),
            ("leads", lead_rows, ("beat_sample", "lead")),
            ("hours", hour_rows, ("hour", "beats")),
        ):
            write_csv(rows, stem.with_name(f"{stem.name}.{name}.csv"), list(rows[0]) if rows else first, digits=4)


def write_waves(found: Delineation, stem: Path) -> list[Path]:
    """Write the waves of each lead and of all leads as WFDB annotations `(`, `p`, `N`, `t` and `)`.

    Args:
        found: the waves.
        stem: path of the files without the annotator, which is the name of the lead in lower case, or `all`.

    Returns:
        Paths of the files; a lead without waves has none.

    Raises:
        HeartlmError: a file cannot be written.
    """
    recording, paths = found.recording, list[Path]()
    annotators = _annotators([recording.lead_names[lead] for lead in found.leads])
    tables = [found.waves[:, place] for place in range(len(found.leads))]
    others = [np.stack([each.onset, each.peak, each.offset], axis=1) for each in found.other_p]
    tables, others = [*tables, found.all_leads], [*others, np.empty((0, 3), np.int64)]
    for annotator, table, other in zip([*annotators, ALL_LEADS], tables, others, strict=True):
        points = np.concatenate([table.reshape(-1, 3), other])
        symbols = np.concatenate([np.tile([_SYMBOLS[wave] for wave in range(3)], len(table)), np.full(len(other), "p")])
        is_there = points[:, PEAK] >= 0
        points, symbols = points[is_there], symbols[is_there]
        if not len(points):
            continue
        in_order = np.argsort(points[:, PEAK], kind="stable")
        sample = points[in_order][:, [ONSET, PEAK, OFFSET]].ravel()
        symbol = np.stack([np.full(len(points), "("), symbols[in_order], np.full(len(points), ")")], axis=1).ravel()
        in_time = np.argsort(sample, kind="stable")
        in_time = in_time[sample[in_time] >= 0]
        paths.append(stem.with_name(f"{stem.name}.{annotator}"))
        with atomic_file(paths[-1], "wb") as stream:
            texts = [""] * len(sample)
            stream.write(annotation_bytes(sample[in_time], symbol[in_time].tolist(), texts, recording.rate_hz))
    return paths


def _annotators(leads: Sequence[str]) -> list[str]:
    """Return a name of lower-case letters and digits for each lead, each once."""
    names = list[str]()
    for place, lead in enumerate(leads):
        name = re.sub(r"[^a-z0-9]", "", lead.lower()) or f"lead{place + 1}"
        names.append(f"{name}lead{place + 1}" if name in _TAKEN or name in names else name)
    return names


def delineate_recordings(task: DelineationTask, processes: int = 1) -> Delineations:
    """Delineate a recording, or the recordings of a folder in `processes` processes.

    Raises:
        HeartlmError: no recording could be delineated, a file cannot be written, or a process was killed.
    """
    if not task.path.is_dir():
        database, record_id = locate(task.path, repaired=task.repaired)
        return Delineations((task.of(database, record_id),), (), task.out / f"{record_id}.json")
    database = open_database(task.path, repaired=task.repaired)
    record_ids = database.record_ids
    outcomes = encode_all(lambda place: _try(task, database, record_ids[place]), range(len(record_ids)), processes)
    with closing(outcomes):
        done = list(track(outcomes, len(record_ids), "delineate"))
    left_out = tuple(each for each in done if isinstance(each, str))
    summaries = tuple(each for each in done if not isinstance(each, str))
    if not summaries:
        for line in left_out:
            say(f"left out: {line}")
        raise HeartlmError(f"{task.path}: none of {len(record_ids)} recordings could be delineated")
    rows = [
        {name: each[name] for name in ("record", "num_beats", "p_share", "axis_degrees")}
        | {name: of_interval["median"] for name, of_interval in each["intervals"].items()}
        for each in summaries
    ]
    return Delineations(summaries, left_out, write_csv(rows, task.out / "summary.csv", digits=4))


def _try(task: DelineationTask, database: Database, record_id: str) -> dict[str, Any] | str:
    try:
        return task.of(database, record_id)
    except HeartlmError as error:
        return f"{record_id}: {error}"
