"""The same on this machine: ranks side by side, stopped in the middle, gone on with by the same command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from heartlm.training.config import PretrainConfig
from heartlm.training.pretrain import pretrain
from tests.synthetic_run import losses

TIMEOUT_S = 600
SETTINGS: dict[str, Any] = {"depth": 1, "window": 32, "batch_size": 320, "steps": 60, "threads": 1, "log_every": 1}
"""Steps long enough that a signal, which passes through three processes, arrives before the last one."""


def launched(folder: Path) -> subprocess.Popen[str]:
    """Launch as a shell does in the background: it ignores interrupts for what it starts there."""
    words = ["launch", "two.yaml", "--ranks-per-node", "2", "--cpus-per-task", "2", "--local"]
    return subprocess.Popen(
        [sys.executable, "-m", "heartlm", *words],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )


@pytest.mark.slow
def test_a_run_stopped_here_goes_on_with_the_same_command(tiny_corpus: Path, tmp_path: Path):
    (tmp_path / "two.yaml").write_text(yaml.safe_dump({"corpus": str(tiny_corpus), **SETTINGS}))
    first = launched(tmp_path)
    give_up_s = time.monotonic() + TIMEOUT_S
    while not (tmp_path / "runs/two/run.json").exists() and time.monotonic() < give_up_s:
        time.sleep(0.01)
    os.kill(first.pid, signal.SIGINT)  # Ctrl-C
    said, _ = first.communicate(timeout=TIMEOUT_S)
    assert first.returncode == 143, said
    assert "stopped after step" in said

    second = launched(tmp_path)
    said, _ = second.communicate(timeout=TIMEOUT_S)
    assert second.returncode == 0, said
    assert "runs/two was started and is not finished: it continues" in said

    alone = pretrain(PretrainConfig(corpus=tiny_corpus, out=tmp_path / "alone", device="cpu", **SETTINGS))
    assert losses(tmp_path / "runs/two") == pytest.approx(losses(alone), rel=1e-5)
