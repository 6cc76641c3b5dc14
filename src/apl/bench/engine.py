"""Recall on an engine against the engine's own bare query, and a follower against a reader that has nothing to follow.

Rows are embeddings given by the caller (real ones). Where more rows are wanted than there are, the others lie between
two of the same class; what is measured of recall is measured on the given ones alone.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from apl.classifier.durable_memory import DurableMemory
from apl.classifier.engine_memory import EngineMemory
from apl.classifier.features import feature_learner
from apl.store import NewRow, NoSuchMemory, Store, delete_memory, open_store

K = 16
ROWS_AT_ONCE = 5000
OPENING = """
import sys, time
import apl.classifier.open_world
from apl.classifier.engine_memory import EngineMemory
from apl.classifier.features import feature_learner
from apl.store import list_memories, open_store
list_memories(sys.argv[1])  # the client's library is loaded by now
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
learner = feature_learner(int(sys.argv[3])).on_embeddings()
before, start = resident(), time.perf_counter()
store = open_store(sys.argv[1], sys.argv[2], shared=sys.argv[1].startswith("postgres"))
memory = EngineMemory(learner, store)
print(time.perf_counter() - start, resident() - before, resident(), len(memory))
"""


def more_rows(x: np.ndarray, y: np.ndarray, rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """So many rows: the given ones, then points between two of the same class."""
    if rows <= len(x):
        return x[:rows], y[:rows]
    rng = np.random.default_rng(seed)
    order = np.argsort(y, kind="stable")
    first = rng.integers(0, len(x) - 1, rows - len(x))
    a, b = order[first], order[first + 1]
    share = rng.uniform(0.2, 0.8, len(first)).astype(np.float32)[:, None]
    return np.concatenate([x, x[a] * share + x[b] * (1 - share)]), np.concatenate([y, y[a]])


def fill(store: Store, x: np.ndarray, y: np.ndarray) -> float:
    """Seconds per row."""
    start = time.perf_counter()
    for begin in range(0, len(x), ROWS_AT_ONCE):
        part = slice(begin, begin + ROWS_AT_ONCE)
        store.append([NewRow(int(label), key) for key, label in zip(x[part], y[part], strict=True)])
    return (time.perf_counter() - start) / len(x)


def forget_earlier(url: str, name: str) -> None:
    with suppress(NoSuchMemory):
        delete_memory(url, name)


def in_turns(contenders: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median milliseconds of each, taking turns: all meet the same load of the machine."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(-1, rounds):
        for name, run in contenders.items():
            start = time.perf_counter()
            run()
            if turn >= 0:
                seconds[name].append(time.perf_counter() - start)
    found = {f"{name}_ms": round(1000 * median(taken), 2) for name, taken in seconds.items()}
    ratios = [a / b for a, b in zip(*list(seconds.values())[:2], strict=True)]
    return {**found, "ratio": round(median(ratios), 3)}


def opening(url: str, name: str, width: int) -> dict[str, float]:
    """In a process of its own: how long, how much more memory than before, and how much in all."""
    command = [sys.executable, "-c", OPENING, url, name, str(width)]
    seconds, more, total, rows = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return {
        "seconds": round(float(seconds), 3),
        "megabytes": round(int(more) / 1e6, 1),
        "process_megabytes": round(int(total) / 1e6, 1),
        "rows": int(rows),
    }


def bare_query(store: Store) -> Callable[[np.ndarray], object]:
    """The engine's own query through its client, for the same columns."""
    if type(store).__name__ == "PostgresStore":
        query = (
            "SELECT id, label_text, label_integer, source, vector_send(key), count FROM apl.rows WHERE id IN (SELECT id"
            f" FROM apl.rows WHERE memory = {store._memory} ORDER BY key <-> %b LIMIT {K}) AND memory = {store._memory}"
        )

        def ask(key: np.ndarray) -> object:
            with store._session() as connection:
                return connection.execute(query, (key,)).fetchall()

        return ask
    columns = ["id", "label", "source", "key", "count"]
    return lambda key: store._client.search(
        store._collection, [key.tolist()], limit=K, output_fields=columns, consistency_level="Strong"
    )


def engine(url: str, x: np.ndarray, y: np.ndarray, rows: int, rounds: int) -> dict[str, Any]:
    """One engine with so many rows."""
    keys, labels = more_rows(x, y, rows)
    name, width = f"bench-{rows}", keys.shape[1]
    rng = np.random.default_rng(1)
    asked = [
        keys[n] + 0.05 * rng.standard_normal(width).astype(np.float32) for n in rng.integers(0, min(rows, len(x)), 64)
    ]
    forget_earlier(url, name)
    with open_store(url, name, fingerprint="bench", width=width) as store:
        per_row = fill(store, keys, labels)
    shared = {"shared": True} if url.startswith("postgres") else {}
    with open_store(url, name, fingerprint="bench", width=width, **shared) as store:
        rows_in_reach = EngineMemory(feature_learner(width).on_embeddings(), store).ram
        questions, bare = iter(asked * rounds), bare_query(store)

        def ours() -> object:
            return rows_in_reach.nearest("embedding", next(questions)[None, None], K)

        result = {"rows": rows, "write_ms_per_row": round(1000 * per_row, 3)}
        result["question"] = in_turns({"ours": ours, "bare": lambda: bare(next(questions))}, rounds)
    return {**result, "opening": opening(url, name, width)}


def recall_of_index(url: str, x: np.ndarray, y: np.ndarray, questions: int = 200) -> dict[str, Any]:
    """How many of the true nearest rows the HNSW index finds, on the given embeddings alone."""
    order, width = np.random.default_rng(2).permutation(len(x)), x.shape[1]
    asked, kept, labels = x[order[:questions]], x[order[questions:]], y[order[questions:]]
    forget_earlier(url, "bench-index")
    with open_store(url, "bench-index", fingerprint="bench", width=width) as store:
        fill(store, kept, labels)
        start = time.perf_counter()
        exact = [set(store.nearest(key, K).ids.tolist()) for key in asked]
        exact_ms = 1000 * (time.perf_counter() - start) / questions
    with open_store(url, "bench-index", fingerprint="bench", width=width, approximate=True) as store:
        start = time.perf_counter()
        found = [set(store.nearest(key, K).ids.tolist()) for key in asked]
        ms = 1000 * (time.perf_counter() - start) / questions
    shares = np.array([len(a & b) / len(a) for a, b in zip(exact, found, strict=True)])
    half = 1.96 * shares.std() / len(shares) ** 0.5
    return {
        "rows": len(kept),
        "k": K,
        "questions": questions,
        "recall": round(float(shares.mean()), 4),
        "interval_95": [round(float(shares.mean() - half), 4), round(float(min(1, shares.mean() + half)), 4)],
        "exact_ms": round(exact_ms, 2),
        "approximate_ms": round(ms, 2),
    }


def following(x: np.ndarray, y: np.ndarray, rows: int, rounds: int) -> dict[str, Any]:
    """A reader of a file whose answer comes after a write, against one that has nothing to take in.

    In this thread's own time, which stands still while the machine serves others.
    """
    clock = time.thread_time
    keys, labels = more_rows(x, y, rows)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.apl"
        with open_store(path, fingerprint="bench", width=keys.shape[1]) as writer:
            fill(writer, keys, labels)
            with closing(open_store(path, read_only=True)) as store:
                memory = DurableMemory(feature_learner(keys.shape[1]).on_embeddings(), store)

                def answer() -> object:
                    if memory.is_stale():
                        memory.follow()
                    return memory.ram.nearest("embedding", keys[:1][None], K)

                idle, after = [], []
                for turn in range(-1, rounds):
                    start = clock()
                    answer()
                    middle = clock()
                    writer.append([NewRow(int(labels[turn]), keys[turn])])
                    written = clock()
                    answer()
                    if turn >= 0:
                        idle.append(middle - start)
                        after.append(clock() - written)
    return {
        "rows": rows,
        "idle_ms": round(1000 * median(idle), 2),
        "after_a_write_ms": round(1000 * median(after), 2),
        "ratio": round(median(b / a for a, b in zip(idle, after, strict=True)), 3),
    }


def bench(urls: list[str], x: np.ndarray, y: np.ndarray, rows: list[int], rounds: int) -> dict[str, Any]:
    result: dict[str, Any] = {"width": x.shape[1], "embeddings": len(x), "k": K, "rounds": rounds, "engines": {}}
    for url in urls:
        measured = [engine(url, x, y, size, rounds) for size in rows]
        result["engines"][url.partition(":")[0]] = {"sizes": measured, "hnsw": recall_of_index(url, x, y)}
    result["follower"] = following(x, y, min(100_000, max(rows)), rounds)
    result["cores"], result["load_average"] = os.cpu_count(), round(os.getloadavg()[0], 1)
    result["peak_megabytes"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    return result
