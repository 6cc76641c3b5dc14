"""Running the application under granian, and stopping it so that nothing is lost.

granian bounds what comes before a request: heads by size and time, trailers, pipelined requests, silent connections. What
comes after, bodies by size and time, is bounded by the guard.
"""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable
from contextlib import suppress

from fastapi import FastAPI
from granian.constants import HTTPModes, Interfaces
from granian.http import HTTP1Settings
from granian.server.embed import Server

from apl.service.app import create_app
from apl.service.settings import Limits, Settings
from apl.service.telemetry import start_logging
from apl.service.tokens import link

GRACE_SECONDS = 10.0
"""Time for requests that are being answered once a stop was asked for."""
OTHER_FILES = 128
"""File descriptors left for memories, logs and connections that are being accepted."""
BACKLOG = 128


def serve(settings: Settings) -> int:
    """Run until stopped by a signal; returns the exit status."""
    port = free_port(settings)
    start_logging()
    asyncio.run(_serve(settings, port))
    return 0


async def _serve(settings: Settings, port: int) -> None:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for name in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(name, stop.set)
    await run(create_app(settings), settings, port, lambda url: print(f"apl serve: {url}", flush=True), stop)


async def run(app: FastAPI, settings: Settings, port: int, ready: Callable[[str], None], stop: asyncio.Event) -> None:
    """Serve until `stop` is set. `ready` is called with the address once requests are answered."""
    host, limits = settings.host.strip("[]"), settings.limits
    server = Server(
        app,
        host,
        port,
        interface=Interfaces.ASGINL,
        http=HTTPModes.http1,
        websockets=False,
        backlog=BACKLOG,
        backpressure=most_connections(limits),
        http1_settings=HTTP1Settings(
            header_read_timeout=round(1000 * limits.head_seconds), max_buffer_size=limits.head_bytes
        ),
        log_enabled=False,
    )
    async with app.router.lifespan_context(app):
        serving = asyncio.create_task(server.serve())
        try:
            await _listens(host, port, serving)
            ready(_own_link(app, host, port))
            stopped = asyncio.create_task(stop.wait())
            await asyncio.wait({serving, stopped}, return_when=asyncio.FIRST_COMPLETED)
            stopped.cancel()
            await _finished(app)
        finally:
            server.stop()
            await serving


async def _finished(app: FastAPI) -> None:
    """Refuse new requests, and wait for those that are being answered."""
    service, loop = app.state.service, asyncio.get_running_loop()
    service.stopping = True
    end = loop.time() + GRACE_SECONDS
    while service.under_way and loop.time() < end:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)  # the last answers are on their way


async def _listens(host: str, port: int, serving: asyncio.Task[None]) -> None:
    address = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    while not serving.done():
        with suppress(OSError):
            _, writer = await asyncio.open_connection(address, port)
            writer.close()
            return
        await asyncio.sleep(0.01)
    raise OSError(f"cannot listen on {host}:{port}")


def free_port(settings: Settings) -> int:
    """The port to listen on, known to be free. granian would share a port with another process without a word."""
    host = settings.host.strip("[]")
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        try:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, settings.port))
        except (OSError, OverflowError) as error:
            why = error.strerror if isinstance(error, OSError) else "a port is a number from 0 to 65535"
            raise OSError(f"cannot listen on {settings.host}:{settings.port}: {why}") from None
        port: int = probe.getsockname()[1]
        return port


def most_connections(limits: Limits) -> int:
    """As many as the limits and the system allow: without a free descriptor no client is answered."""
    try:
        import resource
    except ImportError:  # not on Windows
        return limits.connections
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return limits.connections if files < 0 else max(8, min(limits.connections, files - OTHER_FILES))


def _own_link(app: FastAPI, host: str, port: int) -> str:
    """The address for the person who started it, with their token if one was made."""
    if app.state.owner_token is not None:
        return link("127.0.0.1" if host == "0.0.0.0" else host, port, token=app.state.owner_token)
    return link(host, port)
