"""What a user would take instead of our classifier: each predicts one example, is told its label, and goes on."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np


class Method(Protocol):
    def answer_and_learn(self, x: np.ndarray, y: int) -> int | None: ...

    def rows(self) -> int: ...


class EverythingNearest:
    """Keeps everything; the label of the most similar example is the answer."""

    def __init__(self, capacity: int, width: int) -> None:
        self.x, self.y, self.count = np.zeros((capacity, width), np.float32), np.zeros(capacity, np.int64), 0

    def answer_and_learn(self, x: np.ndarray, y: int) -> int | None:
        predicted = int(self.y[(self.x[: self.count] @ x).argmax()]) if self.count else None
        self.x[self.count], self.y[self.count] = x, y
        self.count += 1
        return predicted

    def rows(self) -> int:
        return self.count


class RunningLDA:
    """A mean of each class and one covariance within classes, both running; shrunken towards the identity."""

    SHRINKAGE = 8.0
    """Examples' worth of an isotropic spread; chosen on validation characters at unit length."""

    def __init__(self, classes: int, width: int) -> None:
        self.total, self.count = np.zeros((classes, width), np.float32), np.zeros(classes, np.float32)
        self.inverse = np.eye(width, dtype=np.float32) / self.SHRINKAGE

    def answer_and_learn(self, x: np.ndarray, y: int) -> int | None:
        known = self.count.nonzero()[0]
        predicted = None
        if len(known):
            means = self.total[known] / self.count[known, None]
            seen = means @ self.inverse
            predicted = int(known[(seen @ x - 0.5 * np.einsum("cd,cd->c", seen, means)).argmax()])
        if self.count[y]:
            away = (x - self.total[y] / self.count[y]) * np.sqrt(self.count[y] / (self.count[y] + 1))
            turned = self.inverse @ away
            self.inverse -= np.outer(turned, turned / (1 + away @ turned))
        self.total[y] += x
        self.count[y] += 1
        return predicted

    def rows(self) -> int:
        return int((self.count > 0).sum())


class RefittedRegression:
    """Logistic regression (C = 100) on everything, fitted anew after every `EVERY` examples."""

    EVERY = 40

    def __init__(self, capacity: int, width: int) -> None:
        self.x, self.y, self.count = np.zeros((capacity, width), np.float32), np.zeros(capacity, np.int64), 0
        self.model: Any = None

    def answer_and_learn(self, x: np.ndarray, y: int) -> int | None:
        from sklearn.linear_model import LogisticRegression

        predicted = None if self.model is None else int(self.model.predict(x[None])[0])
        self.x[self.count], self.y[self.count] = x, y
        self.count += 1
        if self.count % self.EVERY == 0 and len(set(self.y[: self.count].tolist())) > 1:
            fresh = LogisticRegression(C=100, max_iter=300, tol=1e-3)
            self.model = fresh.fit(self.x[: self.count], self.y[: self.count])
        return predicted

    def rows(self) -> int:
        return self.count


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
