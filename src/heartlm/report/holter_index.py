"""Page about a folder of recordings: one row for each, with a link to its page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from heartlm.report.render import render


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
