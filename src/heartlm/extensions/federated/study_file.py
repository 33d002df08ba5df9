"""Settings of a federated study, as documented fields and YAML keys. Imports no torch."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from heartlm.errors import HeartlmError, require
from heartlm.training.config import LearningConfig

LANGUAGE = ("pretrain", "finetune")
SOURCES = {
    "corpus": (LANGUAGE, "a corpus folder"),
    "foundation": (("finetune",), "the run folder of a pretrained model"),
    "databases": (("tiny_ecg",), "folders with recordings"),
    "training": (LANGUAGE, ""),
}
"""The models that a setting is for, and what they need; without a text it may be left out."""

ENGINES = {"resume": "ranks", "superlink": "flower", "secure_sum": "flower"}
"""The engine that a setting is for."""

LAYOUT = ("communicator", "device", "threads", "timeout_s")
"""Settings that may change when a study is resumed, because they do not change what it computes."""


@dataclass(frozen=True)
class FederatedConfig(LearningConfig):
    """Settings of a federated study.

    Attributes:
        model: model to train; tiny_ecg classifies waveforms of beats, pretrain and finetune train a heart language
            model.
        databases: folders with the recordings, for tiny_ecg.
        corpus: corpus folder, for pretrain and finetune.
        foundation: run folder of a pretrained model, for finetune.
        training: further settings of heartlm pretrain or finetune, for example {window: 128, depth: 4}.
        partition: assignment of patients to clients; patient makes one client per patient, iid assigns patients at
            random, database makes one client per database. A patient is never on two clients.
        clients: number of clients, for iid.
        strategy: server strategy; fedavg applies the weighted mean, fedprox adds a proximal term to the client loss,
            fedadam and fedyogi use adaptive rates, diloco uses Nesterov momentum.
        server_learning_rate: server learning rate; by default 1 for fedavg and fedprox, 0.01 for fedadam and fedyogi,
            0.7 for diloco.
        proximal: weight of the proximal term of fedprox, which keeps clients close to the global weights.
        rounds: number of rounds.
        local_steps: local steps per client and round.
        batch_size: samples (for language models, windows) per local step.
        learning_rate: learning rate of clients; follows a cosine over all rounds down to the fraction
            final_learning_rate.
        optimizer: optimiser of clients, whose moments they keep between rounds; sgd has no momentum. Language models
            always use adamw.
        weight_decay: weight decay of clients.
        class_balance: balance of the classes in the loss; 0 weights every labelled beat equally, 1 every class
            equally, 0.5 lies between.
        participation: fraction of clients sampled per round, at least one client.
        stragglers: fraction of sampled clients per round that take only a random number of their steps.
        failures: fraction of sampled clients that fail during a round.
        staleness: delay of updates in rounds, 0 or 1; with 1, they are summed while clients take the local steps of
            the next round.
        communicator: communication backend of the ranks; auto is mpi under mpiexec, torch under torchrun, else local.
        secure_sum: sum updates under masks that cancel, so that the server of engine flower sees no single update.
        clip_norm: maximum L2 norm of an update; together with noise_multiplier and privacy_delta it enables
            differential privacy of clients, with equal weights.
        noise_multiplier: standard deviation of the noise in the sum of a round, divided by clip_norm.
        privacy_delta: delta of differential privacy, the probability that epsilon does not hold; below 1 divided by
            the number of clients.
        engine: execution engine; ranks runs in one process or under mpiexec or torchrun, flower runs server and nodes
            as separate processes.
        nodes: number of Flower nodes to start on this machine, or to wait for on a SuperLink.
        superlink: connection in Flower's configuration to run on; by default Flower runs on this machine.
        evaluate_every: rounds between evaluations on the test patients; 0 evaluates once, at the end.
        save_every: rounds between saved states from which the study can be resumed.
        threads: CPU threads per rank; values above 1 may change the last bits between machines.
    """

    model: Literal["tiny_ecg", "pretrain", "finetune"] = "tiny_ecg"
    databases: list[str] = field(default_factory=list)
    foundation: Path | None = None
    training: dict[str, Any] = field(default_factory=dict)
    partition: Literal["patient", "iid", "database"] = "patient"
    clients: int = 8
    strategy: Literal["fedavg", "fedprox", "fedadam", "fedyogi", "diloco"] = "fedavg"
    server_learning_rate: float | None = None
    proximal: float = 0.01
    rounds: int = 30
    local_steps: int = 20
    batch_size: int = 128
    learning_rate: float = 1e-2
    optimizer: Literal["sgd", "adamw"] = "adamw"
    weight_decay: float = 0.01
    class_balance: float = 0.5
    participation: float = 1.0
    stragglers: float = 0.0
    failures: float = 0.0
    staleness: int = 0
    communicator: Literal["auto", "local", "torch", "mpi"] = "auto"
    secure_sum: bool = False
    clip_norm: float | None = None
    noise_multiplier: float | None = None
    privacy_delta: float | None = None
    engine: Literal["ranks", "flower"] = "ranks"
    nodes: int = 2
    superlink: str | None = None
    evaluate_every: int = 5
    save_every: int = 5
    threads: int = 1

    def check(self) -> None:
        """Raise a HeartlmError that names the first field with an impossible value."""
        super().check()
        require(self, lambda value: value >= 1, "at least 1", "clients", "rounds", "local_steps", "save_every", "nodes")
        positive = ("server_learning_rate", "clip_norm", "noise_multiplier")
        require(self, lambda value: 0 < value < math.inf, "more than 0", *positive)
        require(self, lambda value: 0 <= value < math.inf, "at least 0", "proximal", "evaluate_every")
        require(self, lambda value: 0 <= value < 1, "0 to below 1", "failures")
        require(self, lambda value: 0 <= value <= 1, "0 to 1", "class_balance", "stragglers")
        require(self, lambda value: 0 < value <= 1, "more than 0, at most 1", "participation")
        require(self, lambda value: value in (0, 1), "0 or 1", "staleness")
        for name, (models, what) in SOURCES.items():
            found, expected = getattr(self, name), self.model in models
            if expected and what and not found:
                raise HeartlmError(f"{name}: nothing found, {what} expected by model {self.model}")
            if found and not expected:
                raise HeartlmError(f"{name}: {found} found, nothing expected by model {self.model}")
        for name, engine in ENGINES.items():
            if getattr(self, name) and self.engine != engine:
                raise HeartlmError(f"{name}: {getattr(self, name)} found, nothing expected by engine {self.engine}")
        privacy = {name: getattr(self, name) for name in ("clip_norm", "noise_multiplier", "privacy_delta")}
        missing = [name for name, value in privacy.items() if value is None]
        if missing and len(missing) < len(privacy):
            raise HeartlmError(f"{missing[0]}: nothing found, but {', '.join(privacy)} make a promise only together")
        if self.out is None and self.resume is None:
            raise HeartlmError("out: nothing found, a folder for the study expected: give --out FOLDER")

    def to_yaml(self) -> dict[str, Any]:
        """Return the fields as plain values with absolute paths."""
        plain = {key: str(value.resolve()) if isinstance(value, Path) else value for key, value in asdict(self).items()}
        return plain | {"databases": [str(Path(folder).resolve()) for folder in self.databases], "resume": None}
