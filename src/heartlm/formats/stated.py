"""What the user states about recordings whose files do not: the sampling rate, the units and the names of the leads.

`--rate`, `--units` and `--leads` apply to all recordings of a command, also to those that its worker processes open, so
they are in the environment. `open_recording(path, rate_hz=…)` states them for one recording.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heartlm.ecg.leads import NO_UNIT
from heartlm.ecg.recording import ReadSamples, Recording
from heartlm.errors import HeartlmError
from heartlm.formats.plausible import check_rate
from heartlm.formats.units import Unit, parse_unit

VARIABLE = "HEARTLM_STATED"


@dataclass(frozen=True)
class Stated:
    """Facts about recordings whose files do not state them; an empty field is not stated.

    Attributes:
        rate_hz: samples per second of each lead.
        units: unit of all leads, or of each: `"mV"`, `"uV"`, or steps of a converter per millivolt, `"200/mV"`, with
            the step of 0 mV `"200(1024)/mV"`.
        leads: leads to read, by their names in the file, or names for all leads of a file that does not name them.
    """

    rate_hz: float | None = None
    units: tuple[str, ...] = ()
    leads: tuple[str, ...] = ()

    @staticmethod
    def of(
        rate_hz: float | None, units: str | Sequence[str] | None, leads: str | Sequence[str] | None
    ) -> Stated | None:
        """Return the facts that arguments state, each a text or several; None if none is given.

        Raises:
            HeartlmError: an argument has another type, or the rate is implausible.
        """
        if rate_hz is None and units is None and leads is None:
            return None
        stated_hz = None if rate_hz is None else rate_argument(rate_hz)
        return Stated(stated_hz, _texts("units", units), _texts("leads", leads))

    @staticmethod
    def current() -> Stated:
        """Return what is stated for the recordings that are opened now: by `used`, else by options of the command."""
        if (stated := _used.get()) is not None:
            return stated
        if not (text := os.environ.get(VARIABLE)):
            return Stated()
        fields = json.loads(text)
        return Stated(fields["rate_hz"], tuple(fields["units"]), tuple(fields["leads"]))

    @contextmanager
    def used(self) -> Iterator[None]:
        """State these facts for the recordings that are opened in the block."""
        token = _used.set(self)
        try:
            yield
        finally:
            _used.reset(token)

    def export(self) -> None:
        """State these facts for all recordings that this process and its children open from now on."""
        if self == Stated():
            os.environ.pop(VARIABLE, None)
        else:
            os.environ[VARIABLE] = json.dumps(asdict(self))

    def units_of(self, num_leads: int) -> list[Unit] | None:
        """Return the stated unit of each of `num_leads` leads; None if none is stated.

        Raises:
            HeartlmError: there is another number of units, or a text is no unit.
        """
        if not self.units:
            return None
        texts = self.units * num_leads if len(self.units) == 1 else self.units
        if len(texts) != num_leads:
            raise HeartlmError(f"units: {len(texts)} for {num_leads} leads; give one, or one for each lead")
        units = []
        for text in texts:
            if (unit := parse_unit(text)) is None:
                raise HeartlmError(f"units: {text!r} found, expected a unit such as mV, uV or 200/mV (steps per mV)")
            units.append(unit)
        return units

    def leads_of(self, names: Sequence[str], where: object) -> tuple[list[int], list[str]]:
        """Return which of the columns `names` are read, and their names as leads.

        Raises:
            HeartlmError: the stated leads are neither columns of the file nor as many as its columns.
        """
        if not self.leads:
            return list(range(len(names))), list(names)
        places = {name.casefold(): place for place, name in reversed(list(enumerate(names)))}
        columns = [places[name.casefold()] for name in self.leads if name.casefold() in places]
        if len(columns) == len(self.leads):
            return columns, [names[place] for place in columns]
        if len(self.leads) == len(names):
            return list(range(len(names))), list(self.leads)
        shown = ", ".join(names)
        raise HeartlmError(
            f"{where}: leads {', '.join(self.leads)} asked for; the file has {len(names)}: {shown[:200]}"
        )

    def of_complete_file(self, recording: Recording) -> Recording:
        """Return the stated leads of a recording whose file states its rate, and usually units.

        Stated units are those of leads whose file states none.

        Raises:
            HeartlmError: another rate is stated than the file has, units although each lead has one, or there is no
                such lead.
        """
        path, rate_hz = recording.path, recording.rate_hz
        if self.rate_hz is not None and abs(self.rate_hz - rate_hz) > 1e-3 * rate_hz:
            raise HeartlmError(f"{path}: states {rate_hz:g} Hz, {self.rate_hz:g} is stated for it; leave --rate out")
        if self.leads and recording.samples is not None:
            recording = of_leads(recording, [recording.lead_index(name) for name in self.leads])
        if self.units and recording.samples is not None:
            return self._with_units(recording, recording.samples)
        return recording

    def _with_units(self, recording: Recording, samples: ReadSamples) -> Recording:
        """Return a recording whose leads without a unit have the stated ones."""
        stated_units = self.units_of(recording.num_leads) or []
        units = [
            unit if own.strip().casefold() in NO_UNIT else None
            for own, unit in zip(recording.units, stated_units, strict=True)
        ]
        if not any(units):
            raise HeartlmError(f"{recording.path}: states the units of its leads; leave --units out")
        steps = recording.steps or (None,) * recording.num_leads
        return replace(
            recording,
            units=tuple(unit.name if unit else own for unit, own in zip(units, recording.units, strict=True)),
            samples=partial(_converted, samples, units),
            steps=tuple(
                (own[0] / unit.factor, own[1] + own[0] * unit.baseline) if unit and own else own
                for unit, own in zip(units, steps, strict=True)
            ),
        )


def rate_argument(rate_hz: Any) -> float:
    """Return the rate that an argument states, a number of Python or NumPy; see `check_rate`."""
    return check_rate("arguments", rate_hz.item() if isinstance(rate_hz, np.generic) else rate_hz, "rate_hz")


def _texts(name: str, given: Any) -> tuple[str, ...]:
    is_one = isinstance(given, str | bytes) or not isinstance(given, Iterable)
    texts = () if given is None else (given,) if is_one else tuple(given)
    for text in texts:
        if not isinstance(text, str) or not text.isprintable():
            raise HeartlmError(f"{name}: {text!r} found, a text or several expected")
    return texts


_used: ContextVar[Stated | None] = ContextVar("stated", default=None)


def _converted(
    samples: ReadSamples, units: Sequence[Unit | None], start: int, stop: int, leads: Sequence[int]
) -> NDArray[np.float32]:
    signal = samples(start, stop, leads)
    for row, lead in zip(signal, leads, strict=True):
        if (unit := units[lead]) is not None:
            row[:] = (row.astype(np.float64) - unit.baseline) * unit.factor
    return signal


def of_leads(recording: Recording, chosen: Sequence[int]) -> Recording:
    """Return a recording with a signal with some of its leads, in this order."""
    assert recording.samples is not None, "it has a signal"
    return replace(
        recording,
        lead_names=tuple(recording.lead_names[lead] for lead in chosen),
        units=tuple(recording.units[lead] for lead in chosen),
        samples=partial(_samples_of, recording.samples, chosen),
        steps=tuple(recording.steps[lead] for lead in chosen) if recording.steps else (),
    )


def _samples_of(
    samples: ReadSamples, chosen: Sequence[int], start: int, stop: int, leads: Sequence[int]
) -> NDArray[np.float32]:
    return samples(start, stop, [chosen[lead] for lead in leads])
