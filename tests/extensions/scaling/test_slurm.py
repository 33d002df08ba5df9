"""A study on a real SLURM of two nodes: one rank, and two on two nodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from heartlm.cli.main import main
from heartlm.errors import HeartlmError
from heartlm.extensions.cluster.cells import SlurmCells
from heartlm.extensions.scaling.cell import load_measurements
from tests.extensions.cluster.slurm import Cluster

pytestmark = pytest.mark.slow

GRID = ["--ranks", "[1, 2]", "--nodes", "[2]", "--windows", "[32]", "--repeats", "1"]
SHORT = ["--steps", "3", "--warm-up", "2", "--depth", "1", "--batch-tokens", "256", "--timeout-s", "300"]


def test_a_study_through_slurm(
    slurm: Cluster,
    tiny_corpus: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SLURM_CONF", slurm.environment["SLURM_CONF"])
    databases = ["--databases", f"{{tiny: {tiny_corpus}}}", "--out", "study", "--slurm", "generic"]
    status = main(["scale", "run", *databases, *GRID, *SHORT])
    said = capsys.readouterr()
    assert status == 0, said.err
    assert "study: 2 measured" in said.out
    assert "r1-n2" in said.err and "1 ranks do not divide among 2 nodes" in said.err
    every = load_measurements(tmp_path / "study")
    assert {(each.cell.ranks, each.cell.nodes, each.failed) for each in every} == {(1, 1, None), (2, 2, None)}
    for each in every:
        assert sum(each.part_s.values()) == pytest.approx(each.mean_step_s, rel=1e-6)
        assert each.environment["num_ranks"] == each.cell.ranks


def test_an_incomplete_profile_is_refused() -> None:
    with pytest.raises(HeartlmError, match="account: nothing found, but meluxina wants one"):
        SlurmCells("meluxina", "cpu", 60.0)
