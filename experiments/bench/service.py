"""The service under load on the loopback interface, beside the bare encoder in the same run.

Reported for 1, 8 and 32 clients: requests per second, median and 99th percentile, and both as ratios to one call of
the bare encoder. Then the process is killed under the load of 32 clients, again and again (`outage`), and every example that
was acknowledged must be there.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Literal

import torch

from apl.checkpoint import FOR_DRAWINGS, current_commit, write_json
from apl.cli.options import TrainedModel, arg
from apl.learner import Learner
from experiments.bench.http_load import Sent, load
from experiments.bench.outage import kills, outage
from experiments.bench.servers import drawings, serving
from experiments.data.embedded import image_size
from experiments.paper.results import result_path

CLIENTS = (1, 8, 32)
Kind = Literal["predict", "learn"]
KINDS: tuple[Kind, ...] = ("learn", "predict")
"""In this order: questions are asked of the memory that the examples of 32 clients have filled."""
SECONDS_PER_KILL = 3.0


def requests(kind: Kind, examples: list[tuple[int, str]], memory: str) -> Iterator[Sent]:
    """An endless stream."""
    for number in itertools.count():
        sign, picture = examples[number % len(examples)]
        body = {"image": picture}
        if kind == "learn":
            body |= {"label": f"character {sign}", "source": f"lesson {number}"}
        yield Sent(f"/v1/memories/{memory}/{kind}", body, {"Idempotency-Key": f"{kind} {number}"})


@torch.no_grad()
def bare_encoder_ms(learner: Learner, repeats: int = 60) -> float:
    """Median time of one call with one picture."""
    size, times = image_size(learner.config.encoder), []
    x = torch.randint(0, 256, (1, 1, 1, size, size), dtype=torch.uint8)
    for _ in range(repeats):
        started = time.perf_counter()
        learner.embed(x)
        times.append(time.perf_counter() - started)
    return 1000 * median(times)


def measure(model: str, seconds: float) -> dict[str, Any]:
    """Throughput and latency, each kind of request with each number of clients, in fresh memories."""
    learner = Learner.load(model)
    examples, bare = drawings(image_size(learner.config.encoder)), bare_encoder_ms(learner)
    result: dict[str, Any] = {"bare_encoder_ms": bare}
    with tempfile.TemporaryDirectory() as scratch, serving(model, Path(scratch) / "bench.apl") as server:
        for kind in KINDS:
            table: dict[str, Any] = {}
            for clients in CLIENTS:
                memory = f"{kind}-{clients}" if kind == "learn" else "learn-32"
                server.make(memory)
                stream = requests(kind, examples, memory)
                asyncio.run(load(server.port, clients, 0.5, stream))
                row = asyncio.run(load(server.port, clients, seconds, stream))
                row["p50_over_bare_encoder"] = row["p50_ms"] / bare
                row["throughput_over_bare_encoder"] = row["per_second"] * bare / 1000
                row["p99_over_p50"] = row["p99_ms"] / row["p50_ms"]
                table[str(clients)] = row
                print(kind, clients, "clients", row, file=sys.stderr, flush=True)
            table["speedup_32_over_1"] = table["32"]["per_second"] / table["1"]["per_second"]
            result[kind] = table
    return result | {"bare_encoder_ms_after": bare_encoder_ms(learner)}


@dataclass
class Command:
    """Requests per second and latencies with 1, 8 and 32 clients on this machine, then kill -9 under load.

    Limits: 32 clients get at least twice the throughput of one, the 99th percentile stays under ten times the
    median, no request fails, and no acknowledged example is ever lost.
    """

    model: TrainedModel = FOR_DRAWINGS
    seconds: Annotated[float, arg(metavar="SECONDS")] = 5.0
    """How long each measurement takes."""
    kills: Annotated[int, arg(metavar="TIMES")] = 20
    """How often the service is killed."""

    def run(self) -> int:
        load = os.getloadavg()[0]
        with tempfile.TemporaryDirectory() as scratch:
            memory, time = Path(scratch) / "killed.apl", SECONDS_PER_KILL * self.kills
            killed = outage(self.model, memory, kills(self.kills), services=1, clients=32, seconds=time)
        result = {"kill_9": {"kills": self.kills, **killed}, **measure(self.model, self.seconds)}
        result |= {
            "holds": holds(result),
            "model": self.model,
            "seconds": self.seconds,
            "threads": torch.get_num_threads(),
            "cores": os.cpu_count(),
            "load_average_before": load,
            "versions": {"torch": torch.__version__},
            "commit": current_commit(),
        }
        write_json(result_path("bench_service"), result)
        for name, value in result["holds"].items():
            print("holds" if value else "FAILS", name.replace("_", " "))
        return 0 if all(result["holds"].values()) else 1


def holds(result: dict[str, Any]) -> dict[str, bool]:
    rows = [result[kind][str(clients)] for kind in KINDS for clients in CLIENTS]
    return {
        "predict_at_32_at_least_twice_1": result["predict"]["speedup_32_over_1"] >= 2,
        "learn_at_32_at_least_twice_1": result["learn"]["speedup_32_over_1"] >= 2,
        "p99_under_10_times_p50": all(row["p99_over_p50"] < 10 for row in rows),
        "no_error": not any(row["errors"] for row in rows),
        "nothing_acknowledged_is_lost": result["kill_9"]["lost"] == 0,
    }
