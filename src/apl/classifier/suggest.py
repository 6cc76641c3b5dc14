"""Which unlabelled examples to label next: what is probably new, and what several classes compete for, each unlike the others.

An example is worth P(new) + (1 - P(new)) · (1 - margin), where the margin is that between its two most probable classes, times
the root of the density of the pool around it: outliers teach little. Examples are chosen one after the other; those like a chosen
one are worth less. While nothing is known, typical examples come first.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from apl.classifier.opened import Opened
from apl.metric import distances, measured
from apl.store import Label

SAMPLED = 256
"""Examples of the pool that its usual distances and densities are measured on."""
NEW, UNLIKE, CLEAR = 0.5, 0.9, 0.5
"""P(new) from which on an example is called new, and unlike anything; the margin from which on it is not called torn."""


@dataclass(frozen=True)
class Suggestion:
    """An example worth a label."""

    index: int
    """Its place in the pool."""
    reason: str
    probability_new: float
    labels: tuple[Label, ...]
    """The two most probable known labels, as far as there are two."""
    worth: float
    """From 0, known for certain or like an example chosen before, to 1. Comparable within one pool."""

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "labels": list(self.labels)}


def suggest(opened: Opened, embeddings: Float[np.ndarray, "example embed"], number: int) -> list[Suggestion]:
    """The examples most worth a label, best first."""
    memory = opened.memory
    names, order = memory.names.names, memory.names.order
    new, best, margin = _judged(opened, embeddings)
    scale = None if memory.scale is None else memory.scale[0]
    keys = measured(embeddings, memory.metric, scale)
    sample = keys[:: max(1, len(keys) // SAMPLED)][:SAMPLED]
    unit = _unit(sample, keys)
    density = _likeness(sample, keys, unit).mean(0)
    worth = (new + (1 - new) * (1 - margin)) * np.sqrt(density) if names else density
    found: list[Suggestion] = []
    chosen = np.zeros(len(keys), bool)
    for _ in range(min(number, len(keys))):
        at = int(np.where(chosen, -1, worth).argmax())
        chosen[at] = True
        labels = tuple(names[int(order[place])] for place in best[at])
        reason = _reason(float(new[at]), labels, float(margin[at]))
        found.append(Suggestion(at, reason, float(new[at]), labels, float(worth[at])))
        worth = worth * (1 - _likeness(keys[at : at + 1], keys, unit)[0])
    return found


def _judged(
    opened: Opened, embeddings: np.ndarray
) -> tuple[Float[np.ndarray, " example"], np.ndarray, Float[np.ndarray, " example"]]:
    """P(new), the two most probable classes (places among the sorted ones) and the margin between them."""
    known = len(opened.memory.names.names)
    new, best, margin = [np.zeros(0)], [np.zeros((0, min(2, known)), np.int64)], [np.zeros(0)]
    for prediction in opened.predictions(embeddings):
        probabilities = opened.probabilities_of_known(prediction)
        first = np.argsort(-probabilities, axis=1, kind="stable")[:, :2]
        shares = np.take_along_axis(probabilities, first, 1)
        new.append(opened.probability_of_new(prediction))
        best.append(first)
        margin.append(shares[:, 0] - shares[:, 1] if known > 1 else np.ones(len(first)))
    return np.concatenate(new), np.concatenate(best), np.concatenate(margin)


def _reason(new: float, labels: tuple[Label, ...], margin: float) -> str:
    if not labels:
        return "typical of the pool; no class is known yet"
    if new >= UNLIKE:
        return "unlike anything shown"
    if new >= NEW:
        return "probably new"
    if len(labels) > 1 and margin < CLEAR:
        return f"torn between {labels[0]!r} and {labels[1]!r}"
    return f"probably {labels[0]!r}"


def _unit(sample: np.ndarray, keys: np.ndarray) -> float:
    """The usual distance to the nearest other example."""
    if len(keys) < 2:
        return 1.0
    nearest = np.partition(distances(sample, keys), 1, axis=1)[:, 1]
    return max(float(np.median(nearest)), 1e-12)


def _likeness(some: np.ndarray, keys: np.ndarray, unit: float) -> Float[np.ndarray, "some example"]:
    """1 for the same, less the farther apart."""
    likeness: np.ndarray = np.exp(-0.5 * np.square(distances(some, keys) / unit))
    return likeness
