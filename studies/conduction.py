"""AV block of first degree, bundle branch blocks and long QT that `heartlm analyze` finds, against reports.

    python benchmarks/conduction.py --ptb-xl DIR --ludb DIR --work FOLDER

PTB-XL (folds 1 to 8 of what is there) and LUDB: a finding is right where the report of the recording has it. Incomplete
blocks have rows of their own: how many of them are called a block. No model was trained on these statements, but the
network of waves was on the waves of LUDB. The sex of patients of PTB-XL is copied from its table into the headers.
Limits are those of guidelines. Chosen on the odd folds of PTB-XL: that left bundle branch block begins at 130 ms and
not at 120, what a pacing spike is (also on LUDB), how many leads have to show a P wave, and how clearly. That clearness
counts was decided after a look at the even folds. Intervals are by bootstrap over patients.
"""

from __future__ import annotations

import argparse
import csv
from ast import literal_eval
from pathlib import Path

from bench.measure import Table
from bench.output import write_results
from findings import by_recording, linked
from steps import Steps

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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("--ptb-xl", "--ludb", "--work"):
        parser.add_argument(name, type=Path, required=True)
    chosen = parser.parse_args()
    steps, links = Steps(chosen.work), chosen.work / "links"
    with (chosen.ptb_xl / "ptbxl_database.csv").open(encoding="utf-8") as stream:
        rows = {row["filename_hr"]: row for row in csv.DictReader(stream)}
    patients = {Path(name).name: row["patient_id"] for name, row in rows.items()}
    columns = ("data", "finding", "method", "in reports", "called", "sensitivity", "positive predictivity")
    table = Table("Findings from intervals, ten seconds of twelve leads", columns)
    for parity, title in ((1, "PTB-XL, odd folds"), (0, "PTB-XL, even folds")):
        names = sorted(
            name
            for name, row in rows.items()
            if int(row["strat_fold"]) % 2 == parity and (chosen.ptb_xl / f"{name}.hea").is_file()
        )
        stated = {Path(name).name: set(literal_eval(rows[name]["scp_codes"])) for name in names}
        labels = {name: {kind: bool(codes & own) for kind, codes in CODES.items()} for name, own in stated.items()}
        folder = linked(chosen.ptb_xl, links / f"ptb-xl-{parity}", names)
        for name in names:
            header = folder / f"{name}.hea"
            text = header.read_text(encoding="utf-8")
            if "<sex>" not in text:
                header.unlink()
                header.write_text(f"{text}#<sex>: {SEXES[rows[name]['sex']]}\n", encoding="utf-8")
        for row in by_recording(steps, f"ptb-xl-{parity}", folder, labels, patients.__getitem__):
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
    table.close()
    write_results("conduction", "Findings from intervals, and what reports say", [table])


if __name__ == "__main__":
    main()
