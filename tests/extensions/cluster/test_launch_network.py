"""Nodes meet whatever their host names mean: two network namespaces of this machine, joined by one cable.

    node-a: 10.77.0.1, its own name is 127.0.1.1 ─── cable ─── node-b: 10.77.0.2, its own name is 127.0.1.1

That is how Debian installs a machine. Neither has a default route, nor does either know its own address by name.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from heartlm.system.network import address_towards, interface_of, is_own_port

pytestmark = pytest.mark.slow

TIMEOUT_S = 240
ADDRESSES = {"node-a": "10.77.0.1", "node-b": "10.77.0.2"}

MEETING = """
import os
from heartlm.distributed.agreement import RankConsensus
from heartlm.training.config import TrainingConfig
from heartlm.distributed.parallel import HostAllReduce, joined
with joined("cpu", threads=1, timeout_s=60.0) as ranks:
    total, = HostAllReduce(ranks, 60.0)(10.0 + ranks.rank)
    names = RankConsensus(60.0).all(lambda: os.uname().nodename)
    print(ranks.rank, total, *sorted(names), os.environ["MASTER_ADDR"], os.environ["GLOO_SOCKET_IFNAME"])
"""


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, int]]:
    """A process in the namespaces of each node."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("ip", "unshare", "nsenter"))):
        pytest.skip("network namespaces want root and the programs ip, unshare and nsenter")
    folder = tmp_path_factory.mktemp("nodes")
    with ExitStack() as ending:
        started: dict[str, int] = {}
        for name in ADDRESSES:
            others = "".join(f"{address} {other}\n" for other, address in ADDRESSES.items() if other != name)
            (folder / name).write_text(f"127.0.0.1 localhost\n127.0.1.1 {name}\n{others}")
            settle = f"hostname {name} && mount --bind {folder / name} /etc/hosts && ip link set lo up && echo ready"
            words = ["unshare", "--net", "--uts", "--mount", "--propagation", "private"]
            process = subprocess.Popen(
                [*words, "sh", "-c", f"{settle} && exec sleep 1000"],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            ending.callback(process.wait)
            ending.callback(process.kill)
            assert process.stdout is not None and process.stderr is not None
            if process.stdout.readline() != "ready\n":
                pytest.skip(f"network namespaces are not allowed here: {process.stderr.read().strip()}")
            started[name] = process.pid
        ends = [word for name in ADDRESSES for word in (f"to-{name}", "netns", str(started[name]))]
        call("ip", "link", "add", *ends[:3], "type", "veth", "peer", "name", *ends[3:])
        for name, address in ADDRESSES.items():
            inside = ["nsenter", "--target", str(started[name]), "--net", "ip"]
            call(*inside, "address", "add", f"{address}/24", "dev", f"to-{name}")
            call(*inside, "link", "set", f"to-{name}", "up")
        yield started


def call(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, (words, done.stderr)


@pytest.mark.parametrize(("endpoint", "port"), [("node-a", 29511), ("10.77.0.2", 29512)])
def test_nodes_meet_although_their_own_names_mean_the_loopback(
    nodes: dict[str, int], tmp_path: Path, endpoint: str, port: int
) -> None:
    (tmp_path / "meeting.py").write_text(MEETING)
    launcher = [sys.executable, "-m", "heartlm.extensions.cluster.torchrun", "--nnodes=2", "--nproc-per-node=1"]
    launcher += ["--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}:{port}", "--rdzv-id=meeting", "-m", "meeting"]
    processes = [
        subprocess.Popen(
            ["nsenter", "--target", str(process), "--net", "--uts", "--mount", f"--wdns={tmp_path}", *launcher],
            env={**os.environ, "OMP_NUM_THREADS": "1", "HEARTLM_HOSTS": "node-a node-b", "PYTHONPATH": str(tmp_path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for process in nodes.values()
    ]
    try:
        ended = [process.communicate(timeout=TIMEOUT_S) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], ended
    found = dict(line.split(maxsplit=1) for out, _ in ended for line in out.splitlines())
    assert {words.split()[:3] == ["21.0", "node-a", "node-b"] for words in found.values()} == {True}, ended
    addresses = {words.split()[3] for words in found.values()}
    assert len(addresses) == 1 and addresses <= {*ADDRESSES.values()}, "one that both can reach"
    assert {words.split()[4] for words in found.values()} == {"to-node-a", "to-node-b"}


def test_a_loopback_address_means_that_all_are_here() -> None:
    assert address_towards("127.0.0.1") == "127.0.0.1"
    assert interface_of("127.0.0.1") == "lo"


def test_an_address_belongs_to_its_interface(nodes: dict[str, int]) -> None:
    code = "from heartlm.system.network import *; a = address_towards('node-b', ['node-a']); print(a, interface_of(a))"
    inside = ["nsenter", "--target", str(nodes["node-b"]), "--net", "--uts", "--mount"]
    said = subprocess.run([*inside, sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.split() == ["10.77.0.2", "to-node-b"]
    code = "from heartlm.system.network import *; print(address_towards('node-b'), interface_of('10.77.0.1'))"
    said = subprocess.run([*inside, sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.split() == ["None", "None"], "no default route, and no one else named"


def test_a_port_belongs_to_the_machine_that_can_listen_there() -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        port = listening.getsockname()[1]
        assert not is_own_port("127.0.0.1", port), "taken"
    assert is_own_port("127.0.0.1", port)
    assert not is_own_port("192.0.2.1", port), "of another machine"
    assert not is_own_port("no-such-host.invalid", port)
