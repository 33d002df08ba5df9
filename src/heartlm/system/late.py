"""Modules of higher rooms that a method loads when it is called: drawings of what a lower room holds."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def plots() -> Any:
    """Return `heartlm.report.plots`, which draws recordings, findings and scores in the way of the pages."""
    return import_module("heartlm.report.plots")
