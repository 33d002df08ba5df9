"""`heartlm review`: see recordings whole in the browser, and correct what was found."""

from __future__ import annotations

from collections.abc import Sequence

from heartlm.cli.options import parse
from heartlm.review.config import ReviewConfig


def run(arguments: Sequence[str]) -> int:
    """See a recording whole in the browser, correct beats and events by keys, and write report and tables again.

    Each correction is kept at once in RECORD.review.jsonl, and RECORD.reviewed.hlm has beats and rhythms as corrected.
    The key ? lists all keys.

    Examples:
        heartlm review mitdb/203
        heartlm review holter.edf --out patient-7 --reviewer "A. Reader"
        heartlm review mitdb --out mitdb-analysis
        heartlm review mitdb-analysis --queue
        heartlm review mitdb/203 --no-open --port 8080
    """
    options = parse(ReviewConfig, arguments, "review", run, positionals=["path"])
    from heartlm.review.service import review

    return review(options)
