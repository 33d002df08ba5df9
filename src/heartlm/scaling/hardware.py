"""Machines as small JSON files: what is publicly known of each, every fact with its source.

What is not known is absent, and whoever needs it reports that; a latency, for one, is in no data sheet. Vendors state
peaks, so that times which follow from them are lower bounds. The file of the machine at hand is measured, never
shipped: `heartlm scale hardware`.
"""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from heartlm.distributed.allreduce import AllReduceFit
from heartlm.errors import HeartlmError
from heartlm.files import read_json, write_json
from heartlm.scaling.cell import Measurement
from heartlm.scaling.network import Link, Network, link_of
from heartlm.typed import typed


class Facts(TypedDict, total=False):
    """What a file may state. Rates are of one direction: of one device within a node, of the whole node between."""

    device: str
    devices_per_node: int
    nodes: int
    cpu_threads_per_node: int
    memory_bytes_per_node: int
    within_node_bytes_per_s: float
    within_node_latency_s: float
    between_nodes_bytes_per_s: float
    between_nodes_latency_s: float
    device_memory_bytes: int
    peak_tflops: dict[str, float]


class _Fact(TypedDict):
    value: Any
    source: str


class _File(TypedDict):
    name: NotRequired[str]
    description: NotRequired[str]
    facts: dict[str, _Fact]


@dataclass(frozen=True)
class Hardware:
    """What is known of a machine.

    Attributes:
        name: as a user types it.
        description: for people.
        facts: some of `Facts`.
        sources: of every fact.
    """

    name: str
    description: str
    facts: dict[str, Any]
    sources: dict[str, str]

    @property
    def network(self) -> Network:
        """Its links; a latency that is not known counts as none, see `notes`."""
        return Network(self._link("within_node"), self._link("between_nodes"))

    def notes(self, measurements: Iterable[Measurement] = ()) -> list[str]:
        """What must be said of predictions for it from `measurements`, which may be those of another machine."""
        found = []
        rates = [name for name in ("within_node", "between_nodes") if f"{name}_bytes_per_s" in self.facts]
        if unknown := [name.replace("_", " ") for name in rates if f"{name}_latency_s" not in self.facts]:
            places = " and ".join(unknown)
            found.append(f"{self.name}: the latency {places} is not published and counts as none; rates are peaks")
        device = self.facts.get("device")
        good = [each.environment.get("device", "a machine without a name") for each in measurements if not each.failed]
        if device is not None and (others := sorted({str(other) for other in good} - {device})):
            found.append(f"computing is as fast as measured on {', '.join(others)}, not as on {device}")
        return found

    def _link(self, where: str) -> Link | None:
        rate = self.facts.get(f"{where}_bytes_per_s")
        return None if rate is None else Link(float(rate), float(self.facts.get(f"{where}_latency_s", 0.0)))

    def save(self, path: Path) -> None:
        """Write it to `path`."""
        facts = {name: {"value": value, "source": self.sources[name]} for name, value in self.facts.items()}
        write_json(path, {"name": self.name, "description": self.description, "facts": facts})


def known_hardware() -> list[str]:
    """Names of the machines that come with heartlm."""
    return sorted(path.name.removesuffix(".json") for path in _folder().iterdir() if path.name.endswith(".json"))


def load_hardware(name: str) -> Hardware:
    """Read a machine by its name, or from a file.

    Raises:
        HeartlmError: there is none of that name, or the file is no description of a machine.
    """
    if name in known_hardware():
        with resources.as_file(_folder() / f"{name}.json") as path:
            return _checked(path)
    if not Path(name).is_file():
        known = ", ".join(known_hardware())
        raise HeartlmError(f"--hardware {name}: no such machine; it is one of {known}, or a JSON file")
    return _checked(Path(name))


def _folder() -> Any:
    return resources.files("heartlm.scaling") / "hardware_known"


def _checked(path: Path) -> Hardware:
    content = read_json(path, _File)
    values = {name: fact["value"] for name, fact in content["facts"].items()}
    facts: dict[str, Any] = dict(typed(Facts, values, f"{path}: facts"))
    for name, value in values.items():
        if name not in Facts.__annotations__:
            raise HeartlmError(f"{path}: unknown fact {name!r}; it is one of {', '.join(Facts.__annotations__)}")
        if isinstance(value, int | float) and (value < 0 or (not value and "_lat" not in name)):
            raise HeartlmError(f"{path}: {name} is {value}; expected more than 0")
    sources = {name: fact["source"] for name, fact in content["facts"].items()}
    return Hardware(content.get("name", path.stem), content.get("description", ""), facts, sources)


def measured_hardware(fit: AllReduceFit) -> Hardware:
    """This machine, its link as `fit` found it."""
    link = link_of(fit)
    source = f"measured here: {fit.backend} all-reduce among {fit.world_size} ranks"
    facts: dict[str, Any] = {
        "cpu_threads_per_node": len(os.sched_getaffinity(0)),
        "memory_bytes_per_node": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "within_node_bytes_per_s": link.bytes_per_s,
        "within_node_latency_s": link.latency_s,
    }
    sources = dict.fromkeys(facts, "the operating system") | {name: source for name in facts if "within" in name}
    return Hardware("this-machine", f"{platform.machine()}, measured", facts, sources)


def network_of(
    within: Sequence[AllReduceFit], between: Sequence[AllReduceFit], hardware: Hardware | None
) -> tuple[Network, float, int]:
    """What is known of the links: a machine's figures, and in their place the fit of the most ranks.

    Args:
        within: fits measured among the ranks of one node.
        between: fits measured among nodes, one rank on each.
        hardware: a machine, if one was named.

    Returns:
        The network; the share by which a fit misses its points; the most ranks that were measured together.
    """
    network = hardware.network if hardware else Network()
    measured = {"within": within, "between": between}
    widest = {name: max(fits, key=lambda fit: fit.world_size) for name, fits in measured.items() if fits}
    errors, ranks = [fit.median_error for fit in widest.values()], [fit.world_size for fit in widest.values()]
    links = {name: link_of(fit) for name, fit in widest.items()}
    return replace(network, **links), max(errors, default=0.0), math.prod(ranks)
