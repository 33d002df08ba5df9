"""Page about a folder of recordings: one row for each, with a link to its page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from heartlm.report.render import render

SHOWN_LEFT_OUT = 100
"""Maximum number of recordings that are left out whose reasons the page of totals shows."""


def index_page(summaries: Sequence[Mapping[str, Any]], left_out: Sequence[str], kinds: Mapping[str, str]) -> str:
    """Return the HTML of the page: one file that makes no network requests.

    Args:
        summaries: summary of each recording, see `Findings.summary`; its page is `RECORD.html` in the same folder.
        left_out: recordings that were not analysed, with the reason, one line each.
        kinds: definition of each kind of event.

    Raises:
        HeartlmError: Jinja is not installed.
    """
    return render(
        "holter_index.html",
        rows=[each | {"href": quote(f"{each['record']}.html")} for each in map(dict, summaries)],
        num_with={kind: sum(bool(each["events"][kind]) for each in summaries) for kind in kinds},
        kinds=kinds,
        left_out=left_out,
    )


def totals_page(
    num_recordings: int, totals: Mapping[str, float], left_out: Sequence[str], kinds: Mapping[str, str]
) -> str:
    """Return the HTML of the page of totals of an archive: one file that makes no network requests.

    Args:
        num_recordings: number of recordings.
        totals: sums over the recordings, see `AnalysisTask.totals`; missing ones are 0.
        left_out: recordings that were not analysed, with the reason, one line each.
        kinds: definition of each kind of event.

    Raises:
        HeartlmError: Jinja is not installed.
    """
    totals = Counter(totals)
    rows = [
        {"kind": kind, "meaning": meaning} | {name: totals[f"{name} {kind}"] for name in ("with", "events", "seconds")}
        for kind, meaning in kinds.items()
        if totals[f"with {kind}"]
    ]
    return render(
        "archive_totals.html",
        num_recordings=num_recordings,
        hours=totals["hours"],
        unlike=totals["unlike"],
        beats={name: totals[f"beats {name}"] for name in "NSVF"},
        rows=rows,
        left_out=left_out[:SHOWN_LEFT_OUT],
        num_left_out=len(left_out),
    )
