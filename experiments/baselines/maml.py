"""MAML (Finn, Abbeel and Levine 2017): weights from which a few gradient steps on the context lead to a good classifier;
trained through those steps. ANIL (Raghu et al. 2020) takes the steps on the output layer alone.

Deviation: the output layer starts from one vector for all classes (Ye and Chao 2022), so that the weights know no number
of classes and no order of labels. The inner loss is the mean over classes of the mean loss of their examples, and the step of
a class's output weights is as many times as large as there are classes: each class has its own, and only its own examples'
share of the mean speaks for them. So one step size serves 5 classes as well as 1000, in the output and in the embedding.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.func import functional_call

from experiments.baselines.interface import EmbeddingMap, EpisodicMethod, Scores, nothing_known, scores, seen

GROWTH = 1.1
"""In a stream it adapts again to everything when that has grown by a tenth or many questions come at once; in between it
takes a step on each example."""

Weights = dict[str, Tensor]


class Maml(EpisodicMethod):
    """`embed` is adapted with the output layer (MAML), or only trained (`output_only`, ANIL)."""

    side_by_side = False

    def __init__(
        self,
        width: int,
        *,
        step_size: float = 0.01,
        steps: int = 3,
        output_only: bool = False,
        embed: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.embed = EmbeddingMap(width) if embed is None else embed
        self.output = nn.Parameter(torch.zeros(width))
        # Read as a length of one: the step size then means the same behind any encoder of this width.
        self.unit = float(width**-0.5)
        self.step_size, self.steps, self.output_only = step_size, steps, output_only

    def start(self, way: int) -> Weights:
        """Where every task begins."""
        weights = {"output": self.output.expand(way, -1)}
        return weights if self.output_only else {**weights, **dict(self.embed.named_parameters(prefix="embed"))}

    def answer(self, weights: Weights, x: Tensor) -> Float[Tensor, "example way"]:
        prefix = "embed."
        changed = {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
        embedded: Tensor = functional_call(self.embed, changed, (x,)) if changed else self.embed(x)
        return self.unit * (embedded @ weights["output"].T)

    def step(
        self, weights: Weights, x: Tensor, y: Int[Tensor, " example"], training: bool, known: int | None = None
    ) -> Weights:
        """w − α ∂L/∂w, where L is the mean over classes of the mean loss of their examples; n α for the output of n
        classes. `known` is n where the examples are of some of the classes only."""
        with torch.enable_grad():
            if not training:
                weights = {name: value.detach().requires_grad_() for name, value in weights.items()}
            losses = F.cross_entropy(self.answer(weights, x), y, reduction="none")
            of_class = y.bincount()
            classes = known or int((of_class > 0).sum())
            loss = (losses / of_class[y]).sum() / classes
            gradients = torch.autograd.grad(loss, list(weights.values()), create_graph=training)
        size = {name: self.step_size * (classes if name == "output" else 1) for name in weights}
        pairs = zip(weights.items(), gradients, strict=True)
        return {name: value - size[name] * gradient for (name, value), gradient in pairs}

    def adapted(self, x: Tensor, y: Int[Tensor, " example"], way: int, training: bool) -> Weights:
        weights = self.start(way)
        for _ in range(self.steps):
            weights = self.step(weights, x, y, training)
        return weights

    def logits(
        self, context: Tensor, label: Int[Tensor, "task context"], query: Tensor, way: int
    ) -> Float[Tensor, "task query way"]:
        answers = [
            self.answer(self.adapted(c, y, way, training=True), q)
            for c, y, q in zip(context, label, query, strict=True)
        ]
        return torch.stack(answers)

    def adapt(self, x: Float[Tensor, "example embed"], y: Int[Tensor, " example"], way: int) -> None:
        super().adapt(x, y, way)
        self.weights, self.adapted_at = self.start(way), 0
        self.since: list[tuple[Tensor, int]] = []

    def observe(self, x: Float[Tensor, " embed"], y: int) -> None:
        super().observe(x, y)
        self.since.append((x, y))

    def _catch_up(self, questions: int) -> None:
        """Take in what was observed since the last question."""
        count = len(self.context)
        if count >= GROWTH * self.adapted_at or (questions > 1 and count > self.adapted_at):
            self.weights, self.adapted_at = (
                self.adapted(self.context, self.context_label, self.way, training=False),
                count,
            )
        else:
            known = int(seen(self.context_label, self.way).sum())
            for x, y in self.since:
                self.weights = self.step(self.weights, x[None], torch.tensor([y]), training=False, known=known)
        self.since = []

    @torch.no_grad()
    def predict(self, x: Float[Tensor, "query embed"]) -> Scores:
        if not len(self.context):
            return nothing_known(len(x), self.way)
        self._catch_up(len(x))
        return scores(self.answer(self.weights, x).log_softmax(1), seen(self.context_label, self.way))
