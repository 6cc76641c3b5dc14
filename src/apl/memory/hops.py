"""Recall in several hops: the rows recalled first recall their own neighbours (`LearnerConfig.hops`)."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float

from apl.memory.protocol import Memory, Neighbours
from apl.metric import measured


def recall_further(
    memory: Memory, asked: Float[np.ndarray, "episode query embed"], first: Neighbours, k: int, hops: int
) -> Neighbours:
    """All rows within `hops` steps from row to neighbouring row, each once, nearest (by all keys) first.

    Every row is compared with every other: for memories of the size of an episode.
    """
    rows = len(memory)
    near = np.stack([linked(memory, key, k) for key in memory.keys]).any(0).astype(np.float32)
    reached = np.zeros((*first.row.shape[:2], rows + 1), bool)
    np.put_along_axis(reached, np.where(first.mask, first.row, rows), True, 2)
    reached = reached[..., :-1]
    for _ in range(hops - 1):
        reached = reached | (reached.astype(np.float32) @ near > 0)
    whole = np.concatenate([memory.column(key) for key in memory.keys], -1)
    distance = np.sqrt(np.square(asked[:, :, None] - whole[:, None]).sum(-1))
    distance[~reached] = np.inf
    row = distance.argsort(-1, kind="stable")[..., : int(reached.sum(-1).max())]
    distance = np.take_along_axis(distance, row, -1)
    mask = np.isfinite(distance)
    episode = np.arange(memory.episodes)[:, None, None]
    columns = {"embedding": whole, **{name: memory.column(name) for name in first.columns if name != "embedding"}}
    columns = {name: column[episode, row] for name, column in columns.items()}
    for cells in columns.values():
        cells[~mask] = 0
    return Neighbours(columns, np.where(mask, distance, 0), mask, np.where(mask, row, -1))


def linked(memory: Memory, key: str, k: int) -> Bool[np.ndarray, "episode rows other"]:
    """Which rows are among the k nearest of each row."""
    keys = measured(memory.column(key), memory.metric, memory.scale)
    empty = np.arange(len(memory)) >= memory.counts[:, None]
    square = np.square(keys[:, :, None] - keys[:, None]).sum(-1)
    square[np.broadcast_to(empty[:, None], square.shape)] = np.inf
    nearest = square.argsort(-1, kind="stable")[..., :k]
    found = np.zeros(square.shape, bool)
    np.put_along_axis(found, nearest, True, -1)
    linked: np.ndarray = found & ~empty[:, None]
    return linked
