"""`apl serve`: the classifier over HTTP, with a page to teach it on."""

from __future__ import annotations

import importlib.util
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from apl.checkpoint import FOR_DRAWINGS
from apl.cli.options import arg


@dataclass
class Command:
    """Serve named memories over HTTP, and a page to teach them on."""

    model: Annotated[str, arg(metavar="MODEL")] = FOR_DRAWINGS
    """A bundled model's name or the directory of a saved one; `photo` for photographs, `text` for sentences."""
    memory: Annotated[str, arg(metavar="MEMORY")] = "apl-memories.apl"
    """Where the memories live: a file (made if needed), a URL, or `ram:` for memories that end with the process."""
    host: Annotated[str, arg(metavar="ADDRESS")] = "127.0.0.1"
    """Address to listen on. Any address but the loopback interface needs tokens."""
    share: bool = False
    """Open to the local network: the page makes links for guests."""
    port: Annotated[int, arg(metavar="PORT")] = 8000
    """0 takes any free port and prints it."""
    recall: Literal["ram", "engine", "approximate"] | None = None
    """Where memories are searched: a copy in RAM (default for files), the database (default there), or its approximate index."""
    index: Annotated[str | None, arg(metavar="URL")] = None
    """A vector engine (`milvus+http://host:19530`) that finds the nearest rows of memories on PostgreSQL."""
    max_rows: Annotated[int | None, arg(metavar="ROWS")] = None
    """A budget of rows per memory; beyond it, the least important row is evicted."""
    tokens: Annotated[Path | None, arg(metavar="FILE")] = None
    """A file of tokens (JSON); every client must then show one."""
    make_token: bool = False
    """Print a new token and exit; its hash is added to the file of --tokens."""
    token_name: Annotated[str, arg(metavar="NAME")] = "client"
    """The owner of the new token (with --make-token)."""
    grant: Annotated[tuple[str, ...], arg(metavar="MEMORY=SCOPE …")] = ("*=learn",)
    """Rights of the new token (with --make-token): MEMORY=read, learn or admin, each including the one before; * is all."""
    allow_host: Annotated[tuple[str, ...], arg(metavar="HOST …")] = ()
    """Host names under which the service may be called, besides localhost."""
    rate: Annotated[float | None, arg(metavar="REQUESTS")] = None
    """Requests per second and client; 0 for no limit. Default: 100 with tokens, no limit on this machine without."""

    def run(self) -> int:
        needed = ("fastapi", "granian", "prometheus_client")
        missing = [name for name in needed if importlib.util.find_spec(name) is None]
        if missing:
            raise ImportError(f"the service needs {', '.join(missing)}: pip install 'apl-memory[service]'")
        if self.make_token:
            return self._make_token()
        # Requests share the cores: threads inside one request would only wait for those of another.
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        from apl.service.server import serve
        from apl.service.settings import Settings

        return serve(
            Settings(
                model=self.model,
                memory=self.memory,
                host="0.0.0.0" if self.share and self.host == "127.0.0.1" else self.host,
                port=self.port,
                recall=self.recall,
                index=self.index,
                max_rows=self.max_rows,
                tokens=None if self.tokens is None else str(self.tokens),
                share=self.share,
                allowed_hosts=self.allow_host,
                rate=self.rate,
            )
        )

    def _make_token(self) -> int:
        from apl.service.tokens import add_to_file, make_token

        if self.tokens is None:
            raise ValueError("--make-token needs a file for the token's hash: --tokens FILE")
        token, owner = make_token(self.token_name, self.grant)
        add_to_file(self.tokens, owner)
        print(f"its hash was added to {self.tokens}; the token itself is shown only once:", file=sys.stderr)
        print(token)
        return 0
