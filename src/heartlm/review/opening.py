"""The stored analysis of a recording: read if it is of this recording and these models, otherwise made."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from heartlm.analysis.findings import Findings
from heartlm.analysis.made_by import made_by_models
from heartlm.ecg.recording import Recording
from heartlm.errors import HeartlmError
from heartlm.models.pretrained import find_run
from heartlm.review.stored import ENDING, Stored, file_digests, is_same, read_stored, stored_of, write_stored
from heartlm.runs.run_folder import RunFolder
from heartlm.storage.atomic import locked

SHIPPED = (Path("beats"), Path("af"), Path("waveform"), Path("statements"))


def stored_analysis(
    recording: Recording, folder: Path, findings: Findings | None, models: Sequence[Path]
) -> tuple[Stored, list[str]]:
    """Return the stored analysis, and notes about it, one line each; analyse and store it if there is none.

    Raises:
        HeartlmError: see `Review.open`.
    """
    models = tuple(models) or SHIPPED
    path = folder / f"{recording.record_id}{ENDING}"
    journal = path.with_name(f"{recording.record_id}.review.jsonl")
    if not path.exists() and journal.exists() and journal.stat().st_size:
        raise HeartlmError(
            f"{journal}: a journal without its analysis {path.name}: restore that file, or move the journal away"
        )
    if path.exists():
        stored, head = read_stored(path, recording)
        has_changes = journal.exists() and journal.stat().st_size > 0
        is_current = is_same(head["files"], recording)
        if not is_current and has_changes:
            raise HeartlmError(
                f"{path}: the recording {recording.path} has changed since its analysis, and {journal.name} has "
                "changes of it: restore the recording, or move both files away to analyse it again"
            )
        by_these = stored.findings.made_by == made_by(models)
        if is_current and (has_changes or by_these):
            notes = [] if by_these else [f"{path}: by another version of heartlm or its models; kept for its journal"]
            return stored, notes
    busy = f"{path}: another process is analysing the recording; wait until it is done"
    with locked(path.with_name(f".{recording.record_id}.analysis.lock"), busy):
        stored = _analysed(recording, findings, models)
        write_stored(path, stored, file_digests(recording))
    return stored, []


def made_by(models: Sequence[Path]) -> dict[str, str]:
    """Return what `Analyst.made_by` returns of models in the order of `SHIPPED`, without loading them."""
    runs = map(RunFolder, map(find_run, models))
    return made_by_models({shipped.name: run for shipped, run in zip(SHIPPED, runs, strict=True)})


def _analysed(recording: Recording, findings: Findings | None, models: Sequence[Path]) -> Stored:
    from heartlm.analysis.analyze import Analyst
    from heartlm.system.progress import track

    beats, af, waveform, statements = models
    analyst = Analyst.load(beats, af, waveform, statements)
    if findings is None:
        findings = analyst.analyze(recording, lambda blocks: track(blocks, len(blocks), recording.record_id))
    return stored_of(findings, analyst.beats)
