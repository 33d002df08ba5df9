"""What adding up gradients costs on any number of ranks and nodes.

    one measured fit, or vendor rates ─► latency of a hop and rate of a link, within and between nodes ─► seconds

A ring sends 2 (n − 1) / n of a message over every link in 2 (n − 1) hops; a tree sends all of it up and down in few
hops (Patarasuk & Yuan 2009; Thakur, Rabenseifner & Gropp 2005). The slowest link on the way decides the rate; the
cheaper of the two counts, since libraries choose by the size of the message.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from heartlm.distributed.allreduce import AllReduceFit
from heartlm.errors import HeartlmError


@dataclass(frozen=True)
class Link:
    """One direction of a connection.

    Attributes:
        bytes_per_s: of one rank within a node, of a whole node between nodes.
        latency_s: of one hop.
    """

    bytes_per_s: float
    latency_s: float = 0.0


@dataclass(frozen=True)
class Network:
    """How ranks reach each other; None where it is not known."""

    within: Link | None = None
    between: Link | None = None

    def all_reduce_s(self, num_bytes: float, ranks: int, nodes: int = 1) -> float:
        """Seconds that `ranks` on `nodes` need to add up a message of `num_bytes`.

        Raises:
            HeartlmError: it would cross a link that nothing is known about.
        """
        if ranks == 1:
            return 0.0
        links = self._crossed(ranks, nodes)
        rate, hop_s = min(link.bytes_per_s for link in links), max(link.latency_s for link in links)
        ring_s = 2 * (ranks - 1) * (hop_s + num_bytes / ranks / rate)
        in_node_s = (ranks // nodes - 1) * self.within.latency_s if self.within and ranks > nodes else 0.0
        across_s = math.ceil(math.log2(nodes)) * self.between.latency_s if self.between and nodes > 1 else 0.0
        return min(ring_s, 2 * (in_node_s + across_s + num_bytes / rate))

    def _crossed(self, ranks: int, nodes: int) -> list[Link]:
        wanted = [(self.within, "within a node")] if ranks > nodes else []
        wanted += [(self.between, "between nodes")] if nodes > 1 else []
        if missing := [where for link, where in wanted if link is None]:
            raise HeartlmError(
                f"nothing is known about the connection {missing[0]}: give --hardware, or an all-reduce fit measured "
                "there (--all-reduce, --all-reduce-between)"
            )
        return [link for link, _ in wanted if link is not None]

    def slowed(self, factor: float) -> Network:
        """This network with every message taking `factor` times as long."""

        def slower(link: Link | None) -> Link | None:
            return link and replace(link, bytes_per_s=link.bytes_per_s / factor, latency_s=link.latency_s * factor)

        return Network(slower(self.within), slower(self.between))


def link_of(fit: AllReduceFit) -> Link:
    """The link whose ring takes what was measured."""
    hops = 2 * (fit.world_size - 1)
    return Link(fit.bytes_per_s * hops / fit.world_size, fit.latency_s / hops)


def bucket_bytes(gradient_bytes: float, cap_mb: float) -> list[float]:
    """Bytes of DDP's buckets in the order in which they are ready; tensors are taken to fill them evenly."""
    cap = cap_mb * 2**20
    num_full = int(gradient_bytes // cap)
    rest = gradient_bytes - num_full * cap
    return [cap] * num_full + ([rest] if rest > 0 or not num_full else [])
