"""Events of a review: what the rules derive from the corrected beats, and what the reviewer decided of each.

A decision is kept by the event's id, with the span that the event had. Where beats change, the rules may move its
ends: a decision holds for the events of its kind that overlap that span.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from heartlm.analysis.corrected import refuses
from heartlm.analysis.findings import Event, Findings
from heartlm.review.table import BeatTable

Decisions = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class ReviewedEvent:
    """An event and what the reviewer decided.

    Attributes:
        id: stable text, `KIND@START` of the event as it was when it was first seen.
        event: the event; of a refused one as the models found it.
        state: automatic, confirmed, refused, changed or added.
    """

    id: str
    event: Event
    state: str


def corrected_findings(automatic: Findings, table: BeatTable, reviewed: str) -> Findings:
    """Return the findings with the beats of a review and the events that the reviewer decided on."""
    refused, added, confirmed = list[Event](), list[Event](), list[Event]()
    for each in table.decisions.values():
        event = Event(each["kind"], each["start"], each["stop"], 1.0)
        if each["state"] in ("refused", "changed"):
            refused.append(replace(event, start=each["was"][0], stop=each["was"][1]))
        if each["state"] in ("added", "changed"):
            added.append(event)
        if each["state"] == "confirmed":
            confirmed.append(event)
    rows = table.in_order()
    beats = table.sample[rows], table.symbol[rows], table.probability(rows)
    found = automatic.corrected(*beats, refused=refused, added=added)
    events = tuple(
        replace(each, confidence=1.0, disputed=False) if refuses(confirmed, each) else each for each in found.events
    )
    return replace(found, events=events, reviewed=reviewed)


def reviewed_events(findings: Findings, decisions: Decisions) -> list[ReviewedEvent]:
    """Return the events by start with what the reviewer decided, refused ones too."""
    found = list[ReviewedEvent]()
    for event in findings.events:
        name, state = f"{event.kind}@{event.start}", "automatic"
        for known, each in decisions.items():
            in_it = each["kind"] == event.kind and each["start"] < event.stop and event.start < each["stop"]
            if in_it and each["state"] != "refused":
                name, state = known, each["state"]
                break
        found.append(ReviewedEvent(name, event, state))
    for name, each in decisions.items():
        if each["state"] == "refused":
            event = Event(
                each["kind"], each["was"][0], each["was"][1], each["confidence"], rate_hz=findings.recording.rate_hz
            )
            found.append(ReviewedEvent(name, event, "refused"))
    return sorted(found, key=lambda each: (each.event.start, each.event.stop, each.id))
