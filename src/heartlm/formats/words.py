"""Words by which tables are recognised: of units, of columns, and of the lines before a table.

All word lists of the readers of tables are here, so that a program in another language is added in one place. Words are
in lower case (`str.casefold`); expressions ignore the case. Telephones and programs write them in their own language.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeVar

_Value = TypeVar("_Value")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _by_word(words: Mapping[_Value, str]) -> dict[str, _Value]:
    return {word: value for value, text in words.items() for word in text.split()}


def _any_of(text: str) -> re.Pattern[str]:
    return re.compile("|".join(text.split()), re.IGNORECASE)


NULLS = ("", *_by_word({True: "nan NaN NAN na NA n/a N/A null NULL None none - -- ? #N/A -nan"}))
"""Fields without a value, as they are written."""

VOLTAGES = _by_word({
    "mV": "mv mvolt mvolts millivolt millivolts 毫伏 ミリボルト мв",
    "uV": "uv µv μv âµv uvolt uvolts microvolt microvolts mikrovolt microvoltios микровольт мкв 微伏 マイクロボルト",
    "nV": "nv nanovolt nanovolts",
    "V": "v volt volts",
})  # fmt: skip
RAW_UNITS = _words("raw adc adu count counts lsb digital digits no_units nounits bits au a.u.")
SECONDS_PER_UNIT = _by_word({
    1.0: "s sec secs second seconds",
    1e-3: "ms msec msecs millis millisecond milliseconds",
    1e-6: "us µs μs usec usecs micros microsecond microseconds",
    1e-9: "ns nsec nanos nanosecond nanoseconds",
    60.0: "min minute minutes",
})  # fmt: skip
OTHER_UNITS = _words(
    "mmhg kpa bpm rpm g mg m/s^2 m/(s^2) m/s² deg/s dps rad/s °c degc celsius kohms kohm ohm % us/cm siemens "
    "microsiemens hz utesla gauss local_flux unixtime unix datetime date time"
)
"""Other units of sensors, and what tables write in the place of the unit of times."""

TIME_NAMES = _words(
    "time times timestamp timestamps datetime date clock elapsed utc epoch unix unixtime "
    "sec secs second seconds ms msec millis milliseconds us micros ns nanos t "
    "zeit zeitstempel uhrzeit temps heure horodatage tiempo hora tempo ora tijd"
)
COUNTER_NAMES = {"", *_words(
    "sample samples samplenumber index idx n nr no num number seq nseq count counter point frame row unnamed i x id "
    "packet"
)}  # fmt: skip

RATE_KEY = _any_of(
    r"sampl abtast messrate chantillon muestr campion amostr bemonster \bfs\b srate sfreq \brate\b frequenc frecuenc "
    "采样 採樣 取樣 サンプ 샘플 표본 дискретиз próbkow örnekle næytetaaj vzork"
)
OTHER_RATE_KEY = _any_of("filter filtre notch pass mains heart herz puls bpm cut bandw resp")
"""Keys of other frequencies: those of filters, of the mains, of the heart and of breathing."""
RATE_VALUE = re.compile(
    r"(\d+(?:[.,]\d+)?)\s*"
    r"(hz|hertz|赫兹|赫茲|赫|ヘルツ|헤르츠|герц|гц|hercios|herców|samples?\s*(?:/|per)\s*s(?:ec(?:ond)?)?)\.?",
    re.IGNORECASE,
)
INTERVAL_KEY = re.compile(r"(sampl(e|ing) )?interval", re.IGNORECASE)
BIRTH_KEY = _any_of(
    r"birth geburt naiss nacim nasc geboorte \bdob\b 出生 生年月日 生日 생년월일 рожд født född urodz narozen doğum"
)
NAME_KEYS = _words("name patient nom nombre nome naam 姓名 名字 名前 氏名 이름 имя namn navn nimi imię jméno ad") | {
    "patient name"
}
UNIT_KEYS = _words("unit units einheit unité unidad unità unidade eenheid")
LEAD_KEYS = _words("lead ableitung dérivation derivación derivazione derivação afleiding")
TITLE_KEY = re.compile(r"[^=]*(?:title|titel|titre|título|titolo)", re.IGNORECASE)
"""Line of LabChart with the names of the channels."""

RATE_VARIABLE = re.compile(
    r"f_?s|fsamp|fsample|srate|sr|sfreq|freq|frequency|rate|rate_hz|hz|sampl(e|ing)_?(rate|freq|frequency)(_?hz)?",
    re.IGNORECASE,
)
INTERVAL_VARIABLES = _words("dt ts period")
UNIT_VARIABLES = _words("unit units")
LEAD_VARIABLES = _words("lead leads lead_names leadnames labels label channels channel_names chan_names sig_name")
PLAIN_VARIABLES = _words("val data x y signal signals sig samples values")
"""Names of arrays that say nothing about their leads."""
