"""Settings of a simulated database. This module imports no heavy package, so that `--help` is fast."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from heartlm.errors import HeartlmError
from heartlm.storage.reading import read_json

LEAD_VECTORS = read_json(Path(__file__).with_name("leads.json"), dict[str, tuple[float, float, float]])
"""Directions of the leads that can be simulated: components to the patient's left, to the feet, to the front."""


@dataclass(frozen=True)
class SimulationConfig:
    """Settings of a simulated database; the same settings always give the same bytes.

    Attributes:
        patients: number of patients to simulate. About one in ten has a second recording.
        minutes: length of each recording.
        rate_hz: sampling rate in Hz.
        leads: lead names, for example [MLII, V1]. Beats are annotated at the main deflection of the first lead.
        noise: level of baseline wander, mains, muscle and electrode noise; 0 is no noise, 1 is an ambulatory recording.
        seed: random seed.
        name: name of the database.
    """

    patients: int = 60
    minutes: float = 10.0
    rate_hz: int = 250
    leads: tuple[str, ...] = ("MLII", "V1")
    noise: float = 1.0
    seed: int = 0
    name: str = "simdb"

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            HeartlmError: a value is invalid. The message names the field, the value and the expected values.
        """
        for field, low, high in (
            ("patients", 1, 9999),
            ("minutes", 0.25, 1440),
            ("rate_hz", 100, 1000),
            ("noise", 0, 10),
            ("seed", 0, 2**63 - 1),
        ):
            if not low <= (value := getattr(self, field)) <= high:
                raise HeartlmError(f"{field} is {value}; expected a number from {low} to {high}")
        if not re.fullmatch(r"[A-Za-z0-9_-]+", self.name):
            raise HeartlmError(f"name is {self.name!r}; expected letters, digits, _ and - only")
        if not self.leads or len(set(self.leads)) < len(self.leads):
            raise HeartlmError(f"leads are {list(self.leads)}; expected one or more, each once")
        for lead in self.leads:
            if lead not in LEAD_VECTORS:
                raise HeartlmError(f"leads has {lead!r}; expected names out of {', '.join(LEAD_VECTORS)}")

    @property
    def num_samples(self) -> int:
        """Number of samples per lead of each recording."""
        return round(self.minutes * 60 * self.rate_hz)
