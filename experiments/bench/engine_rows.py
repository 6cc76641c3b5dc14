"""Rows and questions to measure engines with: embeddings of jittered Omniglot drawings, and as many more like them as are wanted."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from apl.checkpoint import BUNDLED
from apl.store import NewRow, Store

DRAWINGS_AT_ONCE = 128
ROWS_AT_ONCE = 20_000
K = 16
"""Nearest rows that are compared."""


def jittered_drawings(file: Path, number: int, seed: int = 0) -> None:
    """Embed this many drawings of the validation characters, each deformed anew, by the bundled model; keep x and y."""
    import torch

    from apl.data.jitter import JitterConfig, jitter
    from apl.data.omniglot import omniglot
    from apl.encoder import scale_bytes
    from apl.exported import load_for_use
    from experiments.data.embedded import image_size

    learner = load_for_use(BUNDLED / "omniglot")
    data = omniglot("paper", "validation", rotations=True, size=image_size(learner.config.encoder))
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.arange(number) % len(data)
    x = []
    for start in range(0, number, DRAWINGS_AT_ONCE):
        part = slice(start, start + DRAWINGS_AT_ONCE)
        images = jitter(scale_bytes(data.images[chosen[part]]), JitterConfig(), generator)
        x.append(np.asarray(learner.embed(images.numpy()[None])[0]))
    file.parent.mkdir(parents=True, exist_ok=True)
    np.savez(file, x=np.concatenate(x), y=data.labels[chosen].numpy())


def more_rows(x: np.ndarray, y: np.ndarray, rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """The given rows, then others that differ from one of them as two of another class differ.

    To a given row is added a random 30 to 90 % of the difference between two rows of a class, and the sum is brought
    back to the row's length. So the others are spread as the given ones are, in directions in which drawings do differ.
    """
    if rows <= len(x):
        return x[:rows], y[:rows]
    rng = np.random.default_rng(seed)
    order = np.argsort(y, kind="stable")
    made = np.empty((rows - len(x), x.shape[1]), np.float32)
    base = rng.integers(0, len(x), len(made))
    pairs = np.flatnonzero(y[order[:-1]] == y[order[1:]])
    for start in range(0, len(made), 10_000):
        part = slice(start, start + 10_000)
        own = x[base[part]]
        pair = rng.choice(pairs, len(own))
        share = rng.uniform(0.3, 0.9, (len(own), 1)).astype(np.float32)
        moved = own + share * (x[order[pair]] - x[order[pair + 1]])
        made[part] = moved * (np.linalg.norm(own, axis=1) / np.linalg.norm(moved, axis=1))[:, None]
    return np.concatenate([x, made]), np.concatenate([y, y[base]])


def fill(append: Callable[[list[NewRow]], object], x: np.ndarray, y: np.ndarray) -> float:
    """Seconds per row."""
    start = time.perf_counter()
    for begin in range(0, len(x), ROWS_AT_ONCE):
        part = slice(begin, begin + ROWS_AT_ONCE)
        append([NewRow(int(label), key) for key, label in zip(x[part], y[part], strict=True)])
    return (time.perf_counter() - start) / len(x)


def questions_like(x: np.ndarray, number: int) -> np.ndarray:
    """Points near given rows, as a new drawing of a known class would be."""
    rng = np.random.default_rng(1)
    near: np.ndarray = x[rng.integers(0, len(x), number)]
    blur = 0.05 * np.linalg.norm(near, axis=1).mean() / x.shape[1] ** 0.5
    return np.asarray(near + blur * rng.standard_normal(near.shape).astype(np.float32))


def share_found(store: Store, keys: np.ndarray, asked: np.ndarray) -> float:
    """Of the rows that are truly nearest, by a search of our own over all of them."""
    lengths, found = np.linalg.norm(keys, axis=1), []
    first = store.ids(most=1)[0]
    for question in asked:
        similarity = (keys @ question) / lengths
        best = set((np.argpartition(-similarity, K)[:K] + first).tolist())
        found.append(len(best & set(store.recall(question[None], K).ids[0])) / K)
    return float(np.mean(found))
