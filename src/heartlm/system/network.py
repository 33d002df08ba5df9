"""Addresses and interfaces that this machine uses to reach other machines.

Resolving the host name is not reliable: many distributions map a machine's own name to 127.0.1.1, which other machines
cannot reach. The kernel's routing table is reliable: a socket connected to another machine gets a local address that is
reachable from there.
"""

from __future__ import annotations

import fcntl
import socket
import struct
from collections.abc import Iterable
from contextlib import suppress
from ipaddress import ip_address

ELSEWHERE = "192.0.2.1"
"""Address reserved for documentation (RFC 5737). Its route is the default route. Nothing is sent to it."""

_SIOCGIFADDR = 0x8915


def address_towards(host: str, others: Iterable[str] = ()) -> str | None:
    """Return the address of this machine on the route to `host`; None if it has only the loopback address.

    If the name `host` resolves to this machine, the route to one of `others` is used, then the default route. A
    loopback address, unlike a name, is returned unchanged: all processes are on this machine.
    """
    if is_loopback_ip(host):
        return host
    addresses = (address for target in (host, *others, ELSEWHERE) if not is_loopback_ip(address := _source(target)))
    return next(addresses, None)


def interface_of(address: str) -> str | None:
    """Return the network interface that has the IPv4 `address`, such as `ib0`; None if there is none."""
    if ip_address(address).is_loopback:
        return "lo"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # interface without an address
                answer = fcntl.ioctl(asking, _SIOCGIFADDR, struct.pack("256s", name.encode()))
                if socket.inet_ntoa(answer[20:24]) == address:
                    return name
    return None


def is_own_port(host: str, port: int) -> bool:
    """Return whether this machine can listen at `port` of the address of `host`."""
    for family, kind, protocol, _, address in _resolved(host, port, socket.SOCK_STREAM):
        with suppress(OSError), socket.socket(family, kind, protocol) as listening:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            return True
    return False


def _source(host: str) -> str:
    """Return the source address of packets to `host`; the loopback address if there is no route."""
    for family, kind, protocol, _, address in _resolved(host, 9, socket.SOCK_DGRAM):
        with suppress(OSError), socket.socket(family, kind, protocol) as sending:
            sending.connect(address)  # on a datagram socket, connect looks up the route and sends nothing
            return str(sending.getsockname()[0])
    return "127.0.0.1"


def _resolved(host: str, port: int, kind: socket.SocketKind) -> list[tuple[int, int, int, str, tuple[str | int, ...]]]:
    try:
        return list(socket.getaddrinfo(host, port, type=kind))  # type: ignore[arg-type]
    except OSError:
        return []


def is_loopback_ip(host: str) -> bool:
    """Return whether `host` is a loopback address; a name is none."""
    try:
        return ip_address(host).is_loopback
    except ValueError:  # a name
        return False
