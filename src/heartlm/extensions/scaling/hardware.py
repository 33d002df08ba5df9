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

from heartlm.errors import HeartlmError
from heartlm.extensions.scaling.allreduce import AllReduceFit
from heartlm.extensions.scaling.cell import Measurement
from heartlm.storage.reading import read_json
from heartlm.storage.typed import is_number

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
class Interconnect:
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
        # Ring: in each of 2 (ranks - 1) hops, every rank sends one of `ranks` parts of the message.
        ring_s = 2 * (ranks - 1) * (hop_s + num_bytes / ranks / rate)
        # Tree: the whole message goes along the ranks of a node and over the levels of the nodes, up and then down.
        in_node_s = (ranks // nodes - 1) * self.within.latency_s if self.within and ranks > nodes else 0.0
        across_s = math.ceil(math.log2(nodes)) * self.between.latency_s if self.between and nodes > 1 else 0.0
        return min(ring_s, 2 * (in_node_s + across_s + num_bytes / rate))

    def slowed(self, factor: float) -> Interconnect:
        """Return this network with the time of every message multiplied by `factor`."""

        def slower(link: Link | None) -> Link | None:
            return link and replace(link, bytes_per_s=link.bytes_per_s / factor, latency_s=link.latency_s * factor)

        return Interconnect(slower(self.within), slower(self.between))


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
class Fact:
    """A value of a data sheet and its source. Rates are one-way: of one device within a node, of a whole node between.

    Names that are read: `device`, `devices_per_node`, `device_memory_bytes`, `peak_tflops`, and, with `within_node` or
    `between_nodes` as the place, `PLACE_bytes_per_s` and `PLACE_latency_s`.
    """

    value: Any
    source: str


@dataclass(frozen=True)
class Hardware:
    """Published data of a machine, as in its file.

    Attributes:
        name: name that the user types.
        description: description for people.
        facts: facts by name.
    """

    name: str
    description: str
    facts: dict[str, Fact]

    def get(self, name: str, default: Any = None) -> Any:
        """Return the value of a fact, or `default` if it is unknown."""
        return self.facts[name].value if name in self.facts else default

    def link(self, place: str) -> Link | None:
        """Return the link `within_node` or `between_nodes`; an unknown latency is taken as 0, see `notes`."""
        rate = self.get(f"{place}_bytes_per_s")
        return None if rate is None else Link(rate, self.get(f"{place}_latency_s", 0.0))

    def notes(self, measurements: Iterable[Measurement] = ()) -> list[str]:
        """Return notes on predictions for it from `measurements`, which may be of another machine."""
        notes, link_places = list[str](), [place for place in PLACES if f"{place}_bytes_per_s" in self.facts]
        if unknown := [place.replace("_", " ") for place in link_places if f"{place}_latency_s" not in self.facts]:
            where = " and ".join(unknown)
            notes.append(f"{self.name}: the latency {where} is not published and counts as none; rates are peaks")
        device = self.get("device")
        good = [each.environment.get("device", "a machine without a name") for each in measurements if not each.failed]
        if device is not None and (others := sorted({str(other) for other in good} - {device})):
            notes.append(f"computing is as fast as measured on {', '.join(others)}, not as on {device}")
        return notes


PLACES = ("within_node", "between_nodes")


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
    for name in ("devices_per_node", *(f"{place}_{what}" for place in PLACES for what in ("bytes_per_s", "latency_s"))):
        value, least = hardware.get(name), 0 if name.endswith("latency_s") else 1
        if value is not None and (not is_number(value) or value < least):
            raise HeartlmError(f"{path}: {name} is {value}; a number of at least {least} expected")
    return hardware


def network_of(
    within: AllReduceFit | None, between: AllReduceFit | None, hardware: Hardware | None
) -> tuple[Interconnect, float, int]:
    """Return the network from a machine's data; measured fits replace them.

    Args:
        within: all-reduce fit among the ranks of one node.
        between: all-reduce fit among nodes, with one rank per node.
        hardware: machine, if one was given.

    Returns:
        The network, the relative error of the fits, and the largest number of ranks that were measured together.
    """
    links = [
        link_of(fit) if fit else hardware.link(place) if hardware else None
        for place, fit in zip(PLACES, (within, between), strict=True)
    ]
    fits = [fit for fit in (within, between) if fit]
    error = max((fit.median_error for fit in fits), default=0.0)
    return Interconnect(*links), error, math.prod(fit.world_size for fit in fits)
