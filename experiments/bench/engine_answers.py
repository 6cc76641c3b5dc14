"""Whether a memory on an engine answers as one in RAM: the same stream for both, compared example by example."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from apl.classifier.answers import Probabilities
from apl.classifier.online import OnlineClassifier
from apl.store import NoSuchMemory, delete_memory


def same_answers(url: str, x: np.ndarray, y: np.ndarray, examples: int, seed: int = 0) -> dict[str, Any]:
    """Predict, then learn, each example in turn: labels, probabilities, P(new), rows written and rows merged into."""
    name = "bench-answers"
    with suppress(NoSuchMemory):
        delete_memory(url, name)
    chosen = np.random.default_rng(seed).permutation(len(x))[:examples]
    differing = {"labels": 0, "receipts": 0}
    furthest, seconds = 0.0, {"engine": 0.0, "ram": 0.0}
    with (
        OnlineClassifier.for_features(x.shape[1], memory=url, name=name) as engine,
        OnlineClassifier.for_features(x.shape[1]) as ram,
    ):
        for key, label in zip(x[chosen], y[chosen].tolist(), strict=True):
            said, told = {}, {}
            for kind, classifier in (("engine", engine), ("ram", ram)):
                start = time.perf_counter()
                said[kind] = classifier.predict_proba_one(key)
                told[kind] = classifier.learn_one(key, label)
                seconds[kind] += time.perf_counter() - start
            differing["labels"] += next(iter(said["engine"]), None) != next(iter(said["ram"]), None)
            differing["receipts"] += _done(told["engine"]) != _done(told["ram"])
            furthest = max(furthest, _apart(said["engine"], said["ram"]))
        rows = {"engine": engine.store.count(), "ram": ram.store.count()}
    return {
        "examples": examples,
        "classes": len(set(y[chosen].tolist())),
        "rows": rows,
        "labels_that_differ": differing["labels"],
        "receipts_that_differ": differing["receipts"],
        "largest_difference_of_a_probability": furthest,
        "ms_per_prediction_and_lesson": {kind: round(1000 * spent / examples, 2) for kind, spent in seconds.items()},
    }


def _apart(a: Probabilities, b: Mapping[Any, float]) -> float:
    if set(a) != set(b):
        return 1.0
    return max([abs(a[label] - b[label]) for label in a] + [abs(a.new_class - b.new_class)])


def _done(receipt: Any) -> tuple[Any, ...]:
    return receipt.predicted, receipt.written, receipt.new_label, receipt.row, receipt.merged_into
