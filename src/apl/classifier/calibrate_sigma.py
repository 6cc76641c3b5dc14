"""Finding the threshold of surprise that keeps a stream within a storage budget."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from apl.classifier.durable_memory import DurableMemory
from apl.classifier.open_world import OpenWorld
from apl.classifier.session import Session
from apl.controller import ConsolidatingController, SurpriseController
from apl.store import Label, open_store

BISECTIONS = 12


def sigma_for_budget(
    session: Session, embeddings: Float[np.ndarray, "example embed"], labels: Sequence[Label], rows: int
) -> float:
    """The smallest threshold in nats, to within rounding, under which this stream leaves at most `rows` rows."""
    classes = len(set(labels))
    if rows < classes:
        raise ValueError(f"{rows} rows cannot hold {classes} classes: a class needs at least one row")
    # The surprise of a coin's toss among so many classes, and as much again: above it only first examples are kept.
    low, high = 0.0, 2 * math.log(max(2, classes)) + 10.0
    if stored_rows(session, embeddings, labels, low) <= rows:
        return low
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        if stored_rows(session, embeddings, labels, middle) <= rows:
            high = middle
        else:
            low = middle
    return high


def stored_rows(
    session: Session, embeddings: Float[np.ndarray, "example embed"], labels: Sequence[Label], sigma_nats: float
) -> int:
    """How many rows a fresh memory keeps of this stream."""
    learner = session.world.learner.on_embeddings()
    kind = ConsolidatingController if learner.consolidates else SurpriseController
    learner.controller = kind(sigma_nats=sigma_nats)
    with open_store(None, fingerprint=learner.fingerprint(), width=session.store.width) as store:
        world = OpenWorld(learner, DurableMemory(learner, store))
        for embedding, label in zip(embeddings, labels, strict=True):
            world.learn(embedding, label)
        return len(world.memory)
