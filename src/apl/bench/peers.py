"""Against what a user would take instead: the same vectors, the same streams, predict before learning.

Every method gets the vectors one by one, answers, and is then told the label. Time is the processor's for answering and
learning, without the encoder, on one thread. The first example of a class cannot be answered by anybody;
`accuracy_seen` leaves those out. Streams: drawings of Omniglot's 423 test characters by the bundled encoder, in random
order, with three characters under each label, class by class, and with other classes in its second half; the same
of BANKING77's test requests by MiniLM.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from apl.bench.feature_sets import intents, unit
from apl.bench.peer_methods import (
    EverythingNearest,
    Method,
    NearestMean,
    RefittedRegression,
    RiverNeighbours,
    RunningLDA,
    SklearnNeighbours,
)
from apl.bench.streams import counted, embedded, report, save_result
from apl.classifier.online import OnlineClassifier
from apl.learner import Learner

Order = Literal["random order", "three classes per label", "class by class", "classes change half-way"]
ORDERS: tuple[Order, ...] = ("random order", "three classes per label", "class by class", "classes change half-way")
SEEDS = 3


@dataclass(frozen=True)
class Stream:
    """Vectors in the order in which they are shown, and their labels."""

    x: np.ndarray
    y: list[int]


class Ours:
    """Our classifier behind vectors: with the bundled model's decoder for drawings, without one for the rest."""

    def __init__(self, width: int, model: str | None, consolidate: bool) -> None:
        if model is None:
            self.classifier = OnlineClassifier.for_features(width, keep_images=False, consolidate=consolidate)
        else:
            self.classifier = OnlineClassifier(model, keep_images=False, consolidate=consolidate).open()
        self.world = self.classifier._session().world

    def answer_and_learn(self, x: np.ndarray, y: int) -> int | None:
        receipt = self.world.learn(x, y)
        self.world.commit()
        return receipt.predicted

    def rows(self) -> int:
        return len(self.classifier)


def drawn(vectors: np.ndarray, labels: np.ndarray, per_class: int, order: Order, seed: int) -> Stream:
    chance = np.random.default_rng(seed)
    classes = chance.permutation(np.unique(labels))
    examples = [chance.permutation((labels == c).nonzero()[0])[:per_class] for c in classes]
    shown = np.concatenate(examples)
    number = np.repeat(np.arange(len(classes)), [len(e) for e in examples])
    match order:
        case "random order" | "three classes per label":
            place = chance.permutation(len(shown))
        case "class by class":
            place = np.arange(len(shown))
        case "classes change half-way":
            late = number >= len(classes) / 2
            place = np.concatenate([chance.permutation((~late).nonzero()[0]), chance.permutation(late.nonzero()[0])])
    if order == "three classes per label":
        number = number // 3
    return Stream(vectors[shown[place]], number[place].tolist())


def watched(build: Callable[[], Method], stream: Stream, name: str) -> dict[str, float]:
    method, seen, known = build(), [], set()
    started, right = time.process_time(), []
    for vector, label in counted(name, list(zip(stream.x, stream.y, strict=True))):
        right.append(method.answer_and_learn(vector, label) == label)
        seen.append(label in known)
        known.add(label)
    seconds, last = time.process_time() - started, len(right) // 4
    return {
        "accuracy": float(np.mean(right)),
        "accuracy_seen": float(np.mean(np.array(right)[seen])),
        "accuracy_last_quarter": float(np.mean(right[-last:])),
        "rows": method.rows(),
        "ms_per_example": 1000 * seconds / len(right),
    }


def compared(
    name: str, vectors: np.ndarray, labels: np.ndarray, per_class: int, model: str | None
) -> Iterator[dict[str, Any]]:
    """All methods on all orders of one set."""
    width, classes = vectors.shape[1], len(np.unique(labels))
    capacity = per_class * classes
    methods: dict[str, Callable[[], Method]] = {
        "apl": lambda: Ours(width, model, True),
        "apl, plain rule": lambda: Ours(width, model, False),
        "keep everything, nearest neighbour": lambda: EverythingNearest(capacity, width),
        "running class mean": lambda: NearestMean(classes, width),
        "streaming LDA": lambda: RunningLDA(classes, width),
    }
    if model is None:
        methods["logistic regression, refitted every 40"] = lambda: RefittedRegression(capacity, width)
    for order in ORDERS:
        some = dict(methods)
        if model is not None and order == "random order":
            some["scikit-learn KNeighborsClassifier, refitted"] = lambda: SklearnNeighbours(capacity, width)
            some["river KNNClassifier"] = lambda: RiverNeighbours(capacity)
        for method, build in some.items():
            seeds = 1 if "scikit" in method or "river" in method else SEEDS
            scale = width**0.5 if model is not None and method.startswith("apl") else 1.0
            found = []
            for seed in range(seeds):
                stream = drawn(unit(vectors), labels, per_class, order, seed)
                found.append(watched(build, Stream(stream.x * np.float32(scale), stream.y), method))
            row = {key: float(np.mean([score[key] for score in found])) for key in found[0]}
            spread = np.std([score["accuracy_seen"] for score in found], ddof=1) if seeds > 1 else None
            ci95 = None if spread is None else float(1.96 * spread / np.sqrt(seeds))
            about = {"stream": f"{name}, {order}", "method": method, "seeds": seeds, "examples": capacity}
            yield {**about, **row, "accuracy_seen_ci95": ci95, "bytes": row["rows"] * (4 * width + 8)}


def run(model: str = "omniglot") -> Path:
    torch.set_num_threads(1)
    about = {"split": "paper", "part": "test", "seeds": SEEDS}
    characters, requests = embedded(Learner.load(model), "test"), intents("banking77")["test"]
    rows = []
    for row in itertools.chain(
        compared("drawings", characters.embeddings.numpy(), characters.labels.numpy(), 6, model),
        compared("BANKING77 requests", requests.vectors, requests.labels, 12, None),
    ):
        rows.append(row)
        report(row)
        path = save_result("peers", rows, model=model, **about)
    return path
