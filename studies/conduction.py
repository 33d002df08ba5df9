"""AV block of first degree, bundle branch blocks and long QT that `heartlm analyze` finds, against reports.

    python -m studies.conduction --ptb-xl DIR --ludb DIR --work FOLDER

PTB-XL (folds 1 to 8 of what is there) and LUDB: a finding is right where the report of the recording has it. The model
statements, which decides on bundle branch blocks, learnt from these reports of PTB-XL; LUDB it does not know. Scores of
it on recordings that were kept back are in `studies/statements.py`. Incomplete
blocks have rows of their own: how many of them are called a block. The network of waves was trained on the
waves of LUDB. The sex of patients of PTB-XL is copied from its table into the headers.
Limits are those of guidelines. Chosen on the odd folds of PTB-XL: that left bundle branch block begins at 130 ms and
not at 120, what a pacing spike is (also on LUDB), how many leads have to show a P wave, and how clearly. That clearness
counts was decided after a look at the even folds. Intervals are by bootstrap over patients.
"""

from __future__ import annotations

from lab.measure import Table
from lab.output import write_results
from lab.places import options
from lab.steps import Steps
from studies.findings import PtbXl, by_recording, linked

CODES = {
    "AV block I": {"1AVB"},
    "LBBB": {"CLBBB"},
    "RBBB": {"CRBBB"},
    "LBBB or RBBB or wide QRS": {"CLBBB", "CRBBB", "IVCD", "PACE", "WPW"},
    "LBBB (incomplete)": {"ILBBB"},
    "RBBB (incomplete)": {"IRBBB"},
    "long QT": {"LNGQT"},
}
"""Findings, and SCP codes of PTB-XL that say the same."""
SEXES = {"0": "M", "1": "F"}
LINES = {
    "AV block I": ("i degree av block",),
    "LBBB": ("complete left bundle branch block",),
    "RBBB": ("complete right bundle branch block",),
    "LBBB (incomplete)": ("incomplete left bundle branch block",),
    "RBBB (incomplete)": ("incomplete right bundle branch block",),
}
"""Findings, and how lines of LUDB's headers that say the same begin."""


def main() -> None:
    """Analyse the recordings and write the results."""
    chosen = options(__doc__, "ptb-xl", "ludb", "work").parse_args()
    steps, ptb_xl = Steps(chosen.work), PtbXl(chosen.ptb_xl)
    columns = ("data", "finding", "method", "in reports", "called", "sensitivity", "positive predictivity")
    table = Table("Findings from intervals, ten seconds of twelve leads", columns)
    for parity, title in ((1, "PTB-XL, odd folds"), (0, "PTB-XL, even folds")):
        names = ptb_xl.in_folds(range(2 - parity, 11, 2))
        folder = linked(chosen.ptb_xl, chosen.work / "links" / f"ptb-xl-{parity}", names)
        for name in names:
            header = folder / f"{name}.hea"
            text = header.read_text(encoding="utf-8")
            if "<sex>" not in text:
                header.unlink()
                header.write_text(f"{text}#<sex>: {SEXES[ptb_xl.row[name]['sex']]}\n", encoding="utf-8")
        for row in ptb_xl.rows(steps, f"ptb-xl-{parity}", names, CODES):
            table.add(title, *row[1:])
    headers = {path.stem: path.read_text(encoding="utf-8").lower() for path in chosen.ludb.glob("**/*.hea")}
    labels = {
        name: {
            kind: any(line.lstrip("# ").startswith(lines) for line in text.splitlines())
            for kind, lines in LINES.items()
        }
        for name, text in headers.items()
    }
    for row in by_recording(steps, "ludb", chosen.ludb, labels, str):
        table.add("LUDB", *row[1:])
    write_results("conduction", "Findings from intervals, and what reports say", [table])


if __name__ == "__main__":
    main()
