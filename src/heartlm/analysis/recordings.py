"""Sequential or parallel analysis of recordings, with the result files in one folder.

recordings ─► workers, each with an `Analyst` ─► files of each recording ─► summaries, in order
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from heartlm.analysis.analyze import Analyst, notes_of
from heartlm.analysis.events import USUAL_LIMITS
from heartlm.analysis.findings import EVENT_FIELDS, Findings
from heartlm.analysis.limits import Limits
from heartlm.databases.database import locate
from heartlm.databases.each_recording import RecordingTask, Summary, Watch, each_recording
from heartlm.ecg.definitions import definitions
from heartlm.ecg.recording import Recording
from heartlm.errors import HeartlmError
from heartlm.formats.write_annotations import write_annotations
from heartlm.inference.load import chosen_device
from heartlm.storage.atomic import write_csv, write_text
from heartlm.system.cores import limit_threads, usable_cores
from heartlm.system.engine import PartOptions
from heartlm.system.frames import pandas
from heartlm.system.processes import is_worker
from heartlm.system.progress import say, track

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
    """

    summaries: tuple[Summary, ...]
    left_out: tuple[str, ...]
    file: Path
    unwritten: tuple[str, ...] = ()
    is_single: bool = False

    def rows(self) -> list[dict[str, Any]]:
        """Return the summaries as rows of one table, with separate columns for counts of beats, events and seconds."""
        return [
            {key: value for key, value in each.items() if not isinstance(value, dict)}
            | {"leads": " ".join(each["leads"])}
            | {f"beats_{name}": count for name, count in each["beats"].items()}
            | {f"{kind}_events": count for kind, count in each["events"].items()}
            | {f"{kind}_s": seconds for kind, seconds in each["seconds"].items()}
            | each["hrv"]
            for each in self.summaries
        ]

    def to_frame(self) -> Any:
        """Return `rows` as a pandas DataFrame."""
        return pandas().DataFrame(self.rows())


@dataclass(frozen=True)
class AnalysisTask(RecordingTask):
    """Settings of the analysis of recordings.

    RECORD.hlm has beats and rhythms in WFDB format, RECORD.events.csv one event per row, RECORD.hours.csv one hour per
    row, RECORD.html the page.

    Attributes:
        models: models of beats, AF, waveform and statements, each the name of a shipped model or a run folder.
        page: function that draws the page of findings; None for no pages.
        index: function that draws the page of a folder from the summaries, the lines of `left_out` and the definitions
            of the kinds of events; None for none.
        anonymous: leave patient data and dates out of the results.
        limits: limits of the rules.
        device: device of the models: auto, cpu or cuda.
    """

    models: tuple[Path, Path, Path, Path]
    page: Callable[[Findings], str] | None
    index: Callable[[Sequence[Summary], Sequence[str], dict[str, str]], str] | None = None
    anonymous: bool = False
    limits: Limits = USUAL_LIMITS
    device: str = "cpu"
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
        return {"schema_version": SCHEMA_VERSION, "made_by": self.analyst.made_by, "settings": settings}

    @property
    def endings(self) -> tuple[str, ...]:
        """Endings of the annotations, tables and page."""
        return (".hlm", ".events.csv", ".hours.csv", *([".html"] if self.page else []))

    def write(self, recording: Recording, path: Path, watch: Watch) -> tuple[Summary, dict[str, Any]]:
        """Analyse a recording and write annotations, tables and page; see `RecordingTask.write`."""
        recording = recording.anonymous() if self.anonymous else recording
        findings = self.analyst.analyze(recording, watch, self.limits)
        waves = findings.normal_waves()
        page, summary, rows = self.page and self.page(findings), findings.summary(), findings.event_rows()
        write_annotations(path.parent, path.stem, findings.annotations())
        for event in rows:
            event |= {name: round(event[name], 3) for name in ("start_s", "duration_s")}
        write_csv(rows, path.with_suffix(".events.csv"), EVENT_FIELDS, digits=4)
        write_csv(findings.hours(), path.with_suffix(".hours.csv"), digits=4)
        if page is not None:
            write_text(path.with_suffix(".html"), page)
        # NaN, which is not equal to itself, becomes None
        plain = [{key: None if value != value else value for key, value in event.items()} for event in rows]
        born = recording.patient.birth_date
        patient = vars(recording.patient) | {"birth_date": born and str(born), "age": recording.age}
        content = {
            "cart": recording.cart and asdict(recording.cart),
            "patient": patient,
            "brief": findings.brief(),
            "hrv": findings.hrv(),
            "notes": findings.notes,
            "marks": findings.marks(),
            "events": plain,
        }
        return summary, content | {"waves": waves and waves.summary()}


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
