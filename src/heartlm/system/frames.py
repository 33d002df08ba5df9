"""pandas, which only frames need."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from heartlm.errors import needs


def pandas() -> Any:
    """Return the package pandas.

    Raises:
        HeartlmError: it is not installed.
    """
    with needs("pandas"):
        return import_module("pandas")
