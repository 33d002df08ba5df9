"""A real SLURM of two nodes on this one machine, for the whole session of tests.

    munged (own key and socket) ◄── slurmctld ◄── slurmd -N node1, slurmd -N node2

Every file is in one folder that goes with the cluster, every daemon stays in the foreground of a process of its own, so
nothing is left when the tests end. Nodes claim two cores and some GPUs each, whatever the machine has. Jobs are counted
from a number of the cluster's own, for ports of jobs follow from it and another cluster may run next to this one.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from heartlm.extensions.cluster.spawn import free_ports

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "sinfo", "scontrol", "setpriv")
NODES = ("node1", "node2")
CPUS_PER_NODE = 2
GPUS = {"a100": 2, "a100_1g.5gb": 2}
"""What each node claims to have, by kind: links to a device. The second kind is a MIG slice."""

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 20.0

CONFIG = """\
ClusterName=heartlm
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=60
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=sched_min_interval=100000,sched_interval=1,bf_interval=1
SlurmdParameters=config_overrides
AccountingStorageType=accounting_storage/none
GresTypes=gpu
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SwitchType=switch/none
JobRequeue=1
FirstJobId={controller_port}
KillWait=10
OverTimeLimit=0
MinJobAge=300
SlurmctldTimeout=300
SlurmdTimeout=300
ReturnToService=2
{nodes}
PartitionName=main Nodes={names} Default=YES MaxTime=UNLIMITED State=UP
"""


@dataclass(frozen=True)
class Cluster:
    """A running cluster.

    Attributes:
        folder: its files: configuration, logs, state.
        environment: what its commands (sbatch, srun, squeue, scontrol) need, besides that of the tests.
    """

    folder: Path
    environment: dict[str, str]

    def command(self, *words: str | Path) -> str:
        """What a command of SLURM prints; a failure fails the test."""
        done = subprocess.run([*map(str, words)], capture_output=True, text=True, env=self.environment, timeout=120)
        assert done.returncode == 0, f"{words}: {done.stderr}"
        return done.stdout

    def state(self, job: str) -> str:
        """The state of a job, such as PENDING or COMPLETED."""
        return self.fields(job)["JobState"]

    def fields(self, job: str) -> dict[str, str]:
        """All that `scontrol show job` says of a job."""
        words = self.command("scontrol", "--oneliner", "show", "job", job).split()
        return dict(word.partition("=")[::2] for word in words)

    def nodes_are_idle(self) -> bool:
        """Whether every node waits for work."""
        return self.command("sinfo", "--noheader", "--Node", "--format=%T").split() == ["idle"] * len(NODES)

    def logs(self) -> str:
        """The last lines of every daemon."""
        return "\n".join(f"{path.name}:\n{path.read_text()[-1500:]}" for path in sorted(self.folder.glob("*.log")))


@pytest.fixture(scope="session")
def slurm() -> Iterator[Cluster]:
    """The cluster; tests that want it are skipped, with a reason, where it cannot be."""
    missing = [name for name in PROGRAMS if program(name) is None]
    if missing:
        pytest.skip(f"no SLURM here ({', '.join(missing)} not found): apt-get install slurm-wlm munge")
    if os.geteuid() != 0:
        pytest.skip("a SLURM of one's own wants root")
    with running() as cluster:
        yield cluster


def program(name: str) -> str | None:
    """The path of a program; daemons are in places that not everybody's PATH has."""
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


@contextmanager
def running() -> Iterator[Cluster]:
    """Start the cluster, wait until its nodes are idle, stop it in the end."""
    folder = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))  # short: the name of a socket has 108 characters
    folder.chmod(0o755)
    cluster = Cluster(folder, os.environ | {"SLURM_CONF": str(folder / "slurm.conf")})
    try:
        with ExitStack() as daemons:
            _configure(folder)
            daemons.enter_context(_daemon(folder, "munged", *_munge(folder)))
            wait_for(lambda: (folder / "munge.socket").exists(), "munged", cluster)
            daemons.enter_context(_daemon(folder, "slurmctld", "-D", "-f", folder / "slurm.conf"))
            for name in NODES:
                daemons.enter_context(_daemon(folder, "slurmd", "-D", "-f", folder / "slurm.conf", "-N", name))
            wait_for(lambda: _answers(cluster) and cluster.nodes_are_idle(), "two idle nodes", cluster)
            yield cluster
            _cancel_all(cluster)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _configure(folder: Path) -> None:
    ports = free_ports(1 + len(NODES))
    host = socket.gethostname().partition(".")[0]
    gres = ",".join(f"gpu:{kind}:{count}" for kind, count in GPUS.items())
    nodes = [
        f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={CPUS_PER_NODE} Gres={gres} "
        "State=UNKNOWN"
        for name, port in zip(NODES, ports[1:], strict=True)
    ]
    text = CONFIG.format(
        host=host, folder=folder, controller_port=ports[0], nodes="\n".join(nodes), names=",".join(NODES)
    )
    (folder / "slurm.conf").write_text(text)
    (folder / "gres.conf").write_text("".join(_gpus(folder)))
    (folder / "state").mkdir()
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o400)


def _gpus(folder: Path) -> Iterator[str]:
    """A line of gres.conf for each kind; SLURM numbers GPUs by the ends of the names of their files."""
    first = 0
    for kind, count in GPUS.items():
        for number in range(first, first + count):
            (folder / f"gpu{number}").symlink_to("/dev/null")  # SLURM wants a device
        yield f"Name=gpu Type={kind} File={folder}/gpu[{first}-{first + count - 1}]\n"
        first += count


def _munge(folder: Path) -> Sequence[str]:
    return (
        "--foreground",
        "--force",
        f"--key-file={folder}/munge.key",
        f"--socket={folder}/munge.socket",
        f"--pid-file={folder}/munged.pid",
        f"--log-file={folder}/munged.log",
        f"--seed-file={folder}/munged.seed",
        "--num-threads=2",
    )


@contextmanager
def _daemon(folder: Path, name: str, *words: str | Path) -> Iterator[None]:
    path = program(name)
    assert path is not None
    with (folder / f"{name}-{len(list(folder.glob('*.out')))}.out").open("w") as output:
        command = ["setpriv", "--pdeathsig", "TERM", path, *map(str, words)]  # tests that crash leave nothing
        process = subprocess.Popen(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_TIMEOUT_S)
        process.kill()
        process.wait()


def _answers(cluster: Cluster) -> bool:
    ping = subprocess.run(["scontrol", "ping"], env=cluster.environment, capture_output=True, timeout=120)
    return ping.returncode == 0


def _cancel_all(cluster: Cluster) -> None:
    """End what tests left running, so that no step outlives its daemon."""
    subprocess.run(["scancel", "--full", "--user=root"], env=cluster.environment, capture_output=True, timeout=120)
    with suppress(AssertionError):
        wait_for(cluster.nodes_are_idle, "the end of all jobs", cluster, timeout_s=STOP_TIMEOUT_S)


def wait_for(
    holds: Callable[[], bool], what: str, cluster: Cluster, timeout_s: float = START_TIMEOUT_S, every_s: float = 0.1
) -> None:
    """Ask again and again until `holds`.

    Raises:
        AssertionError: it did not in time; the text has the ends of the logs.
    """
    give_up_s = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < give_up_s, f"waited {timeout_s:g} s for {what}\n{cluster.logs()}"
        time.sleep(every_s)
