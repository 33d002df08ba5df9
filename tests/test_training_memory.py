"""The plan of memory against what a real step allocates, and what more ranks change in it."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
import torch
import torch.distributed as dist

from benchmarks import sharding
from heartlm.cli.main import main
from heartlm.distributed.ranks import Ranks
from heartlm.errors import HeartlmError
from heartlm.models.pretrained import FOLDER
from heartlm.tokenizers.base import Tokenizer, load_tokenizer
from heartlm.training.config import PretrainConfig
from heartlm.training.dry_run import Sharing, StepMemory, step_memory
from tests.conftest import ROOT


def tokenizer() -> Tokenizer:
    return load_tokenizer(FOLDER / "foundation" / "tokenizer")


def plan(ranks: int, sharing: Sharing, accumulation: int = 1) -> StepMemory:
    """Of a small model with 4 windows on each rank; the rhythm tokenizer has few facets, so it is quick."""
    config = PretrainConfig(depth=1, width=64, window=512, batch_size=4 * ranks, accumulation=accumulation)
    return step_memory(config, load_tokenizer(FOLDER / "af" / "tokenizer"), ranks, sharing)


CASES = (
    sharding.Case(4, 128, 4, 1, "ddp"),
    sharding.Case(4, 128, 4, 2, "ddp"),
    sharding.Case(4, 128, 4, 2, "zero1"),
    sharding.Case(4, 128, 4, 2, "fsdp"),
    sharding.Case(4, 512, 4, 1, "ddp", dropout=0.1),
    sharding.Case(4, 512, 4, 1, "ddp", activation_checkpointing=True),
    sharding.Case(4, 512, 4, 1, "ddp", precision="bf16"),
    sharding.Case(4, 512, 4, 1, "ddp", "bf16", activation_checkpointing=True, dropout=0.1),
)


def measure_as_rank() -> None:
    """Be a rank that measures the cases of a number of ranks one after the other; the first prints the largest."""
    num_ranks = int(sys.argv[1])
    torch.set_num_threads(1)
    if num_ranks > 1:
        dist.init_process_group("gloo")
    for case in (case for case in CASES if case.ranks == num_ranks):
        found: list[Any] = [sharding.measured(case)] * num_ranks
        if num_ranks > 1:
            dist.all_gather_object(found, found[0])
        if Ranks.from_environment().is_first:
            print("peak", max(found), flush=True)
    os._exit(0)  # with FSDP2 torch can abort while the process ends


@pytest.fixture(scope="module")
def peaks() -> dict[sharding.Case, float]:
    """The peak of each case; one start for each number of ranks, as imports take longer than steps."""
    found = dict[sharding.Case, float]()
    for num_ranks in (1, 2):
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={num_ranks}"]
        command = [sys.executable, *(launcher if num_ranks > 1 else []), "-m", __name__, str(num_ranks)]
        environment = os.environ | sharding.AT_ONCE
        done = subprocess.run(command, capture_output=True, text=True, timeout=900, env=environment, cwd=ROOT)
        assert done.returncode == 0, done.stderr
        lines = [line for line in done.stdout.splitlines() if line.startswith("peak ")]
        cases = [case for case in CASES if case.ranks == num_ranks]
        found |= {case: float(line.split()[1]) for case, line in zip(cases, lines, strict=True)}
    return found


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.ranks} {case.sharing}, {case.settings}")
def test_the_plan_is_what_ranks_need(case: sharding.Case, peaks: dict[sharding.Case, float]):
    planned = step_memory(case.config(), tokenizer(), case.ranks, case.sharing).peak
    assert planned == pytest.approx(peaks[case], rel=0.1)


def test_each_way_saves_what_it_should():
    alone, ddp, zero1, fsdp = plan(1, "ddp"), plan(64, "ddp"), plan(64, "zero1"), plan(64, "fsdp")
    assert alone.num_parameters == ddp.num_parameters == zero1.num_parameters == fsdp.num_parameters
    assert ddp.gradients == zero1.gradients == 4 * ddp.num_parameters  # all in buckets, from the first step on
    assert ddp.parameters == alone.parameters
    assert ddp.optimizer == alone.optimizer >= 8 * ddp.num_parameters
    assert zero1.optimizer < ddp.optimizer / 2  # whole parameters go to ranks, the largest here to rank 0
    assert fsdp.optimizer < ddp.optimizer / 16
    assert plan(64, "ddp", accumulation=4).activations < ddp.activations / 2


def test_the_command_says_whether_it_fits(capsys: pytest.CaptureFixture[str]):
    words = ["plan", "memory", "--depth", "1", "--width", "64", "--window", "16", "--batch-size", "4"]
    assert main([*words, "--memory-gb", "0.001"]) == 1
    assert "does not fit" in capsys.readouterr().out


def test_a_batch_that_does_not_split_is_refused():
    with pytest.raises(HeartlmError, match="batch_size: 6 found, a multiple of 4 expected"):
        step_memory(PretrainConfig(depth=1, window=16, batch_size=6), tokenizer(), 4, "ddp")


if __name__ == "__main__":
    measure_as_rank()
