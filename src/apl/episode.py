"""Episodes (paper, section 2.2): some classes under shuffled labels, an empty memory, a stream of examples."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int, Num
from torch import Tensor

from apl.learner import Learner, Observation
from apl.memory import Memory


@dataclass(frozen=True)
class Episodes:
    """Parallel episodes: which example is shown when, and under which label."""

    example: Int[Tensor, "episode time"]
    """Positions in the data; no example occurs twice in an episode."""
    label: Int[Tensor, "episode time"]
    """Labels 0..way-1, assigned to classes anew in each episode."""
    way: int

    def classes(self, labels: Int[Tensor, " example"]) -> Int[Tensor, "episode way"]:
        """The class in the data that each label of an episode stands for; -1 if no example of it is shown."""
        unknown = torch.full((len(self.label), self.way), -1)
        return unknown.scatter_(1, self.label, labels[self.example])


@dataclass(frozen=True)
class FixedContexts:
    """Parallel few-shot tasks: `shot` examples of each class to store, others to be asked about."""

    stored: Episodes
    asked: Episodes


@dataclass(frozen=True)
class Step:
    """One batch of an episode, after prediction and learning."""

    seen: int
    """Examples shown before this batch."""
    label: Int[Tensor, "episode query"]
    observation: Observation

    @property
    def right(self) -> Bool[Tensor, "episode query"]:
        """Where the prediction was the label; on the CPU, as all that is counted."""
        right: Tensor = self.observation.prediction.label.cpu() == self.label
        return right


class EpisodeSampler:
    """Draws episodes from labelled data."""

    def __init__(self, labels: Int[Tensor, " example"], generator: torch.Generator) -> None:
        self.generator = generator
        self.count = labels.bincount()
        if len(self.count) < 2 or int(self.count.min()) < 1:
            raise ValueError("episodes need at least two classes, numbered from 0 on, each with at least one example")
        self._by_class = labels.argsort(stable=True)
        self._start = self.count.cumsum(0) - self.count

    def check(self, way: int) -> None:
        """Raise if there are not as many classes."""
        if not 2 <= way <= len(self.count):
            raise ValueError(f"way must lie between 2 and the {len(self.count)} classes there are, got {way}")

    def online(self, way: int, length: int | None, episodes: int) -> Episodes:
        """Streams of `length` examples in random order (all examples of the classes if `length` is None)."""
        if length is not None and length < 1:
            raise ValueError(f"length must be at least 1, got {length}")
        drawn = [self._examples_of(classes) for classes in self._classes(way, episodes)]
        available = min(len(example) for example, _ in drawn)
        length = available if length is None else min(length, available)
        example, label = [], []
        for all_examples, all_labels in drawn:
            order = torch.randperm(len(all_examples), generator=self.generator)[:length]
            example.append(all_examples[order])
            label.append(all_labels[order])
        return Episodes(torch.stack(example), torch.stack(label), way)

    def fixed_context(self, way: int, shot: int, queries: int, episodes: int) -> FixedContexts:
        """`shot` examples of each class to store, and up to `queries` other ones of each to ask about."""
        if shot < 1:
            raise ValueError(f"shot must be at least 1, got {shot}")
        classes = self._classes(way, episodes)
        fewest = int(self.count[classes].min())
        if fewest <= shot:
            raise ValueError(f"{shot} shots leave nothing to ask about: a class has only {fewest} examples")
        taken = min(shot + queries, fewest)
        position = torch.stack(
            [torch.randperm(int(n), generator=self.generator)[:taken] for n in self.count[classes].flatten()]
        ).view(episodes, way, taken)
        example = self._by_class[self._start[classes][..., None] + position]
        label = torch.arange(way)[None, :, None].expand_as(example)

        def part(which: slice) -> Episodes:
            return Episodes(example[..., which].flatten(1), label[..., which].flatten(1), way)

        return FixedContexts(part(slice(0, shot)), part(slice(shot, taken)))

    def _classes(self, way: int, episodes: int) -> Int[Tensor, "episode way"]:
        """Classes in random order: the label of a class in an episode is its place in this order."""
        self.check(way)
        return torch.stack([torch.randperm(len(self.count), generator=self.generator)[:way] for _ in range(episodes)])

    def _examples_of(self, classes: Int[Tensor, " way"]) -> tuple[Tensor, Tensor]:
        label = torch.arange(len(classes)).repeat_interleave(self.count[classes])
        within = torch.cat([torch.arange(int(n)) for n in self.count[classes]])
        return self._by_class[self._start[classes][label] + within], label


def run_episode(
    learner: Learner,
    memory: Memory,
    inputs: Num[Tensor, "example *input"],
    episodes: Episodes,
    batch: int,
    prepare: Callable[[Tensor], Tensor] = lambda x: x,
) -> Iterator[Step]:
    """Show the examples batch by batch: predict, then learn. The only loop over an episode there is.

    `prepare` is applied to the `[example, *input]` of a batch (jitter, in training).
    """
    for seen in range(0, episodes.example.shape[1], batch):
        example, label = episodes.example[:, seen : seen + batch], episodes.label[:, seen : seen + batch]
        x = prepare(inputs[example.flatten()]).reshape(*example.shape, *inputs.shape[1:])
        yield Step(seen, label, learner.observe(memory, x, label, episodes.way))
