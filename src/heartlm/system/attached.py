"""Modules of upper rooms that methods of lower classes call, such as the drawing of a `Recording`.

`heartlm/__init__.py`, which may import every room, attaches them by name. A method loads its module when it is called.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_MODULES = dict[str, str]()


def attach(**modules: str) -> None:
    """Name the modules that `attached` returns."""
    _MODULES.update(modules)


def attached(name: str) -> Any:
    """Return the module that is attached as `name`, imported on first use."""
    return import_module(_MODULES[name])
