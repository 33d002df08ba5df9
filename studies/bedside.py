"""True and false bedside alarms: decisions of `heartlm monitor`, with the score of the Challenge 2015.

    python -m studies.bedside --work FOLDER --noise FOLDER [--test]

The recordings of the Challenge are not part of this study. Its cases are made of others (lab/bedside_cases.py). A
case counts as called if an alarm of its kind was
raised or lasted in its last seconds.

Rules are chosen by DS1, the paced recordings, svdb and cudb. `--test` makes the cases of DS2 (201 of DS1 is of a
patient of DS2, too). The models were trained on DS1, svdb and cudb, so scores of these flatter.

Score: (TP + TN) / (TP + TN + FP + 5 FN) (Clifford et al., Computing in Cardiology 42:273, 2015), with true and false
cases weighted as they were in its training recordings.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from heartlm.monitor.alarms import SECOND_OPINION, AlarmRules
from heartlm.monitor.models import LiveModels
from heartlm.monitor.rules import Rules
from heartlm.system.cores import limit_threads
from lab.bedside_cases import LAST_S, Case, Seconds, cases, given
from lab.measure import Table
from lab.output import write_results
from lab.places import options

OF_CHALLENGE = {
    "asystole": (22, 100),
    "extreme bradycardia": (46, 43),
    "extreme tachycardia": (131, 9),
    "VF": (6, 52),
    "VT": (89, 252),
}
"""True and false alarms of each kind in the training recordings of the Challenge."""
ALIKE = {"asystole", "extreme bradycardia"}, {"VF", "VT", "extreme tachycardia"}
"""A true case of one kind may be one of the other, too, so it is no false case of it."""


def called(case: Case, seconds: Seconds, num_leads: int, rules: AlarmRules | None = None) -> set[str]:
    """Kinds of alarms that were raised or lasted in the last seconds of a case, by at most `num_leads` of its leads."""
    num_leads = min(num_leads, len(case.signal_mv))
    own = Rules(case.name, rules or AlarmRules(), case.rate_hz, 0.0, num_leads)
    since = seconds[-1][0] - LAST_S * case.rate_hz
    out = set[str]()
    for now, leads, af in seconds:
        changes = own.update(now, leads[:num_leads], af)
        if now > since:
            out |= {alarm.kind for alarm in changes if alarm.stop is None} | set(filter(own.holds, own.active))
    return out


def challenge_score(tp: float, fn: float, fp: float, tn: float) -> str:
    return f"{100 * (tp + tn) / (tp + tn + fp + 5 * fn):.1f}"


def score(title: str, all_cases: list[Case], kinds_called: dict[str, set[str]]) -> Table:
    table = Table(title, ("kind", "true cases", "called, %", "false cases", "called, %", "score"))
    total = np.zeros(4)
    for kind, (num_true, num_false) in OF_CHALLENGE.items():
        true = [kind in kinds_called[case.name] for case in all_cases if kind in case.kinds]
        alike = set().union(*(group for group in ALIKE if kind in group))
        false = [kind in kinds_called[case.name] for case in all_cases if alike.isdisjoint(case.kinds)]
        if not true:
            continue
        tp, fp = float(np.mean(true)), float(np.mean(false))
        counts = num_true * tp, num_true * (1 - tp), num_false * fp, num_false * (1 - fp)
        total += counts
        table.add(kind, len(true), f"{100 * tp:.1f}", len(false), f"{100 * fp:.1f}", challenge_score(*counts))
    tp, fn, fp, tn = total
    called_true, called_false = f"{100 * tp / (tp + fn):.1f}", f"{100 * fp / (fp + tn):.1f}"
    table.add("all", "", called_true, "", called_false, challenge_score(*total))
    return table


def by_fault(title: str, all_cases: list[Case], kinds_called: dict[str, set[str]]) -> Table:
    table = Table(title, ("what", "cases", *OF_CHALLENGE))
    groups = defaultdict(list)
    for case in all_cases:
        groups[case.what].append(kinds_called[case.name])
    for what, own in sorted(groups.items()):
        table.add(what, len(own), *(f"{100 * np.mean([kind in each for each in own]):.0f}" for kind in OF_CHALLENGE))
    return table


def main() -> None:
    parser = options(__doc__, "work", "noise")
    parser.add_argument("--test", action="store_true", help="cases of DS2 in place of those that rules are chosen by")
    settings = parser.parse_args()
    limit_threads(1)
    settings.work.mkdir(parents=True, exist_ok=True)
    all_cases = cases(settings.noise, settings.test)
    print(len(all_cases), "cases", flush=True)
    seconds = given(LiveModels(), all_cases, settings.work)
    tables = []
    patients = f"patients {'of DS2' if settings.test else 'chosen by'}"
    for kind, rules in (("", None), (", rules for a second opinion", SECOND_OPINION)):
        for num_leads in (1, 2):
            kinds_called = {case.name: called(case, seconds[case.name], num_leads, rules) for case in all_cases}
            about = f"{patients}, {('first lead', 'two leads')[num_leads - 1]}{kind}"
            tables.append(score(f"Cases of {about}", all_cases, kinds_called))
        tables.append(by_fault(f"By what a case shows, {about}: called, %", all_cases, kinds_called))
    name = "bedside-ds2" if settings.test else "bedside"
    write_results(name, "Alarms of a bedside, true and false", tables)


if __name__ == "__main__":
    main()
