"""The model of a table of samples, one row a sample: its columns, what is stated outside of them, and its recording.

    columns ─┬─► times ─► the most regular clock ─► grid of positions
             ├─► counters ─► grid, if the rate is known
             └─► leads ─► unit: stated, in the name, or plausible ─► float32 in mV, NaN in gaps

Readers of files make a `Table`; here is decided what each column is. What the file does not tell comes from `Stated`
(options of the command), then from the `.json` file next to it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from heartlm.ecg.leads import is_ecg_name
from heartlm.ecg.recording import Patient, Recording
from heartlm.errors import HeartlmError
from heartlm.formats.arrays import LEAST_MV, MOST_MV, Given, array_recording, check_size, sidecar_of, typical_range
from heartlm.formats.clock import Grid, UnusableClockError, counter_modulus, grid_of_counter, regular_grid
from heartlm.formats.plausible import check_rate
from heartlm.formats.stated import Stated
from heartlm.formats.units import RAW, Unit, parse_unit, split_name
from heartlm.formats.words import COUNTER_NAMES, SECONDS_PER_UNIT, TIME_NAMES
from heartlm.storage.foreign import is_there
from heartlm.storage.limits import GAP_SAMPLES, SAMPLES_PER_BYTE, check_samples

MOST_COLUMNS = 64
"""Most leads; a table with more columns has a beat or a recording in each row."""
_FEWEST_ROWS = 200
"""Fewest rows of a table in a folder that is a recording only because the user states a rate."""
_LEAST_RATE_HZ, _MOST_RATE_HZ = 30.0, 5000.0
"""Rates of ECGs, which tell the unit of times. Units differ by 1000, so at most one fits."""
_MOST_MISSTATED = 100
# Seconds since 1970 of the years 2000 and 2100.
_EPOCHS_S = 946_684_800.0, 4_102_444_800.0
# Rows that tell whether a column rises.
_LOOKED_AT = 10_000
# A clock without a name may have this fraction of wrong or equal steps; times of packets rise once in up to a thousand
# rows.
_MOST_WRONG_STEPS, _FEWEST_RISES = 0.01, 0.001
# Spread of the steps of a ramp, as a fraction of the step: no signal rises so evenly.
_MOST_UNEVEN = 0.1
# A clock with this irregularity and nothing to repair is taken without looking at others. Among others, a repair counts
# as much as that, and a rate that no ECG has more than any irregularity.
_REGULAR, _UNUSUAL_RATE = 0.05, 10.0
_SHIMMER = re.compile(r"^(shimmer|id)_?[0-9a-f]{4}_|_CAL$", re.IGNORECASE)
_ELECTRODES = re.compile(r"ECG_(LA-RA|LL-RA|LL-LA|Vx-RL)(_\d+BIT)?", re.IGNORECASE)
_LEAD_OF_ELECTRODES = {"la-ra": "I", "ll-ra": "II", "ll-la": "III", "vx-rl": "V"}


@dataclass
class Column:
    """One column of a table.

    Attributes:
        name: name in the file, with its unit; empty if unknown.
        values: numbers, `[num_rows]`, NaN where invalid. Of a column of dates or times, seconds since any moment.
        unit: unit that the file states outside of the name; empty if it does not.
        is_clock: whether `values` are seconds that come from dates or times.
        start: date and time of the first row of a clock, as far as they are known.
        repairs: what was repaired in the times, one line each.
    """

    name: str
    values: NDArray[np.float64]
    unit: str = ""
    is_clock: bool = False
    start: datetime | time | None = None
    repairs: tuple[str, ...] = ()

    @property
    def stated_unit(self) -> str:
        """Text of the unit, stated outside of the name or in it; empty if there is none."""
        return self.unit or split_name(self.name)[1]


@dataclass
class Table:
    """A table whose rows are samples, and what its file states outside of the columns.

    Attributes:
        columns: columns with equal numbers of rows.
        rate_hz: rate of the rows.
        unit: unit of leads that have none of their own.
        lead: name of the lead, if there is one without a name.
        start: date and time of the first row, unless a clock tells it.
        patient, comments: of the recording.
        repairs: what was repaired in the file.
        others: names of columns that hold no numbers, for messages.
    """

    columns: Sequence[Column] = ()
    rate_hz: float | None = None
    unit: str = ""
    lead: str = ""
    start: datetime | time | None = None
    patient: Patient = field(default_factory=Patient)
    comments: tuple[str, ...] = ()
    repairs: tuple[str, ...] = ()
    others: Sequence[str] = ()

    def is_recording(self, path: Path) -> bool:
        """Return whether the first rows of a file are those of a recording: a possible ECG lead with a known rate."""
        clocks, _, leads = _sorted(self.columns)
        if not any(_could_be_ecg(lead) for lead in leads):
            return False
        if self.rate_hz is not None or is_there(sidecar_of(path)):
            return True
        # with a rate for a whole folder, other tables in it must not become recordings
        if (rate_hz := Stated.current().rate_hz) is not None and len(leads[0].values) >= min(rate_hz, _FEWEST_ROWS):
            return any(_is_smooth(lead.values) for lead in leads)
        for clock in clocks:
            with suppress(UnusableClockError):
                if _is_usual(regular_grid(clock.values).rate_hz):
                    return True
        return False

    def recording(self, path: Path) -> Recording:
        """Return the recording of a table.

        Args:
            path: path of the file, for messages and for the `.json` file next to it.

        Raises:
            HeartlmError: there is no lead, the rate or the unit is unknown, or a stated value contradicts the table.
        """
        given = Given.of(path)
        stated_hz = given.rate_hz or self.rate_hz
        stated_hz = None if stated_hz is None else check_rate(path, stated_hz, "rate")
        clocks, counters, leads = _sorted(self.columns)
        if not leads:
            names = [f"{each.name or 'the first column'} (times or row numbers)" for each in self.columns]
            names += [f"{name or 'a column'} (not numbers)" for name in self.others]
            raise HeartlmError(f"{path}: has no column of samples, only {', '.join(names)[:200]}")
        check_width(path, len(leads))
        # texts are in local time, seconds since 1970 in UTC
        starts = [each.start for each in sorted(clocks, key=lambda each: not each.is_clock) if each.start is not None]
        start = next((each for each in starts if isinstance(each, datetime)), next(iter(starts), self.start))
        grid = _grid(given, clocks, counters, len(leads[0].values), stated_hz)
        texts = [lead.stated_unit or self.unit for lead in leads]
        chosen, names = given.stated.leads_of(_names(leads, texts, self.lead), path)
        units, notes = given.units(chosen, len(leads)), list[str]()
        leads = [leads[column] for column in chosen]
        if units is None:
            units, notes = _units(path, leads, names, [texts[column] for column in chosen], grid.rate_hz)
        length = int(grid.positions[-1]) + 1
        # gaps take no row of the file, but memory
        file_bytes = max(8 * len(grid.rows), GAP_SAMPLES // SAMPLES_PER_BYTE)
        check_samples(path, len(leads) * length, file_bytes, held_bytes=4)
        signal = np.full((len(leads), length), np.nan, np.float32)
        is_complete = length == len(grid.rows) == len(leads[0].values)
        for row, lead, unit in zip(signal, leads, units, strict=True):
            values = lead.values if is_complete else lead.values[grid.rows]
            with np.errstate(over="ignore", invalid="ignore"):
                row[slice(None) if is_complete else grid.positions] = (values - unit.baseline) * unit.factor
        return replace(
            array_recording(path, signal, names, [unit.name for unit in units], grid.rate_hz),
            start=given.start or start,
            patient=self.patient,
            comments=self.comments,
            repairs=(*self.repairs, *grid.repairs, *notes),
        )


def check_width(path: Path, num_columns: int) -> None:
    """Check that a table may be one of samples.

    Raises:
        HeartlmError: it has too many columns.
    """
    if num_columns > MOST_COLUMNS:
        raise HeartlmError(
            f"{path}: has {num_columns} columns, at most {MOST_COLUMNS} expected; give each lead a column and each "
            "sample a row"
        )


def is_time_name(name: str) -> bool:
    """Return whether the name of a column, without its unit, says that it holds times."""
    return not TIME_NAMES.isdisjoint(_words(name))


def _could_be_ecg(column: Column) -> bool:
    """Return whether a column may be an ECG lead by its name and unit."""
    unit = column.stated_unit
    return is_ecg_name(split_name(column.name)[0]) is not False and not (unit and parse_unit(unit) is None)


def _words(name: str) -> set[str]:
    parts = re.sub(r"([a-z])([A-Z])", r"\1 \2", name)
    return {word.casefold() for word in re.split(r"[^0-9A-Za-zÀ-ÿµμ]+", parts)}


@np.errstate(over="ignore", invalid="ignore")  # of infinities and the largest numbers
def _sorted(columns: Sequence[Column]) -> tuple[list[Column], list[Column], list[Column]]:
    """Return the columns that may be clocks, with values in seconds, the counters of rows, and the leads."""
    clocks, counters, leads = list[Column](), list[Column](), list[Column]()
    for place, column in enumerate(columns):
        name, unit = split_name(column.name)[0], column.stated_unit
        is_named_time = is_time_name(name) or is_time_name(column.name)
        # a column named time that counts 0, 1, 2 … too, because its unit is unknown
        may_count = is_named_time or not COUNTER_NAMES.isdisjoint(_words(name)) or (place == 0 and not name)
        if column.is_clock:
            clocks.append(column)
        elif may_count and unit.casefold() not in SECONDS_PER_UNIT and counter_modulus(column.values) is not None:
            counters.append(column)
        elif is_named_time or (not name and _rises(column.values)) or (place == 0 and _is_ramp(column.values)):
            clocks.append(_numeric_clock(column, unit))
        elif not np.isnan(column.values).all():
            leads.append(column)
    return clocks, counters, leads


def _is_ramp(values: NDArray[np.float64]) -> bool:
    """Return whether values rise in nearly equal steps, as no signal does."""
    steps = np.diff(values[:_LOOKED_AT])
    return len(steps) > 2 and bool((steps > 0).all()) and float(steps.std()) < _MOST_UNEVEN * float(steps.mean())


def _rises(values: NDArray[np.float64]) -> bool:
    """Return whether values rise from row to row, as no signal does; single ones may be wrong or equal."""
    steps = np.diff(values[:_LOOKED_AT])
    rises, enough = int((steps > 0).sum()), 1 - _MOST_WRONG_STEPS
    return len(steps) > 2 and bool(
        rises > enough * len(steps) or (np.mean(steps >= 0) > enough and rises > _FEWEST_RISES * len(steps) + 2)
    )


def _is_smooth(values: NDArray[np.float64]) -> bool:
    """Return whether values resemble those before them, as samples of a signal do."""
    values = values[np.isfinite(values)]
    return len(values) > 2 and float(np.diff(values).var()) < float(values.var())


def _is_usual(rate_hz: float) -> bool:
    return _LEAST_RATE_HZ <= rate_hz <= _MOST_RATE_HZ


def _numeric_clock(column: Column, unit: str) -> Column:
    """Return times in seconds since the first one, by their unit, or else by the rate that their steps make."""
    values = column.values
    finite = values[np.isfinite(values)]
    if len(finite) < 2:
        return column
    step = (finite[-1] - finite[0]) / (len(values) - 1)  # also of packets with one time
    steps = np.diff(finite)
    typical = float(np.median(steps[steps > 0])) if (steps > 0).any() else 0.0
    if len(finite) == len(values) and 0 < typical < step:
        step = typical  # without gaps

    def rate_hz(factor: float) -> float:
        return float(1 / max(step * factor, 1e-12))

    # A stated unit is believed unless it makes a rate far beyond those of ECGs, as `s` over milliseconds.
    factor = SECONDS_PER_UNIT.get(unit.casefold())
    least, most = _LEAST_RATE_HZ / _MOST_MISSTATED, _MOST_RATE_HZ * _MOST_MISSTATED
    if factor is None or not least <= rate_hz(factor) <= most:
        factor = next((each for each in (1.0, 1e-3, 1e-6, 1e-9) if _is_usual(rate_hz(each))), factor or 1.0)
    first = float(finite[0]) * factor
    start = None
    if _EPOCHS_S[0] <= first <= _EPOCHS_S[1]:  # since 1970
        start = datetime.fromtimestamp(first, UTC).replace(tzinfo=None)
    return replace(column, values=(values - finite[0]) * factor, start=start)


def _grid(
    given: Given, clocks: Sequence[Column], counters: Sequence[Column], num_rows: int, stated_hz: float | None
) -> Grid:
    """Return the grid of the most regular clock, else that of a counter, else of all rows.

    Raises:
        HeartlmError: nothing tells the rate.
    """
    grids, reasons = list[tuple[float, int, Grid]](), list[str]()
    for place, clock in enumerate(sorted(clocks, key=lambda each: each.is_clock)):
        try:
            grid = regular_grid(clock.values, stated_hz)
        except UnusableClockError as error:
            reasons.append(f"column {clock.name or place + 1} {error}")
            continue
        grid = replace(grid, repairs=(*clock.repairs, *grid.repairs))
        unlikely = grid.irregularity + _REGULAR * len(grid.repairs) + _UNUSUAL_RATE * (not _is_usual(grid.rate_hz))
        grids.append((unlikely, place, grid))
        if unlikely < _REGULAR:
            break
    if grids:
        return min(grids, key=lambda each: each[:2])[2]
    if stated_hz is None:
        reasons += [f"column {counter.name or '1'} counts rows" for counter in counters[:1]]
        raise given.no_rate("; ".join(reasons) or "it has no column with times")
    for counter in counters:
        if (grid_of_rows := grid_of_counter(counter.values, stated_hz)) is not None:
            return grid_of_rows
    rows = np.arange(num_rows)
    repairs = [f"times not used ({reason}); rows taken as evenly spaced at {stated_hz:g} Hz" for reason in reasons[:1]]
    return Grid(stated_hz, rows, rows, repairs=tuple(repairs))


def _names(leads: Sequence[Column], texts: Sequence[str], only_lead: str) -> list[str]:
    """Return a different name for each lead; `texts` are their units, `only_lead` names a single one without a name."""
    names = list[str]()
    for place, lead in enumerate(leads, 1):
        # Consensys of Shimmer writes `Shimmer_B64E_ECG_LL-RA_24BIT_CAL`: a lead is named by its two electrodes.
        name = _SHIMMER.sub("", split_name(lead.name)[0])
        if match := _ELECTRODES.fullmatch(name):
            name = _LEAD_OF_ELECTRODES[match[1].casefold()]
        names.append(name or (only_lead if len(leads) == 1 else "") or f"lead {place}")
    for place, text in enumerate(texts):  # next to the same lead in a unit
        if names.count(names[place]) > 1 and (unit := parse_unit(text)) is not None and unit.name == RAW:
            names[place] += " raw"
    for place in range(len(names)):
        while names[place] in names[:place]:
            names[place] += "'"
    return names


def _units(
    path: Path, leads: Sequence[Column], names: Sequence[str], texts: Sequence[str], rate_hz: float
) -> tuple[list[Unit], list[str]]:
    """Return the unit of each lead, of which `texts` are stated, and what is to be known about them.

    Raises:
        HeartlmError: no unit is stated and the values of no lead are plausible as millivolts.
    """
    in_file_name = parse_unit(split_name(path.stem)[1])
    units, implausible = list[Unit](), list[int]()
    for place, (lead, name, text) in enumerate(zip(leads, names, texts, strict=True)):
        if text:
            units.append(parse_unit(text) or Unit(text))
        elif in_file_name is not None:
            units.append(in_file_name)
        elif is_ecg_name(name) is False:
            units.append(Unit(""))
        else:
            units.append(Unit("mV"))
            size = typical_range(lead.values, rate_hz)
            if size and not LEAST_MV <= size <= MOST_MV:
                implausible.append(place)
    if implausible and len(implausible) == sum(unit.name == "mV" for unit in units):
        check_size(path, np.stack([leads[place].values for place in implausible]), rate_hz)
    for place in implausible:  # a sensor of another kind next to an ECG
        units[place] = Unit("")
    raw = [name for name, unit in zip(names, units, strict=True) if unit.name == RAW and is_ecg_name(name) is not False]
    note = f"{', '.join(raw[:4])}: steps of a converter, not millivolts; give --units, for example 200/mV"
    return units, [note] if raw else []
