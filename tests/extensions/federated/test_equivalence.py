"""What must come out the same: one client and plain training, a DDP step, the communicators, staleness."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from heartlm_tiny_ecg.network import TinyECG
from torch.nn import functional as F  # noqa: N812

from heartlm.extensions.federated.strategy import OuterSGD
from heartlm.training.learner import learning_rate
from tests.extensions.federated.small import (
    SIZES,
    STUDY,
    beats,
    final_vector,
    learning_of,
    mpiexec,
    rounds_of,
    write_final_vectors,
)
from tests.ranks import run_in_a_process_of_its_own, run_ranks

pytestmark = pytest.mark.slow


def plain_training(optimizer: str) -> torch.Tensor:
    """The same steps without anything federated: a model of its own, torch's optimiser, one loop."""
    study, samples = replace(STUDY, optimizer=optimizer), beats(0, SIZES[0])
    batch = learning_of(study, range(1)).batch
    torch.manual_seed(study.seed)
    model = TinyECG(4)
    rate = study.learning_rate
    decay = {"weight_decay": study.weight_decay}
    parameters = list(model.parameters())
    optimizers = {
        "sgd": torch.optim.SGD(parameters, rate, **decay),
        "adamw": torch.optim.AdamW(parameters, rate, **decay),
    }
    waveform, label = torch.from_numpy(samples.waveform), torch.from_numpy(samples.label).long()
    steps = study.rounds * study.local_steps
    for step in range(steps):
        chosen = torch.from_numpy(batch(0, step))
        optimizers[optimizer].zero_grad()
        (F.cross_entropy(model(waveform[chosen]), label[chosen], reduction="sum") / len(chosen)).backward()
        for group in optimizers[optimizer].param_groups:
            group["lr"] = learning_rate(
                step, peak=rate, warmup_steps=0, steps=steps, final_share=study.final_learning_rate
            )
        optimizers[optimizer].step()
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_one_client_is_plain_training_to_the_last_bit(optimizer: str):
    torch.set_num_threads(1)
    rounds = rounds_of(replace(STUDY, optimizer=optimizer), sizes=SIZES[:1])
    rounds.run(lambda: None)
    assert torch.equal(rounds.server.vector, plain_training(optimizer))


def ddp_step(out: str) -> None:
    """A rank of two: one SGD step on its client's batch, gradients averaged by DDP."""
    import torch.distributed as dist

    study = replace(STUDY, optimizer="sgd", weight_decay=0.0, learning_rate=0.1, final_learning_rate=1.0)
    rank = dist.get_rank()
    learning = learning_of(study, range(rank, rank + 1), sizes=(24, 24))
    chosen = torch.from_numpy(learning.batch(rank, 0))
    samples = beats(rank, 24)
    torch.manual_seed(study.seed)
    model = TinyECG(4)
    module = torch.nn.parallel.DistributedDataParallel(model)
    logits = module(torch.from_numpy(samples.waveform)[chosen])
    F.cross_entropy(logits, torch.from_numpy(samples.label).long()[chosen]).backward()
    torch.optim.SGD(model.parameters(), 0.1).step()
    torch.save(torch.cat([each.detach().flatten() for each in model.parameters()]), Path(out) / f"ddp-{rank}.pt")


def ddp_in_two_ranks(out: str) -> list[int]:
    return run_ranks(2, ddp_step, out)


def test_equal_clients_with_one_sgd_step_are_a_ddp_step(tmp_path: Path):
    statuses = run_in_a_process_of_its_own(
        "tests.extensions.federated.test_equivalence:ddp_in_two_ranks", str(tmp_path)
    )
    assert statuses == [0, 0]
    settings = {"optimizer": "sgd", "weight_decay": 0.0, "learning_rate": 0.1, "final_learning_rate": 1.0}
    study = replace(STUDY, rounds=1, local_steps=1, **settings)  # type: ignore[arg-type]
    rounds = rounds_of(study, sizes=(24, 24))
    begin = rounds.server.vector.clone()
    rounds.run(lambda: None)
    expected = torch.load(tmp_path / "ddp-0.pt")
    assert not torch.allclose(begin, expected, atol=1e-3)
    torch.testing.assert_close(rounds.server.vector, expected, rtol=1e-5, atol=1e-7)


SETTINGS: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "stale": {"staleness": 1, "strategy": "diloco", "participation": 0.6, "failures": 0.2},
}


def torch_in_ranks(num_ranks: int, kind: str, out: str, settings: dict[str, dict[str, Any]]) -> list[int]:
    return run_ranks(num_ranks, write_final_vectors, kind, out, settings)


@pytest.mark.parametrize(("kind", "num_ranks"), [("torch", 2), ("torch", 3), ("torch apart", 2)])
def test_torch_ranks_agree_with_one_process_to_the_last_bit(tmp_path: Path, kind: str, num_ranks: int):
    function = "tests.extensions.federated.test_equivalence:torch_in_ranks"
    assert run_in_a_process_of_its_own(function, num_ranks, kind, str(tmp_path), SETTINGS) == [0] * num_ranks
    assert_all_equal(tmp_path, num_ranks)


def test_mpi_ranks_agree_with_one_process_to_the_last_bit(tmp_path: Path):
    """One start, as ranks import for longer than they train: three for four clients, with shared memory and without."""
    kinds = "mpi", "mpi apart"
    done = mpiexec(3, "-m", "tests.extensions.federated.small", str(tmp_path), json.dumps(SETTINGS), *kinds)
    assert done.returncode == 0, done.stderr
    assert_all_equal(tmp_path, 3 * len(kinds))


def assert_all_equal(folder: Path, num_vectors: int) -> None:
    """All ranks, in all their ways, have the weights of this process for each of `SETTINGS`."""
    for name, settings in SETTINGS.items():
        expected, found = final_vector(**settings), [torch.load(path) for path in folder.glob(f"{name}-*.pt")]
        assert len(found) == num_vectors
        assert all(torch.equal(each, expected) for each in found)


@pytest.mark.parametrize("save_every", [1, 2])
def test_saving_changes_no_result(save_every: int):
    for staleness in (0, 1):
        saved = final_vector(staleness=staleness, save_every=save_every)
        assert torch.equal(saved, final_vector(staleness=staleness))


def test_staleness_is_one_round():
    """Round t starts from weights that know of rounds up to t − 2; its mean moves them after the round behind it."""
    stale = rounds_of(replace(STUDY, staleness=1))
    stale.run(lambda: None)
    again = rounds_of(STUDY)  # its clients and mean are used, its order is not
    vector, waiting, server = again.server.vector, None, OuterSGD()
    for index in range(STUDY.rounds):
        asked = sum(SIZES)
        again.server.vector = vector
        updates = again._train({number: _task(index) for number in range(len(SIZES))})
        if waiting is not None:
            vector = server.step(vector, waiting)
        waiting = again.aggregator.start(index, updates, asked).wait()
    assert waiting is not None
    assert torch.equal(server.step(vector, waiting), stale.server.vector)
    assert not torch.equal(stale.server.vector, final_vector())


def _task(index: int) -> Any:
    from heartlm.extensions.federated.client import ClientTask

    return ClientTask(index, STUDY.local_steps)
