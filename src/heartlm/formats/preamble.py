"""What the lines before a table state: rate, unit, lead, start and patient, in the language of the program.

Sample Rate,512 hertz      a key and a value: `facts_of`, with the words of `words.py`
# {"00:07": {"sensor"…     the JSON of OpenSignals, which also names the columns: `opensignals`
2 channels                 AcqKnowledge, with name and unit of each channel on two lines: `acqknowledge`
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import date, datetime, timedelta
from typing import NamedTuple

from heartlm.formats.sample_table import Table
from heartlm.formats.units import parse_unit
from heartlm.formats.words import (
    BIRTH_KEY,
    INTERVAL_KEY,
    LEAD_KEYS,
    NAME_KEYS,
    OTHER_RATE_KEY,
    RATE_KEY,
    RATE_VALUE,
    SECONDS_PER_UNIT,
    UNIT_KEYS,
)
from heartlm.storage.reading import parse_json

# Characters of a line that are looked at: the expressions take the square of their number.
_LONGEST_LINE = 1000
_LONGEST_COMMENT, _LONGEST_LEAD, _MOST_COMMENTS = 200, 40, 50
_PAIR = re.compile(r"\s*[#%;/]*\s*\"?([^,;:=\t\"]+?)\"?\s*[,;:=\t]\s*(.*?)\s*")
# Recorder in the export of an Apple Watch, in every language.
_APPLE_WATCH = re.compile(r"Watch\d+,\d+")
_LEAD_NAME = re.compile(r"(?<![A-Za-z0-9])(I{1,3}|aV[RLF]|V[1-6])(?![A-Za-z0-9])")
_MOMENT = re.compile(r"(\d{4})[-/.](\d{1,2})[-/.](\d{1,2})[T ]+(\d{1,2}):(\d\d)(?::(\d\d)([.,]\d+)?)?")
_BIRTH_FORMATS = ("%Y-%m-%d", "%d.%m.%Y", "%b %d, %Y", "%d %b %Y", "%B %d, %Y", "%d %B %Y", "%Y/%m/%d")
# Relative distance from a whole rate that is taken as the rounding of an interval: 2.7778 ms are 360 Hz.
_NEAR_WHOLE = 1e-4
# Supply in V and gain of the ECG sensors of BITalino and biosignalsplux, from their transfer functions.
_SUPPLY_AND_GAIN = {"bitalino": (3.3, 1100.0), "plux": (3.0, 1000.0)}


def facts_of(lines: Sequence[str]) -> Table:
    """Return a table without columns, with what the lines before it state."""
    table, rates, comments = Table(), dict[float, bool](), list[str]()
    for line in filter(None, (line.strip()[:_LONGEST_LINE] for line in lines)):
        key, value = _pair(line) or ("", line)
        lowered = key.casefold()
        if BIRTH_KEY.search(key):
            for form in _BIRTH_FORMATS:
                with suppress(ValueError):
                    table.patient = replace(table.patient, birth_date=datetime.strptime(value, form).date())
            continue
        if lowered in NAME_KEYS:
            table.patient = replace(table.patient, name=value[:_LONGEST_COMMENT])
            continue
        if lowered in UNIT_KEYS and parse_unit(value):
            table.unit = value
        elif lowered in LEAD_KEYS and value:
            table.lead = value.split()[-1][:_LONGEST_LEAD]
        elif not OTHER_RATE_KEY.search(key) and (rate_hz := _rate_in(key, value)):
            rates[rate_hz] = rates.get(rate_hz, False) or bool(RATE_KEY.search(key))
        table.start = table.start or moment_in(line)
        if value:
            comments.append(line.lstrip("#% ")[:_LONGEST_COMMENT])
    # Without one rate, or one that is called so, none is known.
    named = [rate_hz for rate_hz, is_named in rates.items() if is_named] or list(rates)
    table.rate_hz = named[0] if len(named) == 1 else None
    if any(map(_APPLE_WATCH.search, lines)):
        _complete_apple(table, [pair[1] for pair in map(_pair, lines) if pair])
    table.comments = tuple(comments[:_MOST_COMMENTS])
    return table


def _pair(line: str) -> tuple[str, str] | None:
    match = _PAIR.fullmatch(line)
    return match and (match[1].strip(), match[2].strip().strip('"').strip())


def _complete_apple(table: Table, values: Sequence[str]) -> None:
    """Add rate, unit and lead of an export of an Apple Watch, whose words are of the telephone's language.

    The values tell: the unit is a voltage, the rate is the number with a word after it that a rate can be, and the lead
    has a name as `I`. The patient's name and birth date are on the first lines.
    """
    for place, value in enumerate(values):
        rate = re.fullmatch(r"(\d+)(?:[.,]\d+)?\s*([^\W\d_]+)\.?", value)
        if table.rate_hz is None and rate and 100 <= float(rate[1]) <= 2000 and parse_unit(rate[2]) is None:
            table.rate_hz = float(rate[1])
        elif not table.unit and len(value) > 1 and (unit := parse_unit(value)) is not None and unit.name == "mV":
            table.unit = value
        elif not table.lead and place > 2 and (lead := _LEAD_NAME.search(value)) and len(value) < _LONGEST_LEAD:
            table.lead = lead[1]
        elif place == 0 and not table.patient.name and re.search(r"[^\W\d]", value):
            table.patient = replace(table.patient, name=value[:_LONGEST_COMMENT])
        elif place < 3 and table.patient.birth_date is None and ":" not in value:
            with suppress(ValueError):
                table.patient = replace(table.patient, birth_date=date.fromisoformat(value))
    if lead := _LEAD_NAME.search(table.lead):
        table.lead = lead[1]


def _rate_in(key: str, value: str) -> float | None:
    """Return the rate in Hz that a key and a value state, as a rate or as an interval; None or 0 if they state none."""
    if match := RATE_VALUE.fullmatch(value):
        return float(match[1].replace(",", "."))
    match = re.search(r"(?<![\d.])(\d+(?:\.\d+)?)\s*([^\W\d]\w*)\s*/\s*sample", f"{key} {value}", re.IGNORECASE)
    if match is None and INTERVAL_KEY.fullmatch(key):
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(\w+)", value)
    if match is not None:
        return rate_of_interval(float(match[1]), match[2])
    return float(value) if RATE_KEY.search(key) and re.fullmatch(r"\d+(?:\.\d+)?", value) else None


def rate_of_interval(interval: float, unit: str) -> float:
    """Return the rate in Hz of samples at an interval, a whole one if the interval is rounded; 0 if it is none."""
    step_s = interval * SECONDS_PER_UNIT.get(unit.casefold(), 0.0)
    rate_hz = 1 / step_s if step_s else 0.0
    return float(round(rate_hz)) if abs(rate_hz - round(rate_hz)) < _NEAR_WHOLE * rate_hz else rate_hz


def moment_in(text: str) -> datetime | None:
    """Return the first date with a time that a text states, year first; None if there is none."""
    if match := _MOMENT.search(text):
        with suppress(ValueError):
            year, month, day, hour, minute, second = (int(each or 0) for each in match.groups()[:6])
            fraction = float((match[7] or "0").replace(",", "."))
            return datetime(year, month, day, hour, minute, second) + timedelta(seconds=fraction)
    return None


class Source(NamedTuple):
    """Name and unit of a column of a file, and how its values become values in the unit, which they are at factor 0."""

    name: str
    unit: str
    factor: float = 0.0
    baseline: float = 0.0


def opensignals(preamble: Sequence[str], num_columns: int) -> tuple[Table, dict[int, Source]] | None:
    """Return what the JSON header of OpenSignals states: rate, start, and the channels by column; None without one."""
    if not any("OpenSignals" in line for line in preamble[:1]):
        return None
    layout, first, table = dict[int, Source](), 0, Table()
    try:
        devices = parse_json(next(line for line in preamble if "{" in line).lstrip("# "))
        for device in devices.values():
            names, sensors = device["column"], device["sensor"]
            labels, resolutions = device.get("label", []), device["resolution"]
            kind = "bitalino" if "bitalino" in str(device.get("device", "")).casefold() else "plux"
            volts, gain = _SUPPLY_AND_GAIN[kind]
            table.rate_hz = float(device["sampling rate"])
            if table.start is None:
                (year, month, day), time = map(int, device["date"].split("-")), device["time"].split(":")
                table.start = datetime(year, month, day, int(time[0]), int(time[1])) + timedelta(seconds=float(time[2]))
            if names and names[0].casefold() == "nseq" and not layout:
                layout[first] = Source("nSeq", "")
            # the sensors are in the last columns, and so are their labels and resolutions
            for index, sensor in enumerate(sensors):
                place = len(names) - len(sensors) + index
                label = str(labels[index]) if index < len(labels) else str(names[place])
                bits, kind = int(resolutions[index - len(sensors)]), str(sensor).upper()
                if kind.startswith("ECG"):
                    name = "ECG" if sensors.count(sensor) == 1 else f"ECG {label}"
                    layout[first + place] = Source(name, "mV", 1e3 * volts / gain / 2**bits, 2 ** (bits - 1))
                else:
                    name = label if kind in ("RAW", "CUSTOM", "OTHER") else f"{sensor} {label}"
                    layout[first + place] = Source(name, "adu")
            first += len(names)
    except (LookupError, ValueError, TypeError, AttributeError, ArithmeticError, StopIteration):
        return None
    return (table, layout) if first >= num_columns > max(layout, default=0) else None


def acqknowledge(
    preamble: Sequence[str], counts: Sequence[str], names: Sequence[str]
) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """Return names and units of the columns of a text of AcqKnowledge; None for other tables.

    Lines before the table give the number of channels, then the name and the unit of each on two lines. The first row
    has no samples, but their number in each channel.
    """
    lines = [line.strip() for line in preamble]
    first = next((first for first, line in enumerate(lines) if re.fullmatch(r"\d+ channels?", line)), None)
    if first is None or not any("/sample" in line for line in lines[:first]):
        return None
    num_channels = int(lines[first].split()[0])
    described, num_clocks = lines[first + 1 : first + 1 + 2 * num_channels], len(names) - num_channels
    are_counts = all(each.strip().isdecimal() for each in counts[num_clocks:])
    if len(described) < 2 * num_channels or not 0 <= num_clocks <= 1 or not are_counts:
        return None
    return ("time",) * num_clocks + (*described[::2],), (*names[:num_clocks], *described[1::2])
