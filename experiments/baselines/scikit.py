"""Two methods of scikit-learn: logistic regression and nearest neighbours on the same embeddings.

Neither learns example by example. In a stream the neighbours are fitted again for each answer, which costs nothing; so is the
regression up to 200 examples, and from then on when what it rests on has grown by a tenth, beginning where it was, or when many
questions come at once.
"""

from __future__ import annotations

import warnings

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from experiments.baselines.interface import Scores, nothing_known

GROWTH, FITTED_EACH_TIME = 1.1, 200


class KeepsEverything:
    """The examples so far, in arrays that grow by doubling."""

    def adapt(self, x: Float[Tensor, "example embed"], y: Int[Tensor, " example"], way: int) -> None:
        self.way, self.count = way, len(x)
        self._x, self._y = x.numpy().copy(), y.numpy().copy()

    def observe(self, x: Float[Tensor, " embed"], y: int) -> None:
        if self.count == len(self._x):
            room = max(64, self.count)
            self._x = np.concatenate([self._x, np.zeros((room, len(x)), np.float32)])
            self._y = np.concatenate([self._y, np.zeros(room, np.int64)])
        self._x[self.count], self._y[self.count] = x.numpy(), y
        self.count += 1

    @property
    def examples(self) -> tuple[np.ndarray, np.ndarray]:
        return self._x[: self.count], self._y[: self.count]

    def kept(self) -> int:
        return self.count

    def among_all(self, probabilities: np.ndarray, classes: np.ndarray) -> Float[Tensor, "query way"]:
        log_probs = torch.full((len(probabilities), self.way), -torch.inf)
        log_probs[:, torch.from_numpy(classes)] = torch.from_numpy(probabilities).float().clamp(min=1e-12).log()
        return log_probs


class NeighbourBaseline(KeepsEverything):
    """`KNeighborsClassifier`, each neighbour weighted by its closeness."""

    def __init__(self, neighbours: int = 1) -> None:
        from sklearn.neighbors import KNeighborsClassifier

        self.neighbours = neighbours
        self.make = lambda k: KNeighborsClassifier(k, weights="distance", algorithm="brute")

    def predict(self, x: Float[Tensor, "query embed"]) -> Scores:
        if not self.count:
            return nothing_known(len(x), self.way)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that this many classes might be numbers to regress on
            model = self.make(min(self.neighbours, self.count)).fit(*self.examples)
        distance, _ = model.kneighbors(x.numpy(), 1)
        return Scores(
            self.among_all(model.predict_proba(x.numpy()), model.classes_), torch.from_numpy(distance[:, 0]).float()
        )


class LogisticBaseline(KeepsEverything):
    """`LogisticRegression` on embeddings of unit length."""

    fitted_each_time = FITTED_EACH_TIME
    """Examples of a stream up to which it is fitted again for each answer."""

    def __init__(self, c: float = 10.0, iterations: int = 25) -> None:
        from sklearn.linear_model import LogisticRegression

        # The gradient is a mean: among a thousand classes it begins below any tolerance that suits ten.
        self.make = lambda: LogisticRegression(C=c, max_iter=iterations, tol=1e-6)

    def adapt(self, x: Float[Tensor, "example embed"], y: Int[Tensor, " example"], way: int) -> None:
        super().adapt(torch.nn.functional.normalize(x, dim=1), y, way)
        self.model, self.fitted_at = None, 0

    def observe(self, x: Float[Tensor, " embed"], y: int) -> None:
        super().observe(torch.nn.functional.normalize(x, dim=0), y)

    def _fit(self) -> None:
        x, y = self.examples
        self.fitted_at = self.count
        classes = np.unique(y)
        if len(classes) < 2:
            self.model = None
            return
        fresh = self.make()
        if self.model is not None and np.array_equal(self.model.classes_, classes):
            fresh.set_params(warm_start=True)
            fresh.coef_, fresh.intercept_, fresh.classes_ = self.model.coef_, self.model.intercept_, classes
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the iterations were used up: their number is a setting here
            self.model = fresh.fit(x, y)

    def predict(self, x: Float[Tensor, "query embed"]) -> Scores:
        if not self.count:
            return nothing_known(len(x), self.way)
        grown = len(x) > 1 or self.count <= self.fitted_each_time or self.count >= GROWTH * self.fitted_at
        if self.count > self.fitted_at and grown:
            self._fit()
        if self.model is None:
            only = self.among_all(np.ones((len(x), 1)), np.unique(self.examples[1])[:1])
            return Scores(only, torch.zeros(len(x)))
        probabilities = self.model.predict_proba(torch.nn.functional.normalize(x, dim=1).numpy())
        return Scores(
            self.among_all(probabilities, self.model.classes_), torch.from_numpy(-probabilities.max(1)).float()
        )
