"""Recall on an engine against the engine's own bare query, the share that its approximate index finds, and a follower of
a file against a reader that has nothing to follow."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from apl.classifier.durable_memory import DurableMemory
from apl.classifier.features import feature_learner
from apl.classifier.online import OnlineClassifier
from apl.store import NewRow, NoSuchMemory, Store, delete_memory, is_on_server, open_store
from experiments.bench.engine_rows import more_rows
from experiments.bench.servers import LocalMilvus, PostgresServer

K = 16
ROWS_AT_ONCE = 20_000
OPENINGS = 5
OPENING = """
import json, sys, time
from apl.classifier.online import OnlineClassifier
from apl.store import list_memories
url, name, width = sys.argv[1], sys.argv[2], int(sys.argv[3])
OnlineClassifier.for_features(width).learn_one([1.0] * width, "a")
list_memories(url)  # the libraries are loaded by now
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096 / 1e6
before, start, worked = resident(), time.perf_counter(), time.process_time()
classifier = OnlineClassifier.for_features(width, memory=url, name=name)
opened, worked = time.perf_counter() - start, time.process_time() - worked
classifier.predict_proba_one([1.0] * width)
print(json.dumps({"seconds": opened, "processor_seconds": worked, "megabytes": resident() - before, "process_megabytes": resident(),
                  "rows": len(classifier)}))
"""


def forget_earlier(url: str, name: str) -> None:
    with suppress(NoSuchMemory):
        delete_memory(url, name)


def fill(store: Store, x: np.ndarray, y: np.ndarray) -> float:
    """Seconds per row."""
    start = time.perf_counter()
    for begin in range(0, len(x), ROWS_AT_ONCE):
        part = slice(begin, begin + ROWS_AT_ONCE)
        store.append([NewRow(int(label), key) for key, label in zip(x[part], y[part], strict=True)])
    return (time.perf_counter() - start) / len(x)


def in_turns(contenders: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median milliseconds of each, taking turns: all meet the same load of the machine. The ratio is that of the first
    to the second, round by round."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(-1, rounds):
        for name, run in contenders.items():
            start = time.perf_counter()
            run()
            if turn >= 0:
                seconds[name].append(time.perf_counter() - start)
    found = {f"{name}_ms": round(1000 * median(taken), 2) for name, taken in seconds.items()}
    first, second, *_ = seconds.values()
    return {**found, "ratio": round(median(a / b for a, b in zip(first, second, strict=True)), 3), "rounds": rounds}


def opening(url: str, name: str, width: int) -> dict[str, float]:
    """In processes of their own: how long, how much more memory than before, and how much in all."""
    command = [sys.executable, "-c", OPENING, url, name, str(width)]
    runs = [
        json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout) for _ in range(OPENINGS)
    ]
    found = {what: round(median(run[what] for run in runs), 3) for what in runs[0]}
    return {**found, "fastest_seconds": round(min(run["seconds"] for run in runs), 3), "openings": OPENINGS}


def bare_query(store: Store, k: int) -> Callable[[np.ndarray], object]:
    """The engine's own query through its client, for the same columns of as many rows."""
    if type(store).__name__ == "PostgresStore":
        from apl.store.postgres import OPERATORS, connect

        connection = connect(store._url, read_only=True)
        query = (
            "SELECT id, label_text, label_integer, source, vector_send(key), count FROM apl.rows WHERE id IN (SELECT id"
            f" FROM apl.rows WHERE memory = {store._memory} ORDER BY key {OPERATORS[store.metric]} %b LIMIT {k})"
            f" AND memory = {store._memory}"
        )
        return lambda key: connection.execute(query, (key,), binary=True).fetchall()
    columns = ["id", "label", "source", "key", "count"]
    return lambda key: store._client.search(
        store._collection, [key.tolist()], limit=k, output_fields=columns, consistency_level="Strong"
    )


def questions_like(x: np.ndarray, number: int, seed: int = 1) -> np.ndarray:
    """Points near given rows, as a new drawing of a known class would be."""
    rng = np.random.default_rng(seed)
    near = x[rng.integers(0, len(x), number)]
    return near + 0.05 * np.linalg.norm(near, axis=1).mean() / x.shape[1] ** 0.5 * rng.standard_normal(
        near.shape
    ).astype(np.float32)


def size(server: PostgresServer | LocalMilvus, x: np.ndarray, y: np.ndarray, rows: int, rounds: int) -> dict[str, Any]:
    """One engine with so many rows: a whole question (is the memory as we know it, recall, readers, P(new)) against the
    bare query; opening; bytes. Questions are near the given rows."""
    keys, labels = more_rows(x, y, rows)
    name, width = f"bench-{rows}", keys.shape[1]
    forget_earlier(server.url, name)
    with OnlineClassifier.for_features(width, memory=server.url, name=name) as classifier:
        server.settle()
        before = server.bytes_on_disk()
        per_row = fill(classifier.store, keys, labels)
        server.settle()
        bytes_per_row = (server.bytes_on_disk() - before) / rows
        asked = questions_like(x[:rows], 64)
        questions, k = iter(np.concatenate([asked] * (1 + rounds))), feature_learner(width, True).config.k
        bare = bare_query(classifier.store, k)
        question = in_turns(
            {"ours": lambda: classifier.predict_proba_one(next(questions)), "bare": lambda: bare(next(questions))},
            rounds,
        )
        exact = share_found(classifier.store, keys, asked[:10])
    return {
        "rows": rows,
        "classes": len(np.unique(labels)),
        "write_ms_per_row": round(1000 * per_row, 3),
        "bytes_per_row": round(bytes_per_row),
        "question": {**question, "rows_read": k},
        "share_of_the_true_16_found": exact,
        "opening": opening(server.url, name, width),
    }


def share_found(store: Store, keys: np.ndarray, asked: np.ndarray) -> float:
    """Of the rows that are truly nearest, by a search of our own over all of them."""
    lengths, found = np.linalg.norm(keys, axis=1), []
    first = store.ids(most=1)[0]
    for question in asked:
        similarity = (keys @ question) / lengths
        best = set((np.argpartition(-similarity, K)[:K] + first).tolist())
        found.append(len(best & set(store.nearest(question, K).ids.tolist())) / K)
    return float(np.mean(found))


def index_recall(url: str, x: np.ndarray, y: np.ndarray, questions: int = 200) -> dict[str, Any]:
    """How many of the true nearest rows the approximate index finds, asked about embeddings that are not in the memory."""
    order, width = np.random.default_rng(2).permutation(len(x)), x.shape[1]
    asked, kept, labels = x[order[:questions]], x[order[questions:]], y[order[questions:]]
    options = {"fingerprint": "bench", "width": width, "metric": "cosine"}
    forget_earlier(url, "bench-index")
    with open_store(url, "bench-index", **options) as store:
        fill(store, kept, labels)
        start = time.perf_counter()
        exact = [set(store.nearest(key, K).ids.tolist()) for key in asked]
        exact_ms = 1000 * (time.perf_counter() - start) / questions
    start = time.perf_counter()
    with open_store(url, "bench-index", **options, approximate=True) as store:
        built = time.perf_counter() - start
        start = time.perf_counter()
        found = [set(store.nearest(key, K).ids.tolist()) for key in asked]
        ms = 1000 * (time.perf_counter() - start) / questions
        shown = store.index_recall()
    forget_earlier(url, "bench-index")
    shares = np.array([len(a & b) / len(a) for a, b in zip(exact, found, strict=True)])
    half = 1.96 * shares.std() / len(shares) ** 0.5
    return {
        "rows": len(kept),
        "width": width,
        "questions": questions,
        "recall_at_16": round(float(shares.mean()), 4),
        "interval_95": [round(float(shares.mean() - half), 4), round(float(min(1, shares.mean() + half)), 4)],
        "as_shown_by_memory_show": shown,
        "exact_ms": round(exact_ms, 2),
        "approximate_ms": round(ms, 2),
        "build_seconds": round(built, 1),
    }


def following(location: str | Path, x: np.ndarray, y: np.ndarray, rows: int, rounds: int) -> dict[str, Any]:
    """A reader with a copy in RAM whose answer comes after a write, against one that has nothing to take in.

    The ratio is of this thread's own time, which stands still while the machine serves others; that of the clock on the wall
    stands beside it, for a quiet machine.
    """
    keys, labels = more_rows(x, y, rows)
    seconds: dict[str, list[tuple[float, float]]] = {"idle": [], "after a write": []}
    if is_on_server(location):
        forget_earlier(str(location), "bench-follower")
    options = {"fingerprint": "bench", "width": keys.shape[1]}
    with (
        open_store(location, "bench-follower", **options) as writer,
        closing(open_store(location, "bench-follower", **options, read_only=True)) as store,
    ):
        fill(writer, keys, labels)
        memory = DurableMemory(feature_learner(keys.shape[1]).on_embeddings(), store)
        for turn in range(-1, rounds):
            for name, found in seconds.items():
                if name == "after a write":
                    writer.append([NewRow(int(labels[turn]), keys[turn])])
                worked, start = time.thread_time(), time.perf_counter()
                if memory.is_stale():
                    memory.follow()
                memory.ram.nearest("embedding", keys[:1][None], K)
                if turn >= 0:
                    found.append((time.thread_time() - worked, time.perf_counter() - start))
    own, wall = ([[taken[clock] for taken in found] for found in seconds.values()] for clock in (0, 1))
    ratio, wall_ratio = (round(median(b / a for a, b in zip(*both, strict=True)), 3) for both in (own, wall))
    return {
        "rows": rows,
        "rounds": rounds,
        "idle_ms": round(1000 * median(own[0]), 2),
        "after_a_write_ms": round(1000 * median(own[1]), 2),
        "ratio": ratio,
        "wall_ratio": wall_ratio,
    }
