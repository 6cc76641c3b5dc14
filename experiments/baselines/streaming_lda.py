"""Streaming linear discriminant analysis (Hayes and Kanan 2020): a running mean of each class and one running covariance
that all classes share, begun on the training classes and updated by every example; shrunken towards the identity before it
is inverted.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from experiments.baselines.interface import ClassSums, Scores, nothing_known, scores

GROWTH = 1.05
"""The covariance is inverted again when the examples have grown by this factor."""


class StreamingLDA:
    def __init__(self, base: Float[Tensor, "embed embed"], base_count: float, shrinkage: float) -> None:
        """The covariance that a stream begins with counts as `base_count` examples."""
        self.base_covariance, self.base_count, self.shrinkage = base, base_count, shrinkage

    @staticmethod
    def after(x: Float[Tensor, "example embed"], y: Int[Tensor, " example"], shrinkage: float = 0.1) -> StreamingLDA:
        """Begin with the covariance of training classes, the paper's base initialisation. It counts as one example of each
        number: enough to be invertible, soon outweighed."""
        classes = ClassSums(int(y.max()) + 1, x.shape[1])
        classes.add(x, y)
        away = x - classes.means[y]
        return StreamingLDA(away.T @ away / len(x), float(min(len(x), x.shape[1])), shrinkage)

    @staticmethod
    def from_nothing(width: int) -> StreamingLDA:
        """For streams without training classes. The isotropic start was chosen on validation characters at unit length."""
        return StreamingLDA(8.0 * torch.eye(width), 1.0, 0.0)

    def adapt(self, x: Float[Tensor, "example embed"], y: Int[Tensor, " example"], way: int) -> None:
        self.classes = ClassSums(way, x.shape[1])
        self.covariance, self.count = self.base_covariance.clone(), self.base_count
        for example, label in zip(x, y.tolist(), strict=True):
            self._update(example, label)
        self._invert()

    def observe(self, x: Float[Tensor, " embed"], y: int) -> None:
        self._update(x, y)
        if self.count >= GROWTH * self.inverted_at:
            self._invert()

    def _update(self, x: Float[Tensor, " embed"], y: int) -> None:
        """Σ ← (tΣ + Δ)/(t + 1), Δ = n/(n + 1) (x − μ)(x − μ)ᵀ with the mean before the example."""
        n = float(self.classes.count[y])
        if n:
            away = x - self.classes.total[y] / n
            self.covariance.mul_(self.count / (self.count + 1))
            self.covariance.addr_(away, away, alpha=n / (n + 1) / (self.count + 1))
            self.count += 1
        self.classes.total[y] += x
        self.classes.count[y] += 1

    def _invert(self) -> None:
        width = len(self.covariance)
        shrunken = (1 - self.shrinkage) * self.covariance + self.shrinkage * torch.eye(width)
        self.precision, self.inverted_at = torch.linalg.inv(shrunken), self.count

    def predict(self, x: Float[Tensor, "query embed"]) -> Scores:
        if not bool(self.classes.known.any()):
            return nothing_known(len(x), len(self.classes.count))
        means = self.classes.means
        weights = means @ self.precision
        discriminant = x @ weights.T - (weights * means).sum(1) / 2
        answer = scores(discriminant, self.classes.known)
        # How new it looks is its distance from the nearest mean: the discriminant and the query's own part.
        own = ((x @ self.precision) * x).sum(1) / 2
        return Scores(answer.log_probs, own + answer.novelty)

    def kept(self) -> int:
        """The means, and the rows of the covariance."""
        return int(self.classes.known.sum()) + len(self.covariance)
