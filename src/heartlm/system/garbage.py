"""How often Python searches for cyclic garbage."""

from __future__ import annotations

import gc

_USUAL = gc.get_threshold()


def search_rarely() -> None:
    """Search less often while a process imports.

    Modules are a million objects that stay: searches for garbage among them took 0.8 of the 4.5 s for which a training
    imports.
    """
    gc.set_threshold(50_000, *_USUAL[1:])


def search_as_usual() -> None:
    """Search as Python does by itself, so that no garbage keeps a tensor for long."""
    gc.set_threshold(*_USUAL)
