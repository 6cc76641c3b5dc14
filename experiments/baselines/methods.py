"""Simple rivals behind one interface. All of them read embeddings; none is trained beforehand.

method.adapt(x, y, way)     forget everything, then take in a context (an empty one starts a stream)
method.predict(x)           log probabilities of the `way` labels, and how new each query looks
method.observe(x, y)        learn one example
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

GROWTH, FITTED_EACH_TIME, INVERTED_AGAIN = 1.1, 200, 1.05
"""The regression of a stream is fitted for each answer up to 200 examples, then when they have grown by a tenth; the covariance is
inverted when they have grown by a twentieth."""


@dataclass(frozen=True)
class Scores:
    """An answer to each query."""

    log_probs: Float[Tensor, "query way"]
    """Minus infinity for labels of which nothing was seen."""
    novelty: Float[Tensor, " query"]
    """The higher, the more likely it is of a new class. Only the order within a stream is valid."""


@runtime_checkable
class Method(Protocol):
    def adapt(self, x: Float[Tensor, "example embed"], y: Int[Tensor, " example"], way: int) -> None: ...

    def predict(self, x: Float[Tensor, "query embed"]) -> Scores: ...

    def observe(self, x: Float[Tensor, " embed"], y: int) -> None: ...

    def kept(self) -> int:
        """Vectors as wide as an embedding that it keeps: examples, means, variances."""
        ...


def nothing_known(queries: int, way: int) -> Scores:
    """What anybody says before the first example."""
    return Scores(torch.full((queries, way), -torch.inf), torch.full((queries,), torch.inf))


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


class NearestNeighbour(KeepsEverything):
    """Every example is kept; the nearest one names the class."""

    def predict(self, x: Float[Tensor, "query embed"]) -> Scores:
        if not self.count:
            return nothing_known(len(x), self.way)
        kept, labels = (torch.from_numpy(part) for part in self.examples)
        closest, nearest = squared_distances(x, kept).min(1)
        log_probs = torch.full((len(x), self.way), -torch.inf)
        log_probs[torch.arange(len(x)), labels[nearest]] = 0.0
        return Scores(log_probs, closest)


class LogisticRegression(KeepsEverything):
    """scikit-learn's, with C = 10. It does not learn example by example, so it is fitted again as a stream grows, beginning
    where it was."""

    def __init__(self, iterations: int) -> None:
        self.iterations = iterations
        self.model: Any = None

    def adapt(self, x: Float[Tensor, "example embed"], y: Int[Tensor, " example"], way: int) -> None:
        super().adapt(x, y, way)
        self.model, self.fitted_at = None, 0

    def _fit(self) -> None:
        from sklearn.linear_model import LogisticRegression as Regression

        x, y = self.examples
        self.fitted_at = self.count
        classes = np.unique(y)
        if len(classes) < 2:
            return
        # The gradient is a mean: among a thousand classes it begins below any tolerance that suits ten.
        fresh = Regression(C=10.0, max_iter=self.iterations, tol=1e-6)
        if self.model is not None and np.array_equal(self.model.classes_, classes):
            fresh.set_params(warm_start=True)
            fresh.coef_, fresh.intercept_, fresh.classes_ = self.model.coef_, self.model.intercept_, classes
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the iterations were used up: their number is a setting here
            self.model = fresh.fit(x, y)

    def predict(self, x: Float[Tensor, "query embed"]) -> Scores:
        if not self.count:
            return nothing_known(len(x), self.way)
        grown = len(x) > 1 or self.count <= FITTED_EACH_TIME or self.count >= GROWTH * self.fitted_at
        if self.count > self.fitted_at and grown:
            self._fit()
        classes, probabilities = self.examples[1][:1], np.ones((len(x), 1))
        if self.model is not None:
            classes, probabilities = self.model.classes_, self.model.predict_proba(x.numpy())
        log_probs = torch.full((len(x), self.way), -torch.inf)
        log_probs[:, torch.from_numpy(classes)] = torch.from_numpy(probabilities).float().clamp(min=1e-12).log()
        return Scores(log_probs, torch.from_numpy(-probabilities.max(1)).float())


class ClassMean:
    """A running mean of each class; the nearest one names the class (prototypes, Snell et al. 2017, without training)."""

    def adapt(self, x: Float[Tensor, "example embed"], y: Int[Tensor, " example"], way: int) -> None:
        self.total, self.count = torch.zeros(way, x.shape[1]), torch.zeros(way)
        self.total.index_add_(0, y, x)
        self.count.index_add_(0, y, torch.ones(len(y)))

    def observe(self, x: Float[Tensor, " embed"], y: int) -> None:
        self.total[y] += x
        self.count[y] += 1

    @property
    def known(self) -> Bool[Tensor, " way"]:
        return self.count > 0

    @property
    def means(self) -> Float[Tensor, "way embed"]:
        return self.total / self.count.clamp(min=1)[:, None]

    def compared(self, x: Float[Tensor, "query embed"]) -> Float[Tensor, "query way"]:
        """Of the query and each class; the larger, the more alike."""
        return -squared_distances(x, self.means)

    def predict(self, x: Float[Tensor, "query embed"]) -> Scores:
        if not bool(self.known.any()):
            return nothing_known(len(x), len(self.count))
        masked = self.compared(x).masked_fill(~self.known, -torch.inf)
        return Scores(masked.log_softmax(1), -masked.amax(1))

    def kept(self) -> int:
        return int(self.known.sum())


class StreamingLDA(ClassMean):
    """Streaming linear discriminant analysis (Hayes and Kanan 2020): running class means and one running covariance that all
    classes share.

    Deviation: it begins isotropic instead of with the covariance of training classes. The size was chosen on validation
    characters of unit length.
    """

    def adapt(self, x: Float[Tensor, "example embed"], y: Int[Tensor, " example"], way: int) -> None:
        width = x.shape[1]
        super().adapt(x[:0], y[:0], way)
        self.covariance, self.examples = 8.0 * torch.eye(width), 1.0
        for example, label in zip(x, y.tolist(), strict=True):
            self._update(example, label)
        self._invert()

    def observe(self, x: Float[Tensor, " embed"], y: int) -> None:
        self._update(x, y)
        if self.examples >= INVERTED_AGAIN * self.inverted_at:
            self._invert()

    def _update(self, x: Float[Tensor, " embed"], y: int) -> None:
        """Σ ← (tΣ + Δ)/(t + 1), Δ = n/(n + 1) (x − μ)(x − μ)ᵀ with the mean before the example."""
        if n := float(self.count[y]):
            away = x - self.total[y] / n
            self.covariance.mul_(self.examples / (self.examples + 1))
            self.covariance.addr_(away, away, alpha=n / (n + 1) / (self.examples + 1))
            self.examples += 1
        super().observe(x, y)

    def _invert(self) -> None:
        self.precision, self.inverted_at = torch.linalg.inv(self.covariance), self.examples

    def compared(self, x: Float[Tensor, "query embed"]) -> Float[Tensor, "query way"]:
        """Minus half the squared Mahalanobis distance from each mean."""
        means = self.means
        weights = means @ self.precision
        own = ((x @ self.precision) * x).sum(1, keepdim=True) / 2
        likeness: Tensor = x @ weights.T - (weights * means).sum(1) / 2 - own
        return likeness

    def kept(self) -> int:
        """The means, and the rows of the covariance."""
        return super().kept() + len(self.covariance)


def squared_distances(a: Float[Tensor, "n embed"], b: Float[Tensor, "m embed"]) -> Float[Tensor, "n m"]:
    return a.square().sum(1)[:, None] - 2 * a @ b.T + b.square().sum(1)
