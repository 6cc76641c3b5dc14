"""A memory on PostgreSQL with Milvus as its index: a whole question against the bare queries of both servers."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from apl.classifier.online import OnlineClassifier
from apl.store import open_store
from apl.store.indexed import IndexedStore
from experiments.bench.engine_rows import K, fill, more_rows, questions_like, share_found
from experiments.bench.measurement import ratio, take_turns
from experiments.bench.milvus_server import LocalMilvus
from experiments.bench.servers import PostgresServer

NAME = "bench-indexed"
PROGRAMS = Path("runs/milvus-server")
"""Where Milvus is unpacked, once."""


def indexed(server: PostgresServer, x: np.ndarray, y: np.ndarray, rows: int, rounds: int) -> dict[str, Any]:
    """`tail` is what the database is asked: the rows of the ids found, and those that changed since."""
    keys, labels = more_rows(x, y, rows)
    width, milvus = keys.shape[1], LocalMilvus(PROGRAMS)
    try:
        with OnlineClassifier.for_features(width, memory=server.url, name=NAME) as plain:
            fill(plain.adopt, keys, labels)
        server.settle()
        start = time.perf_counter()
        with open_store(server.url, NAME, index=milvus.url) as store:
            store.reindex()
        filled = time.perf_counter() - start
        with OnlineClassifier.for_features(width, memory=server.url, name=NAME, index=milvus.url) as classifier:
            store = classifier.store
            assert isinstance(store, IndexedStore)
            wait_until_settled(store)
            bare, tail = bare_queries(store, 2 * K)
            questions = iter(np.concatenate([questions_like(keys, 64)] * (1 + rounds)))
            seconds = take_turns(
                {
                    "ours": lambda: classifier.predict_proba_one(next(questions)),
                    "bare": lambda: bare(next(questions)[None]),
                    "tail": tail,
                },
                rounds,
                clock=time.perf_counter,
            )
            alone = [one + other for one, other in zip(seconds["bare"], seconds["tail"], strict=True)]
            question = {f"{name}_ms": round(1000 * median(taken), 2) for name, taken in seconds.items()}
            return {
                "rows": rows,
                "fill_ms_per_row": round(1000 * filled / rows, 3),
                "question": {**question, "ratio": round(ratio(seconds["ours"], alone), 3), "rounds": rounds},
                "share_of_the_true_16_found": share_found(store, keys, questions_like(keys, 10)),
            }
    finally:
        milvus.close()


def wait_until_settled(store: IndexedStore, patience: float = 120.0) -> None:
    """Until the index is known to show all rows. Questions move its mark."""
    deadline = time.monotonic() + patience
    while (
        (mark := store._mark()) is None
        or mark.pending < mark.filled
        or time.time() - mark.pending_at <= store._index.stale_seconds
    ):
        if time.monotonic() > deadline:
            raise RuntimeError("the index did not settle")
        time.sleep(1.0)
        store.recall(np.ones((1, store.width), np.float32), 1)


def bare_queries(store: IndexedStore, k: int) -> tuple[Callable[[np.ndarray], list[list[int]]], Callable[[], object]]:
    """The engine's own search, and the question to the database that follows it."""
    mark = store._mark()
    assert mark is not None
    collection, found = store._collection(mark), [list[int]()]

    def bare(keys: np.ndarray) -> list[list[int]]:
        found[0] = store._index.nearest(collection, keys / np.linalg.norm(keys), k)[0]
        return found

    bare(np.ones((1, store.width), np.float32))
    return bare, lambda: store._known_and_tail(found[0], mark.filled)
