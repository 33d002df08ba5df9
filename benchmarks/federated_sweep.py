"""The grid of the published federated study on this machine: ranks 1 to 8, five repeats, fp32 (AMP where a GPU is).

    python benchmarks/federated_sweep.py --data FOLDER/mitdb --work FOLDER

Runs `heartlm federate sweep examples/federated_sweep.yaml`; studies that were finished before are not run again. The
sweep's own table, page and figures stay in the work folder.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from bench.measure import Table
from bench.output import write_results

from heartlm.cli.main import main as heartlm
from heartlm.report.federated import exposed_ms, groups_of, local_ms, read_table, share, throughput

EXAMPLE = Path(__file__).parent.parent / "examples" / "federated_sweep.yaml"
COLUMNS = (
    "config, batch × local steps",
    "ranks",
    "studies",
    "samples/s, all ranks",
    "local ms a round",
    "communication ms a round",
    "communication, %",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the MIT-BIH Arrhythmia Database")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=5)
    chosen = parser.parse_args()
    table = Table("a round by ranks", COLUMNS)
    study = json.dumps({"databases": [str(chosen.data)]})
    words = [str(EXAMPLE), "--study", study, "--repeats", str(chosen.repeats), "--out", str(chosen.work)]
    if heartlm(["federate", "sweep", *words]):
        sys.exit("a study of the sweep failed")
    for group in groups_of(read_table(chosen.work / "table.csv")):
        columns = [group.over(value) for value in (throughput, local_ms, exposed_ms, share)]
        for ranks, repeats in group.of.items():
            told = [f"{column[ranks].value:.4g}" for column in columns]
            table.add(group.name, ranks, len(repeats), *told)
    skipped = json.loads((chosen.work / "skipped.json").read_text())
    if skipped:
        table.notes.append(f"{len(skipped)} cells {skipped[0][1]}.")
    table.close()
    write_results("federated_sweep", "Federated rounds by ranks", [table], {"repeats": chosen.repeats})


if __name__ == "__main__":
    main()
