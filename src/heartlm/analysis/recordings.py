"""Sequential or parallel analysis of recordings, with the result files in one folder.

recordings ─► workers, each with an `Analyst` ─► files of each recording ─► summaries, in order
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from heartlm.analysis.analyze import Analyst, notes_of
from heartlm.analysis.events import USUAL_LIMITS
from heartlm.analysis.findings import EVENT_FIELDS, KINDS, Findings
from heartlm.analysis.hrv import MEASURES
from heartlm.analysis.limits import Limits
from heartlm.databases.database import locate
from heartlm.databases.each_recording import RecordingTask, Summary, Watch, each_recording
from heartlm.databases.part_files import SUMMARIES, Rows, Tables, TablesTask, write_tables
from heartlm.delineation.intervals import LEAD_COLUMNS
from heartlm.ecg.definitions import definitions
from heartlm.ecg.recording import Recording
from heartlm.errors import HeartlmError
from heartlm.formats.write_annotations import write_annotations
from heartlm.inference.load import chosen_device
from heartlm.storage.atomic import write_csv, write_json, write_text
from heartlm.storage.foreign import RemotePath
from heartlm.system.cores import limit_threads, usable_cores
from heartlm.system.engine import PartOptions
from heartlm.system.frames import pandas
from heartlm.system.processes import is_worker
from heartlm.system.progress import say, track

Pages = Literal["none", "findings", "all"]
SCHEMA_VERSION = 17
"""Results of another version are not kept: raised where the same recording, models and settings give other results."""


@dataclass(frozen=True)
class Analyses:
    """Results of several recordings.

    Attributes:
        summaries: summary of each analysed recording, see `Findings.summary`.
        left_out: recordings that were not analysed, with the reason, one line each.
        unwritten: files of the whole folder that could not be written, with the reason, one line each.
        file: page of a single recording, or its summary if there is no page; of several, the page or table of all;
            after a part of them, the folder.
        is_single: whether one recording was named, of which there is no table.
        tables: totals of the Parquet tables, if these were written; there are no summaries then.
    """

    summaries: tuple[Summary, ...]
    left_out: tuple[str, ...]
    file: Path
    unwritten: tuple[str, ...] = ()
    is_single: bool = False
    tables: Tables | None = None

    def rows(self) -> list[dict[str, Any]]:
        """Return the summaries as rows of one table, with separate columns for counts of beats, events and seconds."""
        return list(map(flat, self.summaries))

    def to_frame(self) -> Any:
        """Return `rows` as a pandas DataFrame."""
        return pandas().DataFrame(self.rows())


def _plain(event: dict[str, Any]) -> dict[str, Any]:
    """Return an event with None for NaN, which is not equal to itself."""
    return {key: None if value != value else value for key, value in event.items()}


def flat(summary: Summary) -> dict[str, Any]:
    """Return a summary as a row of a table, with separate columns for counts of beats, events and seconds."""
    row: dict[str, Any] = (
        {key: value for key, value in summary.items() if not isinstance(value, dict)}
        | {"leads": " ".join(summary["leads"])}
        | {f"beats_{name}": count for name, count in summary["beats"].items()}
        | {f"{kind}_events": count for kind, count in summary["events"].items()}
        | {f"{kind}_s": seconds for kind, seconds in summary["seconds"].items()}
        | summary["hrv"]
    )
    return row


SCHEMAS = {
    SUMMARIES: {
        **dict.fromkeys(("patient", "start"), "string"),
        "duration_s": "double",
        **dict.fromkeys(("leads", "warnings", "unlike", "hum_removed"), "string"),
        "readable_share": "double",
        **dict.fromkeys(("num_beats", "num_left_out"), "int64"),
        **dict.fromkeys(("num_s_couplets", "num_paced"), "int64"),
        **dict.fromkeys(("mean_rate_bpm", "slowest_bpm", "fastest_bpm", "longest_rr_s"), "double"),
        **dict.fromkeys(("stated", "unexamined", "reading"), "string"),
        **{f"beats_{name}": "int64" for name in "NSVF"},
        **{f"{kind}_events": "int64" for kind in KINDS},
        **{f"{kind}_s": "double" for kind in KINDS},
        **dict.fromkeys(MEASURES, "double"),
    },
    "events": {
        "start_s": "double",
        "clock": "string",
        "duration_s": "double",
        "kind": "string",
        "confidence": "double",
        "num_beats": "int64",
        "rate_bpm": "double",
        "disputed": "bool",
        "interval_ms": "double",
    },
    "beats": {"sample": "int64", "time_s": "double", "symbol": "string", "probability": "double"},
    "waves": LEAD_COLUMNS,
}
"""Tables of `--tables parquet`, whose first columns are `database` and `record`, see docs/archive-cluster.md."""


@dataclass(frozen=True)
class AnalysisTask(RecordingTask, TablesTask):
    """Settings of the analysis of recordings.

    RECORD.hlm has beats and rhythms in WFDB format, RECORD.events.csv one event per row, RECORD.hours.csv one hour per
    row, RECORD.html the page.

    Attributes:
        models: models of beats, AF, waveform and statements, each the name of a shipped model or a run folder.
        page: function that draws the page of findings; None for no pages.
        pages: recordings with a page; with tables, also those with all other files of their own.
        index: function that draws the page of a folder from the summaries, the lines of `left_out` and the definitions
            of the kinds of events; None for none.
        totals_page: function that draws the page of totals of tables from the number of recordings, the totals, the
            lines of `left_out` and the definitions; None for none.
        anonymous: leave patient data and dates out of the results.
        limits: limits of the rules.
        device: device of the models: auto, cpu or cuda.
    """

    models: tuple[Path, Path, Path, Path]
    page: Callable[[Findings], str] | None
    index: Callable[[Sequence[Summary], Sequence[str], dict[str, str]], str] | None = None
    totals_page: Callable[[int, Mapping[str, float], Sequence[str], dict[str, str]], str] | None = None
    anonymous: bool = False
    limits: Limits = USUAL_LIMITS
    device: str = "cpu"
    pages: Pages = "all"
    schemas = SCHEMAS
    verb, done = "analyze", "analysed"

    @cached_property
    def analyst(self) -> Analyst:
        """The models.

        Raises:
            HeartlmError: a model cannot be read, or there is no GPU.
        """
        if is_worker():  # one of several
            limit_threads(1)
        return Analyst.load(*self.models, device=chosen_device(self.device))

    @property
    def made(self) -> dict[str, Any]:
        """Versions, models and settings."""
        settings = {"anonymous": self.anonymous, "limits": asdict(self.limits)}
        if self.pages == "findings":
            settings["pages"] = self.pages
        return {"schema_version": SCHEMA_VERSION, "made_by": self.analyst.made_by, "settings": settings}

    @property
    def endings(self) -> tuple[str, ...]:
        """Endings of the annotations, tables and page."""
        return (".hlm", ".events.csv", ".hours.csv", *([".html"] if self.page and self.pages == "all" else []))

    def write(self, recording: Recording, path: Path, watch: Watch) -> tuple[Summary, dict[str, Any]]:
        """Analyse a recording and write annotations, tables and page; see `RecordingTask.write`."""
        recording = recording.anonymous() if self.anonymous else recording
        return self._write(self.analyst.analyze(recording, watch, self.limits), path)

    def rows(self, recording: Recording, path: Path, source: str) -> dict[str, Rows]:
        """Analyse a recording; return its rows, and write its files if it has a page; see `TablesTask.rows`."""
        recording = recording.anonymous() if self.anonymous else recording
        findings = self.analyst.analyze(recording, iter, self.limits)
        if self._has_page(findings):
            summary, content = self._write(findings, path)
            write_json(path, self.made | {"source": source, "summary": summary} | content)
        beats: dict[str, Any] = {"sample": findings.sample, "time_s": findings.sample / recording.rate_hz}
        beats |= {"symbol": findings.symbol, "probability": findings.probability.astype(float).round(4)}
        columns = [values.tolist() for values in beats.values()]
        return {
            SUMMARIES: [flat(findings.summary())],
            "events": list(map(_plain, findings.event_rows())),
            "beats": [dict(zip(beats, values, strict=True)) for values in zip(*columns, strict=True)],
            "waves": [] if findings.waves is None else findings.waves.lead_rows(),
        }

    def totals(self, summary: Mapping[str, Any]) -> Mapping[str, float]:
        """Return hours, beats by class, and recordings, events and seconds of each kind of event."""
        totals = {"hours": summary["duration_s"] / 3600, "unlike": float(bool(summary["unlike"]))}
        totals |= {f"beats {name}": summary[f"beats_{name}"] for name in "NSVF"}
        for kind in KINDS:
            totals |= {
                f"with {kind}": float(bool(summary[f"{kind}_events"])),
                f"events {kind}": summary[f"{kind}_events"] or 0,
                f"seconds {kind}": summary[f"{kind}_s"] or 0,
            }
        return totals

    def _has_page(self, findings: Findings) -> bool:
        if self.page is None or self.pages == "none":
            return False
        return self.pages == "all" or any(event.kind != "unreadable" for event in findings.events)

    def _write(self, findings: Findings, path: Path) -> tuple[Summary, dict[str, Any]]:
        """Write annotations, tables and page of findings; return what RECORD.json holds of them."""
        recording, waves = findings.recording, findings.normal_waves()
        page = self.page(findings) if self.page is not None and self._has_page(findings) else None
        rows, _ = write_findings(findings, path.with_suffix(""), page)
        born = recording.patient.birth_date
        patient = vars(recording.patient) | {"birth_date": born and str(born), "age": recording.age}
        content = {
            "cart": recording.cart and asdict(recording.cart),
            "patient": patient,
            "brief": findings.brief(),
            "hrv": findings.hrv(),
            "notes": findings.notes,
            "marks": findings.marks(),
            "events": list(map(_plain, rows)),
        }
        return findings.summary(), content | {"waves": waves and waves.summary()}


def write_findings(findings: Findings, stem: Path, page: str | None) -> tuple[list[dict[str, Any]], list[Path]]:
    """Write STEM.hlm, STEM.events.csv, STEM.hours.csv and the page, if there is one; return the events and the files.

    Raises:
        HeartlmError: a file cannot be written.
    """
    rows = findings.event_rows()
    for event in rows:
        event |= {name: round(event[name], 3) for name in ("start_s", "duration_s")}
    files = [write_annotations(stem.parent, stem.name, findings.annotations())]
    files.append(write_csv(rows, stem.with_name(f"{stem.name}.events.csv"), EVENT_FIELDS, digits=4))
    files.append(write_csv(findings.hours(), stem.with_name(f"{stem.name}.hours.csv"), digits=4))
    if page is not None:
        files.append(write_text(stem.with_name(f"{stem.name}.html"), page))
    return rows, files


def analyze_tables(task: AnalysisTask, options: PartOptions) -> Analyses:
    """Analyse recordings by an engine, and write Parquet datasets; a command for all of them writes totals and a page.

    Raises:
        HeartlmError: see `analyze_recordings`.
    """
    options.check_engine()
    if isinstance(task.out, RemotePath) and task.pages != "none":
        raise HeartlmError(f"pages: {task.pages} found, none expected: pages of recordings are not written to a bucket")
    tables, file = write_tables(task, options, len(usable_cores())), task.out
    if options.part is None:
        # the reasons quote headers and names of folders
        shown = [f"recording {n + 1}" for n in range(len(tables.left_out))] if task.anonymous else tables.left_out
        file = tables.write_totals(shown)
        if task.totals_page is not None:
            file = task.out / "index.html"
            kinds = definitions(vars(task.limits))
            write_text(file, task.totals_page(tables.num_recordings, tables.totals, shown, kinds))
    return Analyses((), tuple(tables.left_out), file, tables=tables)


def analyze_recordings(task: AnalysisTask, options: PartOptions) -> Analyses:
    """Analyse a recording, or several in parallel by an engine, by default in one process per core.

    Raises:
        HeartlmError: an option is invalid, a model cannot be read, no recording could be analysed, a file cannot be
            written, or a scheduler was lost.
    """
    options.check_engine()
    if task.anonymous:
        say(
            "anonymous: results keep the names of the recordings and of their folders; rename these, or analyse what "
            "`heartlm data convert --anonymize` writes"
        )
    if task.is_single:
        database, record_id = locate(task.paths[0], repaired=task.repaired)
        summary = task.of(database, record_id, lambda blocks: track(blocks, len(blocks), record_id))
        recording = database.recording(record_id)
        for note in notes_of(recording)[len(recording.repairs) :]:
            say(f"{recording.path}: {note}")
        return Analyses((summary,), (), task.out / f"{record_id}.{'html' if task.page else 'json'}", is_single=True)
    summaries, left_out = each_recording(task, options, len(usable_cores()))
    if options.part is not None:  # the command that joins the parts writes the tables of all
        return Analyses(summaries, left_out, task.out)
    names = {each["record"] for each in summaries}
    # A recording may be summary.csv in the same folder, and the page of one may be index.html.
    table = task.out / ("folder.csv" if "summary" in names else "summary.csv")
    index = task.out / ("folder.html" if "index" in names else "index.html")
    analyses = Analyses(summaries, left_out, table if task.index is None else index)
    try:
        write_csv(analyses.rows(), table, digits=4)
        if task.index is not None:
            # the reasons quote headers and names of folders
            shown = [f"recording {n}" for n in range(1, len(left_out) + 1)] if task.anonymous else left_out
            write_text(index, task.index(summaries, shown, definitions(vars(task.limits))))
    except HeartlmError as error:  # what was analysed is complete
        return replace(analyses, unwritten=(str(error),))
    return analyses
