"""The stored analysis of a recording: read if it is of this recording and these models, otherwise made."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from heartlm.analysis.findings import Findings
from heartlm.databases.each_recording import build
from heartlm.ecg.recording import Recording
from heartlm.errors import HeartlmError
from heartlm.models.pretrained import find_run, model_files
from heartlm.review.stored import Stored, file_digests, is_same, read_stored, stored_of, write_stored
from heartlm.runs.run_folder import RunFolder
from heartlm.storage.atomic import digest_of_files, sole_holder

SHIPPED = (Path("beats"), Path("af"), Path("waveform"), Path("statements"))
_NAMES = ("beats", "af", "waveform", "statements")


def stored_analysis(
    recording: Recording, folder: Path, findings: Findings | None, models: Sequence[Path]
) -> tuple[Stored, list[str]]:
    """Return the stored analysis, and notes about it, one line each; analyse and store it if there is none.

    Raises:
        HeartlmError: see `Review.open`.
    """
    models = tuple(models) or SHIPPED
    path = folder / f"{recording.record_id}.analysis.safetensors"
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
    with sole_holder(path.with_name(f".{recording.record_id}.analysis.lock"), busy):
        stored = _analysed(recording, findings, models)
        write_stored(path, stored, file_digests(recording))
    return stored, []


def made_by(models: Sequence[Path]) -> dict[str, str]:
    """Return what `Analyst.made_by` returns, without loading the models."""
    made = build()
    for name, model in zip(_NAMES, models, strict=True):
        made[f"model {name}"] = digest_of_files(*model_files(RunFolder(find_run(model)).model("last")))
    return made


def _analysed(recording: Recording, findings: Findings | None, models: Sequence[Path]) -> Stored:
    from heartlm.analysis.analyze import Analyst
    from heartlm.system.progress import track

    beats, af, waveform, statements = models
    analyst = Analyst.load(beats, af, waveform, statements)
    if findings is None:
        findings = analyst.analyze(recording, lambda blocks: track(blocks, len(blocks), recording.record_id))
    return stored_of(findings, analyst.beats)
