"""Which channels of a recording are ECG leads: by their names, then by the beats found in them.

The unit does not tell: WFDB headers that state none mean millivolts, so respiration and pulse waves come in millivolts
too. A channel with another name is compared with a lead that is named as an ECG: both have the same beats, within
the time that activation takes. Without such a lead it is left out only if it is a slow wave, or a pulse wave: with the
beats of a sharper channel, each late by about the same time.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from heartlm.ecg.detect import detect_beats
from heartlm.ecg.matching import nearest
from heartlm.ecg.recording import Recording
from heartlm.errors import HeartlmError

PREFERRED_LEADS: tuple[str, ...] = ("mlii", "ii", "ecg1", "ecg", "i")
"""Preference order if a single lead is used: the first of these that exists, else the first ECG lead of the file. `ECG`
or `Lead` before the name, as in `ECG II` of EDF files, is ignored."""

_PREFIX = re.compile(r"(ecg|ekg|lead)[\s_-]+")

NO_ECG_LEAD = "no ECG lead (no channel in mV that is an ECG by its name or its beats)"

NO_UNIT = frozenset(("", "adu", "nu", "raw", "counts", "count", "digit", "digits", "lsb", "bit", "bits", "a.u.", "n/a"))
"""Texts in lower case that stand where a unit is not known."""

# Leads of PhysioNet databases and of EASI, in lower case.
_ECG = re.compile(
    r"(lead )?(i|ii|iii|avr|avl|avf|v[1-9]r?|v|v[xyz]|ml(i|ii|iii|\d)|mcl\d|mv\d|cm\d|cc\d|d[1-5]|nasa|[aei]-?[si])"
)

# Words of names of channels that are no ECG, in lower case: breathing and gases, pulse waves and pressures,
# other electrical signals, motion, sound and surroundings, computed and technical ones.
_OTHERS = """
    resp respiration airflow flow nasal oronasal thor thorax thoracic abdomen abdominal abd abdo effort belt snore
    co2 etco2 spo2 so2 sao2 o2 cpap pap
    pleth ple ppg pulse bp nbp nibp abp art ao cvp icp rap lap fap uap uvp press pressure cbfv
    eeg eog emg erg loc roc chin leg legs tib tibialis gsr eda scl mmg ieg uc
    acc accel accelerometer gyro gyroscope mag magnetometer motion activity position pos angle
    pcg sound mic phono scg bcg icg temp temperature light battery bat
    hr heartrate rr hrv rate status trigger trig stim marker markers event events annotations impedance quality
    time counter clock dc dig
"""

_OTHER_WORDS = frozenset(_OTHERS.split())

# Words of names of signals that are computed from an ECG or tell how its electrodes are attached.
_DERIVED = frozenset("resp respiration hr rate rr quality derived off impedance imp status flag flags contact".split())  # noqa: SIM905

# Electrodes of the 10-20 system on the scalp. As a pair, or with a reference, they name an EEG.
_MONTAGE = re.compile(
    r"(fp[12z]|af[3478z]|f[1-9z]|f10|ft[7-9]|fc[1-6z]|t[3-8]|c[1-6z]|cp[1-6z]|p[1-9z]|po[3478z]|o[12z])"
)

_REFERENCE = re.compile(r"[am][12]|avg?|ref|le|" + _MONTAGE.pattern)

SPANS, SPAN_S = 3, 20.0
"""Number and length in seconds of the pieces of a recording in which beats are looked for."""
# Largest distance between a beat in two ECG leads, and largest delay of a pulse wave.
_SAME_S, _LATE_S = 0.1, 0.5
# Largest change within 40 ms as a fraction of the range around a beat; the median of a slow wave is below it. It was
# 0.11 to 0.25 in the respiration of four recordings, and 0.28 or more in all pieces of cudb, ventricular fibrillation
# included (docs/log/signals.md).
_SLOW = 0.25
# Least ratio of sharpness of an ECG to a pulse wave, and least number of beats for a comparison.
_SHARPER, _FEWEST = 1.25, 20


def is_ecg_name(name: str) -> bool | None:
    """Return whether a channel is an ECG lead by its name; None if the name does not say."""
    lowered = " ".join(re.split(r"[\s_:/,]+", name.lower().strip()))
    words = {part for word in re.split(r"[^a-z0-9]+", lowered) for part in (word, word.rstrip("0123456789"))}
    if _ECG.fullmatch(lowered):
        return True
    if any(re.match(r"f?(ecg|ekg)", word) for word in words):
        return _DERIVED.isdisjoint(words)
    first, _, second = lowered.partition("-")
    pair = _MONTAGE.fullmatch(first) and _REFERENCE.fullmatch(second)
    if pair or re.fullmatch(r"fp[12z]", lowered) or not _OTHER_WORDS.isdisjoint(words):
        return False
    return None


def is_usual_name(name: str) -> bool:
    """Return whether the name of a channel consists of names of leads and words of the lists above alone.

    Other names may be typed by a user: `ECG Smith`.
    """
    words = re.findall(r"[^\W_]+", name.lower())
    whole = re.sub(r"^(ecg|ekg)\W+", "", name.lower().strip())
    if _ECG.fullmatch(whole) or all(
        _ECG.fullmatch(word) or re.fullmatch(r"(ecg|ekg|lead|channel|ch)?\d{0,2}", word) for word in words
    ):
        return True
    first, _, second = re.sub(r"^eeg\W", "", name.lower().strip()).partition("-")
    if _MONTAGE.fullmatch(first) and (not second or _REFERENCE.fullmatch(second)):
        return True
    return all(word in _OTHER_WORDS or re.sub(r"(?<!\d)\d{1,2}$", "", word) in {*_OTHER_WORDS, ""} for word in words)


def ecg_channels(recording: Recording) -> list[int]:
    """Return the channels in millivolts that are ECG leads, in the order of the recording."""
    others = channels_without_ecg(recording)
    return [lead for lead, unit in enumerate(recording.units) if unit == "mV" and lead not in others]


def channels_without_ecg(recording: Recording) -> dict[int, str]:
    """Return the channels in millivolts that are no ECG leads, by index, each with the reason.

    Channels in other units are no ECG leads either and are not among them. A channel that cannot be read counts as an
    ECG lead, so that reading it gives the error.
    """
    voltage = [lead for lead, unit in enumerate(recording.units) if unit == "mV"]
    by_name = {lead: is_ecg_name(recording.lead_names[lead]) for lead in voltage}
    others = {lead: "by its name" for lead in voltage if by_name[lead] is False}
    unknown = [lead for lead in voltage if by_name[lead] is None]
    if not unknown or not recording.has_signal or recording.num_samples == 0:
        return others
    named = [lead for lead in voltage if by_name[lead]][:1]
    try:
        pieces = _pieces(recording, [*named, *unknown])
    except (HeartlmError, ValueError):  # also a rate that is too low for the detector
        return others
    beats = {lead: np.concatenate([piece[lead][0] for piece in pieces]) for lead in (*named, *unknown)}
    sharpness = dict[int, float]()
    for lead in (*named, *unknown):
        values = np.concatenate([piece[lead][1] for piece in pieces])
        sharpness[lead] = float(np.median(values)) if len(values) else 1.0  # no beat, and nothing against an ECG
    for lead in unknown:
        if sharpness[lead] < _SLOW:
            others[lead] = "a slow wave"
        elif recording.duration_s < SPAN_S:
            continue  # in the few beats of a resting ECG, T waves that are taken for beats look like a pulse
        elif named and len(beats[named[0]]) >= _FEWEST and len(beats[lead]):
            distance_s = np.abs(beats[lead] - beats[named[0]][nearest(beats[lead], beats[named[0]])])
            if np.mean(distance_s <= _SAME_S) < 0.5:
                others[lead] = f"without the beats of {recording.lead_names[named[0]]}"
        elif len(beats[lead]) >= _FEWEST:
            # in fast rhythms the QRS is as late after the pulse as the pulse after the QRS; only the shape tells
            sharper = (
                each for each in unknown if sharpness[each] > _SHARPER * sharpness[lead] and len(beats[each]) >= _FEWEST
            )
            if (first := next((each for each in sharper if _is_late(beats[lead], beats[each])), None)) is not None:
                others[lead] = f"a pulse wave, with the beats of {recording.lead_names[first]} but late"
    return others


def ecg_leads(recording: Recording) -> tuple[int, ...]:
    """Return the ECG leads, see `ecg_channels`: preferred leads first, the others in the order of the recording."""
    order = {name: rank for rank, name in enumerate(PREFERRED_LEADS)}
    names = [canonical_lead(name) for name in recording.lead_names]
    return tuple(sorted(ecg_channels(recording), key=lambda lead: order.get(names[lead], len(order))))


def canonical_lead(name: str) -> str:
    """Return the name of a lead in lower case, without a prefix such as "ECG "."""
    return _PREFIX.sub("", name.lower().strip(), count=1)


def no_ecg_lead(recording: Recording) -> str:
    """Return why a recording without ECG leads has none, with the reason for each channel."""
    others = channels_without_ecg(recording)
    reasons = (
        f"{name} {others.get(lead) or ('in no unit: give --units' if unit.casefold() in NO_UNIT else f'in {unit}')}"
        for lead, (name, unit) in enumerate(zip(recording.lead_names, recording.units, strict=True))
    )
    return f"no ECG lead ({', '.join(reasons)})" if recording.lead_names else NO_ECG_LEAD


def ecg_lead(recording: Recording, lead: int | str | None = None) -> int:
    """Return the index of a lead, by default of the preferred ECG lead.

    Raises:
        HeartlmError: there is no such lead, or no ECG lead.
    """
    if lead is not None:
        return recording.lead_index(lead)
    leads = ecg_leads(recording)
    if not leads:
        raise HeartlmError(f"{recording.path}: {no_ecg_lead(recording)}")
    return leads[0]


def _pieces(
    recording: Recording, leads: Sequence[int]
) -> list[dict[int, tuple[NDArray[np.float64], NDArray[np.float64]]]]:
    """Return for the beginning, middle and end of a recording the beats of each lead in s, and their sharpness."""
    rate_hz, pieces = recording.rate_hz, []
    length = min(round(SPAN_S * rate_hz), recording.num_samples)
    last = recording.num_samples - length
    for start in sorted({last * part // (SPANS - 1) for part in range(SPANS)}):
        signal_mv = recording.signal(start, start + length, leads)
        beats = [detect_beats(lead_mv, rate_hz) for lead_mv in signal_mv]
        pieces.append(
            {
                lead: ((start + own) / rate_hz, _sharpness(lead_mv, own, rate_hz))
                for lead, lead_mv, own in zip(leads, signal_mv, beats, strict=True)
            }
        )
    return pieces


def _sharpness(signal_mv: NDArray[np.float32], beats: NDArray[np.int64], rate_hz: float) -> NDArray[np.float64]:
    """Return the largest change within 40 ms around each beat, as a fraction of the range within 0.3 s around it."""
    reach, step = round(0.3 * rate_hz), max(1, round(0.04 * rate_hz))
    sharpness = []
    for beat in beats.tolist():
        around = signal_mv[max(0, beat - reach) : beat + reach]
        around = around[np.isfinite(around)]
        if len(around) > step and around.max() > around.min():
            sharpness.append(np.abs(around[step:] - around[:-step]).max() / (around.max() - around.min()))
    return np.array(sharpness)


def _is_late(beats: NDArray[np.float64], others: NDArray[np.float64]) -> bool:
    """Return whether most of `beats` follow one of `others` after about the same time, as a pulse follows its QRS."""
    before = np.searchsorted(others, beats, side="right") - 1
    delays = beats - others[before.clip(0)]  # negative, so not usual, before the first of the others
    usual = float(np.median(delays))
    return _SAME_S < usual < _LATE_S and float(np.mean(np.abs(delays - usual) < _SAME_S / 2)) >= 0.8
