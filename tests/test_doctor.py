"""The doctor: what it reads of machines of many kinds, what it advises, and that nothing stops it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from heartlm.cli.main import main
from heartlm.cluster.doctor import hardware as devices
from heartlm.cluster.doctor.examine import CHECKS, as_json, examine, most_worth_changing
from heartlm.cluster.doctor.hardware import (
    cgroup_cpus,
    check_processors,
    processors,
    usable_cores,
)
from heartlm.cluster.doctor.section import Advice, Section
from heartlm.cluster.doctor.software import check_allocation, check_versions, mismatches
from heartlm.cluster.doctor.trials import summary, trials


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


def test_a_limit_of_time_leaves_fewer_cores():
    assert [usable_cores(4, limit) for limit in (None, 8.0, 2.5, 0.5)] == [4, 4, 2, 1]


def test_a_processor_that_tells_little_is_counted_all_the_same(tmp_path: Path):
    found = processors(tree(tmp_path, {"proc/cpuinfo": "processor\t: 0\nBogoMIPS\t: 50\n\nprocessor\t: 1\n"}))
    assert (found["num_sockets"], found["num_cores"], found["num_cpus"]) == (1, 2, 2)


@pytest.mark.parametrize(
    ("files", "cpus"),
    [
        ({"proc/self/cgroup": "0::/job\n", "sys/fs/cgroup/job/cpu.max": "150000 100000\n"}, 1.5),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/cpu.max": "200000 100000\n"}, 2.0),
        ({"proc/self/cgroup": "0::/job\n", "sys/fs/cgroup/job/cpu.max": "max 100000\n"}, None),
        (
            {
                "proc/self/cgroup": "3:cpu:/job\n",
                "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "50000",
                "sys/fs/cgroup/cpu/job/cpu.cfs_period_us": "100000",
            },
            0.5,
        ),
        ({}, None),
    ],
    ids=["version 2", "of a group around it", "no limit", "version 1", "no cgroup"],
)
def test_limits_of_cgroups(tmp_path: Path, files: dict[str, str], cpus: float | None):
    assert cgroup_cpus(tree(tmp_path, files)) == cpus


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
    failed = summary(1.0, 0.0, 1, [outcome("cores", 0.8) | {"error": "broken"}])
    assert failed.advice == [] and "failed: broken" in failed.lines[1]


def test_what_is_tried_follows_from_the_machine():
    known = {"usable_cores": 6, "vector_units": ["amx_bf16"]}
    found = {trial.how.split(" …")[0]: trial for trial in trials(known, 0, 6)}
    assert found["torchrun --standalone --nproc-per-node 4 -m heartlm pretrain"].num_ranks == 4
    assert {"export OMP_NUM_THREADS=1", "--precision bf16"} <= set(found)
    assert [trial.kind for trial in trials({"usable_cores": 1}, 0, 1) if trial.kind != "compile"] == []


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
        ["well"],
        ["well", "number"],
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
from heartlm.cluster.doctor import software
software.importlib.util.find_spec = lambda name: None if name == "torch" else True
from heartlm.cli.main import main
sys.exit(main(["doctor", "--json", "--quick"]))
"""


def test_it_works_without_torch():
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    checks = json.loads(done.stdout)["checks"]
    assert any("torch is not installed" in line for line in checks["versions"]["lines"])
    assert "trials" not in checks


@pytest.mark.slow
def test_all_of_it(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found["checks"]) == list(CHECKS)
    assert not [name for name, facts in found["checks"].items() if "error" in facts]
    assert found["checks"]["trials"]["step_s"] > 0


def test_ranks_of_torchrun_are_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["doctor", "--quick"]) == 2
    assert "start heartlm doctor alone" in capsys.readouterr().err
