"""Ten minutes of everything at once against one service: what it holds must stay what it was.

Six clients teach, ask, explain, list, forget by source and export, and one more breaks off bodies, floods trailers, pipelines heads and
leaves. The memory keeps at most 300 rows of 240 sources, so that what the process holds depends on the service alone. Resident
memory, open descriptors and threads are read every two seconds; the second quarter of the time is compared with the last.
"""

from __future__ import annotations

import base64
import random
import socket
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Annotated

import httpx

from apl.checkpoint import FOR_DRAWINGS
from apl.cli.options import TrainedModel, arg
from apl.client import Client, ServiceError
from experiments.bench.servers import Running, drawings, serving
from experiments.paper.results import Row, machine, measure_all

CLIENTS, MOST_ROWS = 6, 300
LOOK_SECONDS = 2.0
LEARN = b"POST /v1/memories/default/learn HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
BROKEN = (
    LEARN + b"Content-Length: 100000\r\n\r\n" + b"x" * 500,
    LEARN + b"Transfer-Encoding: chunked\r\n\r\n0\r\n" + (b"X: " + b"b" * 997 + b"\r\n") * 200,
    b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 50,
    b"GET /healthz HT",
)
"""A body that ends too early, endless trailers, pipelined heads, half a head."""
SHARES = (8, 8, 2, 2, 1, 1, 2, 0.2)
"""How often each verb is called, in the order of `verbs`."""


def held(pid: int) -> dict[str, float]:
    """What a process holds: resident memory in MB, threads, open descriptors."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    descriptors = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    return {
        "rss_mb": int(status["VmRSS"].split()[0]) / 1024,
        "threads": int(status["Threads"]),
        "descriptors": descriptors,
    }


def use(server: Running, number: int, until: float, pictures: list[tuple[int, bytes]]) -> Counter[str]:
    """One client. Counts what was answered and what was refused."""
    chance, done = random.Random(number), Counter[str]()
    with Client(server.url) as client, httpx.Client(base_url=server.url, timeout=60) as http:
        while time.monotonic() < until:
            sign, x = pictures[chance.randrange(len(pictures))]
            verb, call = chance.choices(
                verbs(client, http, x, f"sign {sign}", f"client {number}, sign {sign}"), SHARES
            )[0]
            try:
                call()
                done[verb] += 1
            except (ServiceError, httpx.HTTPError) as error:
                done[f"{verb} refused: {getattr(error, 'code', type(error).__name__)}"] += 1
    return done


def verbs(
    client: Client, http: httpx.Client, x: bytes, label: str, source: str
) -> list[tuple[str, Callable[[], object]]]:
    return [
        ("learn", lambda: client.learn_one(x, label, source=source)),
        ("predict", lambda: client.predict_proba_one(x)),
        ("predict_set", lambda: client.predict_set(x)),
        ("explain", lambda: client.explain(x)),
        ("counts", client.counts),
        ("drift", client.drift),
        ("forget", lambda: client.forget(source=source)),
        ("export", lambda: http.get("/v1/memories/default/export").raise_for_status()),
    ]


def break_off(server: Running, until: float) -> int:
    """Connections that misbehave and leave; their number."""
    number = 0
    while time.monotonic() < until:
        with suppress(OSError), socket.create_connection(("127.0.0.1", server.port), 10) as raw:
            raw.settimeout(0.5)
            raw.sendall(BROKEN[number % len(BROKEN)])
            raw.recv(1000)
        number += 1
        time.sleep(0.02)
    return number


def soak(model: str, seconds: float) -> Row:
    pictures = [(sign, base64.b64decode(content)) for sign, content in drawings(56)]
    with tempfile.TemporaryDirectory() as scratch:
        memory = Path(scratch) / "soak.apl"
        with serving(model, memory, "--max-rows", str(MOST_ROWS)) as server, ThreadPoolExecutor(CLIENTS + 1) as threads:
            until, looks = time.monotonic() + seconds, []
            users = [threads.submit(use, server, number, until, pictures) for number in range(CLIENTS)]
            broken = threads.submit(break_off, server, until)
            while time.monotonic() < until:
                looks.append(held(server.process.pid))
                time.sleep(min(LOOK_SECONDS, seconds / 20))
            requests = sum((user.result() for user in users), Counter[str]())
            return {
                "seconds": seconds,
                "clients": CLIENTS,
                "broken_connections": broken.result(),
                "requests": dict(sorted(requests.items())),
                **compared(looks),
                "file_mb": sum(file.stat().st_size for file in Path(scratch).iterdir()) / 1e6,
            }


def compared(looks: list[dict[str, float]]) -> Row:
    """Medians of the second quarter and of the last, and resident memory over time."""
    quarter = len(looks) // 4
    parts = {"second_quarter": looks[quarter : 2 * quarter], "last_quarter": looks[-quarter:]}
    row: Row = {
        f"{name}_{when}": median(look[name] for look in part)
        for when, part in parts.items()
        for name in ("rss_mb", "threads", "descriptors")
    }
    every = max(1, len(looks) // 10)
    row["rss_mb"] = [round(look["rss_mb"], 1) for look in looks[::every]]
    return row | {"growth": row["rss_mb_last_quarter"] / row["rss_mb_second_quarter"]}


@dataclass
class Command:
    """Use and misuse one service for ten minutes, and write results/soak.json."""

    model: TrainedModel = FOR_DRAWINGS
    seconds: Annotated[float, arg(metavar="SECONDS")] = 600.0

    def run(self) -> None:
        measure_all("soak", iter([soak(self.model, self.seconds)]), **machine())
