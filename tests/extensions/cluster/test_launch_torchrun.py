"""The launcher of a node: its status is that of its ranks, and a request to stop reaches them whenever it comes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from heartlm.distributed.ranks import STOPPED_STATUS
from heartlm.extensions.cluster.torchrun import children

pytestmark = pytest.mark.slow

TIMEOUT_S = 600

ENDING = """
import os, signal, sys
if sys.argv[1] == "killed" and os.environ["RANK"] == "1":
    os.kill(os.getpid(), signal.SIGKILL)
signal.pause() if sys.argv[1] == "killed" else sys.exit(int(sys.argv[1]))
"""

STOPPING = """
import os, signal, sys, time
from pathlib import Path
Path(f"rank-{os.environ['RANK']}").touch()
while signal.SIGUSR1 not in signal.sigpending():  # as long as nobody listens, it waits
    time.sleep(0.01)
asked = []
signal.signal(signal.SIGUSR1, lambda number, frame: asked.append(number))
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
Path(f"asked-{os.environ['RANK']}").touch()
while len(list(Path().glob("asked-*"))) < 2:
    time.sleep(0.01)
sys.exit(143 if asked else 1)
"""


def torchrun(folder: Path, program: str, *words: str) -> subprocess.Popen[str]:
    """Start the launcher with two ranks of a program, in `folder`."""
    (folder / "program.py").write_text(program)
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "heartlm.extensions.cluster.torchrun",
            "--standalone",
            "--nproc-per-node=2",
            "-m",
            "program",
            *words,
        ],
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(
    ("word", "status", "said"),
    [("2", 2, ""), ("7", 7, "ended with status 7"), ("killed", 137, "rank 1 on")],
)
def test_the_status_is_that_of_the_ranks(word: str, status: int, said: str, tmp_path: Path):
    process = torchrun(tmp_path, ENDING, word)
    _, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == status, err
    assert said in err and err.count("\n") == (1 if said else 0)


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_ranks_are_asked_to_stop_before_they_listen(number: signal.Signals, tmp_path: Path):
    process = torchrun(tmp_path, STOPPING)
    give_up_s = time.monotonic() + TIMEOUT_S
    while len(list(tmp_path.glob("rank-*"))) < 2 and time.monotonic() < give_up_s:
        time.sleep(0.01)
    process.send_signal(number)
    _, err = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, err) == (STOPPED_STATUS, "")


def test_children_are_those_that_still_run():
    with subprocess.Popen(["sleep", "60"]) as process:
        assert process.pid in children(os.getpid())
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert process.pid not in children(os.getpid())


def test_a_process_whose_name_is_no_text_is_counted():
    program = "import ctypes, time; ctypes.CDLL(None).prctl(15, b'caf\\xc3'); print(flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert b"\xc3" in Path(f"/proc/{process.pid}/stat").read_bytes()
        assert process.pid in children(os.getpid())
        process.kill()


def test_ranks_end_with_a_launcher_that_is_killed(tiny_corpus: Path, tmp_path: Path):
    words = ["heartlm", "pretrain", f"--corpus={tiny_corpus}", f"--out={tmp_path / 'run'}", "--steps=1000000"]
    words += ["--depth=1", "--window=16", "--batch-size=4", "--device=cpu", "--log-every=1", "--threads=1"]
    launcher = [sys.executable, "-m", "heartlm.extensions.cluster.torchrun", "--standalone", "--nproc-per-node=2", "-m"]
    with subprocess.Popen([*launcher, *words], stderr=subprocess.DEVNULL) as process:
        give_up_s = time.monotonic() + TIMEOUT_S
        while not (tmp_path / "run" / "metrics.jsonl").exists():
            assert process.poll() is None and time.monotonic() < give_up_s
            time.sleep(0.05)
        ranks = children(process.pid)
        process.kill()
    assert len(ranks) == 2
    while any(is_running(rank) for rank in ranks):
        assert time.monotonic() < give_up_s
        time.sleep(0.05)


def is_running(process: int) -> bool:
    """Whether a process has not ended; one whose status nothing has read yet has."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False


@pytest.mark.slow
def test_ranks_with_the_queue_of_a_gpu_stop_and_go_on() -> None:
    """The test for two GPUs, on CPUs."""
    words = ["-m", "pytest", "-q", str(Path(__file__).with_name("test_gpu.py")), "-k", "ranks_stopped"]
    environment = os.environ | {"HEARTLM_GPU_REHEARSAL": "1"}
    done = subprocess.run([sys.executable, *words], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "SKIPPED" not in done.stdout, done.stdout
