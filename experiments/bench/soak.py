"""`python -m experiments soak`: the service under a mixed load for minutes, hostile clients among it.

Reported: resident memory, open files and threads of the process, once a second. After the first fifth of the time, in which caches
fill, memory must stay within a tenth, files and threads within a few.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import socket
import statistics
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from apl.checkpoint import FOR_DRAWINGS, current_commit, write_json
from apl.cli.options import TrainedModel, arg
from experiments.bench.service import Running, drawings, serving

HOME = "/v1/memories/default"
CLIENTS = 6
MOST_ROWS = 300
MOST_GROWTH = 1.1
MOST_MORE = 8
"""Files and threads: connections that happen to be open when the process is looked at."""
HEAD = "POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {size}\r\n\r\n"


@dataclass
class Command:
    """Lessons, questions, streams and hostile clients for ten minutes; memory, files and threads must stay as they are."""

    model: TrainedModel = FOR_DRAWINGS
    minutes: Annotated[float, arg(metavar="MINUTES")] = 10.0
    output: Annotated[Path, arg(metavar="FILE")] = Path("results/bench_soak.json")
    """Where the results are kept."""

    def run(self) -> int:
        result = {**soak(self.model, 60 * self.minutes), "model": self.model, "commit": current_commit()}
        self.output.parent.mkdir(parents=True, exist_ok=True)
        write_json(self.output, result)
        print(json.dumps(result, indent=1))
        return 0 if all(result["holds"].values()) else 1


def soak(model: str, seconds: float) -> dict[str, Any]:
    """The load, and what the process needed meanwhile."""
    pictures = [picture for _, picture in drawings(56)]
    with tempfile.TemporaryDirectory() as scratch:
        with serving(model, Path(scratch) / "soak.apl", "--max-rows", str(MOST_ROWS)) as server:
            samples, answers = asyncio.run(_run(server, pictures, seconds))
    return {"seconds": seconds, "answers": dict(answers), **verdict(samples)}


def verdict(samples: list[dict[str, float]]) -> dict[str, Any]:
    """Medians of the beginning and of the end, after the caches are full."""
    steady = samples[len(samples) // 5 :]
    fifth = max(1, len(steady) // 5)
    first, last = steady[:fifth], steady[-fifth:]

    def median(part: list[dict[str, float]], name: str) -> float:
        return statistics.median(sample[name] for sample in part)

    found = {name: [median(first, name), median(last, name)] for name in ("resident_mb", "files", "threads")}
    return {
        **found,
        "holds": {
            "memory_stays_within_a_tenth": found["resident_mb"][1] <= MOST_GROWTH * found["resident_mb"][0],
            "files_stay": found["files"][1] <= found["files"][0] + MOST_MORE,
            "threads_stay": found["threads"][1] <= found["threads"][0] + MOST_MORE,
        },
    }


def sample(pid: int) -> dict[str, float]:
    """Of one process, as Linux tells it."""
    process = Path(f"/proc/{pid}")
    pages = int((process / "statm").read_text().split()[1])
    return {
        "resident_mb": pages * os.sysconf("SC_PAGE_SIZE") / 1e6,
        "files": len(os.listdir(process / "fd")),
        "threads": len(os.listdir(process / "task")),
    }


async def _run(server: Running, pictures: list[str], seconds: float) -> tuple[list[dict[str, float]], Counter[str]]:
    end, samples, answers = time.monotonic() + seconds, [], Counter[str]()
    clients = [asyncio.create_task(_client(server.port, pictures, end, answers, seed)) for seed in range(CLIENTS)]
    while time.monotonic() < end:
        samples.append(sample(server.process.pid))
        await asyncio.sleep(1.0)
    await asyncio.gather(*clients)
    return samples, answers


async def _client(port: int, pictures: list[str], end: float, answers: Counter[str], seed: int) -> None:
    chance = random.Random(seed)
    while time.monotonic() < end:
        picture, label = chance.choice(pictures), f"class {chance.randrange(40)}"
        source = f"source {seed} {chance.randrange(20)}"
        match chance.randrange(12):
            case 0 | 1 | 2 | 3:
                sent = _post("learn", {"image": picture, "label": label, "source": source})
            case 4 | 5 | 6:
                sent = _post("predict", {"image": picture})
            case 7:
                sent = _post("explain", {"image": picture})
            case 8:
                sent = _post("forget", {"source": source})
            case 9:
                sent = _get(chance.choice(["", "/rows?images=true", "/export"]))
            case 10:
                sent = _get("/events")  # and leave
            case _:
                sent = _hostile(chance, picture)
        answers[await _answered(port, sent)] += 1
        await asyncio.sleep(0.02)


def _post(verb: str, body: dict[str, Any]) -> bytes:
    content = json.dumps(body).encode()
    return HEAD.format(path=f"{HOME}/{verb}", size=len(content)).encode() + content


def _get(rest: str) -> bytes:
    return f"GET {HOME}{rest} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()


def _hostile(chance: random.Random, picture: str) -> bytes:
    return chance.choice(
        [
            _post("learn", {"image": picture, "label": "x"})[:-100],
            b"POST /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"
            + b"X: y\r\n" * 20_000,
            b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 50,
            b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"x" * 100_000,
            _post("predict", {"image": picture[:50]}),
        ]
    )


async def _answered(port: int, sent: bytes) -> str:
    """The status of the first answer; the connection is closed then, whatever else comes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, family=socket.AF_INET)
    try:
        writer.write(sent)
        async with asyncio.timeout(2.0):
            line = await reader.readline()
            await reader.read(100_000)
        return line.decode("latin-1")[9:12] or "closed"
    except TimeoutError:
        return "no answer"
    except OSError:
        return "closed"
    finally:
        writer.close()
