"""Running the application under uvicorn, and stopping it so that nothing is lost."""

from __future__ import annotations

import socket
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI

from apl.service.app import create_app
from apl.service.settings import Settings
from apl.service.watch import start_logging

GRACE_SECONDS = 10
"""How long requests that are being answered may take once a stop was asked for."""


class Server(uvicorn.Server):
    """Tells the application of a stop at once, so that live episodes end and readiness is taken back."""

    def __init__(self, app: FastAPI, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.app = app

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        parts: Any = getattr(self.app.state, "parts", None)
        if parts is not None:
            parts.stopping = True
        super().handle_exit(sig, frame)


def serve(settings: Settings) -> int:
    """Run until told to stop; returns the exit status."""
    start_logging()
    app = create_app(settings)
    config = uvicorn.Config(
        app, host=settings.host, port=settings.port, log_config=None, access_log=False, server_header=False,
        timeout_graceful_shutdown=GRACE_SECONDS, timeout_keep_alive=30, proxy_headers=False,
        h11_max_incomplete_event_size=65536, lifespan="on",
    )  # fmt: skip
    with _listening(settings) as listener:
        host, port = listener.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        print(f"apl serve: http://{shown}:{port}/", flush=True)
        server = Server(app, config)
        server.run(sockets=[listener])
    return 0 if server.started else 3


def _listening(settings: Settings) -> socket.socket:
    """Bound before anything is said, so that port 0 can be told as the port it became."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((settings.host.strip("[]"), settings.port))
        listener.listen(512)
    except OSError as error:
        listener.close()
        raise OSError(f"cannot listen on {settings.host}:{settings.port}: {error.strerror}") from None
    return listener
