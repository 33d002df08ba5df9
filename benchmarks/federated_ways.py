"""Cost of compression and privacy: the same federated study with and without each, on the MIT-BIH Database.

    python benchmarks/federated_ways.py --data FOLDER/mitdb --work FOLDER

TinyECG is trained on DS1 with one client per patient, and scored on DS2. Bytes are those of the message of one client
in a round. The noise of a private study comes from the system's entropy, so its scores differ from run to run.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bench.measure import Table
from bench.output import write_results

from heartlm.federated.compression import encode
from heartlm.federated.federate import federate
from heartlm.federated.study_file import FederatedConfig

LEARNING = {"rounds": 40, "local_steps": 10, "batch_size": 64, "learning_rate": 0.01}
COMPRESSION = (
    ("fedavg", "none"),
    ("fedavg", "bf16"),
    ("fedavg", "int8-by-chance"),
    ("diloco", "none"),
    ("diloco", "int8-by-chance"),
)
"""Strategy of the server, compressor."""

PROMISES = ((0.5, 0.5), (0.5, 1.0), (0.5, 4.0))
"""Length that updates may have, noise over it; without momentum of the server, updates so short move it too slowly."""

DELTA = 1e-3


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the MIT-BIH Arrhythmia Database")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=LEARNING["rounds"])
    parser.add_argument("--seeds", type=int, default=1, help="studies of each way to compress")
    return parser.parse_args()


def learnt(chosen: argparse.Namespace, name: str, seed: int, **settings: Any) -> dict[str, Any]:
    """Run a study again; its scores, its model's name, what it promised, its seconds."""
    out = chosen.work / f"{name}-{seed}"
    shutil.rmtree(out, ignore_errors=True)
    values = {**LEARNING, "rounds": chosen.rounds, "evaluate_every": 0, "save_every": chosen.rounds, "device": "cpu"}
    begin = time.perf_counter()
    federate(FederatedConfig(databases=[str(chosen.data)], out=out, seed=seed, **{**values, **settings}))
    promise = out / "privacy.json"
    model = (out / "models" / "last" / "model.safetensors").read_bytes()
    return {
        "scores": json.loads((out / "scores.json").read_text()),
        "model": hashlib.sha256(model).hexdigest()[:12],
        "promise": json.loads(promise.read_text()) if promise.exists() else None,
        "seconds": time.perf_counter() - begin,
    }


def scores(results: list[dict[str, Any]]) -> list[str]:
    """V F1 of each seed, with the interval over patients of the first; macro F1 of each."""
    v_f1 = [result["scores"]["per_class"]["V"]["f1"] for result in results]
    macro = [result["scores"]["macro_f1"]["value"] for result in results]
    low, high = v_f1[0]["ci"]
    return [
        ", ".join(f"{each['value']:.3f}" for each in v_f1),
        f"{low:.2f}–{high:.2f}",
        ", ".join(f"{each:.3f}" for each in macro),
    ]


def what_compression_costs(chosen: argparse.Namespace, num_parameters: int) -> Table:
    table = Table(
        "what compression costs",
        (
            "strategy, updates",
            "bytes a client and round",
            "of the exact ones",
            "V F1 on DS2",
            "95 %",
            "macro F1",
            "s a study",
        ),
    )
    vector = torch.from_numpy(np.random.default_rng(0).standard_normal(num_parameters))
    exact = 4 * num_parameters
    for strategy, name in COMPRESSION:
        sent = exact if name == "none" else len(encode(name, vector))
        words = f"{strategy}, {name}"
        results = [
            learnt(chosen, words.replace(" ", ""), seed, strategy=strategy, compression=name)
            for seed in range(chosen.seeds)
        ]
        table.add(words, sent, f"{sent / exact:.3f}", *scores(results), f"{results[0]['seconds']:.0f}")
    table.notes.append(
        "Bytes are of float32; the model of a study with engine 'flower' or with exact sums travels in 64 bits."
    )
    table.close()
    return table


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
        result = learnt(chosen, f"hidden-{place}", 0, strategy="diloco", **settings)
        promise = result["promise"]
        told = (
            ["none", "none"] if promise is None else [f"{promise[key]:.1f}" for key in ("epsilon", "epsilon_per_round")]
        )
        table.add(words, *told, *scores([result]), result["model"], f"{result['seconds']:.0f}")
    table.close()
    return table


def main() -> None:
    from heartlm.models.tiny_ecg import TinyECG

    chosen = options()
    num_parameters = sum(parameter.numel() for parameter in TinyECG(4).parameters())
    tables = [what_compression_costs(chosen, num_parameters), what_privacy_costs(chosen)]
    about = LEARNING | {"rounds": chosen.rounds, "parameters": num_parameters}
    write_results("federated_ways", "What compression and privacy cost a federated study", tables, about)


if __name__ == "__main__":
    main()
