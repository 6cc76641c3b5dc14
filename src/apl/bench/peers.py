"""Against what a user would take instead: the same features, the same stream of 423 classes, predict before learning.

Every method gets the bundled encoder's embeddings of Omniglot's test characters one by one, answers, and is then
told the label. Time is the processor's for answering and learning, without the encoder, on one thread. The first
example of a class cannot be answered by anybody; `accuracy_seen` leaves those out.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from apl.bench.streams import counted, embedded, new_world, report, save_result
from apl.classifier.new_class import NewClassRule
from apl.controller import SurpriseController, WriteAll
from apl.decoder.kernel import NearestDecoder
from apl.learner import Learner

PER_CLASS = 6
"""Drawings of each class in the stream."""


class Method(Protocol):
    def answer_and_learn(self, x: np.ndarray, y: int) -> int | None: ...

    def rows(self) -> int: ...


class Ours:
    def __init__(self, learner: Learner, rule: NewClassRule, controller: Any = None, nearest: bool = False) -> None:
        self.world = new_world(learner, rule, controller=controller)
        if nearest:
            self.world.learner.networks.decoder = NearestDecoder()

    def answer_and_learn(self, x: np.ndarray, y: int) -> int | None:
        predicted = self.world.learn(x, y).predicted
        self.world.commit()
        return predicted

    def rows(self) -> int:
        return len(self.world.memory)


class SklearnNeighbours:
    """KNeighborsClassifier keeps no incremental state: it is fitted anew on all examples before each answer."""

    def __init__(self, capacity: int, width: int) -> None:
        from sklearn.neighbors import KNeighborsClassifier

        self.model = KNeighborsClassifier(1, algorithm="brute")
        self.x, self.y, self.count = np.zeros((capacity, width), np.float32), np.zeros(capacity, np.int64), 0

    def answer_and_learn(self, x: np.ndarray, y: int) -> int | None:
        predicted = None
        if self.count:
            self.model.fit(self.x[: self.count], self.y[: self.count])
            predicted = int(self.model.predict(x[None])[0])
        self.x[self.count], self.y[self.count] = x, y
        self.count += 1
        return predicted

    def rows(self) -> int:
        return self.count


class RiverNeighbours:
    """river's KNN with its exact engine, given a vectorised distance so that time is not spent on dictionaries."""

    def __init__(self, capacity: int) -> None:
        from river import neighbors

        def distance(a: Any, b: Any) -> float:
            return float(np.linalg.norm(a["e"] - b["e"]))

        engine = neighbors.LazySearch(window_size=capacity, dist_func=distance)
        self.model, self.count = neighbors.KNNClassifier(n_neighbors=1, engine=engine), 0

    def answer_and_learn(self, x: np.ndarray, y: int) -> int | None:
        predicted = self.model.predict_one({"e": x})
        self.model.learn_one({"e": x}, y)
        self.count += 1
        return predicted

    def rows(self) -> int:
        return self.count


class NearestMean:
    """A running mean of each class."""

    def __init__(self, classes: int, width: int) -> None:
        self.total, self.count = np.zeros((classes, width), np.float32), np.zeros(classes, np.float32)

    def answer_and_learn(self, x: np.ndarray, y: int) -> int | None:
        known = self.count.nonzero()[0]
        predicted = None
        if len(known):
            means = self.total[known] / self.count[known, None]
            predicted = int(known[((means - x) ** 2).sum(1).argmin()])
        self.total[y] += x
        self.count[y] += 1
        return predicted

    def rows(self) -> int:
        return int((self.count > 0).sum())


def run(model: str = "omniglot", seed: int = 0, per_class: int = PER_CLASS, only: str = "") -> Path:
    """All methods, or those whose name contains `only`."""
    torch.set_num_threads(1)
    learner, rule = Learner.load(model), NewClassRule.of_model(model)
    characters = embedded(learner, "test")
    generator = torch.Generator().manual_seed(seed)
    by_class = characters.of(range(characters.classes))
    stream = torch.cat([e[torch.randperm(len(e), generator=generator)[:per_class]] for e in by_class])
    stream = stream[torch.randperm(len(stream), generator=generator)]
    x, y = characters.embeddings[stream].numpy(), characters.labels[stream].tolist()
    width = x.shape[1]
    seen = [label in y[:place] for place, label in enumerate(y)]
    methods: dict[str, Callable[[], Method]] = {
        "apl, default sigma": lambda: Ours(learner, rule),
        "apl, sigma 0.3 nats": lambda: Ours(learner, rule, SurpriseController(sigma_nats=0.3)),
        "apl, keep everything": lambda: Ours(learner, rule, WriteAll()),
        "keep everything, nearest neighbour": lambda: Ours(learner, rule, WriteAll(), nearest=True),
        "running class mean": lambda: NearestMean(characters.classes, width),
        "scikit-learn KNeighborsClassifier, refitted": lambda: SklearnNeighbours(len(x), width),
        "river KNNClassifier": lambda: RiverNeighbours(len(x)),
    }
    rows = []
    for name, build in methods.items():
        if only not in name:
            continue
        method = build()
        started, right = time.process_time(), []
        for vector, label in counted(name, list(zip(x, y, strict=True))):
            right.append(method.answer_and_learn(vector, label) == label)
        seconds = time.process_time() - started
        last = len(right) // 4
        rows.append(
            {
                "method": name,
                "accuracy": float(np.mean(right)),
                "accuracy_seen": float(np.mean(np.array(right)[seen])),
                "accuracy_last_quarter": float(np.mean(right[-last:])),
                "rows": method.rows(),
                "rows_per_class": method.rows() / characters.classes,
                "bytes": method.rows() * (4 * width + 8),
                "ms_per_example": 1000 * seconds / len(y),
            }
        )
        report(rows[-1])
    about = {"classes": characters.classes, "examples": len(y), "seed": seed, "split": "paper", "part": "test"}
    return save_result("peers", rows, model=model, **about)
