"""`python -m experiments storage`: what a file costs after many examples, how long forgetting a source takes, and what a second
process that embeds gains."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
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
from experiments.bench.measurement import WARM_UP, ratio, take_turns
from experiments.paper.results import RESULTS

CLASSES, WIDTH = 5, 256
TIMED = 1000
"""Single examples, after those that are learnt in batches."""
SETTLED = 10
"""Batches before the process is measured."""
FORGOTTEN = 20
TURNS = 1
Part = Literal["growth", "forget", "workers"]


@dataclass
class Command:
    """Each part that is measured takes its place in results/bench_storage.json; the others stay."""

    parts: Annotated[list[Part], Positional, arg(metavar="PART")] = field(default_factory=lambda: ["growth", "forget"])
    """What to measure, in files in a temporary place. `workers` needs two quiet cores and the photographs of ImageNet."""
    examples: Annotated[int, arg(metavar="N")] = 60_000
    """Of 256 numbers, in five rows: without sources, and each with a source of its own."""
    rows: Annotated[int, arg(metavar="N")] = 1000
    sources: Annotated[int, arg(metavar="N")] = 1000
    """Of each row, one example of 32 numbers each; one of them is forgotten."""
    largest: Annotated[int, arg(metavar="N")] = 4800
    """Sources of one more row, of which one is forgotten, too."""
    photographs: Annotated[int, arg(metavar="N")] = 3000
    """Learnt by `apl learn` in one process, and with two workers."""
    output: Annotated[Path, arg(metavar="FILE")] = RESULTS / "bench_storage.json"

    def run(self) -> None:
        measured: dict[Part, Callable[[Path], dict[str, Any]]] = {
            "growth": lambda folder: {
                name: growth(subfolder(folder, name), self.examples, named=name == "named_sources")
                for name in ("without_sources", "named_sources")
            },
            "forget": lambda folder: forget(folder / "m.apl", self.rows, self.sources, self.largest),
            "workers": lambda folder: workers(folder, self.photographs),
        }
        for part in self.parts:
            with tempfile.TemporaryDirectory() as folder:
                found = measured[part](Path(folder))
            found |= {"commit": current_commit(), "load_average": round(os.getloadavg()[0], 1)}
            kept = json.loads(self.output.read_text()) if self.output.exists() else {}
            write_json(self.output, kept | {part: found})
            print(part, json.dumps(found), flush=True)


def growth(folder: Path, examples: int, named: bool) -> dict[str, Any]:
    """The file and the process after many examples, and `learn_one` there and in a memory of few, in turns."""
    chance = np.random.default_rng(0)
    centres, names = 10 * chance.standard_normal((CLASSES, WIDTH)), map(str, itertools.count())

    def drawn(number: int) -> tuple[np.ndarray, list[str], list[str | None]]:
        label = chance.integers(CLASSES, size=number)
        x = centres[label] + 0.1 * chance.standard_normal((number, WIDTH))
        return x, [f"class {n}" for n in label], [next(names) if named else None for _ in label]

    def in_batches(classifier: OnlineClassifier, sizes: Iterable[int]) -> None:
        for size in sizes:
            x, y, sources = drawn(size)
            classifier.learn_many(x, y, sources=sources if named else None)

    def one(classifier: OnlineClassifier) -> None:
        [x], [y], [source] = drawn(1)
        classifier.learn_one(x, y, source=source)

    few, many = (OnlineClassifier.for_features(WIDTH, memory=folder / f"{n}.apl", max_rows=20) for n in ("few", "many"))
    with few, many:
        left = batches(examples - TIMED - WARM_UP)
        in_batches(few, left[:SETTLED])
        # What the first batches load stays in the process; what grows with examples goes on growing.
        in_batches(many, left[:SETTLED])
        memory = resident()
        in_batches(many, left[SETTLED:])
        grown = resident() - memory
        seconds = take_turns({"few": lambda: one(few), "many": lambda: one(many)}, TIMED, clock=time.thread_time)
        kept = {"rows": len(many), "examples": int(many.store.load().counts.sum())}
    size = (folder / "many.apl").stat().st_size
    milliseconds = {f"after_{name}": round(1000 * median(taken), 3) for name, taken in seconds.items()}
    return {
        **kept,
        "file_megabytes": round(size / 1e6, 3),
        "file_by_key_bytes": round(size / (examples * 4 * WIDTH), 3),
        "learn_one_processor_ms": {**milliseconds, "ratio": round(ratio(seconds["many"], seconds["few"]), 3)},
        "resident_megabytes": {"start": round(memory, 1), "grown": round(grown, 1)},
    }


def forget(path: Path, rows: int, sources: int, largest: int) -> dict[str, Any]:
    """`forget(source=…)` in a memory of rows that each are the mean of many named sources, one of even more."""
    chance = np.random.default_rng(1)
    with OnlineClassifier.for_features(32, memory=path) as classifier:
        for row, number in enumerate([sources] * rows + [largest]):
            keys = chance.standard_normal((number, 32))
            shares = tuple(SourceShare(f"{row}/{n}", key) for n, key in enumerate(keys))
            mean = keys.mean(0).astype(np.float32)
            new = NewRow(f"class {row % 20}", mean, source=f"{row}/0", count=number, shares=shares)
            classifier.store.append([new])
        classifier.close()

        def times(names: list[str]) -> dict[str, float]:
            taken = [milliseconds(lambda: classifier.forget(source=name)) for name in names]
            processor, clock = (median(column) for column in zip(*taken, strict=True))
            return {"processor": round(processor, 1), "clock": round(clock, 1)}

        classifier.forget(source="0/1")
        usual = times([f"{chance.integers(rows)}/{chance.integers(1, sources)}" for _ in range(FORGOTTEN)])
        most = times([f"{rows}/{1 + n}" for n in range(FORGOTTEN)])
        left = classifier.store.load().counts.sum()
    return {
        "examples": rows * sources + largest,
        "rows": rows + 1,
        "examples_left": int(left),
        "median_ms": usual,
        "sources_of_the_largest_row": largest,
        "median_ms_largest_row": most,
    }


def workers(folder: Path, photographs: int) -> dict[str, Any]:
    """Seconds of the whole command, from its start to its end, one process and two workers in turns."""
    from experiments.data.imagenet import imagenet

    pictures = imagenet("val")
    for number, (content, label) in enumerate(zip(pictures.contents(), pictures.labels[:photographs], strict=False)):
        place = folder / "photographs" / f"class {label}" / f"{number}.webp"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
    seconds: dict[int, list[float]] = {1: [], 2: []}
    for turn, number in itertools.product(range(TURNS), seconds):
        command = [sys.executable, "-m", "apl", "learn", str(folder / "photographs"), "--model", "photo"]
        command += ["--memory", str(folder / f"{turn}-{number}.apl"), "--workers", str(number)]
        start = time.perf_counter()
        subprocess.run(
            command, check=True, capture_output=True, timeout=300, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
        seconds[number].append(round(time.perf_counter() - start, 2))
    return {"photographs": photographs, "seconds": seconds, "ratio": round(ratio(seconds[1], seconds[2]), 3)}


def subfolder(folder: Path, name: str) -> Path:
    (folder / name).mkdir()
    return folder / name


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
