"""Recalling and writing: `Memory` against FAISS (flat) and a plain numpy scan.

Each contender gets 32 queries and must return the k nearest rows in full (distance, key and label of each,
nearest first), then take in 32 new rows. FAISS and numpy return what their arithmetic gives; `Memory` also
proves that no nearer row was lost to rounding, and orders ties by age.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Any, Protocol, runtime_checkable

import numpy as np

from apl.memory import Column, RamMemory
from experiments.bench.timing import Contender, ratio, take_turns

WIDTH, QUERIES = 256, 32
ROWS, NEIGHBOURS = (100, 1000, 3000), (5, 16)


@dataclass(frozen=True)
class FoundRows:
    """The same from every contender; `[query, k]` and `[query, k, width]`."""

    distance: Any
    label: Any
    key: Any


@runtime_checkable
class SearchContender(Protocol):
    """What is compared."""

    def search(self, query: Any, k: int) -> FoundRows: ...

    def insert(self, keys: Any, labels: Any) -> None: ...

    def cut(self, rows: int) -> None:
        """Back to the first rows."""


class OurStore:
    def __init__(self) -> None:
        self.memory = RamMemory({"embedding": Column((WIDTH,)), "label": Column((), np.int64)}, ("embedding",))

    def search(self, query: np.ndarray, k: int) -> FoundRows:
        found = self.memory.nearest("embedding", query[None], k)
        return FoundRows(found.distance[0], found.columns["label"][0], found.columns["embedding"][0])

    def insert(self, keys: np.ndarray, labels: np.ndarray) -> None:
        everything = np.ones((1, len(keys)), bool)
        self.memory.write({"embedding": keys[None], "label": labels[None]}, everything)

    def cut(self, rows: int) -> None:
        self.memory.remove(np.arange(len(self.memory))[None] >= rows)


class NumpyScan:
    """Keys and their squared norms in preallocated arrays; partial selection, then a sort of the k."""

    def __init__(self, capacity: int) -> None:
        self.keys = np.zeros((capacity, WIDTH), np.float32)
        self.norms = np.zeros(capacity, np.float32)
        self.labels = np.zeros(capacity, np.int64)
        self.count = 0

    def search(self, query: np.ndarray, k: int) -> FoundRows:
        score = query @ self.keys[: self.count].T
        score *= -2
        score += self.norms[: self.count]
        some = np.argpartition(score, k - 1, axis=1)[:, :k]
        best = np.take_along_axis(score, some, 1)
        order = best.argsort(1)
        row = np.take_along_axis(some, order, 1)
        square = np.take_along_axis(best, order, 1) + np.einsum("qd,qd->q", query, query)[:, None]
        return FoundRows(np.sqrt(np.maximum(square, 0)), self.labels[row], self.keys[row])

    def insert(self, keys: np.ndarray, labels: np.ndarray) -> None:
        where = slice(self.count, self.count + len(keys))
        self.keys[where], self.labels[where] = keys, labels
        self.norms[where] = np.einsum("qd,qd->q", keys, keys)
        self.count += len(keys)

    def cut(self, rows: int) -> None:
        self.count = rows


class FaissFlat:
    """An exact FAISS index of the keys; a numpy array of the same keys and labels gives back the rows."""

    def __init__(self, capacity: int) -> None:
        import faiss

        self.index = faiss.IndexFlatL2(WIDTH)
        self.keys = np.zeros((capacity, WIDTH), np.float32)
        self.labels = np.zeros(capacity, np.int64)

    def search(self, query: np.ndarray, k: int) -> FoundRows:
        square, row = self.index.search(query, k)
        return FoundRows(np.sqrt(square), self.labels[row], self.keys[row])

    def insert(self, keys: np.ndarray, labels: np.ndarray) -> None:
        where = slice(self.index.ntotal, self.index.ntotal + len(keys))
        self.keys[where], self.labels[where] = keys, labels
        self.index.add(keys)

    def cut(self, rows: int) -> None:
        import faiss

        self.index.remove_ids(faiss.IDSelectorRange(rows, self.index.ntotal))


def search(rounds: int) -> list[dict[str, Any]]:
    """One record per number of rows and k, with the ratio to the better of the other two."""
    return [compare(rows, k, rounds) for rows in ROWS for k in NEIGHBOURS]


def compare(rows: int, k: int, rounds: int) -> dict[str, Any]:
    generator = np.random.default_rng(rows)
    keys = generator.standard_normal((rows, WIDTH), np.float32)
    labels = generator.integers(20, size=rows)
    query = generator.standard_normal((QUERIES, WIDTH), np.float32)
    stores: dict[str, SearchContender] = {
        "memory": OurStore(),
        "faiss": FaissFlat(rows + QUERIES),
        "numpy": NumpyScan(rows + QUERIES),
    }
    contenders = {name: _contender(store, query, keys, labels, rows, k) for name, store in stores.items()}
    check_same_answers(stores, query, k)
    seconds = take_turns(contenders, rounds, in_a_row=10)
    medians = {name: median(times) for name, times in seconds.items()}
    best = min(("faiss", "numpy"), key=medians.__getitem__)
    return {
        "rows": rows,
        "k": k,
        **{f"{name}_microseconds": round(1e6 * taken, 1) for name, taken in medians.items()},
        "best_other": best,
        "ratio_to_best": round(ratio(seconds["memory"], seconds[best]), 3),
    }


def _contender(store: SearchContender, query: Any, keys: Any, labels: Any, rows: int, k: int) -> Contender:
    store.insert(keys, labels)

    def step() -> None:
        store.search(query, k)
        store.insert(query, labels[:QUERIES])

    return Contender(step, lambda: store.cut(rows))


def check_same_answers(stores: dict[str, SearchContender], query: np.ndarray, k: int) -> None:
    """A race means something only between contenders that answer the same."""
    ours = stores["memory"].search(query, k)
    for name in ("faiss", "numpy"):
        theirs = stores[name].search(query, k)
        for part in ("distance", "label", "key"):
            if not np.allclose(getattr(theirs, part), getattr(ours, part), rtol=1e-3, atol=1e-3):
                raise RuntimeError(f"{name} and the memory disagree on the {part} of the {k} nearest rows")
