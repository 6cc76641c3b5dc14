"""`python -m experiments storage`: what a file costs after many examples, and how long forgetting a source takes."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Literal

import numpy as np
from tyro.conf import Positional

from apl.checkpoint import current_commit, write_json
from apl.classifier.online import OnlineClassifier
from apl.cli.options import arg
from apl.store import NewRow, SourceShare
from experiments.paper.results import RESULTS

CLASSES = 5
WARM_UP, TIMED = 200, 1000
"""Single examples at the start and at the end; those between are learnt in batches."""
FORGOTTEN = 20
Part = Literal["growth", "forget"]


@dataclass
class Command:
    """Each part that is measured takes its place in results/bench_storage.json; the other stays."""

    parts: Annotated[list[Part], Positional, arg(metavar="PART")] = field(default_factory=lambda: ["growth", "forget"])
    """What to measure, in a file in a temporary place."""
    examples: Annotated[int, arg(metavar="N")] = 60_000
    """Of 256 numbers, without sources, in five rows."""
    rows: Annotated[int, arg(metavar="N")] = 1000
    sources: Annotated[int, arg(metavar="N")] = 1000
    """Of each row, one example of 32 numbers each; one of them is forgotten."""
    output: Annotated[Path, arg(metavar="FILE")] = RESULTS / "bench_storage.json"

    def run(self) -> None:
        for part in self.parts:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "m.apl"
                found = growth(path, self.examples) if part == "growth" else forget(path, self.rows, self.sources)
            found |= {"commit": current_commit(), "load_average": round(os.getloadavg()[0], 1)}
            kept = json.loads(self.output.read_text()) if self.output.exists() else {}
            write_json(self.output, kept | {part: found})
            print(part, json.dumps(found), flush=True)


def growth(path: Path, examples: int) -> dict[str, Any]:
    """The file, the process and the processor time of `learn_one`, early and late."""
    chance = np.random.default_rng(0)
    centres = 10 * chance.standard_normal((CLASSES, 256))

    def drawn(number: int) -> tuple[np.ndarray, list[str]]:
        label = chance.integers(CLASSES, size=number)
        return centres[label] + 0.1 * chance.standard_normal((number, 256)), [f"class {n}" for n in label]

    with OnlineClassifier.for_features(256, memory=path, max_rows=20) as classifier:

        def one_by_one(number: int) -> list[float]:
            return [milliseconds(lambda: classifier.learn_one(x, y))[0] for x, y in zip(*drawn(number), strict=True)]

        one_by_one(WARM_UP)
        start, left = median(one_by_one(TIMED)), batches(examples - WARM_UP - 2 * TIMED)
        classifier.learn_many(*drawn(left.pop()))
        memory = resident()
        for size in left:
            classifier.learn_many(*drawn(size))
        end = median(one_by_one(TIMED))
        kept = {"rows": len(classifier), "examples": int(classifier.store.load().counts.sum())}
        grown = resident() - memory
    return {
        **kept,
        "file_megabytes": round(path.stat().st_size / 1e6, 3),
        "learn_one_processor_ms": {"start": round(start, 3), "end": round(end, 3), "ratio": round(end / start, 3)},
        "resident_megabytes": {"start": round(memory, 1), "grown": round(grown, 1)},
    }


def forget(path: Path, rows: int, sources: int) -> dict[str, Any]:
    """`forget(source=…)` in a memory of rows that each are the mean of many named sources."""
    chance = np.random.default_rng(1)
    with OnlineClassifier.for_features(32, memory=path) as classifier:
        for row in range(rows):
            keys = chance.standard_normal((sources, 32))
            shares = tuple(SourceShare(f"{row}/{n}", key) for n, key in enumerate(keys))
            mean = keys.mean(0).astype(np.float32)
            new = NewRow(f"class {row % 20}", mean, source=f"{row}/0", count=sources, shares=shares)
            classifier.store.append([new])
        classifier.close()
        names = [f"{chance.integers(rows)}/{chance.integers(1, sources)}" for _ in range(FORGOTTEN)]
        times = [milliseconds(lambda: classifier.forget(source=name)) for name in ["0/1", *names]]
        left = classifier.store.load().counts.sum()
    processor, clock = (median(column) for column in zip(*times[1:], strict=True))
    return {
        "examples": rows * sources,
        "rows": rows,
        "examples_left": int(left),
        "median_ms": {"processor": round(processor, 1), "clock": round(clock, 1)},
    }


def milliseconds(call: Callable[[], object]) -> tuple[float, float]:
    """Of the processor, and of the clock."""
    start, clock = time.thread_time(), time.perf_counter()
    call()
    return 1000 * (time.thread_time() - start), 1000 * (time.perf_counter() - clock)


def batches(examples: int, size: int = 500) -> list[int]:
    return [min(size, examples - start) for start in range(0, examples, size)]


def resident() -> float:
    """Megabytes of this process in RAM."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
