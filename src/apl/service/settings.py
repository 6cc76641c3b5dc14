"""What the service can be told, and the limits that protect it."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field

from apl.checkpoint import FOR_DRAWINGS

BATCH = 64
"""Examples in one request."""
TOP = 20
"""Classes named in an answer, unless more are asked for."""
MOST_TOP = 200
LABEL_CHARACTERS = 200
SOURCE_CHARACTERS = 1000
TEXT_CHARACTERS = 20_000


@dataclass(frozen=True)
class Limits:
    """Beyond these a request is refused, before it costs anything."""

    body_bytes: int = 4_000_000
    import_bytes: int = 256_000_000
    """An imported memory is larger than any other request, and needs the scope `admin`."""
    body_seconds: float = 30.0
    """How long a client may take to send its body."""
    head_bytes: int = 32_768
    """Request line and headers together."""
    head_seconds: float = 10.0
    """How long a client may take to send them."""
    unread_seconds: float = 10.0
    """How long a client may leave an answer unread."""
    connections: int = 1000
    """At the same time; fewer where the system allows fewer open files."""
    image_pixels: int = 4_000_000
    """Read from the header of a picture, before it is unpacked."""
    memories: int = 100
    rows: int = 100_000
    """Rows in one memory."""
    waiting: int = 1024
    """Examples waiting for the encoder; more are told to come back later."""
    rate_per_second: float = 100.0
    """Requests per second and client, in the long run; 0 for no limit."""
    rate_burst: float = 200.0
    """Requests a client may make at once after a pause."""
    episodes: int = 16
    """Live episodes at the same time."""
    episode_seconds: float = 600.0
    """A live episode that takes longer is ended."""


@dataclass(frozen=True)
class Settings:
    """Everything about one running service."""

    model: str = FOR_DRAWINGS
    memory: str | None = "apl-memories.apl"
    """A path or URL where the memories live; None or `ram:` for memories that end with the process."""
    host: str = "127.0.0.1"
    port: int = 8000
    workers: int = 1
    """Threads that embed side by side. Memories have one writer, so there is always one process."""
    recall: str | None = None
    """Where memories are searched: in a copy here ("ram"), or by the server they live on ("engine", "approximate"), which
    several services may share. By default where they live."""
    max_rows: int | None = None
    """A budget of rows per memory: beyond it, the row that matters least goes."""
    tokens: str | None = None
    """The file with the tokens."""
    share: bool = False
    """Open to the local network; without a file of tokens, one is made for whoever started it."""
    allowed_hosts: tuple[str, ...] = ()
    """Names by which the service may be called, besides those of the loopback interface."""
    allowed_origins: tuple[str, ...] = ()
    """Other sites whose pages may call this service from a browser."""
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise ValueError(f"workers must be at least 1, got {self.workers}")
        if self.share and is_loopback(self.host):
            raise ValueError(f"{self.host} cannot be reached by others: leave --host out, or give an address that can")
        if not is_loopback(self.host) and self.tokens is None and not self.share:
            raise ValueError(
                f"{self.host} can be reached by others, so clients must show tokens: add --share, or make one with "
                "`apl serve --make-token --tokens tokens.json` and add --tokens tokens.json"
            )


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
