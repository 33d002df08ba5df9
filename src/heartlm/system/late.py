"""Modules that a method loads when it is called: drawings of what a lower room holds, and pandas."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from heartlm.errors import needs


def plots() -> Any:
    """Return `heartlm.report.plots`, which draws recordings, findings and scores in the way of the pages."""
    return import_module("heartlm.report.plots")


def pandas() -> Any:
    """Return the package pandas.

    Raises:
        HeartlmError: it is not installed.
    """
    with needs("pandas"):
        return import_module("pandas")
