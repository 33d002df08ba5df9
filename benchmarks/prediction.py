"""Predicted and measured time of two CPU ranks; the prediction uses measurements of one rank.

    python -m benchmarks.prediction --work FOLDER            about 8 minutes

The study measures one rank at the whole batch and at half of it, two concurrent copies, and two ranks. The prediction
uses all of these except the last. Both cores must be idle.
"""

from __future__ import annotations

from heartlm.storage.reading import read_json
from lab.measure import Spread, Table
from lab.output import write_results
from lab.places import options
from lab.steps import Steps


def main() -> None:
    parser = options(__doc__, "work", repeats=3, steps=12, tokens=4096)
    parser.add_argument("--windows", type=int, nargs="+", default=[128, 512, 1024])
    chosen = parser.parse_args()
    shape = {"batch_tokens": chosen.tokens, "steps": chosen.steps, "repeats": chosen.repeats, "prediction": True}
    study = Steps(chosen.work).study(chosen.windows, stages=["pretrain", "finetune"], **shape)
    columns = ("cell", "predicted ms", "95 % interval", "measured ms", "error", "outside its interval by", "bottleneck")
    table = Table("two CPU ranks predicted from one, a typical step", columns)
    out = study / "validation.json"
    Steps(study).run("validate", study / "no result of its own", "scale", "validate", study, "--out", out)
    found = read_json(out)
    for each in found["cells"]:
        predicted, cell = each["predicted"], each["predicted"]["cell"]
        low, high = (f"{1e3 * predicted[name]:.1f}" for name in ("low_s", "high_s"))
        table.add(
            f"{cell['stage']} {cell['window']}, {cell['cpus_per_task']} core a rank",
            f"{1e3 * predicted['step_s']:.1f}",
            f"{low}–{high}",
            Spread.of([1e3 * taken for taken in each["repeats_s"]]),
            f"{100 * each['error']:+.1f} %",
            f"{100 * each['outside']:.1f} %",
            predicted["bottleneck"],
        )
    about = {"median_error": f"{100 * found['median_error']:.1f} %", "cells_outside": found["num_outside"]}
    write_results("prediction", "The time of two ranks, predicted from one", [table], about)


if __name__ == "__main__":
    main()
