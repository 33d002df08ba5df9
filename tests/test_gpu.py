"""All that needs a GPU: `make test-gpu`. docs/gpu.md says how to run it and what to report.

    corpus in RAM or on the device ─► pinned slots ─► GPU: fp32, bf16, compiled ─► NCCL: DDP, FSDP2 ─► a lost rank

Losses are compared with those of one GPU in fp32 without compiling, and these with a CPU's. Trainings are the command
that users start, each in processes of its own. `HEARTLM_GPU_REHEARSAL=1` runs the trainings on CPUs with the queue of
steps of a GPU, which shows that this file and the queue are sound and nothing about a GPU.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import heartlm
from heartlm.databases.database import open_database
from heartlm.distributed.device import device_and_precision
from heartlm.inference.leads import ScoredLead, scored_lead
from heartlm.inference.predictions import token_probabilities
from heartlm.inference.waveform import second_probabilities
from heartlm.instrumentation.energy import energy_counter
from heartlm.models.pretrained import find_run
from heartlm.runs.run_folder import RunFolder
from heartlm.tasks.load import load_finetuned
from heartlm.tokenizers.base import load_tokenizer
from heartlm.training.config import PretrainConfig
from heartlm.training.dry_run import step_memory
from tests.brokers import free_port
from tests.forked import HEARTLM, Forked
from tests.synthetic_run import losses
from tests.test_training_feed import MAKERS, check_sent_batches

REHEARSAL = "HEARTLM_GPU_REHEARSAL" in os.environ
NUM_GPUS = 2 if REHEARSAL else torch.cuda.device_count()
DEVICE = "cpu" if REHEARSAL else "cuda"
PROGRAM = "tests.queued_on_cpu" if REHEARSAL else "heartlm"
WHY = "torch sees no GPU here" if torch.version.cuda else "this torch is built without CUDA"
TIMEOUT_S = 900

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(NUM_GPUS < 1, reason=WHY)]
two_gpus = pytest.mark.skipif(NUM_GPUS < 2, reason=f"two ranks want a GPU each, torch sees {NUM_GPUS}")
real_gpu = pytest.mark.skipif(REHEARSAL, reason="a rehearsal on CPUs says nothing about this")

FP32, BF16 = 1e-3, 3e-2
"""Losses may differ by so much, relative: sums in another order, and numbers of 8 bits."""

SETTINGS: dict[str, Any] = {
    "depth": 2,
    "window": 48,
    "batch-size": 16,
    "steps": 24,
    "log-every": 1,
    "validate-every": 12,
    "checkpoint-every": 12,
    "dropout": 0.1,
    "precision": "fp32",
    "compile": False,
    "threads": 1,
    "timeout-s": 60,
}

LONGER = {"steps": 100, "validate_every": 50} if REHEARSAL else {"steps": 400, "validate_every": 200}
"""For runs that are interrupted."""


def command(
    corpus: Path,
    out: Path,
    num_ranks: int = 1,
    program_name: str = PROGRAM,
    launcher: str = "torch.distributed.run",
    **changed: Any,
) -> list[str]:
    """The command that trains on `num_ranks` GPUs of this machine."""
    settings = {"device": DEVICE, **SETTINGS, **{name.replace("_", "-"): value for name, value in changed.items()}}
    flags = {True: "--{}", False: "--no-{}"}
    words = [
        flags[value].format(name) if isinstance(value, bool) else f"--{name}={value}"
        for name, value in settings.items()
    ]
    program = [program_name, "pretrain", f"--corpus={corpus}", f"--out={out}", *words]
    if num_ranks == 1:
        return [sys.executable, "-m", *program]
    ranks = [launcher, "--standalone", f"--nproc-per-node={num_ranks}", "-m"]
    return [sys.executable, "-m", *ranks, *program]


def start(command: list[str], own_session: bool = False, **place: str) -> subprocess.Popen[str] | Forked:
    """Start a command; in a rehearsal one without a launcher is forked, which saves its imports."""
    if REHEARSAL and command[2] in (PROGRAM, "heartlm"):
        program = "tests.queued_on_cpu:run" if command[2] == PROGRAM else HEARTLM
        return Forked(*command[3:], program=program, environment=place, own_session=own_session)
    environment = os.environ | {"PYTHONFAULTHANDLER": "1"} | place
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, stdout=pipe, stderr=pipe, text=True, start_new_session=own_session, env=environment
    )


def start_ranks(command: list[str], num_ranks: int) -> list[subprocess.Popen[str] | Forked]:
    """Start the ranks of a command without a launcher, which would end those that are left when one is lost."""
    shared = {"WORLD_SIZE": num_ranks, "LOCAL_WORLD_SIZE": num_ranks, "MASTER_ADDR": "127.0.0.1"}
    place = {name: str(value) for name, value in (shared | {"MASTER_PORT": free_port()}).items()}
    return [start(command, **place, RANK=str(rank), LOCAL_RANK=str(rank)) for rank in range(num_ranks)]


def ended(command: list[str]) -> str:
    """What a command that succeeds writes to standard error."""
    process = start(command)
    _, said = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, said
    return said


def skip_without_bf16(settings: dict[str, Any]) -> None:
    if settings.get("precision") == "bf16" and not (REHEARSAL or torch.cuda.is_bf16_supported(False)):
        pytest.skip("this GPU has no bf16")


def trained(corpus: Path, out: Path, num_ranks: int = 1, **changed: Any) -> dict[tuple[str, int], float]:
    """The losses of a training; the ranks of a rehearsal are forked."""
    if REHEARSAL and num_ranks > 1:
        ranks = start_ranks(command(corpus, out, **changed), num_ranks)
        said = [rank.communicate(timeout=TIMEOUT_S)[1] for rank in ranks]
        assert [rank.returncode for rank in ranks] == [0] * num_ranks, said
    else:
        ended(command(corpus, out, num_ranks, **changed))
    return losses(out)


@pytest.fixture(scope="module")
def reference(tiny_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], float]:
    """One GPU, fp32, not compiled."""
    found = trained(tiny_corpus, tmp_path_factory.mktemp("gpu") / "reference")
    assert len(set(found.values())) > SETTINGS["steps"] / 2
    return found


# --- one GPU ----------------------------------------------------------------------------------------------------------


def test_a_gpu_computes_what_a_cpu_computes(
    tiny_corpus: Path, tmp_path: Path, reference: dict[tuple[str, int], float]
) -> None:
    on_cpu = trained(tiny_corpus, tmp_path / "cpu", device="cpu", program_name="heartlm")
    assert on_cpu == pytest.approx(reference, rel=FP32)


@pytest.mark.parametrize(
    ("changed", "relative"),
    [
        ({"activation_checkpointing": True}, FP32),
        ({"accumulation": 4}, FP32),
        ({"precision": "bf16"}, BF16),
        ({"resident": False}, FP32),
        ({"compile": True}, FP32),
        ({"compile": True, "resident": False, "accumulation": 2}, FP32),
        ({"compile": True, "precision": "bf16"}, BF16),
        ({"compile": True, "activation_checkpointing": True}, FP32),
    ],
    ids=lambda changed: "-".join(changed) if isinstance(changed, dict) else str(changed),
)
def test_other_ways_to_compute_it(
    tiny_corpus: Path,
    tmp_path: Path,
    reference: dict[tuple[str, int], float],
    changed: dict[str, Any],
    relative: float,
) -> None:
    skip_without_bf16(changed)
    assert trained(tiny_corpus, tmp_path / "run", **changed) == pytest.approx(reference, rel=relative)


def test_the_causal_model_is_compiled(tiny_corpus: Path, tmp_path: Path) -> None:
    plain = trained(tiny_corpus, tmp_path / "plain", objective="causal")
    assert trained(tiny_corpus, tmp_path / "compiled", objective="causal", compile=True) == pytest.approx(
        plain, rel=FP32
    )


def test_windows_of_mixed_widths_are_captured(tiny_corpus: Path, tmp_path: Path) -> None:
    """Enough steps that each of the three widths is replayed."""
    trained(tiny_corpus, tmp_path / "parent", device="cpu", steps=2, validate_every=2, checkpoint_every=2)
    words = [f"--corpus={tiny_corpus}", "--task=beats", "--window=48", "--shortest-window=12", "--batch-size=16"]
    words += ["--steps=40", "--log-every=1", "--dropout=0.1", "--precision=fp32", "--threads=1"]
    found = []
    for name, device in ((PROGRAM, DEVICE), ("heartlm", "cpu")):
        out = tmp_path / f"{device}-{len(found)}"
        program = [sys.executable, "-m", name, "finetune", str(tmp_path / "parent"), f"--out={out}", *words]
        said = ended([*program, f"--device={device}"])
        assert "not captured" not in said, said
        found.append(losses(out))
    assert found[0] == pytest.approx(found[1], rel=1e-2)


@pytest.mark.parametrize("is_compiled", [False, True])
def test_a_run_stopped_in_the_middle_goes_on_as_if_never_stopped(
    tiny_corpus: Path, tmp_path: Path, is_compiled: bool
) -> None:
    """A batch system and `timeout` signal the whole group, also the processes in which torch compiles."""
    settings = {**LONGER, "compile": is_compiled}
    check_stopped(tiny_corpus, tmp_path, lambda process: os.killpg(process.pid, signal.SIGTERM), **settings)


def check_stopped(
    corpus: Path,
    folder: Path,
    stop: Callable[[subprocess.Popen[str] | Forked], None],
    num_ranks: int = 1,
    **settings: Any,
) -> None:
    """A run that `stop` ends with a checkpoint continues with the losses of one that was not stopped."""
    unbroken = trained(corpus, folder / "unbroken", num_ranks, **settings)
    out = folder / "stopped"
    program = command(corpus, out, num_ranks, **settings)
    with start(program, own_session=True) as process:
        give_up_s = time.monotonic() + TIMEOUT_S
        while not (out / "metrics.jsonl").exists() or len(losses(out)) < 5:
            assert process.poll() is None and time.monotonic() < give_up_s
            time.sleep(0.01)
        stop(process)
        try:
            _, said = process.communicate(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGABRT)  # prints where it hangs
            said = process.communicate()[1]
    assert process.returncode == 128 + signal.SIGTERM and "stopped after step" in said, said
    first, words = program, ["pretrain", f"--resume={out}"]
    said = ended([*first[: first.index("pretrain")], *words])
    assert "resumed after step" in said, said
    assert losses(out) == pytest.approx(unbroken, rel=FP32)


@real_gpu
@pytest.mark.parametrize("kind", MAKERS)
def test_batches_on_the_gpu_are_those_of_the_cpu(kind: str) -> None:
    """Pinned memory is used again many times: a buffer sent too early or too late would show."""
    check_sent_batches(MAKERS[kind], torch.device("cuda", 0), range(200))


def test_inference_on_a_gpu_is_that_of_a_cpu(tiny_database: Path) -> None:
    """Several recordings at once; a pooled head that reads statistics (AF); convolutions, in TF32 on a GPU."""
    found, expected = (heartlm.load_model(device=each).embed(tiny_database).vectors for each in (DEVICE, "cpu"))
    np.testing.assert_allclose(found, expected, atol=1e-3 * np.abs(expected).max())
    recording = open_database(tiny_database).recording("s0001")
    for name, absolute in (("beats", 1e-3), ("af", 1e-3), ("waveform", 1e-2)):
        scores = []
        for device in (DEVICE, "cpu"):
            tuned = load_finetuned(find_run(Path(name)), "last", device)
            lead = scored_lead(recording, tuned.tokenizer, "auto")
            assert isinstance(lead, ScoredLead)
            if name == "waveform":
                scores.append(second_probabilities(tuned.model, lead.tokens.codes))
            else:
                scores.append(token_probabilities(tuned.model, lead.tokens.codes, tuned.info.window))
        np.testing.assert_allclose(*scores, atol=absolute)


def test_an_analysis_on_a_gpu_is_that_of_a_cpu(tiny_database: Path, tmp_path: Path) -> None:
    recording = open_database(tiny_database).recording("s0001")
    model, other = (heartlm.load_model("beats", device=each) for each in (DEVICE, "cpu"))
    models = model.analyst.beats.model, model.analyst.af.model, model.analyst.waveform.model
    assert {next(each.parameters()).device.type for each in models} == {DEVICE}
    found, expected = model.analyze(recording), other.analyze(recording)
    assert np.mean(np.isin(expected.sample, found.sample)) > 0.99
    both, own, theirs = np.intersect1d(found.sample, expected.sample, return_indices=True)
    assert np.mean(found.symbol[own] == expected.symbol[theirs]) > 0.99 and len(both)
    np.testing.assert_allclose(found.probability[own], expected.probability[theirs], atol=1e-2)
    done = heartlm.analyze(tiny_database, tmp_path / "out", page=False, processes=2, device=DEVICE)
    assert done.summaries and not done.left_out


@real_gpu
def test_energy_is_counted_and_only_grows() -> None:
    counter = energy_counter(str(torch.cuda.get_device_properties(0).uuid))
    if counter is None:
        pytest.skip("NVML counts no energy of this GPU, or heartlm[energy] is not installed")
    before, busy = counter(), torch.randn(4096, 4096, device="cuda")
    give_up_s = time.monotonic() + 60
    while counter() <= before and time.monotonic() < give_up_s:
        busy = (busy @ busy).clamp(-1, 1)
        torch.cuda.synchronize()
    assert counter() > before


@real_gpu
def test_memory_of_a_step_is_near_what_is_planned(
    tiny_corpus: Path, tmp_path: Path, record_property: pytest.RecordProperty
) -> None:
    """The plan counts kernels of a CPU, so it may be off; how far is to be reported."""
    size = {"depth": 8, "window": 256, "batch_size": 32}
    run = tmp_path / "run"
    trained(tiny_corpus, run, **size, steps=4, validate_every=4, checkpoint_every=4, dropout=0, measure=True)
    found = json.loads(RunFolder(run).measured(0).read_text())["peak_device_memory_bytes"]
    config = PretrainConfig(**size)
    planned = step_memory(config, load_tokenizer(tiny_corpus / "tokenizer"), 1, "ddp").peak
    record_property("planned over measured", planned / found)
    print(f"planned {planned / 1e6:.0f} MB, measured {found / 1e6:.0f} MB")
    assert 0.5 < planned / found < 2


ONE_OF_TWO = """
import os, sys, pynvml, torch
from heartlm.distributed.device import device_and_precision
from tests.forked import HEARTLM, Forked
from tests.test_training_feed import MAKERS, check_sent_batches
gpu, _ = device_and_precision("cuda", "fp32", 1)
check_sent_batches(MAKERS["masked"], gpu, range(20))
torch.cuda.synchronize()
pynvml.nvmlInit()
uuids = [f"GPU-{torch.cuda.get_device_properties(i).uuid}" for i in (0, 1)]
print(*(os.getpid() in [p.pid for p in pynvml.nvmlDeviceGetComputeRunningProcesses(pynvml.nvmlDeviceGetHandleByUUID(u))]
        for u in uuids))
"""


@real_gpu
@two_gpus
def test_a_rank_leaves_no_context_on_another_gpu() -> None:
    pytest.importorskip("pynvml", reason="contexts are counted by heartlm[energy]")
    done = subprocess.run([sys.executable, "-c", ONE_OF_TWO], capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    if done.stdout.split()[1] == "False":
        pytest.skip("NVML does not know this process by its number (in a container)")
    assert done.stdout.split() == ["False", "True"]


# --- two GPUs ---------------------------------------------------------------------------------------------------------


@two_gpus
@pytest.mark.parametrize(
    ("changed", "relative"),
    [
        ({"parallel": "ddp"}, FP32),
        ({"parallel": "ddp", "bucket_cap_mb": 1.0, "accumulation": 2}, FP32),
        ({"parallel": "fsdp"}, FP32),
        ({"parallel": "ddp", "compile": True, "precision": "bf16", "activation_checkpointing": True}, BF16),
        ({"parallel": "fsdp", "compile": True, "precision": "bf16", "activation_checkpointing": True}, BF16),
    ],
    ids=["ddp", "ddp-measured-buckets", "fsdp", "ddp-all", "fsdp-all"],
)
def test_two_gpus_are_one(
    tiny_corpus: Path,
    tmp_path: Path,
    reference: dict[tuple[str, int], float],
    changed: dict[str, Any],
    relative: float,
) -> None:
    skip_without_bf16(changed)
    assert trained(tiny_corpus, tmp_path / "run", 2, **changed) == pytest.approx(reference, rel=relative)


@two_gpus
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_a_lost_rank_is_reported_with_the_checkpoint_to_go_on_from(
    tiny_corpus: Path, tmp_path: Path, parallel: str
) -> None:
    out = tmp_path / "run"
    words = command(tiny_corpus, out, steps=1_000_000, validate_every=10**9, timeout_s=20, parallel=parallel)
    ranks = start_ranks(words, 2)
    try:
        give_up_s = time.monotonic() + TIMEOUT_S
        while not list((out / "checkpoints").glob("step-*/files.json")):
            assert ranks[0].poll() is None and time.monotonic() < give_up_s
            time.sleep(0.01)
        ranks[1].kill()
        _, said = ranks[0].communicate(timeout=TIMEOUT_S)
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
    assert ranks[0].returncode == 2, said
    assert "rank 0 lost another rank in step" in said and "is good, continue with --resume" in said


@real_gpu
@two_gpus
def test_a_rank_without_a_gpu_of_its_own_is_a_user_error() -> None:
    from heartlm.errors import HeartlmError

    with pytest.raises(HeartlmError, match="needs a GPU of its own"):
        device_and_precision("cuda", "fp32", torch.cuda.device_count())
