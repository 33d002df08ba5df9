"""Cost of privacy: the same federated study with and without each, on the MIT-BIH Database.

    python benchmarks/federated_ways.py --data FOLDER/mitdb --work FOLDER

TinyECG is trained on DS1 with one client per patient, and scored on DS2. The noise of a private study comes from the
system's entropy, so its scores differ from run to run.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import time
from pathlib import Path
from typing import Any

from bench.measure import Table
from bench.output import write_results

from heartlm.extensions.federated.federate import federate
from heartlm.extensions.federated.study_file import FederatedConfig

LEARNING = {"rounds": 40, "local_steps": 10, "batch_size": 64, "learning_rate": 0.01}
PROMISES = ((0.5, 0.5), (0.5, 1.0), (0.5, 4.0))
"""Length that updates may have, noise over it; without momentum of the server, updates so short move it too slowly."""

DELTA = 1e-3


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the MIT-BIH Arrhythmia Database")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=LEARNING["rounds"])
    return parser.parse_args()


def learnt(chosen: argparse.Namespace, name: str, **settings: Any) -> dict[str, Any]:
    """Run a study again; its scores, its model's name, what it promised, its seconds."""
    out = chosen.work / name
    shutil.rmtree(out, ignore_errors=True)
    values = {**LEARNING, "rounds": chosen.rounds, "evaluate_every": 0, "save_every": chosen.rounds, "device": "cpu"}
    begin = time.perf_counter()
    federate(FederatedConfig(databases=[str(chosen.data)], out=out, **{**values, **settings}))
    promise = out / "privacy.json"
    model = (out / "models" / "last" / "model.safetensors").read_bytes()
    return {
        "scores": json.loads((out / "scores.json").read_text()),
        "model": hashlib.sha256(model).hexdigest()[:12],
        "promise": json.loads(promise.read_text()) if promise.exists() else None,
        "seconds": time.perf_counter() - begin,
    }


def scores(result: dict[str, Any]) -> list[str]:
    """V F1 with its interval over patients, and macro F1."""
    v_f1 = result["scores"]["per_class"]["V"]["f1"]
    low, high = v_f1["ci"]
    return [f"{v_f1['value']:.3f}", f"{low:.2f}–{high:.2f}", f"{result['scores']['macro_f1']['value']:.3f}"]


def what_privacy_costs(chosen: argparse.Namespace) -> Table:
    table = Table(
        f"what privacy costs (delta {DELTA:g})",
        ("updates", "epsilon", "a round alone", "V F1 on DS2", "95 %", "macro F1", "model", "s a study"),
    )
    ways: list[tuple[str, dict[str, Any]]] = [("exact", {})]
    ways += [
        (
            f"no longer than {norm:g}, noise {noise:g} of it",
            {"clip_norm": norm, "noise_multiplier": noise, "privacy_delta": DELTA},
        )
        for norm, noise in PROMISES
    ]
    for place, (words, settings) in enumerate(ways):
        result = learnt(chosen, f"hidden-{place}", strategy="diloco", **settings)
        promise = result["promise"]
        told = (
            ["none", "none"] if promise is None else [f"{promise[key]:.1f}" for key in ("epsilon", "epsilon_per_round")]
        )
        table.add(words, *told, *scores(result), result["model"], f"{result['seconds']:.0f}")
    table.close()
    return table


def main() -> None:
    chosen = options()
    tables = [what_privacy_costs(chosen)]
    write_results(
        "federated_ways", "What privacy costs a federated study", tables, LEARNING | {"rounds": chosen.rounds}
    )


if __name__ == "__main__":
    main()
