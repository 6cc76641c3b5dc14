"""Generative meta-continual learning, GeMCL (Banayeeanzade et al. 2021): every class is a gaussian with independent
numbers, its mean and precision unknown under a normal-gamma prior that all classes share and training finds. What was seen
of a class enters in closed form, so classes may come one after the other and nothing is forgotten; the prediction is
Student's t.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from experiments.baselines.interface import (
    ClassSums,
    ContextLabels,
    Contexts,
    EmbeddingMap,
    EpisodicMethod,
    Logits,
    Queries,
    Scores,
    nothing_known,
)

PAIRS_AT_ONCE = 500
"""Of a query and a class: what is worked on then stays in a processor's cache, which is several times as fast."""


class GenerativeMetaContinual(EpisodicMethod):
    side_by_side = False

    def __init__(self, width: int, within: float = 0.2, between: float = 0.8) -> None:
        """`within` and `between` are where training starts: the variance inside a class and of the classes' means."""
        super().__init__()
        self.embed = EmbeddingMap(width)
        shape = torch.full((width,), 4.0)
        self.log_shape = nn.Parameter(shape.log())  # α₀
        self.log_rate = nn.Parameter((shape * within).log())  # β₀
        self.log_strength = nn.Parameter(
            torch.tensor(within / between).log()
        )  # κ₀: examples that the prior's mean counts for
        self.centre = nn.Parameter(torch.zeros(width))  # μ₀
        # Deviation: a learnt sharpness, since the numbers of an embedding are not independent of one another.
        self.log_sharpness = nn.Parameter(torch.tensor(-2.0))

    def log_density(
        self,
        query: Float[Tensor, "query embed"],
        count: Float[Tensor, " class"],
        total: Float[Tensor, "class embed"],
        squares: Float[Tensor, "class embed"],
    ) -> Float[Tensor, "query class"]:
        """ln p(query | what was seen of each class), from its count, sum and sum of squares; the prior where count is 0."""
        strength, count = self.log_strength.exp(), count[:, None]
        kappa = strength + count
        mean = (strength * self.centre + total) / kappa
        alpha = self.log_shape.exp() + count / 2
        own_mean = total / count.clamp(min=1)
        spread = (squares - count * own_mean.square()).clamp(min=0)
        pull = strength * count * (own_mean - self.centre).square() / kappa
        beta = self.log_rate.exp() + (spread + pull) / 2
        scale = beta * (kappa + 1) / (alpha * kappa)
        return student_t(query, mean, scale, 2 * alpha)

    def logits(self, context: Contexts, label: ContextLabels, query: Queries, way: int) -> Logits:
        answers = []
        for x, y, q in zip(self.embed(context), label, self.embed(query), strict=True):
            onehot = F.one_hot(y, way).to(x.dtype)
            answers.append(self.log_density(q, onehot.sum(0), onehot.T @ x, onehot.T @ x.square()))
        return self.log_sharpness.exp() * torch.stack(answers)

    @torch.no_grad()
    def adapt(self, x: Float[Tensor, "example embed"], y: Int[Tensor, " example"], way: int) -> None:
        self.way = way
        self.sums, self.squares = ClassSums(way, x.shape[1]), ClassSums(way, x.shape[1])
        self._add(self.embed(x), y)

    @torch.no_grad()
    def observe(self, x: Float[Tensor, " embed"], y: int) -> None:
        self._add(self.embed(x[None]), torch.tensor([y]))

    def _add(self, x: Tensor, y: Tensor) -> None:
        self.sums.add(x, y)
        self.squares.add(x.square(), y)

    @torch.no_grad()
    def predict(self, x: Float[Tensor, "query embed"]) -> Scores:
        known = self.sums.known.nonzero()[:, 0]
        if not len(known):
            return nothing_known(len(x), self.way)
        query, sums, squares = self.embed(x), self.sums, self.squares
        # The class without examples, last, is what a new class looks like to the prior.
        count, total, square = (
            torch.cat([part[known], torch.zeros_like(part[:1])]) for part in (sums.count, sums.total, squares.total)
        )
        density = self.log_density(query, count, total, square)
        log_probs = torch.full((len(x), self.way), -torch.inf)
        log_probs[:, known] = (self.log_sharpness.exp() * density[:, :-1]).log_softmax(1)
        return Scores(log_probs, density[:, -1] - density[:, :-1].amax(1))

    def kept(self) -> int:
        """A mean and a variance of each class."""
        return 2 * int(self.sums.known.sum())


def student_t(
    x: Float[Tensor, "query embed"],
    mean: Float[Tensor, "class embed"],
    scale: Float[Tensor, "class embed"],
    freedom: Float[Tensor, "class embed"],
) -> Float[Tensor, "query class"]:
    """ln of the product over an embedding's numbers of Student's t; `scale` is squared."""
    constant = torch.lgamma((freedom + 1) / 2) - torch.lgamma(freedom / 2) - (freedom * torch.pi * scale).log() / 2
    unit, power = (freedom * scale).rsqrt(), (freedom + 1) / 2
    start = -mean * unit
    parts = x[:, None].split(max(1, PAIRS_AT_ONCE // len(mean)))
    far = torch.cat([(torch.addcmul(start, part, unit).square().log1p() * power).sum(2) for part in parts])
    return constant.sum(1) - far
