"""A Milvus server started from a PyPI package with its data in a temporary place. It ends with the process that started it."""

from __future__ import annotations

import importlib.util
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from experiments.bench.servers import NoServer

MILVUS_SECONDS = 180
"""A server that has not told its port by then will not."""
MILVUS_WRAPPER = """
import socket, sys
from milvus import MilvusServer, MilvusServerConfig
class Config(MilvusServerConfig):
    def try_bind_port(self, port):
        # A port whose last connections are still being let go of can be had, if one says so.
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(("127.0.0.1", port))
            sock.listen()
            return sock
        except OSError:
            sock.close()
config = Config(data_dir=sys.argv[1], **({"proxy_port": int(sys.argv[2])} if sys.argv[2:] else {}))
# Reads that see all writes wait for the next tick of the server's clock: 200 ms unless told.
config.set("proxy.timeTickInterval", "20")
server = MilvusServer(config)
server.start()
print(server.listen_port, flush=True)
# The server must not outlive us: our end closes this pipe, in whatever way it comes.
sys.stdin.read()
server.stop()
"""


class LocalMilvus:
    """A Milvus server of one process. Unpacking its programs takes longer than starting it: `programs` keeps them."""

    def __init__(self, programs: Path) -> None:
        if importlib.util.find_spec("milvus") is None:
            raise NoServer("a Milvus server", "milvus==2.3.5", "no server is installed")
        self.folder = Path(tempfile.mkdtemp(prefix="apl-milvus-"))
        programs.mkdir(parents=True, exist_ok=True)
        (self.folder / "bin").symlink_to(programs.absolute())
        self._output = (self.folder / "output").open("w")
        self._port = ""
        self.start()
        self.url = f"milvus+http://127.0.0.1:{self._port}"

    def start(self) -> None:
        """At the same port as before."""
        self._wrapper = subprocess.Popen(
            [sys.executable, "-c", MILVUS_WRAPPER, str(self.folder), *([self._port] if self._port else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._output,
            text=True,
            start_new_session=True,
        )
        assert self._wrapper.stdout is not None
        answers, _, _ = select.select([self._wrapper.stdout], [], [], MILVUS_SECONDS)
        port = self._wrapper.stdout.readline().strip() if answers else ""
        if not port or not _milvus_works(f"http://127.0.0.1:{port}"):
            reason = "it started, but cannot make a collection" if port else self._said()
            self.stop()
            self.close()
            raise NoServer("a Milvus server", "milvus==2.3.5", reason)
        self._port = port

    def stop(self) -> None:
        """At once (kill -9)."""
        # The server is a child of the wrapper: killed alone, that would leave it running, in the way of the next.
        os.killpg(self._wrapper.pid, signal.SIGKILL)
        self._wrapper.communicate(timeout=60)

    def close(self) -> None:
        if self._wrapper.returncode is None:
            self._wrapper.communicate(timeout=60)
        self._output.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _said(self) -> str:
        return (self.folder / "output").read_text()[-300:]


def _milvus_works(address: str) -> bool:
    """A server that has just started, on a slow machine, may answer before it can load a collection."""
    from pymilvus import MilvusClient, MilvusException

    client = MilvusClient(uri=address, timeout=30)
    for _ in range(3):
        with suppress(MilvusException):
            client.drop_collection("probe")
            client.create_collection("probe", dimension=2)
            client.query("probe", "id >= 0", consistency_level="Strong")
            client.drop_collection("probe")
            client.close()
            return True
    return False
