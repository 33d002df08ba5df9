"""What connects the ranks: InfiniBand ports, network interfaces, and what an all-reduce over them takes."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from heartlm.launch.doctor.section import Context, Section

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


def check_all_reduce(context: Context) -> Section:
    """Measure and fit an all-reduce among the ranks there are, or among some started on this machine."""
    from heartlm.launch.allreduce import QUICK_SIZES_BYTES, SIZES_BYTES, measure_all_reduce

    fit = measure_all_reduce(
        sizes_bytes=QUICK_SIZES_BYTES if context.quick else SIZES_BYTES, rounds=5 if context.quick else 9
    )
    table = ", ".join(f"{_size(size)} {_time(taken_s)}" for size, taken_s in fit.points)
    lines = [
        f"{fit.world_size} ranks, {fit.backend}: {_time(fit.latency_s)} + message at {fit.bytes_per_s / 1e9:.2f} GB/s "
        f"(median error {100 * fit.median_error:.0f} %)",
        f"measured: {table}",
    ]
    facts: dict[str, Any] = {"fit": fit.to_json(), "median_error": fit.median_error}
    return Section(lines, facts)


def _size(num_bytes: int) -> str:
    return f"{num_bytes >> 20} MiB" if num_bytes >= 1 << 20 else f"{num_bytes >> 10} KiB"


def _time(taken_s: float) -> str:
    if taken_s < 1e-4:
        return f"{taken_s * 1e6:.0f} µs"
    return f"{taken_s * 1e3:.2f} ms" if taken_s < 1e-2 else f"{taken_s * 1e3:.0f} ms"
