"""Run all checks in order; a failed check reports its error and does not stop the others."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from heartlm import __version__
from heartlm.extensions.cluster.doctor.hardware import check_devices, check_processors
from heartlm.extensions.cluster.doctor.section import Advice, Check, Section
from heartlm.extensions.cluster.doctor.software import check_allocation, check_kernels, check_versions
from heartlm.extensions.cluster.doctor.trials import check_trials
from heartlm.system.progress import say

CHECKS: Mapping[str, Check] = {
    "processors": check_processors,
    "devices": check_devices,
    "allocation": check_allocation,
    "versions": check_versions,
    "kernels": check_kernels,
    "trials": check_trials,
}
"""Order of the checks: later checks use facts of earlier ones."""

NUM_ADVICE = 3


def examine(checks: Mapping[str, Check] = CHECKS) -> Iterator[tuple[str, Section]]:
    """Yield the name and the result of each of `checks` as soon as it is available; report each start."""
    facts: dict[str, Any] = {"begin_s": time.monotonic()}
    for name, check in checks.items():
        say(f"doctor: {name}")
        try:
            section = check(facts)
            facts |= section.facts
        except Exception as error:  # the other checks are useful whatever the error is
            reason = f"not known: {str(error) or type(error).__name__}"
            if isinstance(error, ModuleNotFoundError):
                reason = f"left out: {error.name} is not installed"
            line = " ".join(reason.split())
            section = Section([line], {"error": line})
        yield name, section


def most_worth_changing(sections: Mapping[str, Section]) -> list[Advice]:
    """Return the three settings with the largest measured gain; settings without a measured gain come last."""
    all_advice = [advice for section in sections.values() for advice in section.advice]
    return sorted(all_advice, key=lambda advice: -(advice.gain or 0))[:NUM_ADVICE]


def as_json(sections: Mapping[str, Section]) -> dict[str, Any]:
    """Return all results as plain values."""
    return {
        "heartlm": __version__,
        "checks": {name: {"lines": section.lines, **section.facts} for name, section in sections.items()},
        "advice": [vars(advice) for advice in most_worth_changing(sections)],
    }
