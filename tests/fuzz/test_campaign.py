"""The mutation campaign as a test: 120 cases, always the same. For more: python -m tests.fuzz.campaign --help."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.subjects import SUBJECTS

ROOT = Path(__file__).parent.parent.parent
NUM_CASES = 120


@pytest.mark.slow
def test_damaged_files_give_a_result_or_one_clear_line() -> None:
    """One process for all subjects, as it imports for longer than the cases of a subject take."""
    ended = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.campaign", "--cases", str(NUM_CASES)],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-2000:]
    of_each = -(-NUM_CASES // len(SUBJECTS))
    assert [f"{name}: {of_each} cases" in ended.stderr for name in SUBJECTS] == [True] * len(SUBJECTS)
    assert f"{of_each * len(SUBJECTS)} cases, 0 faults" in ended.stdout


def test_the_campaign_finds_a_fault(tmp_path: Path) -> None:
    """A command that raises, crashes, takes much memory, ends without a line or does not end: all are faults."""
    from tests.fuzz.campaign import run_forked

    def loop() -> int:
        while True:
            pass

    raised = run_forked(lambda: 1 // 0, tmp_path)
    assert "traceback" in str(raised.fault((0, 2)))
    assert "without a clear last line" in str(run_forked(lambda: 2, tmp_path).fault((0, 2)))
    assert "did not end" in str(run_forked(loop, tmp_path, cpu_limit_s=1).fault((0, 2)))
    assert "SIGSEGV" in str(run_forked(lambda: os.kill(os.getpid(), signal.SIGSEGV) or 0, tmp_path).fault((0, 2)))
    assert run_forked(lambda: 0, tmp_path).fault((0, 2)) is None
    refused = "import sys\nsys.stderr.write('heartlm: a.mat: does not fit into memory; correct it\\n')"
    assert "asked for more" in str(run_forked(lambda: exec(refused) or 2, tmp_path).fault((0, 2)))
    script = (
        "import sys; from pathlib import Path; from tests.fuzz import campaign; campaign.PEAK_LIMIT_BYTES = 64 << 20; "
        "print(campaign.run_forked(lambda: 0 * len(b'1' * (200 << 20)), Path(sys.argv[1])).fault((0, 2)))"
    )
    # In a new process: what a child inherits of a large one can hide what it takes itself.
    ended = subprocess.run([sys.executable, "-c", script, tmp_path], cwd=ROOT, capture_output=True, text=True)
    assert "MiB of memory" in ended.stdout, ended.stderr


def test_changes_that_cancel_in_a_checksum_that_is_a_sum_are_no_fault(tmp_path: Path) -> None:
    subject, seed, case = SUBJECTS["atc"], tmp_path / "seed", tmp_path / "in"
    assert subject.check is not None
    for folder in (seed, case):
        folder.mkdir()
        subject.build(folder)
    content = bytearray((case / "k.atc").read_bytes())
    samples = range(content.index(b"ecg ") + 8, len(content) - 4)
    content[next(at for at in samples if content[at] < 255)] += 1
    content[next(at for at in reversed(samples) if content[at] > 0)] -= 1
    (case / "k.atc").write_bytes(content)
    assert subject.check(tmp_path, seed, case / "k.atc", "") is None
