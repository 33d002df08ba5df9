"""The mutation campaign as a test: 200 cases, always the same. For more: python -m tests.fuzz.campaign --help."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.subjects import SUBJECTS

ROOT = Path(__file__).parent.parent.parent
NUM_CASES = 200


@pytest.mark.slow
@pytest.mark.parametrize("subject", SUBJECTS)
def test_damaged_files_give_a_result_or_one_clear_line(subject: str) -> None:
    cases = str(-(-NUM_CASES // len(SUBJECTS)))
    ended = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.campaign", "--subject", subject, "--cases", cases],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-2000:]
    assert f"{cases} cases, 0 faults" in ended.stdout


def test_the_campaign_finds_a_fault(tmp_path: Path) -> None:
    """A command that raises, one that ends without a line and one that does not end are all faults."""
    from tests.fuzz.campaign import run_forked

    def loop() -> int:
        while True:
            pass

    raised = run_forked(lambda: 1 // 0, tmp_path)
    assert "traceback" in str(raised.fault((0, 2)))
    assert "without a clear last line" in str(run_forked(lambda: 2, tmp_path).fault((0, 2)))
    assert "did not end" in str(run_forked(loop, tmp_path, cpu_limit_s=1).fault((0, 2)))
    assert run_forked(lambda: 0, tmp_path).fault((0, 2)) is None
