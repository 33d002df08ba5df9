"""Accepts connections of the page within bounds, so that no client uses up what the rest of the monitor needs.

A connection counts as idle until the page accepts its WebSocket. Idle ones are closed after `IDLE_S`; if there are too
many, the oldest one is closed at once, so that a new client is always let in.
"""

from __future__ import annotations

import asyncio
import resource
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from heartlm.monitor.connection import Connection, reason_of

Address = tuple[str, int]
"""Host and port of a client."""

IDLE_S = 10.0
"""Time for the TLS handshake, the requests and their answers, or the request of a WebSocket."""
MAX_IDLE = 64
"""Idle connections, and WebSockets, at the same time. Together they use a quarter of the file descriptors at most."""
BACKLOG = 64
"""Connections that the system holds until they are accepted."""
# Time between two searches for idle connections, and after an error of accept until the next attempt.
_SWEEP_S, _RETRY_S = 0.5, 1.0
# The problem of too many connections ends when this much time has passed without another.
_QUIET_S = 60.0


def most_connections() -> int:
    """Return the largest number of idle connections, and of WebSockets, for the limit of file descriptors."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MAX_IDLE if limit == resource.RLIM_INFINITY else min(MAX_IDLE, max(2, limit // 8))


@dataclass(eq=False)
class _Accepted:
    """A connection.

    Attributes:
        socket: its socket.
        address: its client.
        idle_since: when it was accepted, or last seen as a WebSocket, in seconds of the monotonic clock.
        transport: set after the TLS handshake.
    """

    socket: socket.socket
    address: Address
    idle_since: float = field(default_factory=time.monotonic)
    transport: asyncio.Transport | None = None

    @property
    def is_closed(self) -> bool:
        return self.transport.is_closing() if self.transport else self.socket.fileno() < 0

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()
        else:
            with suppress(OSError):  # the client has closed it
                self.socket.shutdown(socket.SHUT_RDWR)  # which ends the handshake


class Acceptor:
    """Accepts the connections of a listening socket.

    Args:
        listening: bound socket.
        make_protocol: returns the protocol of a new connection.
        tls: context of TLS; None without.
        is_viewer: whether the client at an address has a WebSocket that the page has accepted.
        connection: state that the log and the page show.
    """

    def __init__(
        self,
        listening: socket.socket,
        make_protocol: Callable[[], asyncio.BaseProtocol],
        tls: ssl.SSLContext | None,
        is_viewer: Callable[[Address], bool],
        connection: Connection,
    ) -> None:
        self._listening, self._make_protocol, self._tls = listening, make_protocol, tls
        self._is_viewer, self._connection = is_viewer, connection
        self._open, self._handshakes = set[_Accepted](), set[asyncio.Task[None]]()
        self._most_idle = most_connections()
        listening.setblocking(False)

    async def run(self) -> None:
        """Accept connections until cancelled; then close the idle ones and the socket."""
        loop, sweeps = asyncio.get_running_loop(), asyncio.create_task(self._sweep_periodically())
        try:
            while True:
                try:
                    accepted = _Accepted(*await loop.sock_accept(self._listening))
                except ConnectionError:  # the client has closed it
                    accepted = None
                except OSError as error:  # no descriptor or memory is left
                    self._fail(f"no connection is accepted: {reason_of(error)}")
                    self._abort_oldest()
                    await asyncio.sleep(_RETRY_S)
                    continue
                if accepted is not None:
                    accepted.address = accepted.address[:2]  # that of IPv6 has four fields
                    self._open.add(accepted)
                    if len(self._idle()) > self._most_idle:
                        self._fail(f"more than {self._most_idle} connections send no request: the oldest are closed")
                        self._abort_oldest()
                    handshake = loop.create_task(self._serve(accepted))
                    self._handshakes.add(handshake)  # the loop has weak references only
                    handshake.add_done_callback(self._handshakes.discard)
                await asyncio.sleep(0)  # a connection that waits is accepted at once: let the monitor work in between
        finally:
            sweeps.cancel()
            self._listening.close()
            for each in self._idle():
                each.abort()

    async def _serve(self, accepted: _Accepted) -> None:
        with suppress(OSError):  # the handshake failed, or took too long
            accepted.transport, _ = await asyncio.get_running_loop().connect_accepted_socket(
                self._make_protocol, accepted.socket, ssl=self._tls, ssl_handshake_timeout=IDLE_S if self._tls else None
            )

    def _idle(self) -> list[_Accepted]:
        """Return the open connections that are no WebSockets, and forget those that are closed."""
        self._open = {each for each in self._open if not each.is_closed}
        return [each for each in self._open if not self._is_viewer(each.address)]

    def _abort_oldest(self) -> None:
        if idle := self._idle():
            oldest = min(idle, key=lambda each: each.idle_since)
            self._open.discard(oldest)  # the loop closes its socket a little later
            oldest.abort()

    def _fail(self, problem: str) -> None:
        self._connection.fail(self._connection.problem or problem)  # the first one: two in turns would fill the log

    async def _sweep_periodically(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_S)
            now, idle = time.monotonic(), set(self._idle())
            for each in self._open - idle:
                each.idle_since = now
            for each in idle:
                if now - each.idle_since > IDLE_S:
                    each.abort()
            if now - self._connection.failed_at > _QUIET_S:
                self._connection.restore()
