"""Example strips of a few seconds with instructive correct and wrong predictions.

`SIGHTS` lists what the strips show. Each strip is from a different patient as long as there are enough. The patient
with the most wrong beats comes last. The same predictions always give the same strips.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heartlm.ecg.beats import BEAT_CLASSES
from heartlm.errors import HeartlmError
from heartlm.evaluation.answers import CLASS_NAMES, LeadAnswers
from heartlm.evaluation.beats import NO_BEAT, Classes

STRIP_S = 9.0
NO_BEAT_LETTER = "–"

Flags = NDArray[np.bool_]
N, S, V, F = (BEAT_CLASSES.index(name) for name in "NSVF")

SIGHTS: tuple[tuple[str, Callable[[Classes, Classes], Flags]], ...] = (
    ("V found", lambda reference, predicted: (reference == V) & (predicted == V)),
    ("S found", lambda reference, predicted: (reference == S) & (predicted == S)),
    ("F found", lambda reference, predicted: (reference == F) & (predicted == F)),
    ("V not found", lambda reference, predicted: (reference == V) & (predicted != V)),
    ("S not found", lambda reference, predicted: (reference == S) & (predicted != S)),
    ("N called V", lambda reference, predicted: (reference == N) & (predicted == V)),
)
"""Title of each strip, and a function that selects its beats by reference and predicted class."""


def example_strips(answers: Sequence[LeadAnswers]) -> tuple[list[dict[str, Any]], list[str]]:
    """Choose and cut the strips.

    Returns:
        Strips as JSON values, and a note for each strip whose signal could not be read.
    """
    strips, notes = [], []
    for title, lead, flags in _choices(answers):
        try:
            strips.append(_cut(lead, _centre(lead, flags), title))
        except HeartlmError as error:
            notes.append(f"no strip of {lead.lead.name}: {error}")
    return strips, list(dict.fromkeys(notes))


def _choices(answers: Sequence[LeadAnswers]) -> Iterator[tuple[str, LeadAnswers, Flags]]:
    """Yield for each entry of `SIGHTS` the lead with the most such beats, preferring patients not yet shown."""
    hardest = _hardest(answers)
    shown = {hardest.lead.patient_id} if hardest is not None else set()
    for title, sees in SIGHTS:
        flags = [sees(lead.reference, lead.predicted) for lead in answers]
        candidates = [index for index, of_lead in enumerate(flags) if of_lead.any()]
        if candidates:
            best = max(candidates, key=lambda i: (answers[i].lead.patient_id not in shown, flags[i].sum()))
            shown.add(answers[best].lead.patient_id)
            yield title, answers[best], flags[best]
    if hardest is not None:
        yield "The patient with the most wrong beats", hardest, hardest.is_wrong


def _hardest(answers: Sequence[LeadAnswers]) -> LeadAnswers | None:
    """Return the worst recording of the patient with the most wrong beats; None if no beat is wrong."""
    wrong: Counter[str] = Counter()
    for each in answers:
        wrong[each.lead.patient_id] += int(each.is_wrong.sum())
    worst = max(answers, key=lambda each: (wrong[each.lead.patient_id], each.is_wrong.sum()))
    return worst if worst.is_wrong.any() else None


def _centre(answers: LeadAnswers, flags: Flags) -> int:
    """Return the flagged beat to centre: preferably with an N beat nearby, then with the most flagged beats nearby."""
    reach = STRIP_S / 2 * answers.lead.rate_hz
    centres = np.flatnonzero(flags)
    first = np.searchsorted(answers.sample, answers.sample[centres] - reach)
    last = np.searchsorted(answers.sample, answers.sample[centres] + reach)
    num_flagged, num_normal = (
        counts[last] - counts[first]
        for counts in (np.concatenate([[0], np.cumsum(each)]) for each in (flags, answers.reference == N))
    )
    rank = np.where(num_normal > 0, len(flags), 0) + num_flagged
    return int(answers.sample[centres[np.argmax(rank)]])


def _cut(answers: LeadAnswers, centre: int, title: str) -> dict[str, Any]:
    """Return the strip around sample `centre`.

    Raises:
        HeartlmError: the recording has no signal, or its signal can no longer be read.
    """
    lead = answers.lead
    num_samples, width = lead.open_recording().num_samples, round(STRIP_S * lead.rate_hz)
    start = max(0, min(centre - width // 2, num_samples - width))
    stop = min(start + width, num_samples)
    beats = []
    for index in np.flatnonzero((answers.sample >= start) & (answers.sample < stop)).tolist():
        reference, predicted = int(answers.reference[index]), int(answers.predicted[index])
        beats.append(
            {
                "time_s": round((int(answers.sample[index]) - start) / lead.rate_hz, 4),
                "reference": NO_BEAT_LETTER if reference == NO_BEAT else CLASS_NAMES[reference],
                "predicted": NO_BEAT_LETTER if predicted == NO_BEAT else CLASS_NAMES[predicted],
                "probability": None if predicted == NO_BEAT else round(float(answers.probabilities[index].max()), 4),
            }
        )
    return {
        "title": title,
        "record": lead.record_id,
        "patient": lead.patient_id,
        "lead": lead.lead,
        "rate_hz": lead.rate_hz,
        "start_s": start / lead.rate_hz,
        "signal_mv": [None if np.isnan(value) else round(float(value), 3) for value in lead.signal_mv(start, stop)],
        "beats": beats,
    }
