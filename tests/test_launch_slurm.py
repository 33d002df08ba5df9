"""Training on a real SLURM of two nodes, compared with a training that never met SLURM."""

from __future__ import annotations

from tests.slurm import Cluster


def test_two_nodes_take_a_step_each(slurm: Cluster):
    said = slurm.command("srun", "-N2", "--ntasks-per-node=1", "bash", "-c", "echo $SLURM_NODEID $SLURMD_NODENAME")
    assert sorted(said.splitlines()) == ["0 node1", "1 node2"]
