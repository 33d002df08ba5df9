"""Serves the page of a review until a signal ends it."""

from __future__ import annotations

import asyncio
import signal
import webbrowser
from typing import TYPE_CHECKING

from heartlm.monitor.connection import Connection, is_loopback
from heartlm.review.config import ReviewConfig, read_token
from heartlm.system.progress import say

if TYPE_CHECKING:
    import socket

    from heartlm.review.records import Records


def review(config: ReviewConfig) -> int:
    """Serve the page until a signal; return the exit status of the command.

    Raises:
        HeartlmError: there is no recording, a setting is impossible, or the address cannot be used.
    """
    token = read_token(config)
    from heartlm.monitor.web import listen
    from heartlm.review.records import Records

    records = Records(config.path, config.out, config.reviewer, config.queue)
    listening, address = listen(config.host, config.port)
    if not is_loopback(config.host):
        say(f"warning: {config.host} can be reached by others, and what the page shows is not encrypted")
    return asyncio.run(_serve(records, token, listening, address, config.open))


async def _serve(records: Records, token: str, listening: socket.socket, address: str, opens: bool) -> int:
    from heartlm.monitor.web import serve
    from heartlm.review.server import ReviewServer

    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    page = ReviewServer(records, token, Connection(f"page {address}", say, lambda: 0))
    server, acceptor = await serve(page.app, listening, page.viewers.__contains__, page.own)
    tasks = [asyncio.create_task(each) for each in (server.main_loop(), acceptor.run(), page.watch())]
    url = f"http://{address}/?token={token}"
    say(f"page: {url}")
    say("corrections are kept at once; end with Ctrl+C")
    if opens:
        webbrowser.open(url)
    await stop.wait()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await server.shutdown()
    await page.close()
    return 0
