"""Score of `heartlm monitor` on the training recordings of the PhysioNet/CinC Challenge 2015, for those who have them.

    python -m studies.challenge2015 FOLDER [--rules FILE] [--out FILE.csv]

A bedside monitor raised an alarm 5:00 after each recording began; the header names its kind and whether it was true.
heartlm gets what was known in real time, the signal up to 5:00, of at most two ECG leads and of no others. It calls an
alarm if one of the kind was raised or lasted in the last seconds before 5:00. Other alarms are listed and do not count.
The rules are those for a second opinion on the alarm of another monitor; `--rules` gives others.
The table is written to results/, and each recording with its verdict to a CSV file.

Score: (TP + TN) / (TP + TN + FP + 5 FN) (Clifford et al., Computing in Cardiology 42:273, 2015).
"""

from __future__ import annotations

import csv
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from heartlm.ecg.leads import NO_ECG_LEAD
from heartlm.errors import HeartlmError
from heartlm.formats.read import read_recording
from heartlm.monitor.alarms import AlarmRules, read_rules
from heartlm.monitor.models import LiveModels
from heartlm.monitor.stream import NUM_LEADS, watched_leads
from heartlm.storage.atomic import atomic_file
from heartlm.system.cores import limit_threads
from lab.bedside_cases import TOGETHER, Case, judged
from lab.measure import Table
from lab.output import write_results
from lab.places import options
from studies.bedside import OF_CHALLENGE, called, challenge_score

RATE_HZ, ALARM_S = 250, 300
NAMES = ("Asystole", "Bradycardia", "Tachycardia", "Ventricular_Flutter_Fib", "Ventricular_Tachycardia")
KINDS = dict(zip(NAMES, OF_CHALLENGE, strict=True))
"""Kinds of alarms by their names in the headers."""
TRUTHS = {"True alarm": True, "False alarm": False}
VERDICTS = {(True, True): "TP", (True, False): "FN", (False, True): "FP", (False, False): "TN"}
"""By whether an alarm was true and whether heartlm called it."""
COLUMNS = ("record", "kind", "true", "verdict", "alarms of the last seconds", "reason")


def read_case(path: Path, name: str) -> Case:
    """The ECG of a recording until its alarm.

    Raises:
        HeartlmError: it is unreadable, or no recording of the Challenge.
    """
    recording = read_recording(path)
    kinds = [KINDS[comment] for comment in recording.comments if comment in KINDS]
    truths = [TRUTHS[comment] for comment in recording.comments if comment in TRUTHS]
    if len(kinds) != 1 or len(truths) != 1:
        expected = f"one of {', '.join(NAMES)} and one of {', '.join(TRUTHS)}"
        raise HeartlmError(f"{path}: comments {', '.join(recording.comments) or 'none'} found, {expected} expected")
    if recording.rate_hz != RATE_HZ or recording.duration_s < ALARM_S:
        found = f"{recording.duration_s:g} s at {recording.rate_hz:g} Hz"
        raise HeartlmError(f"{path}: {found} found, at least {ALARM_S} s at {RATE_HZ} Hz expected")
    leads = watched_leads(recording)
    if not leads:
        raise HeartlmError(f"{path}: {NO_ECG_LEAD}")
    signal_mv = recording.signal(0, ALARM_S * RATE_HZ, leads)
    return Case(name, name, kinds[0], tuple(kinds) if truths[0] else (), recording.rate_hz, signal_mv)


def judge(folder: Path, rules: AlarmRules) -> list[tuple[str, ...]]:
    """A row of `COLUMNS` for each recording, those that cannot be read with a reason and without a verdict.

    Raises:
        HeartlmError: there is no recording, or none can be read.
    """
    paths = sorted(folder.rglob("*.hea"))
    if not paths:
        raise HeartlmError(f"{folder}: no header (.hea) found; give the folder of the Challenge's training recordings")
    models, rows = LiveModels(), list[tuple[str, ...]]()
    for begin in range(0, len(paths), TOGETHER):
        cases = list[Case]()
        for path in paths[begin : begin + TOGETHER]:
            name = path.relative_to(folder).with_suffix("").as_posix()
            try:
                cases.append(read_case(path, name))
            except HeartlmError as error:
                rows.append((name, "", "", "unreadable", "", str(error)))
                print(error, flush=True)
        seconds = judged(models, cases)
        for case in cases:
            kinds, is_true = called(case, seconds[case.name], NUM_LEADS, rules), bool(case.kinds)
            verdict = VERDICTS[is_true, case.what in kinds]
            rows.append((case.name, case.what, str(is_true).lower(), verdict, "; ".join(sorted(kinds)), ""))
        print(f"{min(begin + TOGETHER, len(paths))} of {len(paths)}", flush=True)
    if all(verdict == "unreadable" for _, _, _, verdict, _, _ in rows):
        raise HeartlmError(f"none of {len(rows)} recordings can be scored; the first one: {rows[0][-1]}")
    return sorted(rows)


def score(rows: Sequence[tuple[str, ...]]) -> Table:
    """The table of the Challenge, by kind of alarm and in all."""
    table = Table(
        f"Alarms of the Challenge 2015 in real time, at most {NUM_LEADS} ECG leads",
        ("kind", "TP", "FN", "FP", "TN", "TPR, %", "TNR, %", "score"),
    )
    for kind in (*OF_CHALLENGE, "all"):
        counts = Counter(verdict for _, own, _, verdict, _, _ in rows if kind in (own, "all"))
        tp, fn, fp, tn = (counts[verdict] for verdict in VERDICTS.values())
        if tp + fn + fp + tn:
            tpr, tnr = (f"{100 * hit / (hit + miss):.1f}" if hit + miss else None for hit, miss in ((tp, fn), (tn, fp)))
            table.add(kind, tp, fn, fp, tn, tpr, tnr, challenge_score(tp, fn, fp, tn))
    table.notes.append(f"{len(rows)} recordings, of which {counts['unreadable']} cannot be read.")
    return table


def main(words: Sequence[str] | None = None) -> int:
    """Score the recordings of a folder; return the exit status."""
    parser = options(__doc__)
    parser.add_argument("folder", type=Path, help="the training recordings, such as a103l.hea and a103l.mat")
    out = Path(__file__).parent / "results/challenge2015.csv"
    parser.add_argument("--out", type=Path, default=out, help="verdict of each recording")
    parser.add_argument("--rules", type=Path, default=Path("second-opinion"), help="YAML file of rules, or a preset")
    settings = parser.parse_args(words)
    limit_threads(1)
    try:
        rows = judge(settings.folder, read_rules(settings.rules)[0])
        with atomic_file(settings.out) as stream:
            csv.writer(stream, lineterminator="\n").writerows([COLUMNS, *rows])
        write_results("challenge2015", "True and false alarms of the Challenge 2015", [score(rows)])
    except HeartlmError as error:
        print(f"challenge2015.py: {error}", file=sys.stderr)
        return 2
    print(settings.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
