"""`heartlm doctor`: measure this machine or allocation and name the three most useful changes of settings."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from heartlm.cli.options import parse

if TYPE_CHECKING:
    from heartlm.cluster.doctor.section import Section


@dataclass(frozen=True)
class DoctorOptions:
    """Options of `heartlm doctor`.

    Attributes:
        json: print the results as JSON.
        quick: run only measurements that take a few seconds.
    """

    json: bool = False
    quick: bool = False


def run(arguments: Sequence[str]) -> int:
    """Measure this machine or allocation and name the three most useful changes of settings.

    Examples:
        heartlm doctor
        heartlm doctor --quick
        heartlm doctor --json > machine.json
        torchrun --nproc-per-node 4 -m heartlm doctor --quick
    """
    options = parse(DoctorOptions, arguments, "doctor", run)
    from heartlm.cluster.doctor.examine import CHECKS, as_json, examine, most_worth_changing
    from heartlm.distributed.ranks import Ranks

    if not Ranks.from_environment().is_first:  # the other ranks only take part in the all-reduce
        list(examine(options.quick, checks={"all_reduce": CHECKS["all_reduce"]}))
        return 0
    sections: dict[str, Section] = {}
    for name, section in examine(options.quick):
        sections[name] = section
        if not options.json:
            for number, line in enumerate(section.lines):
                print(f"{name.replace('_', '-') if number == 0 else '':<13} {line}", flush=True)
    if options.json:
        print(json.dumps(as_json(sections), indent=1))
        return 0
    advice = most_worth_changing(sections)
    print("\nmost worth changing:" if advice else "\nnothing measured here is worth changing")
    for number, found in enumerate(advice, 1):
        gain = f"{found.gain:.2f}x as fast" if found.gain else "gain not measured"
        print(f"  {number}. {found.what}: {gain}\n     {found.how}\n     {found.because}")
    if sections["processors"].facts.get("is_busy"):
        print("others computed meanwhile: call it again on a quiet machine")
    return 0
