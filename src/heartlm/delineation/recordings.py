"""Delineate a recording or a folder of recordings; write annotations, tables and a summary of each."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from heartlm.databases.database import locate
from heartlm.databases.each_recording import RecordingTask, Summary, Watch, build, each_recording
from heartlm.databases.part_files import SUMMARIES, Rows, Tables, TablesTask, write_tables
from heartlm.delineation.delineate import OFFSET, ONSET, PEAK, QRS, Delineation, P, T, delineate
from heartlm.delineation.intervals import INTERVALS, LEAD_COLUMNS, Intervals, measure
from heartlm.ecg.recording import Recording
from heartlm.errors import HeartlmError
from heartlm.formats.write_wfdb import annotation_bytes
from heartlm.storage.atomic import atomic_file, write_csv
from heartlm.system.cores import usable_cpus
from heartlm.system.engine import PartOptions

SCHEMA_VERSION = 3
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
        file: summary of a single recording, or table of all recordings of a folder, or the folder after a part of them.
    """

    summaries: tuple[Summary, ...]
    left_out: tuple[str, ...]
    file: Path


SCHEMAS = {
    SUMMARIES: {"num_beats": "int64", **dict.fromkeys(("p_share", "axis_degrees", *INTERVALS), "double")},
    "beats": {
        "sample": "int64",
        "time_s": "double",
        **dict.fromkeys(INTERVALS, "double"),
        **{f"{wave}_confidence": "double" for wave in ("p", "qrs", "t")},
    },
    "waves": LEAD_COLUMNS,
}
"""Tables of `--tables parquet`, whose first columns are `database` and `record`, see docs/archive-cluster.md."""


@dataclass(frozen=True)
class DelineationTask(RecordingTask, TablesTask):
    """Settings of the delineation of a recording or a folder.

    RECORD.LEAD and RECORD.all have the waves in WFDB format, RECORD.beats.csv one beat per row, RECORD.leads.csv one
    beat and lead per row, RECORD.hours.csv one hour per row.

    Attributes:
        beats: whether beats are found, or are those of the recording's annotations.
    """

    beats: Beats = "found"
    verb, done = "delineate", "delineated"
    endings = ".beats.csv", ".leads.csv", ".hours.csv"
    schemas = SCHEMAS

    @property
    def made(self) -> dict[str, Any]:
        """Versions and settings."""
        return {"schema_version": SCHEMA_VERSION, "made_by": build(), "settings": {"beats": self.beats}}

    def write(self, recording: Recording, path: Path, watch: Watch) -> tuple[Summary, dict[str, Any]]:
        """Delineate a recording and write waves and tables; see `RecordingTask.write`."""
        if recording.path.resolve().parent == path.resolve().parent:
            raise HeartlmError(
                f"{self.out}: is the folder of the recording, where files may be replaced; choose another"
            )
        measured = self._measured(recording)
        write_waves(measured.delineation, path.with_suffix(""))
        beat_rows, lead_rows, hour_rows = measured.beat_rows(), measured.lead_rows(), measured.hour_rows()
        for ending, rows, first in (
            (".beats.csv", beat_rows, ("sample", "time_s", *INTERVALS)),
            (".leads.csv", lead_rows, ("beat_sample", "lead")),
            (".hours.csv", hour_rows, ("hour", "beats")),
        ):
            write_csv(rows, path.with_suffix(ending), list(rows[0]) if rows else first, digits=4)
        summary = {"record": recording.record_id, "rate_hz": recording.rate_hz} | measured.summary()
        notes = [f"repaired: {repair}" for repair in recording.repairs]
        notes += [f"damaged: {fault}" for fault in recording.faults]
        return summary, {"notes": notes}

    def rows(self, recording: Recording, path: Path, source: str) -> dict[str, Rows]:
        """Delineate a recording and return its rows; see `TablesTask.rows`."""
        measured = self._measured(recording)
        summary = _row({"record": recording.record_id} | measured.summary())
        return {SUMMARIES: [summary], "beats": measured.beat_rows(), "waves": measured.lead_rows()}

    def totals(self, summary: Mapping[str, Any]) -> Mapping[str, float]:
        """Return the number of beats."""
        return {"beats": summary["num_beats"]}

    def _measured(self, recording: Recording) -> Intervals:
        beats = None
        if self.beats == "annotated":
            if recording.annotations is None or not recording.annotations.num_beats:
                raise HeartlmError(f"{recording.path}: no annotated beats; leave out --beats annotated to find them")
            beats = np.unique(recording.annotations.sample)  # ascending, as `delineate` needs them
        return measure(delineate(recording, beats))


def _row(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return a summary as a row of the table of all recordings."""
    medians = {name: of_interval["median"] for name, of_interval in summary["intervals"].items()}
    return {name: summary[name] for name in ("record", "num_beats", "p_share", "axis_degrees")} | medians


def write_waves(delineation: Delineation, stem: Path) -> list[Path]:
    """Write the waves of each lead and of all leads as WFDB annotations `(`, `p`, `N`, `t` and `)`.

    Args:
        delineation: the waves.
        stem: path of the files without the annotator, which is the name of the lead in lower case, or `all`.

    Returns:
        Paths of the files; a lead without waves has none.

    Raises:
        HeartlmError: a file cannot be written.
    """
    recording, paths = delineation.recording, list[Path]()
    annotators = _annotators([recording.lead_names[lead] for lead in delineation.leads])
    tables = [*delineation.waves.swapaxes(0, 1), delineation.all_leads]  # [num_beats, 3, 3] each
    others = [np.stack([each.onset, each.peak, each.offset], axis=1) for each in delineation.other_p]
    others.append(np.empty((0, 3), np.int64))
    for annotator, table, other in zip([*annotators, ALL_LEADS], tables, others, strict=True):
        points = np.concatenate([table.reshape(-1, 3), other])
        symbols = np.concatenate([np.tile([_SYMBOLS[wave] for wave in range(3)], len(table)), np.full(len(other), "p")])
        is_there = points[:, PEAK] >= 0
        points, symbols = points[is_there], symbols[is_there]
        path = stem.with_name(f"{stem.name}.{annotator}")
        if not len(points):
            path.unlink(missing_ok=True)  # of an earlier delineation, by other beats
            continue
        in_order = np.argsort(points[:, PEAK], kind="stable")
        sample = points[in_order][:, [ONSET, PEAK, OFFSET]].ravel()
        symbol = np.stack([np.full(len(points), "("), symbols[in_order], np.full(len(points), ")")], axis=1).ravel()
        in_time = np.argsort(sample, kind="stable")[np.count_nonzero(sample < 0) :]  # without absent edges
        paths.append(path)
        with atomic_file(path, "wb") as stream:
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


def delineate_recordings(task: DelineationTask, options: PartOptions) -> Delineations:
    """Delineate a recording, or several in parallel by an engine, by default in one process per CPU.

    Raises:
        HeartlmError: an option is invalid, no recording could be delineated, a file cannot be written, or a scheduler
            was lost.
    """
    options.check_engine()
    if task.is_single:
        database, record_id = locate(task.paths[0], repaired=task.repaired)
        return Delineations((task.of(database, record_id),), (), task.out / f"{record_id}.json")
    summaries, left_out = each_recording(task, options, len(usable_cpus()))
    if options.part is not None:  # the command that joins the parts writes the table of all
        return Delineations(summaries, left_out, task.out)
    file = write_csv(list(map(_row, summaries)), task.out / "summary.csv", digits=4)
    return Delineations(summaries, left_out, file)


def delineate_tables(task: DelineationTask, options: PartOptions) -> Tables:
    """Delineate recordings by an engine, and write Parquet datasets; a command for all of them writes totals.

    Raises:
        HeartlmError: see `delineate_recordings`.
    """
    options.check_engine()
    tables = write_tables(task, options, len(usable_cpus()))
    if options.part is None:
        tables.write_totals(tables.left_out)
    return tables
