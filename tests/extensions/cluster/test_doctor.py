"""The doctor: what it reads of machines of many kinds, what it advises, and that nothing stops or delays it."""

from __future__ import annotations

import json
import math
import os
import select
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from heartlm.cli.main import main
from heartlm.cli.options import parse
from heartlm.errors import HeartlmError
from heartlm.extensions.cluster.doctor import hardware as devices
from heartlm.extensions.cluster.doctor import trials as trials_module
from heartlm.extensions.cluster.doctor.examine import CHECKS, as_json, examine, most_worth_changing
from heartlm.extensions.cluster.doctor.hardware import check_processors, processors
from heartlm.extensions.cluster.doctor.section import Advice, Section
from heartlm.extensions.cluster.doctor.software import check_allocation, check_versions, mismatches
from heartlm.extensions.cluster.doctor.trials import LIMIT_S, Trial, check_trials, run_within, summary, trials
from heartlm.training.config import PretrainConfig
from tests.conftest import Refused


def tree(root: Path, files: dict[str, str]) -> Path:
    """A tree of `files` like those of /proc and /sys."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


def two_sockets(root: Path) -> Path:
    """Two sockets of two cores of two hyper-threads."""
    files = {"proc/cpuinfo": ""}
    for cpu in range(8):
        files["proc/cpuinfo"] += f"processor\t: {cpu}\nmodel name\t: Some CPU\nflags\t\t: fpu avx2 amx_bf16\n\n"
        files[f"sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id"] = f"{cpu // 2 % 2}\n"
        files[f"sys/devices/system/cpu/cpu{cpu}/topology/core_id"] = f"{cpu % 2}\n"
    return tree(root, files)


def test_sockets_cores_and_hyper_threads_are_told_apart(tmp_path: Path):
    found = processors(two_sockets(tmp_path))
    assert found == {
        "model": "Some CPU",
        "vector_units": ["avx2", "amx_bf16"],
        "num_sockets": 2,
        "num_cores": 4,
        "num_cpus": 8,
    }


@pytest.mark.parametrize(
    ("quota", "num_cores", "limit"), [(math.inf, 4, None), (8.0, 4, 8.0), (2.5, 2, 2.5), (0.5, 1, 0.5)]
)
def test_a_limit_of_time_leaves_fewer_cores(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, quota: float, num_cores: int, limit: float | None
):
    hardware = "heartlm.extensions.cluster.doctor.hardware"
    monkeypatch.setattr(f"{hardware}.cpu_quota", lambda: quota)
    monkeypatch.setattr(f"{hardware}.ROOT", two_sockets(tmp_path))
    monkeypatch.setattr(f"{hardware}.usable_cpus", lambda: list(range(8)))
    facts = check_processors({}).facts
    assert (facts["usable_cores"], facts["cpu_limit"]) == (num_cores, limit)


def test_a_processor_that_tells_little_is_counted_all_the_same(tmp_path: Path):
    found = processors(tree(tmp_path, {"proc/cpuinfo": "processor\t: 0\nBogoMIPS\t: 50\n\nprocessor\t: 1\n"}))
    assert (found["num_sockets"], found["num_cores"], found["num_cpus"]) == (1, 2, 2)


def test_this_machine_is_read():
    facts = check_processors({}).facts
    assert facts["allowed_cpus"] == sorted(os.sched_getaffinity(0))
    assert 1 <= facts["usable_cores"] <= facts["num_cores"] <= facts["num_cpus"]


NVML_OF_TWO = SimpleNamespace(
    NVMLError=RuntimeError,
    nvmlInit=lambda: None,
    nvmlDeviceGetCount=lambda: 2,
    nvmlDeviceGetHandleByIndex=lambda index: index,
    nvmlSystemGetCudaDriverVersion=lambda: 12040,
    nvmlSystemGetDriverVersion=lambda: "550.1",
    nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(total=40 << 30, used=1 << 30),
    nvmlDeviceGetName=lambda handle: f"A100 {handle}",
)
"""What NVML answers on a machine of two GPUs; there is no GPU to ask where tests run."""


def test_gpus_are_described_by_what_nvml_answers(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "pynvml", NVML_OF_TWO)
    section = devices.check_devices({})
    assert [gpu["memory_bytes"] for gpu in section.facts["gpus"]] == [40 << 30] * 2
    assert section.facts["driver_cuda"] == [12, 4]
    assert section.lines == [
        "driver 550.1 (CUDA 12.4)",
        "GPU 0: A100 0, 1.0 of 40.0 GiB in use",
        "GPU 1: A100 1, 1.0 of 40.0 GiB in use",
    ]


@pytest.mark.parametrize(
    ("torch", "because"),
    [
        ({"torch": "2.13.0+cpu", "torch_cuda": None, "torch_sees_gpus": 0}, "built without CUDA"),
        ({"torch": "2.13.0", "torch_cuda": "13.0", "torch_sees_gpus": 0}, "the driver knows CUDA 12.4 at most"),
        ({"torch": "2.13.0", "torch_cuda": "12.6", "torch_sees_gpus": 0}, "torch sees none"),
    ],
)
def test_what_keeps_torch_from_gpus_is_named(torch: dict[str, Any], because: str):
    (advice,) = mismatches(torch, [{}], [12, 4])
    assert because in advice.because
    assert mismatches({**torch, "torch_cuda": "12.6", "torch_sees_gpus": 1}, [{}], [12, 4]) == []


def test_versions_of_this_machine():
    facts = check_versions({}).facts
    assert facts["torch"] and facts["torch_sees_gpus"] >= 0


def test_an_allocation_is_told_by_its_variables():
    section = check_allocation({"usable_cores": 1}, {"SLURM_JOB_ID": "7", "SLURM_CPUS_ON_NODE": "8"})
    assert section.facts == {"slurm": {"SLURM_JOB_ID": "7", "SLURM_CPUS_ON_NODE": "8"}}
    assert [advice.how.split()[1] for advice in section.advice] == ["--cpus-per-task=8"]
    assert check_allocation({}, {}).lines == ["not in a SLURM allocation"]


def outcome(kind: str, step_s: float) -> dict[str, Any]:
    return {"what": f"{kind} {step_s}", "how": "command", "kind": kind, "step_s": step_s}


def test_of_trials_that_exclude_each_other_the_best_is_advised():
    outcomes = [outcome("cores", 0.8), outcome("cores", 0.5), outcome("compile", 0.97), outcome("precision", 2.0)]
    section = summary(1.0, 0.01, 2, outcomes)
    assert [(advice.what, advice.gain) for advice in section.advice] == [("cores 0.5", 2.0)]
    assert len(section.lines) == 5


def test_a_gain_within_the_noise_is_none():
    assert summary(1.0, 0.3, 1, [outcome("cores", 0.8)]).advice == []
    failed = summary(1.0, 0.0, 1, [{"what": "ranks", "how": "", "kind": "cores", "error": "broken"}])
    assert failed.advice == [] and "failed: broken" in failed.lines[1]


def test_what_is_tried_follows_from_the_machine():
    known = {"usable_cores": 6, "vector_units": ["amx_bf16"]}
    found = {trial.how.split(" …")[0]: trial for trial in trials(known, 0, 6)}
    assert found["torchrun --standalone --nproc-per-node 4 -m heartlm pretrain"].num_ranks == 4
    assert {"export OMP_NUM_THREADS=1", "--precision bf16"} <= set(found)
    assert [trial.kind for trial in trials({"usable_cores": 1}, 0, 1) if trial.kind != "compile"] == []
    on_gpus = [trial.how.split(" …")[0] for trial in trials(known, 2, 6)]
    assert on_gpus == ["--no-compile", "torchrun --standalone --nproc-per-node 2 -m heartlm pretrain"]
    for trial in [*found.values(), *trials(known, 2, 6)]:
        parse(PretrainConfig, trial.words, "pretrain", config_file=True)


class Machine:
    """A machine on which a training takes the seconds given for its change, by a clock of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, default_s: float, **seconds: float) -> None:
        self.time_s, self.default_s, self.seconds, self.trained = 0.0, default_s, seconds, list[str]()
        monkeypatch.setattr(trials_module, "trained", self.train)
        monkeypatch.setattr(trials_module, "small_corpus", lambda scratch: scratch)

    def now_s(self) -> float:
        return self.time_s

    def train(self, trial: Trial, scratch: Path, windows: int, timeout_s: float) -> dict[str, Any]:
        self.trained.append(trial.kind)
        takes_s = self.seconds.get(trial.kind, self.default_s)
        self.time_s += min(takes_s, timeout_s)
        if takes_s > timeout_s:
            raise subprocess.TimeoutExpired("heartlm", timeout_s)
        return {"step_s": 1.0, "num_threads": 2}


TWO_CORES = {"usable_cores": 2, "vector_units": ["bf16"]}


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials_module.shutil, "which", lambda name: name)


@pytest.mark.usefixtures("compiler")
def test_trials_with_enough_time_are_all_made_between_two_unchanged_ones(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    machine = Machine(monkeypatch, default_s=5)
    section = check_trials(TWO_CORES, machine.now_s)
    assert machine.trained == ["none", "cores", "cores", "precision", "compile", "none"]
    assert section.facts["noise"] == 0 and not [line for line in section.lines if "left out" in line]
    output = capsys.readouterr()
    assert output.out == "" and output.err.count("doctor: trial, at most ") == len(machine.trained)


@pytest.mark.usefixtures("compiler")
def test_trials_without_time_are_listed_and_the_last_unchanged_one_has_its_time(monkeypatch: pytest.MonkeyPatch):
    machine = Machine(monkeypatch, default_s=10, precision=1000)
    section = check_trials(TWO_CORES, machine.now_s)
    assert machine.trained == ["none", "cores", "cores", "precision", "none"] and machine.time_s <= LIMIT_S
    assert section.facts["noise"] == 0
    assert section.lines[3:] == [
        "compute matrix products in bf16: left out: not done within the 15 s that were left",
        "compile the blocks of the model: left out: no time is left of the 57 s",
    ]
    assert ["left_out" in trial for trial in section.facts["trials"]] == [False, False, True, True]


def test_on_a_gpu_a_slow_first_training_leaves_time_for_one_without_compilation(monkeypatch: pytest.MonkeyPatch):
    machine = Machine(monkeypatch, default_s=25, compile=8)
    check_trials({"torch_sees_gpus": 1}, machine.now_s)
    assert machine.trained == ["none", "compile", "none"] and machine.time_s <= LIMIT_S


def test_a_first_training_that_does_not_end_is_an_error_of_one_line(monkeypatch: pytest.MonkeyPatch):
    machine = Machine(monkeypatch, default_s=1000)
    (section,) = (section for _, section in examine({"trials": lambda known: check_trials({}, machine.now_s)}))
    reason = "the training without changes gave no step time: not done within the 57 s that were left"
    assert section.lines == [f"not known: {reason}"] and machine.time_s == LIMIT_S


def test_without_the_noise_there_are_gains_and_no_advice(monkeypatch: pytest.MonkeyPatch):
    section = summary(1.0, None, 2, [outcome("cores", 0.5)])
    assert section.advice == [] and section.lines[1].endswith("2.00x")
    assert section.facts["noise"] is None

    machine, num_unchanged = Machine(monkeypatch, default_s=1), 0

    def train(trial: Trial, *arguments: Any) -> dict[str, Any]:
        nonlocal num_unchanged
        num_unchanged += trial.kind == "none"
        if num_unchanged == 2:
            raise HeartlmError("out of memory")
        return machine.train(trial, *arguments)

    monkeypatch.setattr(trials_module, "trained", train)
    section = check_trials(TWO_CORES, machine.now_s)
    assert section.facts["noise"] is None and section.lines[-1] == "nothing changed, again: failed: out of memory"


PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
with open(sys.argv[1], "w") as file:
    file.write(str(child.pid))
print("parent started", file=sys.stderr, flush=True)
child.wait()
"""
"""Starts a child in a session of its own, as torchrun starts its ranks."""


def test_a_training_that_is_cut_leaves_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert run_within([sys.executable, "-c", "import sys; sys.exit('broken')"], 600) == (1, "broken\n")
    path, descriptors = tmp_path / "child", list[int]()

    def expire_when_the_child_runs(process: subprocess.Popen[str], timeout: float) -> None:
        assert process.stderr is not None and "parent started" in process.stderr.readline()
        descriptors.append(os.pidfd_open(int(path.read_text())))
        raise subprocess.TimeoutExpired(process.args, timeout)

    monkeypatch.setattr(subprocess.Popen, "communicate", expire_when_the_child_runs)
    with pytest.raises(subprocess.TimeoutExpired):
        run_within([sys.executable, "-c", PARENT, str(path)], 600)
    assert select.select(descriptors, [], [], 60)[0], "the child still runs"
    os.close(descriptors[0])


def test_a_check_that_fails_stops_no_other():
    def broken(known: Mapping[str, Any]) -> Section:
        raise OSError("the disk\nis gone")

    def left_out(known: Mapping[str, Any]) -> Section:
        raise ModuleNotFoundError(name="torch")

    def good(known: Mapping[str, Any]) -> Section:
        return Section(["well", *known], {"number": 1})

    sections = dict(examine({"broken": broken, "left out": left_out, "good": good, "next": good}))
    assert sections["broken"].facts == {"error": "not known: the disk is gone"}
    assert [section.lines for section in sections.values()] == [
        ["not known: the disk is gone"],
        ["left out: torch is not installed"],
        ["well", "begin_s"],
        ["well", "begin_s", "number"],
    ]


def test_three_settings_are_ranked_by_their_gain():
    gains = (1.1, None, 3.0, 1.5)
    sections = {str(gain): Section([], {}, [Advice("", "", gain, "")]) for gain in gains}
    assert [advice.gain for advice in most_worth_changing(sections)] == [3.0, 1.5, 1.1]
    assert len(as_json(sections)["advice"]) == 3


WITHOUT_TORCH = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError("torch is blocked", name="torch")
sys.meta_path.insert(0, Blocker())
from heartlm.extensions.cluster.doctor import software
find_spec = software.importlib.util.find_spec
software.importlib.util.find_spec = lambda name, package=None: None if name == "torch" else find_spec(name, package)
from heartlm.cli.main import main
sys.exit(main(["doctor", "--json"]))
"""


def test_it_works_without_torch():
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    checks = json.loads(done.stdout)["checks"]
    assert any("torch is not installed" in line for line in checks["versions"]["lines"])
    assert "trials" not in checks
    assert done.stderr.splitlines() == [f"doctor: {name}" for name in checks]


@pytest.mark.slow
def test_all_of_it(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    """Without compiling, which takes all of its time and is tested elsewhere."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert main(["doctor", "--trials", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found["checks"]) == list(CHECKS)
    assert not [name for name, facts in found["checks"].items() if "error" in facts]
    assert found["checks"]["trials"]["step_s"] > 0
    assert not [trial for trial in found["checks"]["trials"]["trials"] if "error" in trial]


def test_ranks_of_torchrun_are_refused(monkeypatch: pytest.MonkeyPatch, refused: Refused):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "start heartlm doctor alone" in refused("doctor")
