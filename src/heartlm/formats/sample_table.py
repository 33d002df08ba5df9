"""Tables of samples, one row a sample: which columns are times and which are leads, at what rate and in which unit.

    columns ─┬─► times ─► the most regular clock ─► grid of positions
             ├─► counters ─► grid, if the rate is known
             └─► leads ─► unit: stated, in the name, or plausible ─► float32 in mV, NaN in gaps

What the file does not tell comes from `Stated` (options of the command), then from the `.json` file next to it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heartlm.ecg.leads import is_ecg_name
from heartlm.ecg.recording import Patient, Recording
from heartlm.errors import HeartlmError
from heartlm.formats.arrays import (
    LEAST_MV,
    MOST_MV,
    array_recording,
    check_size,
    settings_of,
    sidecar_of,
    start_of,
    stated_units,
    typical_range,
)
from heartlm.formats.clock import (
    Grid,
    UnusableClockError,
    counter_modulus,
    grid_of_counter,
    regular_grid,
    without_time_change,
)
from heartlm.formats.plausible import check_rate
from heartlm.formats.stated import Stated
from heartlm.formats.units import RAW, SECONDS_PER_UNIT, Unit, parse_unit, split_name
from heartlm.storage.limits import GAP_SAMPLES, SAMPLES_PER_BYTE, check_samples

MOST_COLUMNS = 64
"""Most leads; a table with more columns has a beat or a recording in each row."""
LEAST_RATE_HZ, MOST_RATE_HZ = 30.0, 5000.0
"""Rates of ECGs, which tell the unit of times. Units differ by 1000, so at most one fits."""
# Seconds since 1970 of the years 2000 and 2100.
_EPOCHS_S = 946_684_800.0, 4_102_444_800.0

_TIME_WORDS = frozenset(
    ("time", "times", "timestamp", "timestamps", "datetime", "date", "clock", "elapsed", "utc", "epoch", "unix",
     "unixtime", "sec", "secs", "second", "seconds", "ms", "msec", "millis", "milliseconds", "us", "micros", "ns",
     "nanos", "t", "zeit", "zeitstempel", "uhrzeit", "temps", "heure", "horodatage", "tiempo", "hora", "tempo", "ora",
     "tijd")
)  # fmt: skip
_COUNTER_WORDS = frozenset(
    ("", "sample", "samples", "samplenumber", "index", "idx", "n", "nr", "no", "num", "number", "seq", "nseq", "count",
     "counter", "point", "frame", "row", "unnamed", "i", "x", "id", "packet")
)  # fmt: skip


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


@dataclass
class Facts:
    """What a file states outside of its columns."""

    rate_hz: float | None = None
    unit: str = ""
    lead: str = ""
    start: datetime | time | None = None
    patient: Patient = field(default_factory=Patient)
    comments: tuple[str, ...] = ()


def table_recording(
    path: Path, columns: Sequence[Column], facts: Facts | None = None, others: Sequence[str] = ()
) -> Recording:
    """Return the recording of a table whose rows are samples.

    Args:
        path: path of the file, for messages and for the `.json` file next to it.
        columns: columns with equal numbers of rows.
        facts: what the file states outside of its columns.
        others: names of columns that hold no numbers, for messages.

    Raises:
        HeartlmError: there is no lead, the rate or the unit is unknown, or a stated value contradicts the table.
    """
    stated, settings, facts = Stated.current(), settings_of(path), facts or Facts()
    stated_hz = stated.rate_hz or settings.get("rate_hz") or facts.rate_hz
    stated_hz = None if stated_hz is None else check_rate(path, stated_hz, "rate")
    clocks, counters, leads = sort_columns(columns)
    if not leads:
        names = [f"{each.name or 'the first column'} (times or row numbers)" for each in columns]
        names += [f"{name or 'a column'} (not numbers)" for name in others]
        raise HeartlmError(f"{path}: has no column of samples, only {', '.join(names)[:200]}")
    check_width(path, len(leads))
    grid, start, repairs = _grid(path, clocks, counters, leads, stated_hz)
    names, texts = _names(leads, facts)
    chosen, names = stated.leads_of(names, path)
    units, notes = stated.units_of(len(chosen)), list[str]()
    if units is None and "units" in settings:
        units_in_file = stated_units(path, settings, len(leads))
        units = [units_in_file[column] for column in chosen]
    elif units is None:
        chosen_leads = [leads[column] for column in chosen]
        units, notes = _units(path, chosen_leads, names, [texts[column] for column in chosen], grid.rate_hz)
    length = int(grid.positions[-1]) + 1
    # gaps take no row of the file, but memory
    check_samples(path, len(chosen) * length, max(8 * len(grid.rows), GAP_SAMPLES // SAMPLES_PER_BYTE), held_bytes=4)
    signal = np.full((len(chosen), length), np.nan, np.float32)
    is_complete = length == len(grid.rows) == len(leads[0].values)
    for row, column, unit in zip(signal, chosen, units, strict=True):
        values = leads[column].values if is_complete else leads[column].values[grid.rows]
        with np.errstate(over="ignore", invalid="ignore"):
            row[slice(None) if is_complete else grid.positions] = (values - unit.baseline) * unit.factor
    recording = array_recording(path, signal, names, [unit.name for unit in units], grid.rate_hz)
    return replace(
        recording,
        start=start_of(sidecar_of(path), settings["start"]) if "start" in settings else start or facts.start,
        patient=facts.patient,
        comments=facts.comments,
        repairs=(*repairs, *notes),
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
    return not _TIME_WORDS.isdisjoint(_words(name))


def could_be_ecg(name: str, unit: str = "") -> bool:
    """Return whether a column may be an ECG lead by its name and unit."""
    bare, own_unit = split_name(name)
    unit = unit or own_unit
    return is_ecg_name(bare) is not False and not (unit and parse_unit(unit) is None)


def _words(name: str) -> set[str]:
    parts = re.sub(r"([a-z])([A-Z])", r"\1 \2", name)
    return {word.casefold() for word in re.split(r"[^0-9A-Za-zÀ-ÿµμ]+", parts)}


def sort_columns(columns: Sequence[Column]) -> tuple[list[Column], list[Column], list[Column]]:
    """Return the columns that may be clocks, with values in seconds, the counters of rows, and the leads."""
    clocks, counters, leads = list[Column](), list[Column](), list[Column]()
    for place, column in enumerate(columns):
        name, unit = split_name(column.name)
        unit = column.unit or unit
        if column.is_clock:
            clocks.append(column)
            continue
        is_named_time = is_time_name(name) or is_time_name(column.name)
        # a column named time that counts 0, 1, 2 … too, because its unit is unknown
        may_count = is_named_time or not _COUNTER_WORDS.isdisjoint(_words(name)) or (place == 0 and not name)
        if may_count and unit.casefold() not in SECONDS_PER_UNIT and counter_modulus(column.values) is not None:
            counters.append(column)
            continue
        if is_named_time or (not name and _rises(column.values)) or (place == 0 and _is_ramp(column.values)):
            clocks.append(_numeric_clock(column, unit))
        elif not np.isnan(column.values).all():
            leads.append(column)
    return clocks, counters, leads


def _is_ramp(values: NDArray[np.float64]) -> bool:
    """Return whether values rise in nearly equal steps, as no signal does."""
    steps = np.diff(values[:10_000])
    return len(steps) > 2 and bool((steps > 0).all()) and float(steps.std()) < 0.1 * float(steps.mean())


def _rises(values: NDArray[np.float64]) -> bool:
    """Return whether values rise from row to row, as no signal does; single ones may be wrong or equal."""
    steps = np.diff(values[:10_000])
    rises = int((steps > 0).sum())
    return len(steps) > 2 and bool(
        rises > 0.99 * len(steps) or (np.mean(steps >= 0) > 0.99 and rises > 0.001 * len(steps) + 2)
    )


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
    factor = SECONDS_PER_UNIT.get(unit.casefold())
    # A stated unit is believed unless it makes a rate a hundred times beyond those of ECGs, as `s` over milliseconds.
    if factor is None or not LEAST_RATE_HZ / 100 <= 1 / max(step * factor, 1e-12) <= MOST_RATE_HZ * 100:
        rates = {each: 1 / max(step * each, 1e-12) for each in (1.0, 1e-3, 1e-6, 1e-9)}
        factor = next((each for each, rate in rates.items() if LEAST_RATE_HZ <= rate <= MOST_RATE_HZ), factor or 1.0)
    first = float(finite[0]) * factor
    start = None
    if _EPOCHS_S[0] <= first <= _EPOCHS_S[1]:  # since 1970
        start = datetime.fromtimestamp(first, UTC).replace(tzinfo=None)
    return replace(column, values=(values - finite[0]) * factor, start=start)


def _grid(
    path: Path, clocks: Sequence[Column], counters: Sequence[Column], leads: Sequence[Column], stated_hz: float | None
) -> tuple[Grid, datetime | time | None, list[str]]:
    """Return the grid of the most regular clock, the start that any clock tells, and what was repaired.

    Raises:
        HeartlmError: nothing tells the rate.
    """
    # texts are in local time, seconds since 1970 in UTC
    starts = [clock.start for clock in sorted(clocks, key=lambda each: not each.is_clock) if clock.start is not None]
    start = next((each for each in starts if isinstance(each, datetime)), next(iter(starts), None))
    grids, reasons = list[tuple[float, int, Grid]](), list[str]()
    for place, clock in enumerate(sorted(clocks, key=lambda each: each.is_clock)):
        try:
            grid = regular_grid(clock.values, stated_hz)
            grid = replace(grid, repairs=(*clock.repairs, *grid.repairs))
        except UnusableClockError as error:
            reasons.append(f"column {clock.name or place + 1} {error}")
            continue
        # a gap or a repair counts little, a rate that no ECG has more
        is_usual = LEAST_RATE_HZ <= grid.rate_hz <= MOST_RATE_HZ
        grids.append((grid.irregularity + 0.05 * len(grid.repairs) + (0 if is_usual else 10), place, grid))
        if is_usual and not grid.repairs and grid.irregularity < 0.05:
            break
    if grids:
        grid = min(grids, key=lambda each: each[:2])[2]
        return grid, start, list(grid.repairs)
    if stated_hz is None:
        if counters:
            name = counters[0].name or "1"
            reasons.append(f"column {name} counts rows")
        reason = "; ".join(reasons) or "it has no column with times"
        raise HeartlmError(
            f"{path}: states no sampling rate ({reason}); give --rate HZ, or write it into "
            f'{sidecar_of(path).name} as {{"rate_hz": …}}'
        )
    for counter in counters:
        if (grid_of_rows := grid_of_counter(counter.values, stated_hz)) is not None:
            return grid_of_rows, start, list(grid_of_rows.repairs)
    rows = np.arange(len(leads[0].values))
    repairs = [f"times not used ({reason}); rows taken as evenly spaced at {stated_hz:g} Hz" for reason in reasons[:1]]
    return Grid(stated_hz, rows, rows), start, repairs


def _names(leads: Sequence[Column], facts: Facts) -> tuple[list[str], list[str]]:
    """Return a name and the text of the unit of each lead."""
    names, texts = list[str](), list[str]()
    for place, lead in enumerate(leads, 1):
        name, unit = split_name(lead.name)
        # Consensys of Shimmer writes `Shimmer_B64E_ECG_LL-RA_24BIT_CAL`: a lead is named by its two electrodes.
        name = re.sub(r"^(shimmer|id)_?[0-9a-f]{4}_|_CAL$", "", name, flags=re.IGNORECASE)
        if match := re.fullmatch(r"ECG_(LA-RA|LL-RA|LL-LA|Vx-RL)(_\d+BIT)?", name, re.IGNORECASE):
            name = {"la-ra": "I", "ll-ra": "II", "ll-la": "III", "vx-rl": "V"}[match[1].casefold()]
        names.append(name or (facts.lead if len(leads) == 1 else "") or f"lead {place}")
        texts.append(lead.unit or unit or facts.unit)
    for place, text in enumerate(texts):  # next to the same lead in a unit
        if names.count(names[place]) > 1 and (raw := parse_unit(text)) is not None and raw.name == RAW:
            names[place] += " raw"
    for place, name in enumerate(names):
        while name in names[:place]:
            name += "'"
        names[place] = name
    return names, texts


def _units(
    path: Path, leads: Sequence[Column], names: Sequence[str], texts: Sequence[str], rate_hz: float
) -> tuple[list[Unit], list[str]]:
    """Return the unit of each lead and what is to be known about it.

    Raises:
        HeartlmError: no unit is stated and the values of no lead are plausible as millivolts.
    """
    units, implausible = list[Unit](), list[int]()
    for place, (lead, name, text) in enumerate(zip(leads, names, texts, strict=True)):
        if text:
            units.append(parse_unit(text) or Unit(text))
        elif (in_file_name := split_name(path.stem)[1]) and (unit := parse_unit(in_file_name)):
            units.append(unit)
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


# Characters of a line before a table that are looked at: the expressions take the square of their number.
_LONGEST_LINE = 1000
_PAIR = re.compile(r"\s*[#%;/]*\s*\"?([^,;:=\t\"]+?)\"?\s*[,;:=\t]\s*(.*?)\s*")
_RATE_KEY = re.compile(
    r"sampl|abtast|messrate|chantillon|muestr|campion|amostr|bemonster|\bfs\b|srate|sfreq|\brate\b|frequenc|frecuenc"
    r"|采样|採樣|取樣|サンプ|샘플|표본|дискретиз|próbkow|örnekle|næytetaaj|vzork",
    re.IGNORECASE,
)
# Keys with other frequencies: those of filters, of the mains, of the heart and of breathing.
_NO_RATE_KEY = re.compile(r"filter|filtre|notch|pass|mains|heart|herz|puls|bpm|cut|bandw|resp", re.IGNORECASE)
_BIRTH_KEY = re.compile(
    r"birth|geburt|naiss|nacim|nasc|geboorte|\bdob\b|出生|生年月日|生日|생년월일|рожд|født|född|urodz|narozen|doğum",
    re.IGNORECASE,
)
_NAME_KEYS = frozenset(
    ("name", "patient", "patient name", "nom", "nombre", "nome", "naam", "姓名", "名字", "名前", "氏名", "이름", "имя",
     "namn",      "navn", "nimi", "imię", "jméno", "ad")
)  # fmt: skip
_UNIT_KEYS = frozenset(("unit", "units", "einheit", "unité", "unidad", "unità", "unidade", "eenheid"))
_LEAD_KEYS = frozenset(("lead", "ableitung", "dérivation", "derivación", "derivazione", "derivação", "afleiding"))
# Recorder in the export of an Apple Watch, in every language.
_APPLE_WATCH = re.compile(r"Watch\d+,\d+")
_LEAD_NAME = re.compile(r"(?<![A-Za-z0-9])(I{1,3}|aV[RLF]|V[1-6])(?![A-Za-z0-9])")
MOMENT = re.compile(r"(\d{4})[-/.](\d{1,2})[-/.](\d{1,2})[T ]+(\d{1,2}):(\d\d)(?::(\d\d)([.,]\d+)?)?")
_BIRTH_FORMATS = ("%Y-%m-%d", "%d.%m.%Y", "%b %d, %Y", "%d %b %Y", "%B %d, %Y", "%d %B %Y", "%Y/%m/%d")


def facts_of(lines: Sequence[str]) -> Facts:
    """Return what the lines before a table state, in English or the language of the telephone: rate, unit, start."""
    facts, rates, comments = Facts(), dict[float, bool](), list[str]()
    for line in lines:
        if not (line := line.strip()[:_LONGEST_LINE]):
            continue
        match = _PAIR.fullmatch(line)
        key, value = (match[1].strip(), match[2].strip().strip('"').strip()) if match else ("", line)
        lowered = key.casefold()
        if _BIRTH_KEY.search(key):
            for form in _BIRTH_FORMATS:
                with suppress(ValueError):
                    facts.patient = replace(facts.patient, birth_date=datetime.strptime(value, form).date())
            continue
        if lowered in _NAME_KEYS:
            facts.patient = replace(facts.patient, name=value[:200])
            continue
        if lowered in _UNIT_KEYS and parse_unit(value):
            facts.unit = value
        elif lowered in _LEAD_KEYS and value:
            facts.lead = value.split()[-1][:40]
        elif _NO_RATE_KEY.search(key) is None and (rate_hz := _rate_in(key, value)) is not None:
            rates[rate_hz] = rates.get(rate_hz, False) or bool(_RATE_KEY.search(key))
        if facts.start is None and (moment := MOMENT.search(line)):
            facts.start = moment_of(moment)
        if value:
            comments.append(line.lstrip("#% ")[:200])
    named = [rate_hz for rate_hz, is_named in rates.items() if is_named] or list(rates)
    facts.rate_hz = named[0] if len(named) == 1 else None
    if any(map(_APPLE_WATCH.search, lines)):
        _complete_apple(facts, lines)
    facts.comments = tuple(comments[:50])
    return facts


def _complete_apple(facts: Facts, lines: Sequence[str]) -> None:
    """Add rate, unit and lead of an export of an Apple Watch, whose words are of the telephone's language.

    The values tell: the unit is a voltage, the rate is the number with a word after it that a rate can be, and the lead
    has a name as `I`. The patient's name is on the first line.
    """
    values = [match[2].strip().strip('"').strip() for line in lines if (match := _PAIR.fullmatch(line))]
    for place, value in enumerate(values):
        rate = re.fullmatch(r"(\d+)(?:[.,]\d+)?\s*([^\W\d_]+)\.?", value)
        if facts.rate_hz is None and rate and 100 <= float(rate[1]) <= 2000 and parse_unit(rate[2]) is None:
            facts.rate_hz = float(rate[1])
        elif not facts.unit and len(value) > 1 and (unit := parse_unit(value)) is not None and unit.name == "mV":
            facts.unit = value
        elif not facts.lead and place > 2 and (lead := _LEAD_NAME.search(value)) and len(value) < 40:
            facts.lead = lead[1]
        elif place == 0 and not facts.patient.name and re.search(r"[^\W\d]", value):
            facts.patient = replace(facts.patient, name=value[:200])
        else:
            with suppress(ValueError):
                if place < 3 and facts.patient.birth_date is None and ":" not in value:
                    facts.patient = replace(facts.patient, birth_date=date.fromisoformat(value))
    if facts.lead and (lead := _LEAD_NAME.search(facts.lead)):
        facts.lead = lead[1]


def _rate_in(key: str, value: str) -> float | None:
    """Return the rate in Hz that a line before a table states; None if it states none."""
    if match := re.fullmatch(
        r"(\d+(?:[.,]\d+)?)\s*(hz|hertz|赫兹|赫茲|赫|ヘルツ|헤르츠|герц|гц|hercios|herców|samples?\s*(?:/|per)\s*s(?:ec(?:ond)?)?)\.?",
        value,
        re.IGNORECASE,
    ):
        return float(match[1].replace(",", ".")) or None
    match = re.search(r"(?<![\d.])(\d+(?:\.\d+)?)\s*([^\W\d]\w*)\s*/\s*sample", f"{key} {value}", re.IGNORECASE)
    if match is None and re.fullmatch(r"(sampl(e|ing) )?interval", key, re.IGNORECASE):
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(\w+)", value)
    if match is not None:
        return rate_of_interval(float(match[1]), match[2]) or None
    if _RATE_KEY.search(key) and re.fullmatch(r"\d+(?:\.\d+)?", value):
        return float(value) or None
    return None


def rate_of_interval(interval: float, unit: str) -> float:
    """Return the rate in Hz of samples at an interval, a whole one if the interval is rounded; 0 if it is none."""
    step_s = interval * SECONDS_PER_UNIT.get(unit.casefold(), 0.0)
    rate_hz = 1 / step_s if step_s else 0.0
    return float(round(rate_hz)) if abs(rate_hz - round(rate_hz)) < 1e-4 * rate_hz else rate_hz


def moment_of(match: re.Match[str]) -> datetime | None:
    """Return the moment of a match of year, month, day, hour, minute, second and fraction; None if there is none."""
    year, month, day, hour, minute, second = (int(text or 0) for text in match.groups()[:6])
    with suppress(ValueError):
        fraction = float((match[7] or "0").replace(",", "."))
        return datetime(year, month, day, hour, minute, second) + timedelta(seconds=fraction)
    return None


_MOMENT_TEXT = (
    r"^\[?(?:(?P<day>\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4})[T ]+)?"
    r"(?:(?P<h>\d{1,3}):)?(?P<m>\d{1,4}):(?P<s>\d{1,2}(?:[.,:]\d+)?)"
    r"\s*(?P<half>[aApP][mM])?\s*(?P<zone>Z|UTC|[+-]\d\d:?\d\d)?(?:\s+\d{1,2}/\d{1,2}/\d{4})?\]?$"
)


def clock_column(name: str, texts: Any) -> Column | None:
    """Return the column of an Arrow array of texts that are dates and times, or times; None if they are not.

    Texts that cannot be read become NaN. Times of day rise after midnight.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    first = next((text.as_py() for text in texts if text.is_valid), None)
    match = first and re.match(_MOMENT_TEXT, first.strip())
    if not match:
        return None
    seconds: NDArray[np.float64] | None = None
    # Arrow's own parser reads ISO 8601 alone. It refuses other texts, and differences that float64 would round.
    with suppress(pa.ArrowInvalid):
        ticks = texts.cast(pa.timestamp("ns", tz="UTC" if match["zone"] else None)).cast(pa.int64())
        origin = ticks[0].as_py() or 0
        seconds = pc.subtract(ticks, origin).cast(pa.float64()).to_numpy() * 1e-9
    if seconds is None:
        seconds = _seconds_of(pc.utf8_trim_whitespace(texts))
    if np.isnan(seconds).mean() > 0.1:
        return None
    start = _start_in(match)
    return Column(name, seconds, is_clock=True, start=start) if match["zone"] else local_clock(name, seconds, start)


def local_clock(name: str, seconds: NDArray[np.float64], start: datetime | time | None) -> Column:
    """Return a column of local times without an offset, in which summer time may begin or end."""
    if start is None:
        return Column(name, seconds, is_clock=True)
    clock_s = 3600 * start.hour + 60 * start.minute + start.second + 1e-6 * start.microsecond
    seconds, repairs = without_time_change(seconds, clock_s)
    return Column(name, seconds, is_clock=True, start=start, repairs=repairs)


def _seconds_of(texts: Any) -> NDArray[np.float64]:
    import pyarrow as pa
    import pyarrow.compute as pc

    parts = pc.extract_regex(texts, _MOMENT_TEXT)

    def numbers(name: str) -> NDArray[np.float64]:
        # the fraction of a second may follow a comma or a colon: 10:00:00:125
        text = pc.replace_substring_regex(pc.struct_field(parts, name), "[,:]", ".")
        return np.asarray(pc.if_else(pc.equal(text, ""), "0", text).cast(pa.float64()), np.float64)

    hours, minutes, seconds = (numbers(name) for name in "hms")
    halves = pc.fill_null(pc.utf8_lower(pc.struct_field(parts, "half")), "")
    if pc.any(pc.not_equal(halves, "")).as_py():
        is_pm = pc.equal(halves, "pm").to_numpy()
        hours = np.where(is_pm, hours % 12 + 12, hours % 12)
    total = 3600 * hours + 60 * minutes + seconds
    days = pc.dictionary_encode(pc.fill_null(pc.struct_field(parts, "day"), "")).combine_chunks()
    days = days.chunk(0) if isinstance(days, pa.ChunkedArray) else days
    different = days.dictionary.to_pylist()
    dates = [_date_in(text) for text in different]
    if all(each is not None for each in dates) and len(different) < 10_000:
        ordinals = np.array([each.toordinal() for each in dates if each is not None], np.float64)
        return np.asarray(total + 86400.0 * (ordinals - ordinals[0])[days.indices.to_numpy()])
    # without a known date a day begins where the time falls by more than half a day
    near = np.maximum.accumulate(np.where(np.isnan(total), 0, np.arange(len(total))))  # the last row with a time
    falls = np.diff(total[near], prepend=total[:1]) < -43200
    return total + 86400.0 * np.cumsum(falls)


def _date_in(text: str) -> date | None:
    """Return the date that a text names without doubt; None if day and month may be exchanged, or there is none."""
    numbers = re.split(r"[-/.]", text)
    if len(numbers) != 3:
        return None
    first, second, third = map(int, numbers)
    with suppress(ValueError):
        if first > 31:
            return date(first, second, third)
        if second > 12:
            return date(third, first, second)
        # With slashes, 3/4/2024 is a day in March or in April. Dots are German, so the day is first.
        if first > 12 or "." in text or first == second:
            return date(third, second, first)
    return None


def _start_in(match: re.Match[str]) -> datetime | time | None:
    hour, minute, second = int(match["h"] or 0), int(match["m"]), float(re.sub("[,:]", ".", match["s"]))
    if match["half"]:
        hour = hour % 12 + (12 if match["half"].lower() == "pm" else 0)
    if match["h"] is None or hour > 23:
        return None  # time since the start
    day = _date_in(match["day"]) if match["day"] else None
    with suppress(ValueError):
        moment = datetime.combine(day or date(2000, 1, 1), time(hour, minute)) + timedelta(seconds=second)
        if day is None and moment.time() == time():
            return None  # 00:00:00 begins to count at the start
        return moment if day else moment.time()
    return None
