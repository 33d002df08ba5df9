"""Settings of a federated study, as documented fields; a YAML file holds the same. Imports no torch."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from heartlm.errors import HeartlmError, require
from heartlm.files import read_yaml
from heartlm.training.config import LearningConfig
from heartlm.typed import typed

SERVER_RATES = {"fedadam": 0.01, "fedyogi": 0.01, "diloco": 0.7}
"""Server learning rates where none is given; 1, the whole mean, for the others."""


LAYOUT = ("overlap", "communicator", "bucket_mib", "device", "threads", "timeout_s")
"""Settings that may change when a study is resumed: how it computes, not what."""


@dataclass
class FederatedConfig(LearningConfig):
    """Settings of a federated study.

    Attributes:
        model: tiny_ecg labels the waveforms of beats; pretrain and finetune train a heart language model.
        databases: folders with the recordings, for tiny_ecg.
        corpus: folder with the tokens, for pretrain and finetune.
        foundation: run folder of a pretrained model, for finetune.
        training: further settings of heartlm pretrain or finetune, for example {window: 128, depth: 4}.
        partition: who is a client; patient makes each one, iid deals them out at random, label_skew by what beats they
            have, database makes each database one, central all patients one. A patient is never on two clients.
        clients: how many, for iid and label_skew.
        alpha: of label_skew: the smaller, the more clients differ (a Dirichlet distribution).
        strategy: what the server does; fedavg moves by the weighted mean, fedprox holds clients back, fedadam and
            fedyogi adapt rates, diloco has Nesterov momentum.
        server_learning_rate: by default 1 for fedavg and fedprox, 0.01 for fedadam and fedyogi, 0.7 for diloco.
        server_momentum: by default 0.9 for diloco, else 0; of fedadam and fedyogi it is beta1, by default 0.9.
        beta2: of fedadam and fedyogi.
        tau: of fedadam and fedyogi: how adaptive; smaller is more.
        proximal: of fedprox: how strongly clients are held to the global weights.
        rounds: how many.
        local_steps: of a client in a round.
        batch_size: samples (for language models windows) of a local step.
        learning_rate: of clients; falls along a cosine over all rounds to final_learning_rate of it.
        optimizer: of clients; language models always take adamw.
        momentum: of sgd.
        weight_decay: of clients.
        keep_optimizer: clients keep the moments of their optimiser from round to round, as DiLoCo does.
        class_balance: 0 weighs every labelled beat alike, 1 every class alike, 0.5 lies between.
        participation: share of clients asked in each round, at least one.
        stragglers: share of asked clients that, each round, are too slow: the deadline finds them after a random part
            of their steps.
        late: what becomes of a client that the deadline finds at work: partial takes what it has, drop takes nothing.
        deadline_s: seconds that a client may take for its local steps; unlike stragglers, not the same in every run.
        failures: share of asked clients that, each round, die in the middle of it.
        staleness: rounds that an update is late: 0, or 1, so that its way to the others may take as long as a round.
        overlap: let sums be on their way while something else is computed, the next local steps with staleness 1 and
            else the evaluation. It changes no result.
        communicator: how ranks add up; auto is mpi under mpiexec, torch under torchrun, else local.
        bucket_mib: MiB that are sent as one.
        compression: of updates; int8 and top-k make up later for what they left out, int8-by-chance is right on
            average.
        top_k: share of the values that top-k sends.
        secure_sum: add up under masks that cancel, so that single updates stay hidden.
        clip_norm: the longest an update may be (L2); with noise_multiplier and privacy_delta, clients have differential
            privacy and weigh the same.
        noise_multiplier: standard deviation of the noise in the sum of a round, over clip_norm.
        privacy_delta: chance that the epsilon that is stated does not hold; below 1 over the number of clients.
        engine: ranks (one process, mpiexec or torchrun); or flower, whose server and nodes are processes of their own.
        nodes: of flower on this machine, or to wait for on a SuperLink.
        superlink: a connection of Flower's configuration to run on; where none is named, flower runs on this machine.
        evaluate_every: rounds between evaluations on the test patients; 0 evaluates once, at the end.
        save_every: rounds between states that the study can resume from.
        threads: CPU threads of each rank; more than 1 may change last bits from machine to machine.
    """

    model: Literal["tiny_ecg", "pretrain", "finetune"] = "tiny_ecg"
    databases: list[str] = field(default_factory=list)
    foundation: Path | None = None
    training: dict[str, Any] = field(default_factory=dict)
    partition: Literal["patient", "iid", "label_skew", "database", "central"] = "patient"
    clients: int = 8
    alpha: float = 0.5
    strategy: Literal["fedavg", "fedprox", "fedadam", "fedyogi", "diloco"] = "fedavg"
    server_learning_rate: float | None = None
    server_momentum: float | None = None
    beta2: float = 0.99
    tau: float = 1e-3
    proximal: float = 0.01
    rounds: int = 30
    local_steps: int = 20
    batch_size: int = 128
    learning_rate: float = 1e-2
    optimizer: Literal["sgd", "adamw"] = "adamw"
    momentum: float = 0.0
    weight_decay: float = 0.01
    keep_optimizer: bool = True
    class_balance: float = 0.5
    participation: float = 1.0
    stragglers: float = 0.0
    late: Literal["partial", "drop"] = "partial"
    deadline_s: float | None = None
    failures: float = 0.0
    staleness: int = 0
    overlap: bool = True
    communicator: Literal["auto", "local", "torch", "mpi"] = "auto"
    bucket_mib: float = 4.0
    compression: Literal["none", "bf16", "int8", "int8-by-chance", "top-k"] = "none"
    top_k: float = 0.01
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
        positive = ("alpha", "server_learning_rate", "tau", "deadline_s", "bucket_mib", "clip_norm", "noise_multiplier")
        require(self, lambda value: 0 < value < math.inf, "more than 0", *positive)
        require(self, lambda value: 0 <= value < math.inf, "at least 0", "proximal", "evaluate_every")
        require(self, lambda value: 0 <= value < 1, "0 to below 1", "server_momentum", "momentum", "beta2", "failures")
        require(self, lambda value: 0 <= value <= 1, "0 to 1", "class_balance", "stragglers")
        require(self, lambda value: 0 < value <= 1, "more than 0, at most 1", "participation", "top_k")
        require(self, lambda value: value in (0, 1), "0 or 1", "staleness")
        tiny = self.model == "tiny_ecg"
        if tiny and not self.databases:
            raise HeartlmError("databases: nothing found, folders with recordings expected by model tiny_ecg")
        if not tiny and self.corpus is None:
            raise HeartlmError(f"corpus: nothing found, a corpus folder expected by model {self.model}")
        if self.model == "finetune" and self.foundation is None:
            raise HeartlmError("foundation: nothing found, the run folder of a pretrained model expected")
        by_model, by_engine = f"model {self.model}", f"engine {self.engine}"
        useless = {
            "corpus": by_model if tiny else None,
            "foundation": by_model if self.model != "finetune" else None,
            "training": by_model if tiny else None,
            "databases": by_model if not tiny else None,
            "resume": by_engine if self.engine == "flower" else None,
            "superlink": by_engine if self.engine != "flower" else None,
        }
        for name, by_what in useless.items():
            if by_what and getattr(self, name):
                raise HeartlmError(f"{name}: {getattr(self, name)} found, nothing expected by {by_what}")
        privacy = {name: getattr(self, name) for name in ("clip_norm", "noise_multiplier", "privacy_delta")}
        missing = [name for name, value in privacy.items() if value is None]
        if missing and len(missing) < len(privacy):
            raise HeartlmError(f"{missing[0]}: nothing found, but {', '.join(privacy)} make a promise only together")
        if self.secure_sum and self.compression != "none":
            raise HeartlmError(f"secure_sum: true found with compression {self.compression}: masks hide all 64 bits")

    @property
    def server_rate(self) -> float:
        """The server's learning rate, resolved."""
        return self.server_learning_rate or SERVER_RATES.get(self.strategy, 1.0)

    @property
    def server_beta(self) -> float:
        """The server's momentum, or first beta, resolved."""
        usual = 0.0 if self.strategy in ("fedavg", "fedprox") else 0.9
        return usual if self.server_momentum is None else self.server_momentum

    def to_yaml(self) -> dict[str, Any]:
        """The fields as plain values, paths in full; `load_study` reads them."""
        plain = {key: str(value.resolve()) if isinstance(value, Path) else value for key, value in asdict(self).items()}
        return plain | {"databases": [str(Path(folder).resolve()) for folder in self.databases], "resume": None}


def load_study(path: Path) -> FederatedConfig:
    """Read and check a study's YAML file.

    Raises:
        HeartlmError: it cannot be read, or says something impossible; the text names the file and the field.
    """
    content = read_yaml(path, "a YAML file of a federated study")
    try:
        study = typed(FederatedConfig, content)
        study.check()
    except HeartlmError as error:
        raise HeartlmError(f"{path}: {error}") from error
    return study
