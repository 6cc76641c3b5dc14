"""Running the application under uvicorn, and stopping it so that nothing is lost."""

from __future__ import annotations

import logging
import signal
import socket
from contextlib import suppress
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI

from apl.service.app import create_app
from apl.service.connections import ACCEPTED_AT_ONCE, bounded_protocol
from apl.service.settings import Settings
from apl.service.sharing import link
from apl.service.telemetry import start_logging

GRACE_SECONDS = 10
"""How long requests that are being answered may take once a stop was asked for."""


class Server(uvicorn.Server):
    """Says where it listens once it is ready, and tells the application of a stop at once: live episodes end then."""

    def __init__(self, app: FastAPI, config: uvicorn.Config, url: str) -> None:
        super().__init__(config)
        self.app, self.url = app, url

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            print(f"apl serve: {self.url}", flush=True)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # Not uvicorn's own, which raises the signal again at the end: a stop that was asked for is no failure.
        parts: Any = getattr(self.app.state, "parts", None)
        if parts is not None:
            parts.stopping = True
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True


def serve(settings: Settings) -> int:
    """Run until told to stop; returns the exit status."""
    start_logging()
    app = create_app(settings)
    config = server_config(app, settings)
    with _listening(settings) as listener:
        server = Server(app, config, _own_link(app, *listener.getsockname()[:2]))
        logging.getLogger("uvicorn.error").addFilter(lambda line: not hasattr(app.state, "failure"))
        with suppress(SystemExit):  # uvicorn's way to say that it could not start
            server.run(sockets=[listener])
    if not server.started:
        raise RuntimeError(getattr(app.state, "failure", "it could not start; the log tells why"))
    return 0


def server_config(app: FastAPI, settings: Settings) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        http=bounded_protocol(settings.limits),
        backlog=ACCEPTED_AT_ONCE,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=GRACE_SECONDS,
        timeout_keep_alive=30,
        proxy_headers=False,
        lifespan="on",
    )


def _own_link(app: FastAPI, host: str, port: int) -> str:
    """Where whoever started it finds it: with the token, if one was made for them."""
    if app.state.owner_token is not None:
        return link("127.0.0.1" if host == "0.0.0.0" else host, port, token=app.state.owner_token)
    return link(host, port).removesuffix("#")


def _listening(settings: Settings) -> socket.socket:
    """Bound before anything is said, so that port 0 can be told as the port it became."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # Told its protocol, asyncio turns Nagle's algorithm off on its connections; otherwise answers wait 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((settings.host.strip("[]"), settings.port))
        listener.listen(ACCEPTED_AT_ONCE)
    except (OSError, OverflowError) as error:
        listener.close()
        why = error.strerror if isinstance(error, OSError) else "a port is a number from 0 to 65535"
        raise OSError(f"cannot listen on {settings.host}:{settings.port}: {why}") from None
    return listener
