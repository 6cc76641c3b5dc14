"""What a user would take instead of our classifier: each predicts one example, is told its label, and goes on."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np


class Method(Protocol):
    def answer_and_learn(self, x: np.ndarray, y: int) -> int | None: ...

    def rows(self) -> int: ...


class KeepsExamples:
    """Keeps everything."""

    def __init__(self, capacity: int, width: int) -> None:
        self.x, self.y, self.count = np.zeros((capacity, width), np.float32), np.zeros(capacity, np.int64), 0

    def answer(self, x: np.ndarray) -> int | None:
        raise NotImplementedError

    def answer_and_learn(self, x: np.ndarray, y: int) -> int | None:
        predicted = self.answer(x)
        self.x[self.count], self.y[self.count] = x, y
        self.count += 1
        return predicted

    @property
    def examples(self) -> tuple[np.ndarray, np.ndarray]:
        return self.x[: self.count], self.y[: self.count]

    def rows(self) -> int:
        return self.count


class EverythingNearest(KeepsExamples):
    """The label of the most similar example is the answer."""

    def answer(self, x: np.ndarray) -> int | None:
        return int(self.y[(self.x[: self.count] @ x).argmax()]) if self.count else None


class RefittedRegression(KeepsExamples):
    """Logistic regression (C = 100) on everything, fitted anew after every `EVERY` examples."""

    EVERY = 40
    model: Any = None

    def answer(self, x: np.ndarray) -> int | None:
        return None if self.model is None else int(self.model.predict(x[None])[0])

    def answer_and_learn(self, x: np.ndarray, y: int) -> int | None:
        from sklearn.linear_model import LogisticRegression

        predicted = super().answer_and_learn(x, y)
        if self.count % self.EVERY == 0 and len(set(self.examples[1].tolist())) > 1:
            self.model = LogisticRegression(C=100, max_iter=300, tol=1e-3).fit(*self.examples)
        return predicted


class SklearnNeighbours(KeepsExamples):
    """KNeighborsClassifier keeps no incremental state: it is fitted anew on all examples before each answer."""

    def answer(self, x: np.ndarray) -> int | None:
        from sklearn.neighbors import KNeighborsClassifier

        if not self.count:
            return None
        return int(KNeighborsClassifier(1, algorithm="brute").fit(*self.examples).predict(x[None])[0])


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

    def best(self, x: np.ndarray, means: np.ndarray) -> int:
        return int(((means - x) ** 2).sum(1).argmin())

    def answer_and_learn(self, x: np.ndarray, y: int) -> int | None:
        known = self.count.nonzero()[0]
        predicted = int(known[self.best(x, self.total[known] / self.count[known, None])]) if len(known) else None
        self.total[y] += x
        self.count[y] += 1
        return predicted

    def rows(self) -> int:
        return int((self.count > 0).sum())


class RunningLDA(NearestMean):
    """A mean of each class and one covariance within classes, both running; shrunken towards the identity."""

    SHRINKAGE = 8.0
    """Examples' worth of an isotropic spread; chosen on validation characters at unit length."""

    def __init__(self, classes: int, width: int) -> None:
        super().__init__(classes, width)
        self.inverse = np.eye(width, dtype=np.float32) / self.SHRINKAGE

    def best(self, x: np.ndarray, means: np.ndarray) -> int:
        seen = means @ self.inverse
        return int((seen @ x - 0.5 * np.einsum("cd,cd->c", seen, means)).argmax())

    def answer_and_learn(self, x: np.ndarray, y: int) -> int | None:
        count, total = float(self.count[y]), self.total[y].copy()
        predicted = super().answer_and_learn(x, y)
        if count:
            away = (x - total / count) * np.float32(np.sqrt(count / (count + 1)))
            turned = self.inverse @ away
            self.inverse -= np.outer(turned, turned / (1 + away @ turned))
        return predicted
