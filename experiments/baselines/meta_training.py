"""Training of what a method adds to frozen embeddings: few-shot tasks of many shapes, for a given processor time.

All methods see the same tasks: ways spread evenly on a logarithmic scale up to `widest` (or to what the method's weights
can hold), one to five shots. Processor time rather than steps: the same compute for every method.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import torch
from jaxtyping import Int, Num
from torch import Tensor, nn

from apl.episode import EpisodeSampler
from experiments.baselines.interface import EpisodicMethod, Tasks


@dataclass(frozen=True)
class MetaTraining:
    learning_rate: float
    seconds: float = 60.0
    """Of this process's processor time."""
    steps: int | None = None
    """A number of steps instead, for a result that does not depend on the machine."""
    weight_decay: float = 1e-4
    widest: int = 80
    narrowest: int = 5
    """Classes in the largest and in the smallest tasks."""
    shots: int = 5
    queries: int = 2
    """Of each class."""
    classes_at_once: int = 160
    """Tasks in a step, times their ways."""


@dataclass(frozen=True)
class Effort:
    """What a training amounted to."""

    steps: int
    examples: int
    """Of contexts and queries together."""


def draw_tasks(sampler: EpisodeSampler, x: Tensor, way: int, shot: int, queries: int, tasks: int) -> Tasks:
    """Tasks whose context is in random order, as a sequence model must have it."""
    drawn = sampler.fixed_context(way, shot, queries, tasks)
    stored, asked = drawn.stored, drawn.asked
    order = torch.rand(stored.label.shape, generator=sampler.generator).argsort(1)
    example, label = stored.example.gather(1, order), stored.label.gather(1, order)
    return Tasks(x[example], label, x[asked.example], asked.label, way)


def meta_train(
    method: EpisodicMethod,
    x: Num[Tensor, "example input"],
    y: Int[Tensor, " example"],
    config: MetaTraining,
    seed: int,
) -> Effort:
    """Train in place. The learning rate falls along a cosine to zero."""
    generator = torch.Generator().manual_seed(seed)
    sampler = EpisodeSampler(y, generator)
    widest = min(config.widest, len(sampler.count))
    optimiser = torch.optim.AdamW(method.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay)
    started, steps, examples = time.process_time(), 0, 0
    method.train()

    def spent() -> float:
        return steps / config.steps if config.steps else (time.process_time() - started) / config.seconds

    while (done := spent()) < 1:
        for group in optimiser.param_groups:
            group["lr"] = config.learning_rate * (1 + math.cos(math.pi * done)) / 2
        low, high = math.log(min(config.narrowest, widest)), math.log(widest)
        way = round(math.exp(low + (high - low) * float(torch.rand((), generator=generator))))
        shot = int(torch.randint(1, config.shots + 1, (), generator=generator))
        tasks = draw_tasks(sampler, x, way, shot, config.queries, max(1, config.classes_at_once // way))
        loss = method.loss(tasks)
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(method.parameters(), 1.0)
        optimiser.step()
        steps += 1
        examples += tasks.context_label.numel() + tasks.query_label.numel()
    method.eval()
    return Effort(steps, examples)
