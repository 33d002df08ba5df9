"""Links between ranks: cost of gradient sums, and published data of some machines.

    one measured fit, or vendor rates ─► latency per hop and rate of a link, within and between nodes ─► seconds

A ring sends 2 (n − 1) / n of a message over every link in 2 (n − 1) hops; a tree sends the whole message up and down
in few hops (Patarasuk & Yuan 2009; Thakur, Rabenseifner & Gropp 2005). The slowest link on the path determines the
rate. The cheaper algorithm is used, since libraries choose by message size.

Machines are small JSON files of public facts, each with its source. Unknown values are omitted; for example, no data
sheet states a latency. Vendors state peak rates, so times computed from them are lower bounds. On the local machine,
an all-reduce is measured instead.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from heartlm.distributed.allreduce import AllReduceFit
from heartlm.errors import HeartlmError
from heartlm.files import read_json
from heartlm.scaling.cell import Measurement
from heartlm.typed import typed

_KNOWN = Path(__file__).with_name("hardware_known")


@dataclass(frozen=True)
class Link:
    """One direction of a connection.

    Attributes:
        bytes_per_s: rate in bytes per second: of one rank within a node, of a whole node between nodes.
        latency_s: latency per hop in seconds.
    """

    bytes_per_s: float
    latency_s: float = 0.0


@dataclass(frozen=True)
class Network:
    """Links within and between nodes; None if unknown."""

    within: Link | None = None
    between: Link | None = None

    def all_reduce_s(self, num_bytes: float, ranks: int, nodes: int = 1, *, by_node: bool = False) -> float:
        """Return the seconds that `ranks` ranks on `nodes` nodes need to add up a message of `num_bytes`.

        With `by_node`, ranks add up within each node first, then one rank of each between nodes, and the sum is then
        distributed within each node (`distributed.shared_memory.NodesSum`).

        Raises:
            HeartlmError: the message crosses an unknown link.
        """
        if ranks == 1:
            return 0.0
        if by_node and 1 < nodes < ranks:
            return 2 * self.all_reduce_s(num_bytes, ranks // nodes) + self.all_reduce_s(num_bytes, nodes, nodes)
        crossed = [(self.within, "within a node")] if ranks > nodes else []
        crossed += [(self.between, "between nodes")] if nodes > 1 else []
        links = [link for link, _ in crossed if link is not None]
        if len(links) < len(crossed):
            unknown = next(where for link, where in crossed if link is None)
            raise HeartlmError(
                f"nothing is known about the connection {unknown}: give --hardware, or an all-reduce fit measured "
                "there (--all-reduce, --all-reduce-between)"
            )
        rate, hop_s = min(link.bytes_per_s for link in links), max(link.latency_s for link in links)
        ring_s = 2 * (ranks - 1) * (hop_s + num_bytes / ranks / rate)
        in_node_s = (ranks // nodes - 1) * self.within.latency_s if self.within and ranks > nodes else 0.0
        across_s = math.ceil(math.log2(nodes)) * self.between.latency_s if self.between and nodes > 1 else 0.0
        return min(ring_s, 2 * (in_node_s + across_s + num_bytes / rate))

    def slowed(self, factor: float) -> Network:
        """Return this network with the time of every message multiplied by `factor`."""

        def slower(link: Link | None) -> Link | None:
            return link and replace(link, bytes_per_s=link.bytes_per_s / factor, latency_s=link.latency_s * factor)

        return Network(slower(self.within), slower(self.between))


def link_of(fit: AllReduceFit) -> Link:
    """Return the link for which a ring takes the measured times."""
    hops = 2 * (fit.world_size - 1)
    return Link(fit.bytes_per_s * hops / fit.world_size, fit.latency_s / hops)


def bucket_bytes(gradient_bytes: float, cap_mb: float) -> list[float]:
    """Return the bytes of DDP's buckets in order of readiness, assuming that tensors fill them evenly."""
    cap = cap_mb * 2**20
    num_full = int(gradient_bytes // cap)
    rest = gradient_bytes - num_full * cap
    return [cap] * num_full + ([rest] if rest > 0 or not num_full else [])


@dataclass(frozen=True)
class Facts:
    """Facts that a file may have. Rates are one-way: of one device within a node, of a whole node between nodes."""

    device: str | None = None
    devices_per_node: int | None = None
    nodes: int | None = None
    cpu_threads_per_node: int | None = None
    memory_bytes_per_node: int | None = None
    within_node_bytes_per_s: float | None = None
    within_node_latency_s: float | None = None
    between_nodes_bytes_per_s: float | None = None
    between_nodes_latency_s: float | None = None
    device_memory_bytes: int | None = None
    peak_tflops: dict[str, float] | None = None


@dataclass(frozen=True)
class Fact:
    """One of `Facts` and its source."""

    value: Any
    source: str


@dataclass(frozen=True)
class Hardware:
    """Published data of a machine, as in its file.

    Attributes:
        name: name that the user types.
        description: description for people.
        facts: some of `Facts`.
    """

    name: str
    description: str
    facts: dict[str, Fact]

    def get(self, name: str, default: Any = None) -> Any:
        """Return the value of a fact, or `default` if it is unknown."""
        return self.facts[name].value if name in self.facts else default

    @property
    def network(self) -> Network:
        """Return the links of the machine; unknown latencies are taken as 0, see `notes`."""
        links = list[Link | None]()
        for where in ("within_node", "between_nodes"):
            rate, hop_s = self.get(f"{where}_bytes_per_s"), self.get(f"{where}_latency_s", 0.0)
            links.append(None if rate is None else Link(rate, hop_s))
        return Network(*links)

    def notes(self, measurements: Iterable[Measurement] = ()) -> list[str]:
        """Return notes on predictions for it from `measurements`, which may be of another machine."""
        found = []
        rates = [name for name in ("within_node", "between_nodes") if f"{name}_bytes_per_s" in self.facts]
        if unknown := [name.replace("_", " ") for name in rates if f"{name}_latency_s" not in self.facts]:
            places = " and ".join(unknown)
            found.append(f"{self.name}: the latency {places} is not published and counts as none; rates are peaks")
        device = self.get("device")
        good = [each.environment.get("device", "a machine without a name") for each in measurements if not each.failed]
        if device is not None and (others := sorted({str(other) for other in good} - {device})):
            found.append(f"computing is as fast as measured on {', '.join(others)}, not as on {device}")
        return found


def known_hardware() -> list[str]:
    """Return the names of the shipped machines."""
    return sorted(path.stem for path in _KNOWN.glob("*.json"))


def load_hardware(name: str) -> Hardware:
    """Read a machine by name, or from a file.

    Raises:
        HeartlmError: there is no machine of that name, or the file does not describe a machine.
    """
    known = known_hardware()
    path = _KNOWN / f"{name}.json" if name in known else Path(name)
    if not path.is_file():
        raise HeartlmError(f"--hardware {name}: no such machine; it is one of {', '.join(known)}, or a JSON file")
    hardware = read_json(path, Hardware)
    facts = typed(Facts, {name: fact.value for name, fact in hardware.facts.items()}, f"{path}: facts")
    for name, value in vars(facts).items():
        if isinstance(value, int | float) and (value < 0 or (not value and "_lat" not in name)):
            raise HeartlmError(f"{path}: {name} is {value}; expected more than 0")
    return hardware


def network_of(
    within: AllReduceFit | None, between: AllReduceFit | None, hardware: Hardware | None
) -> tuple[Network, float, int]:
    """Return the network from a machine's data; measured fits replace them.

    Args:
        within: all-reduce fit among the ranks of one node.
        between: all-reduce fit among nodes, with one rank per node.
        hardware: machine, if one was given.

    Returns:
        The network, the relative error of the fits, and the largest number of ranks that were measured together.
    """
    fits = {name: fit for name, fit in {"within": within, "between": between}.items() if fit is not None}
    network = replace(hardware.network if hardware else Network(), **{name: link_of(fit) for name, fit in fits.items()})
    error = max((fit.median_error for fit in fits.values()), default=0.0)
    return network, error, math.prod(fit.world_size for fit in fits.values())
