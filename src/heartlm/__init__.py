"""heartlm: heart language models, transformers that read an ECG as a sentence of heartbeats.

The public interface is that of `heartlm.api`. Names are imported on first use.
"""

from typing import TYPE_CHECKING, Any

from heartlm.system.attached import attach as _attach
from heartlm.system.cores import limit_spinning as _limit_spinning

_limit_spinning()  # before anything loads torch
_attach(anonymity="heartlm.databases.anonymize", drawings="heartlm.report.plots", exchange="heartlm.formats.exchange")
_attach(words="heartlm.analysis.reading", variability="heartlm.analysis.hrv")

__version__ = "0.1.0"

if TYPE_CHECKING:
    from heartlm.api import *  # noqa: F403


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    from importlib import import_module

    api = import_module("heartlm.api")
    if name not in api.__all__:
        raise AttributeError(f"module 'heartlm' has no attribute {name!r}")
    return getattr(api, name)


def __dir__() -> list[str]:
    from importlib import import_module

    return sorted([*import_module("heartlm.api").__all__, *(name for name in globals() if name.startswith("__"))])
