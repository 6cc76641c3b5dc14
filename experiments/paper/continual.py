"""Appendix, "Relation to continual learning": tasks of 10 new classes, 200 examples each, accuracy of the last 100.

Here the streams and the progressive network; `paper_measures.py` has the learner beside it.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from apl.episode import Episodes
from experiments.data.embedded import Embedded

WAY, EXAMPLES, LAST = 10, 200, 100
LEARNING_RATES = (1e-3, 3e-3, 1e-2, 3e-2)


class ProgressiveHead:
    """Progressive network (Rusu et al. 2016) as the paper uses it: a new logits layer for each task on a pretrained, frozen encoder,
    one gradient step per example. Older tasks keep theirs, so nothing is forgotten."""

    def __init__(self, width: int, way: int, learning_rate: float, generator: torch.Generator) -> None:
        self.layer = nn.Linear(width, way)
        with torch.no_grad():
            self.layer.weight.copy_(torch.randn(way, width, generator=generator) * width**-0.5)
            self.layer.bias.zero_()
        self.optimiser = torch.optim.Adam(self.layer.parameters(), lr=learning_rate)

    def predict_then_learn(self, embedding: Float[Tensor, " embed"], label: Int[Tensor, ""]) -> bool:
        """True if the answer was right before the one gradient step on it."""
        logits = self.layer(embedding)
        loss = F.cross_entropy(logits[None], label[None])
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()
        return bool(logits.argmax() == label)


def task_streams(data: Embedded, tasks: int, seed: int) -> Iterator[Episodes]:
    """Each task shows every example of 10 classes no earlier task had, in random order."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(int(data.labels.max()) + 1, generator=generator)
    for task in range(tasks):
        classes = order[WAY * task : WAY * (task + 1)]
        examples = torch.cat([(data.labels == c).nonzero().flatten() for c in classes])
        labels = torch.arange(WAY).repeat_interleave(len(examples) // WAY) + WAY * task
        shuffled = torch.randperm(len(examples), generator=generator)[:EXAMPLES]
        yield Episodes(examples[shuffled][None], labels[shuffled][None], way=WAY * (task + 1))


def progressive_accuracy(data: Embedded, streams: list[Episodes], rate: float, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    accuracy = []
    for task, stream in enumerate(streams):
        head = ProgressiveHead(data.embeddings.shape[1], WAY, rate, generator)
        right = [
            head.predict_then_learn(data.embeddings[example], label - WAY * task)
            for example, label in zip(stream.example[0], stream.label[0], strict=True)
        ]
        accuracy.append(sum(right[-LAST:]) / LAST)
    return torch.tensor(accuracy)


def best_learning_rate(validation: Embedded, tasks: int) -> float:
    """The baseline's step size, chosen on validation characters."""
    streams = list(task_streams(validation, tasks, seed=0))
    return max(LEARNING_RATES, key=lambda rate: float(progressive_accuracy(validation, streams, rate, seed=0).mean()))
