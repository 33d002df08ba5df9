"""Recordings that can be read though they show damage: to be refused, or used with a warning.

Signs of damage are samples that do not sum to the checksum in their header, infinite samples, and annotation files with
bytes that no annotator writes. Readers gather them in `Recording.faults` and `Annotations.faults`.
"""

from __future__ import annotations

from typing import Literal

from heartlm.ecg.recording import Annotations, Recording
from heartlm.errors import HeartlmError
from heartlm.progress import say

Damaged = Literal["refuse", "warn"]
"""What to do with a recording that shows damage."""


def note_faults(recording: Recording, annotations: Annotations | None) -> None:
    """Add the faults of its annotation files to those of the recording, once."""
    faults = annotations.faults if annotations is not None else ()
    recording.faults.extend(fault for fault in faults if fault not in recording.faults)


def refuse_damaged(recording: Recording) -> None:
    """Refuse a recording in which faults were found.

    Raises:
        HeartlmError: there are faults; the text lists them.
    """
    if recording.faults:
        raise HeartlmError(
            f"{recording.path}: damaged ({'; '.join(recording.faults[:3])}); fetch it again, or correct its header if "
            "that is wrong; commands with --damaged warn use it as it is"
        )


def warn_of_damage(recording: Recording) -> None:
    """Print the faults found in a recording on standard error, one line each."""
    for fault in recording.faults:
        say(f"warning: {recording.path}: damaged ({fault})")
