"""What connects the ranks: InfiniBand ports, network interfaces, NVLink."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from heartlm.cluster.doctor.section import Context, Section

SYS = Path("/sys")


def check_interconnect(context: Context) -> Section:
    """List the links between nodes, and between GPUs as NVML told them."""
    ports, interfaces = infiniband_ports(SYS), network_interfaces(SYS)
    lines = [f"InfiniBand {port['port']}: {port['state']}, {port['rate']}" for port in ports]
    lines = lines or ["no InfiniBand: ranks of several nodes would meet over the network interfaces"]
    told = (name + (f" {speed} Mbit/s" if (speed := interfaces[name]) else "") for name in sorted(interfaces))
    lines.append(f"network interfaces up: {', '.join(told) or 'none but loopback'}")
    links = [gpu["num_nvlinks"] for gpu in context.fact("devices", "gpus", [])]
    if len(links) > 1:
        lines.append("GPUs are joined by NVLink" if all(links) else "GPUs are joined by PCIe: not every one has NVLink")
    return Section(lines, {"infiniband": ports, "interfaces_mbit_per_s": interfaces})


def infiniband_ports(system: Path) -> list[dict[str, str]]:
    """Ports of the InfiniBand devices below `system`, with the state and rate that the kernel tells."""
    found = []
    for port in sorted(system.glob("class/infiniband/*/ports/*")):
        with suppress(OSError):
            state, rate = ((port / name).read_text(encoding="ascii").strip() for name in ("state", "rate"))
            found.append({"port": f"{port.parent.parent.name}:{port.name}", "state": state, "rate": rate})
    return found


def network_interfaces(system: Path) -> dict[str, int | None]:
    """Interfaces below `system` that are up, loopback apart, with their Mbit a second where they tell."""
    found: dict[str, int | None] = {}
    for interface in system.glob("class/net/*"):
        with suppress(OSError):
            if interface.name != "lo" and (interface / "operstate").read_text(encoding="ascii").strip() == "up":
                found[interface.name] = None
                with suppress(OSError, ValueError):
                    speed = int((interface / "speed").read_text(encoding="ascii"))
                    found[interface.name] = speed if speed > 0 else None
    return found
