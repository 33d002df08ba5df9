"""Open a recording with the reader of its format."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from heartlm.ecg.recording import Recording, Repaired
from heartlm.errors import HeartlmError
from heartlm.formats.arrays import sidecar_of
from heartlm.formats.describe import describe
from heartlm.formats.registry import WFDB, format_of
from heartlm.formats.stated import Stated
from heartlm.formats.wfdb import read_wfdb
from heartlm.storage.foreign import local_copy, one_line, size_of
from heartlm.system.progress import say_once


def read_recording(path: Path, *, accept_uncalibrated: bool = False, repaired: Repaired = "warn") -> Recording:
    """Open the recording with header (or only file) `path`, using the reader of its format.

    Raises:
        HeartlmError: the file is unreadable, or it must be repaired to be read and `repaired` is refuse.
    """
    form = WFDB if path.suffix == ".hea" else format_of(path, is_given=True)
    size_of(path, form and form.largest)
    if form is None:
        raise HeartlmError(f"{path}: no recording, but {describe(path)}")
    if form.missing is not None:
        raise HeartlmError(f"{path}: {form.what}; reading it needs {form.missing}")
    with one_line(path, form.what):
        if form is WFDB:
            recording = read_wfdb(path, accept_uncalibrated=accept_uncalibrated)
        elif form.in_slices:
            recording = form.read(path)
        else:
            with local_copy(path, sidecar_of(path)) as copy:
                recording = form.read(copy)
            recording = recording if copy == path else replace(recording, path=path)
    if not form.is_table:
        recording = Stated.current().of_complete_file(recording)
    if recording.repairs and repaired == "refuse":
        raise HeartlmError(f"{path}: {'; '.join(recording.repairs)}; correct the file, or read it without --strict")
    for repair in recording.repairs if repaired == "warn" else ():
        say_once(f"warning: {path}: {repair}")
    return recording
