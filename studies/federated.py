"""What TinyECG learns from patients of mitdb without bringing them together, and what privacy costs.

    python -m studies.federated --data FOLDER/mitdb --work FOLDER
    python -m studies.federated --data FOLDER/mitdb --work FOLDER --privacy

It is trained on all of DS1 centrally, and federated over clients that are patients of DS1 or groups of patients, on 2,
4 and 8 ranks of MPI, and is scored on DS2. The models of all numbers of ranks must be bit-identical. With `--privacy`
one study, a client for each patient, is trained with and without it; the noise comes from the system's entropy, so
scores differ from run to run. The cost of the reduction is measured by benchmarks/federated_rounds.py.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import statistics
from typing import Any

from lab.measure import Table
from lab.output import write_results
from lab.places import options
from lab.steps import on_ranks

LEARNING = {"rounds": 30, "local-steps": 20, "batch-size": 64, "learning-rate": 0.01}
"""Of all studies. Window, rates and batches were chosen on patients of DS1 held out from the others. Strategy and
rounds were not: on them DiLoCo was a little ahead of FedAvg (mean V F1 0.71 and 0.69 after 60 rounds), and on DS2 60
rounds of DiLoCo ended at 0.62, of FedAvg at 0.82; 30 rounds were then taken for time, and both are in the table."""
CENTRAL = {"rounds": 40, "local-steps": 50, "batch-size": 128}
"""Of the training in one place: the best on the same held-out patients, of 1200 steps of 64 or 512 beats and these."""
CLIENTS = 8
PRIVATE = {"rounds": 40, "local-steps": 10}
PROMISES = ((0.5, 0.5), (0.5, 1.0), (0.5, 4.0))
"""Length that updates may have, noise over it; without momentum of the server, updates so short move it too slowly."""
DELTA = 1e-3


def learnt(chosen: argparse.Namespace, name: str, num_ranks: int, **settings: object) -> dict[str, Any]:
    """Run a study again; its scores, its model's name, the seconds of its rounds and what it promises."""
    out = chosen.work / name
    shutil.rmtree(out, ignore_errors=True)
    often = {"evaluate-every": 20, "save-every": 20, "device": "cpu", "databases": f"[{chosen.data}]"}
    words = [f"--{key}={value}" for key, value in {**LEARNING, **often, **settings}.items()]
    on_ranks(num_ranks, "-m", "heartlm", "federate", *words, "--out", out)
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    model, promise = (out / "models" / "last" / "model.safetensors").read_bytes(), out / "privacy.json"
    scores = json.loads((out / "scores.json").read_text())
    f1 = scores["per_class"]["V"]["f1"]
    return {
        "v_f1": f1["value"],
        "interval": "{:.2f}–{:.2f}".format(*f1["ci"]),
        "macro_f1": f"{scores['macro_f1']['value']:.3f}",
        "model": hashlib.sha256(model).hexdigest()[:12],
        "round_s": statistics.median(line["round_s"] for line in lines if line["kind"] == "round"),
        "promise": json.loads(promise.read_text()) if promise.exists() else None,
    }


def what_it_learns(chosen: argparse.Namespace) -> Table:
    columns = ("training", "ranks", "V F1 on DS2", "95 %", "less than central", "macro F1", "model", "s a round")
    table = Table("what TinyECG learns", columns)
    groups = {"partition": "iid", "clients": CLIENTS}
    cases: list[tuple[str, int, dict[str, object]]] = [
        ("all patients in one place", 1, {"partition": "iid", "clients": 1, **CENTRAL}),
        *(("FedAvg, 8 clients of whole patients", ranks, {**groups, "strategy": "fedavg"}) for ranks in chosen.ranks),
        ("the same, a round stale", chosen.ranks[0], {**groups, "strategy": "fedavg", "staleness": 1}),
        ("DiLoCo, 8 clients of whole patients", chosen.ranks[0], {**groups, "strategy": "diloco"}),
        ("DiLoCo, 22 clients of one patient", chosen.ranks[0], {"strategy": "diloco", "local-steps": 10}),
    ]
    central = None
    for number, (name, ranks, settings) in enumerate(cases):
        of = learnt(chosen, f"study-{number}", ranks, **settings)
        central = of["v_f1"] if central is None else central
        less = f"{central - of['v_f1']:+.4f}"
        round_s = f"{of['round_s']:.2f}"
        table.add(name, ranks, f"{of['v_f1']:.4f}", of["interval"], less, of["macro_f1"], of["model"], round_s)
    return table


def what_privacy_costs(chosen: argparse.Namespace) -> Table:
    columns = ("updates", "epsilon", "a round alone", "V F1 on DS2", "95 %", "macro F1", "model")
    table = Table(f"what privacy costs (delta {DELTA:g})", columns)
    ways: list[tuple[str, dict[str, object]]] = [("exact", {})]
    for norm, noise in PROMISES:
        private: dict[str, object] = {"clip-norm": norm, "noise-multiplier": noise, "privacy-delta": DELTA}
        ways.append((f"no longer than {norm:g}, noise {noise:g} of it", private))
    for number, (name, settings) in enumerate(ways):
        of = learnt(chosen, f"private-{number}", 1, strategy="diloco", **PRIVATE, **settings)
        promise = of["promise"]
        told = [f"{promise[key]:.1f}" for key in ("epsilon", "epsilon_per_round")] if promise else ["none", "none"]
        table.add(name, *told, f"{of['v_f1']:.3f}", of["interval"], of["macro_f1"], of["model"])
    return table


def main() -> None:
    parser = options(__doc__, "work", data="the records of mitdb")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--privacy", action="store_true", help="what privacy costs")
    chosen = parser.parse_args()
    chosen.work.mkdir(parents=True, exist_ok=True)
    if chosen.privacy:
        tables = [what_privacy_costs(chosen)]
        write_results("federated_ways", "What privacy costs a federated study", tables, LEARNING | PRIVATE)
    else:
        write_results("federated", "Federated training by patient on mitdb", [what_it_learns(chosen)], LEARNING)


if __name__ == "__main__":
    main()
