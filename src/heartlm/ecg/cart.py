"""What the machine that made a recording, or whoever confirmed it, wrote next to the signal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class Cart:
    """Measurements and statements that the file of a recording holds; what it does not state is empty.

    Attributes:
        measured: those of `rate_bpm`, `pr_ms`, `p_ms`, `qrs_ms`, `qt_ms`, `qtc_ms`, `p_axis_degrees`, `axis_degrees`
            (of QRS) and `t_axis_degrees` that the file states; QTc by Bazett, not one whose formula is not stated.
        statements: one line each, as written.
        source: who made the statements: `"machine"`, `"overread"` or `"confirmed"`.
        confirmed_by: who confirmed them.
        device: maker and model.
        filters: those of `highpass_hz`, `lowpass_hz` and `notch_hz` that the file states.
    """

    measured: Mapping[str, float] = field(default_factory=dict)
    statements: tuple[str, ...] = ()
    source: str = ""
    confirmed_by: str = ""
    device: str = ""
    filters: Mapping[str, float] = field(default_factory=dict)

    def anonymous(self) -> Cart:
        """Return it without free text, which may name the patient, and without the physician."""
        return replace(self, statements=(), confirmed_by="")
