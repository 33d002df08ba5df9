"""The grid of the published federated study on this machine: ranks 1 to 8, five repeats, fp32.

    python benchmarks/federated_sweep.py --data FOLDER/mitdb --work FOLDER

Runs `heartlm federate sweep examples/federated_sweep.yaml`; studies that were finished before are not run again. The
sweep's own table stays in the work folder.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from pathlib import Path

from bench.measure import Table
from bench.output import write_results

from heartlm.cli.main import main as heartlm
from heartlm.extensions.federated.page import sweep_table

EXAMPLE = Path(__file__).parent.parent / "examples" / "federated_sweep.yaml"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the MIT-BIH Arrhythmia Database")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=5)
    chosen = parser.parse_args()
    study = json.dumps({"databases": [str(chosen.data)]})
    words = [str(EXAMPLE), "--study", study, "--repeats", str(chosen.repeats), "--out", str(chosen.work)]
    if heartlm(["federate", "sweep", *words]):
        sys.exit("a study of the sweep failed")
    with (chosen.work / "table.csv").open(newline="", encoding="utf-8") as stream:
        heading, *rows = sweep_table(list(csv.DictReader(stream)))
    table = Table("a round by ranks", heading)
    for row in rows:
        table.add(*row)
    table.close()
    write_results("federated_sweep", "Federated rounds by ranks", [table], {"repeats": chosen.repeats})


if __name__ == "__main__":
    main()
