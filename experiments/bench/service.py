"""`python -m experiments service`: the service under load on the loopback interface, beside the bare encoder in the same run.

Reported for 1, 8 and 32 clients: requests per second, median and 99th percentile, and both as ratios to one call of
the bare encoder. Then the process is killed under the load of 32 clients, again and again, and every example that
was acknowledged must be there when it comes back.
"""

from __future__ import annotations

import base64
import functools
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch

from apl.checkpoint import FOR_DRAWINGS, current_commit, write_json
from apl.cli.options import TrainedModel, arg
from apl.data.glyphs import draw_glyphs
from apl.learner import Learner
from apl.pictures.drawings import to_png
from experiments.bench.http_load import Load, Sent, load, run
from experiments.paper.results import RESULTS
from experiments.paper.subjects import image_size

CLIENTS = (1, 8, 32)
CLASSES, DRAWINGS = 40, 20
Kind = Literal["predict", "learn", "learn_new"]
KINDS: tuple[Kind, ...] = ("learn", "predict", "learn_new")
"""In this order: questions are asked of the memory that the examples of 32 clients have filled."""


@dataclass
class Running:
    """A server process and where it listens."""

    process: subprocess.Popen[str]
    port: int

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=60) as answer:
            return json.load(answer)

    def post(self, request: Sent) -> Any:
        made = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{request.path}",
            request.body,
            {"content-type": "application/json", **request.headers},
        )
        with urllib.request.urlopen(made, timeout=60) as answer:
            return json.load(answer)

    def rows(self) -> Iterator[dict[str, Any]]:
        after: int | None = 0
        while after is not None:
            page = self.get(f"/v1/memories/default/rows?limit=500&after={after}")
            yield from page["rows"]
            after = page["next"]


@contextmanager
def serving(model: str, memory: Path | str, *options: str) -> Iterator[Running]:
    """`apl serve` in a process of its own; killed at the end if it is still there."""
    command = [sys.executable, "-m", "apl", "serve", "--model", model, "--memory", str(memory), "--port", "0"]
    process = subprocess.Popen(
        [*command, "--rate", "0", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ},
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if "http" not in line:
            raise RuntimeError("the service did not start: try `apl serve` by hand to see why")
        running = Running(process, int(line.rstrip("/\n").rsplit(":", 1)[1]))
        deadline = time.monotonic() + 120
        while True:
            try:
                running.get("/readyz")
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError("the service did not become ready") from None
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


def requests(kind: Kind, examples: list[tuple[int, str]], memory: str = "default") -> Iterator[Sent]:
    """An endless stream. `learn_new` gives each example a label of its own, so that every one is written."""
    for number in itertools.count():
        sign, picture = examples[number % len(examples)]
        if kind == "predict":
            yield Sent(f"/v1/memories/{memory}/predict", json.dumps({"image": picture}).encode())
            continue
        label = f"character {sign}" if kind == "learn" else f"new {number}"
        body = {"image": picture, "label": label, "source": f"lesson {number}"}
        key = {"Idempotency-Key": f"{kind} {number}"}
        yield Sent(f"/v1/memories/{memory}/learn", json.dumps(body).encode(), key, note=body)


def bare_encoder_ms(learner: Learner, batch: int, repeats: int = 60) -> float:
    """Median time of one call with this many pictures, per picture."""
    size = image_size(learner.config.encoder)
    x = torch.randint(0, 256, (1, batch, 1, size, size), dtype=torch.uint8)
    times = []
    with torch.no_grad():
        for _ in range(repeats):
            started = time.perf_counter()
            learner.embed(x)
            times.append(time.perf_counter() - started)
    return 1000 * sorted(times)[len(times) // 2] / batch


def measure(model: str, seconds: float) -> dict[str, Any]:
    """Throughput and latency, each kind of request with each number of clients, in fresh memories."""
    learner = Learner.load(model)
    examples = drawings(image_size(learner.config.encoder))
    result: dict[str, Any] = {"bare_encoder_ms": bare_encoder_ms(learner, 1)}
    started = time.process_time()
    bare_encoder_ms(learner, 1)
    result["bare_encoder_cpu_ms"] = 1000 * (time.process_time() - started) / 60
    result["bare_encoder_ms_per_picture_in_32"] = bare_encoder_ms(learner, 32, 12)
    bare = result["bare_encoder_ms"]
    with tempfile.TemporaryDirectory() as scratch, serving(model, Path(scratch) / "bench.apl") as server:
        for kind in KINDS:
            table: dict[str, Any] = {}
            for clients in CLIENTS:
                memory = f"{kind}-{clients}" if kind != "predict" else "learn-32"
                _make(server, memory)
                stream = requests(kind, examples, memory)
                run(load(server.port, clients, 0.5, stream))
                before = _cpu_seconds(server.process.pid)
                found = run(load(server.port, clients, seconds, stream, keep=kind == "learn"))
                row = found.summary()
                row["server_cpu_ms"] = 1000 * (_cpu_seconds(server.process.pid) - before) / max(1, row["requests"])
                row["p50_over_bare_encoder"] = row["p50_ms"] / bare
                row["throughput_over_bare_encoder"] = row["per_second"] * bare / 1000
                row["p99_over_p50"] = row["p99_ms"] / row["p50_ms"]
                if kind == "learn":
                    row["share_written"] = sum(a["written"] for _, a in found.answered) / max(1, len(found.answered))
                table[str(clients)] = row
                print(
                    f"{kind:<10} {clients:>3} clients  {row['per_second']:7.1f}/s  p50 {row['p50_ms']:7.1f} ms  "
                    f"p99 {row['p99_ms']:7.1f} ms  errors {row['errors']}",
                    file=sys.stderr,
                )
            table["speedup_32_over_1"] = table["32"]["per_second"] / table["1"]["per_second"]
            result[kind] = table
        result["bare_encoder_ms_after"] = bare_encoder_ms(learner, 1)
    return result


def kill_under_load(model: str, memory: Path, kills: int, clients: int = 32, answers: int = 40) -> dict[str, Any]:
    """Kill the server after some answers, in the middle of other requests; start it again and look for what it acknowledged."""
    examples = drawings(image_size(Learner.load(model).config.encoder), seed=1)
    stream = requests("learn_new", examples)
    acknowledged: dict[int, tuple[Sent, dict[str, Any]]] = {}
    outcome = {"kills": kills, "acknowledged": 0, "lost": 0, "written_twice": 0, "retries_that_differ": 0}
    for number in range(kills):
        with serving(model, memory) as server:
            _compare(server, acknowledged, outcome)

            kill = functools.partial(_kill_after, answers + number, server.process)
            found = run(load(server.port, clients, 300, stream, keep=True, answered=kill))
            if found.errors:
                raise RuntimeError(f"an error under load: {found.errors[0]}")
            acknowledged |= {receipt["row"]: (sent, receipt) for sent, receipt in found.answered}
            print(f"kill {number + 1}: {len(acknowledged)} acknowledged, {outcome['lost']} lost", file=sys.stderr)
    with serving(model, memory) as server:
        _compare(server, acknowledged, outcome)
    outcome["acknowledged"] = len(acknowledged)
    return outcome


def _kill_after(answers: int, process: subprocess.Popen[str], found: Load) -> None:
    if len(found.answered) >= answers:
        process.kill()


def _compare(server: Running, acknowledged: dict[int, tuple[Sent, dict[str, Any]]], outcome: dict[str, Any]) -> None:
    rows = {row["row"]: row for row in server.rows()}
    for id, (sent, _) in acknowledged.items():
        row = rows.get(id)
        outcome["lost"] += row is None or (row["label"], row["source"]) != (sent.note["label"], sent.note["source"])
    sources = [row["source"] for row in rows.values()]
    outcome["written_twice"] += len(sources) - len(set(sources))
    for sent, receipt in list(acknowledged.values())[-8:]:
        outcome["retries_that_differ"] += server.post(sent) != receipt


def _cpu_seconds(pid: int) -> float:
    """Processor time a process has used so far, which other processes cannot lengthen; NaN where it cannot be read."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return float("nan")
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _make(server: Running, memory: str) -> None:
    made = urllib.request.Request(f"http://127.0.0.1:{server.port}/v1/memories/{memory}", method="PUT")
    urllib.request.urlopen(made, timeout=60).close()


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
            killed = kill_under_load(self.model, Path(scratch) / "killed.apl", self.kills)
        result = {"kill_9": killed, **measure(self.model, self.seconds)}
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
        write_json(RESULTS / "bench_service.json", result)
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
