"""The two protocols: fixed context (store n examples of each class, then ask) and online (predict, score, learn).

Inputs are embedded once; episodes then run on the embeddings, through the same learner.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int, Num
from scipy.special import stdtrit
from torch import Tensor

from apl.encoder import embed_all
from apl.episode import Episodes, EpisodeSampler, run_episode
from apl.learner import Learner

QUERIES_AT_ONCE = 2048
"""Bounds the memory of a batch of parallel episodes."""


@dataclass(frozen=True)
class Estimate:
    """A mean over episodes with its 95 % interval (mean ± ci95)."""

    mean: float
    ci95: float
    """Half the width, by Student's t; NaN for a single episode."""

    @staticmethod
    def of(values: Num[Tensor, " episode"] | Sequence[float]) -> Estimate:
        x = torch.as_tensor(values, dtype=torch.float64)
        if len(x) < 2:
            return Estimate(float(x.mean()), math.nan)
        return Estimate(float(x.mean()), float(stdtrit(len(x) - 1, 0.975) * x.std() / math.sqrt(len(x))))

    @staticmethod
    def of_difference(
        ours: Num[Tensor, " episode"] | Sequence[float], theirs: Num[Tensor, " episode"] | Sequence[float]
    ) -> Estimate:
        """The mean of ours − theirs, paired: both were measured on the same episodes in the same order."""
        a, b = (torch.as_tensor(values, dtype=torch.float64) for values in (ours, theirs))
        if len(a) != len(b):
            raise ValueError(f"a paired difference needs the same episodes, got {len(a)} and {len(b)}")
        return Estimate.of(a - b)

    @property
    def excludes_zero(self) -> bool:
        return abs(self.mean) > self.ci95


@dataclass(frozen=True)
class OnlineResult:
    """Online episodes, example by example."""

    correct: Float[Tensor, "episode time"]
    probability: Float[Tensor, "episode time"]
    """The probability of the true label before it was learnt."""
    stored: Int[Tensor, "episode time"]
    """Rows in memory after each example."""
    label: Int[Tensor, "episode time"]
    answered: Int[Tensor, "episode time"]
    """The predicted label."""
    written: Float[Tensor, "episode time"]
    way: int

    def accuracy(self) -> Estimate:
        return Estimate.of(self.correct.mean(1))

    def accuracy_last(self, examples: int) -> Estimate:
        return Estimate.of(self.correct[:, -examples:].mean(1))

    def stored_at_end(self) -> Estimate:
        return Estimate.of(self.stored[:, -1].float())

    @staticmethod
    def join(parts: list[OnlineResult]) -> OnlineResult:
        """Episodes of the same length, one batch after the other."""
        names = ("correct", "probability", "stored", "label", "answered", "written")
        return OnlineResult(**{n: torch.cat([getattr(p, n) for p in parts]) for n in names}, way=parts[0].way)


Progress = Callable[[int], None]
Tally = Callable[[Tensor, Tensor], None]
"""Takes the true and the answered classes of examples; -1 is a class that was not shown."""


@torch.no_grad()
def fixed_context(
    learner: Learner,
    inputs: Num[Tensor, "example *input"],
    labels: Int[Tensor, " example"],
    *,
    way: int,
    shot: int,
    episodes: int,
    seed: int,
    queries: int = 15,
    progress: Progress = lambda done: None,
    tally: Tally = lambda truth, answered: None,
) -> Estimate:
    """Accuracy on up to `queries` examples of each class, with `shot` others of each class in memory."""
    learner.eval()
    sampler = EpisodeSampler(labels, torch.Generator().manual_seed(seed))
    sampler.check(way)
    embeddings, twin = embed_all(learner.encoder, inputs), learner.on_embeddings()
    accuracies: list[Tensor] = []
    at_once = max(1, QUERIES_AT_ONCE // (way * queries))
    while len(accuracies) < episodes:
        parallel = min(at_once, episodes - len(accuracies))
        contexts = sampler.fixed_context(way, shot, queries, parallel)
        memory = twin.new_memory(parallel)
        stored, asked = contexts.stored, contexts.asked
        everything = torch.ones_like(stored.label, dtype=torch.bool)
        twin.write(memory, embeddings[stored.example], stored.label, everything)
        some = asked.example.split(QUERIES_AT_ONCE, 1)
        answered = torch.cat([twin.predict(memory, embeddings[part], way).label.cpu() for part in some], 1)
        tally(labels[asked.example], stored.classes(labels).gather(1, answered))
        accuracies.extend((answered == asked.label).float().mean(1))
        progress(len(accuracies))
    return Estimate.of(torch.stack(accuracies))


@torch.no_grad()
def online(
    learner: Learner,
    inputs: Num[Tensor, "example *input"],
    labels: Int[Tensor, " example"],
    *,
    way: int,
    episodes: int,
    seed: int,
    length: int | None = None,
    batch: int = 1,
    parallel: int = 16,
    progress: Progress = lambda done: None,
    tally: Tally = lambda truth, answered: None,
) -> OnlineResult:
    """Show every example once: predict, score, then learn. `length` None shows all examples of the classes."""
    learner.eval()
    sampler = EpisodeSampler(labels, torch.Generator().manual_seed(seed))
    sampler.check(way)
    embeddings, twin = embed_all(learner.encoder, inputs), learner.on_embeddings()
    parts: list[OnlineResult] = []
    done = 0
    while done < episodes:
        drawn = sampler.online(way, length, min(parallel, episodes - done))
        parts.append(watch(twin, embeddings, drawn, batch))
        tally(labels[drawn.example], drawn.classes(labels).gather(1, parts[-1].answered))
        done += len(drawn.example)
        progress(done)
    return OnlineResult.join(parts)


@torch.no_grad()
def watch(learner: Learner, inputs: Num[Tensor, "example *input"], episodes: Episodes, batch: int = 1) -> OnlineResult:
    """Run episodes from an empty memory and keep the score."""
    memory = learner.new_memory(len(episodes.example))
    correct, probability, answered, written = [], [], [], []
    for step in run_episode(learner, memory, inputs, episodes, batch):
        correct.append(step.right.float())
        answered.append(step.observation.prediction.label.cpu())
        probability.append((-step.observation.surprise_nats).exp().cpu())
        written.append(torch.from_numpy(step.observation.written).float())
    wrote = torch.cat(written, 1)
    return OnlineResult(
        correct=torch.cat(correct, 1),
        probability=torch.cat(probability, 1),
        stored=wrote.cumsum(1).long(),
        label=episodes.label,
        answered=torch.cat(answered, 1),
        written=wrote,
        way=episodes.way,
    )
