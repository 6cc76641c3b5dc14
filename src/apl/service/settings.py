"""Settings of one service, and every limit that protects it."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field

from apl.checkpoint import FOR_DRAWINGS

ARCHIVE = "application/zip"
"""The type of an exported memory."""
BATCH = 64
"""Examples in one request."""
POOL = 500
"""Unlabelled examples in one request, to choose from."""
TOP = 20
"""Classes named in an answer by default."""
MOST_TOP = 200
LABEL_CHARACTERS = 200
SOURCE_CHARACTERS = 1000
TEXT_CHARACTERS = 20_000
RATE_PER_SECOND = 100.0
"""Requests per second and client, where clients show tokens."""


@dataclass(frozen=True)
class Limits:
    """A request beyond one of these is refused before it costs anything."""

    head_bytes: int = 32_768
    """Request line and headers together."""
    head_seconds: float = 10.0
    """Time for a client to send them; also how long an idle connection is kept."""
    connections: int = 1000
    """Open connections; fewer where the system allows fewer open files."""
    body_bytes: int = 4_000_000
    pool_bytes: int = 32_000_000
    """Size of a pool of unlabelled examples."""
    import_bytes: int = 256_000_000
    """Size of an imported memory, which needs the scope `admin`."""
    import_values: int = 1_000_000
    """Labels, sources and settings of an imported memory, together."""
    body_seconds: float = 30.0
    """Time for a client to send its body, and to read 64 KB of its answer."""
    bodies_bytes: int = 512_000_000
    """All bodies that are being received or handled and all answers that are being sent, together."""
    image_pixels: int = 4_000_000
    """Read from the header of a picture, before it is decoded."""
    memories: int = 100
    rows: int = 100_000
    """Rows in one memory."""
    waiting: int = 1024
    """Examples waiting in one memory."""
    streams: int = 200
    """Open event streams."""


@dataclass(frozen=True)
class Settings:
    """Everything about one running service."""

    model: str = FOR_DRAWINGS
    memory: str | None = "apl-memories.apl"
    """A path or URL where the memories live; None or `ram:` for memories that end with the process."""
    host: str = "127.0.0.1"
    port: int = 8000
    recall: str | None = None
    """Where memories are searched: in a copy in RAM ("ram"), or by the database server ("engine", "approximate"), so that
    several services can share a memory. By default where they live."""
    index: str | None = None
    """URL of a vector engine that finds the nearest rows of memories on PostgreSQL."""
    max_rows: int | None = None
    """A budget of rows per memory; beyond it, the least important row is evicted."""
    tokens: str | None = None
    """The token file."""
    share: bool = False
    """Open to the local network; without a token file, one token is made for the person who started the service."""
    allowed_hosts: tuple[str, ...] = ()
    """Host names under which the service may be called, besides those of the loopback interface."""
    rate: float | None = None
    """Requests per second and client; 0 for no limit. None: no limit on the loopback interface without tokens, else
    `RATE_PER_SECOND`."""
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        if self.rate is not None and not 0 <= self.rate < float("inf"):
            raise ValueError(f"rate must be at least 0 requests per second, got {self.rate}")
        if self.share and is_loopback(self.host):
            raise ValueError(f"{self.host} cannot be reached by others: omit --host, or give an address that can")
        if not is_loopback(self.host) and self.tokens is None and not self.share:
            raise ValueError(
                f"{self.host} can be reached by others, so clients must show tokens: add --share, or make one with "
                "`apl serve --make-token --tokens tokens.json` and add --tokens tokens.json"
            )

    @property
    def rate_per_second(self) -> float:
        if self.rate is not None:
            return self.rate
        return 0.0 if self.tokens is None and is_loopback(self.host) else RATE_PER_SECOND


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
