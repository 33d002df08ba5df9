"""Simulated electrocardiograms: patients, their hearts, the waves they make, what electrodes add, and WFDB files.

    config ─► patients ─► heart + rhythms ─► synthesis (morphology, noise) ─► write

Everything is a pure function of the seed and the patient's index. The parts load when first used, so that the
settings can be shown without NumPy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from heartlm.ecg.simulator.config import SimulationConfig
    from heartlm.ecg.simulator.synthesis import simulate_recording
    from heartlm.ecg.simulator.write import simulate_database

__all__ = ["SimulationConfig", "simulate_database", "simulate_recording"]

_HOME = {"SimulationConfig": "config", "simulate_database": "write", "simulate_recording": "synthesis"}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
