"""What pages of heartlm that are served share: who may read them, the headers, and the server."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import re
import socket
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import uvicorn
from starlette.applications import Starlette
from starlette.requests import HTTPConnection, Request
from starlette.responses import PlainTextResponse, Response
from starlette.websockets import WebSocket, WebSocketDisconnect

from heartlm.errors import HeartlmError
from heartlm.monitor.acceptor import BACKLOG, Acceptor, Address, most_connections
from heartlm.monitor.connection import Connection

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
"""Headers of a page that is one file."""


def is_allowed(connection: HTTPConnection, token: str | None) -> bool:
    """Return whether a request has the token, or without one is of this machine."""
    if token is not None:
        return hmac.compare_digest(connection.query_params.get("token", "").encode(), token.encode())
    # Without a token only this machine is served. Other host names are refused, against DNS rebinding.
    # A browser leaves the port out where it is that of the protocol.
    host = connection.headers.get("host", "")
    return re.fullmatch(r"(127\.0\.0\.1|localhost|\[::1\])(:\d+)?", host) is not None


def is_own(socket: WebSocket) -> bool:
    """Return whether a WebSocket is asked for by a page of the same server, not by one of another site."""
    return urlsplit(socket.headers.get("origin", "")).netloc == socket.headers.get("host")


class Viewers(set[Address]):
    """Addresses of the clients whose connection may last, as the WebSocket of a page that was accepted.

    Args:
        own: state of the connections, which tells if one was refused.

    Attributes:
        most: largest number of them.
    """

    def __init__(self, own: Connection) -> None:
        super().__init__()
        self.most, self._own = most_connections(), own

    def admit(self, connection: HTTPConnection) -> Address | None:
        """Add the client of a connection, and return it; None if there are too many."""
        if len(self) >= self.most:
            self._own.fail(f"{self.most} pages are open: no further one is shown")
            return None
        client = (connection.client.host, connection.client.port) if connection.client else ("", 0)
        self.add(client)
        return client


class LivePage(ABC):
    """A page that keeps a WebSocket open.

    Args:
        token: token that a request must contain; None on the loopback address.
        own: state of the connections.

    Attributes:
        viewers: clients whose WebSocket is accepted.
    """

    def __init__(self, token: str | None, own: Connection) -> None:
        self.token, self.own, self.viewers = token, own, Viewers(own)

    def guarded(self, answer: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        """Return a function that answers requests with the token, and refuses others."""

        async def respond(request: Request) -> Response:
            if not is_allowed(request, self.token):
                return PlainTextResponse("token: add ?token=... to the address\n", 403)
            return await answer(request)

        return respond

    async def live(self, socket: WebSocket) -> None:
        """Accept the WebSocket of a page of this server with the token, and serve it until it ends."""
        if not is_allowed(socket, self.token) or not is_own(socket):
            await socket.close(1008)
            return
        if (client := self.viewers.admit(socket)) is None:
            await socket.close(1013)
            return
        try:
            await socket.accept()
            with contextlib.suppress(WebSocketDisconnect):
                await self.converse(socket)
        finally:
            self.viewers.discard(client)

    @abstractmethod
    async def converse(self, socket: WebSocket) -> None:
        """Send and receive until the page is closed."""


def listen(host: str, port: int) -> tuple[socket.socket, str]:
    """Return a listening socket, and its address as in a URL; port 0 selects a free one.

    Raises:
        HeartlmError: the address cannot be used.
    """
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    # A restarted server gets its port although connections of the earlier one are still in TIME_WAIT.
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(BACKLOG)
    except OSError as error:
        raise HeartlmError(f"port: {host}:{port} cannot be used ({error.strerror})") from None
    return listening, f"{f'[{host}]' if ':' in host else host}:{listening.getsockname()[1]}"


async def serve(
    app: Starlette,
    listening: socket.socket,
    is_viewer: Callable[[Address], bool],
    own: Connection,
    certificate: Path | None = None,
    key: Path | None = None,
) -> tuple[uvicorn.Server, Acceptor]:
    """Start the server of a page, and return it with what accepts its connections; the caller runs both.

    Args:
        app: the page.
        listening: bound socket.
        is_viewer: whether the client at an address has a WebSocket that the page has accepted.
        own: state of the connections.
        certificate: certificate of the page, PEM; None without TLS.
        key: its key.

    Raises:
        HeartlmError: the certificate or key cannot be used.
    """
    config = uvicorn.Config(
        app,
        log_config=None,
        log_level="error",  # each invalid request is a warning
        http="h11",  # unlike httptools it limits the size of headers
        proxy_headers=False,  # the address of a viewer is that of its socket
        lifespan="off",
        ssl_certfile=certificate,
        ssl_keyfile=key,
        ws_max_size=1 << 16,
        timeout_graceful_shutdown=2,
    )
    server = uvicorn.Server(config)
    try:
        config.load()
    except OSError as error:  # ssl.SSLError is one, too
        listening.close()
        files = " and ".join(str(path) for path in (certificate, key) if path)
        text = f"tls_certificate: {files}: {error.strerror}, a certificate in PEM format and its key expected"
        raise HeartlmError(text) from None
    server.lifespan = config.lifespan_class(config)
    await server.startup(sockets=[])  # uvicorn's own sockets accept without bounds
    make_http: Any = config.http_protocol_class  # its parameters are those of uvicorn

    def protocol() -> asyncio.Protocol:
        http: asyncio.Protocol = make_http(config=config, server_state=server.server_state, app_state={})
        return http

    return server, Acceptor(listening, protocol, config.ssl, is_viewer, own)
