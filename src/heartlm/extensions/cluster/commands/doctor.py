"""`heartlm doctor`: examine this machine or allocation and name the three most useful changes of settings."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from heartlm.cli.options import parse
from heartlm.errors import HeartlmError

if TYPE_CHECKING:
    from heartlm.extensions.cluster.doctor.section import Section


@dataclass(frozen=True)
class DoctorOptions:
    """Options of `heartlm doctor`.

    Attributes:
        json: print the results as JSON.
        trials: also train briefly, with one setting changed at a time; it takes up to a minute.
    """

    json: bool = False
    trials: bool = False


def run(arguments: Sequence[str]) -> int:
    """Examine this machine or allocation and name the three most useful changes of settings.

    Examples:
        heartlm doctor
        heartlm doctor --trials
        heartlm doctor --trials --json > machine.json
    """
    options = parse(DoctorOptions, arguments, "doctor", run)
    from heartlm.extensions.cluster.doctor.examine import CHECKS, as_json, examine, most_worth_changing

    if "WORLD_SIZE" in os.environ:
        raise HeartlmError("WORLD_SIZE: found, but the ranks of torchrun hold the cores: start heartlm doctor alone")
    sections: dict[str, Section] = {}
    for name, section in examine({name: CHECKS[name] for name in CHECKS if name != "trials" or options.trials}):
        sections[name] = section
        if not options.json:
            for number, line in enumerate(section.lines):
                print(f"{'' if number else name:<13} {line}", flush=True)
    if options.json:
        print(json.dumps(as_json(sections), indent=1))
        return 0
    advice = most_worth_changing(sections)
    print("\nmost worth changing:" if advice else "\nnothing examined here is worth changing")
    for rank, change in enumerate(advice, 1):
        gain = f"{change.gain:.2f}x as fast" if change.gain else "gain not measured"
        print(f"  {rank}. {change.what}: {gain}\n     {change.how}\n     {change.because}")
    if sections["processors"].facts.get("is_busy"):
        print("others computed meanwhile: call it again on a quiet machine")
    if not options.trials:
        print("heartlm doctor --trials also trains, up to a minute, and measures the gain of settings")
    return 0
