"""How every method is measured, one draw at a time: on a context and questions, or on a stream."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from apl.episode import Episodes, EpisodeSampler
from experiments.baselines.methods import Method, Scores

QUERIES_AT_ONCE = 1024


@dataclass(frozen=True)
class Questions:
    """What is learnt, in this order, and what is asked afterwards."""

    learnt: Episodes
    asked: Episodes
    one_by_one: bool = False


@dataclass(frozen=True)
class Stream:
    """Examples in the order in which they are shown, and their labels."""

    example: Int[Tensor, " time"]
    label: Int[Tensor, " time"]


@dataclass(frozen=True)
class Watched:
    """What a method made of a stream, example by example."""

    correct: Bool[Tensor, " time"]
    new: Bool[Tensor, " time"]
    """The class was shown here for the first time."""
    novelty: Float[Tensor, " time"]
    """How new it looked before the label was given."""
    confidence: Float[Tensor, " time"]
    """The probability of the answer among the known classes."""
    kept: int
    seconds_per_example: float
    """Of processor time, for answering and learning."""

    def accuracy_seen(self) -> float:
        """On examples of classes that were shown before."""
        return float(self.correct[~self.new].float().mean())

    def accuracy_last_quarter(self) -> float:
        return float(self.correct[-len(self.correct) // 4 :].float().mean())

    def average_precision_known(self) -> float:
        """Examples in the order of how little new they looked; right are those of a known class that was named rightly.

        The area under precision against recall, where recall is of all examples of known classes (Ren et al. 2021).
        """
        return average_precision(-self.novelty, self.correct & ~self.new, int((~self.new).sum()))

    def average_precision_new(self) -> float:
        """Examples in the order of how new they looked; right are first examples of a class.

        The very first of a stream is left out: there is nothing yet to be known or new.
        """
        return average_precision(self.novelty[1:], self.new[1:], int(self.new[1:].sum()))


def average_precision(score: Float[Tensor, " item"], right: Bool[Tensor, " item"], wanted: int) -> float:
    """Mean over the `wanted` of the precision at each that was found; equal scores share their precision."""
    from sklearn.metrics import average_precision_score

    found = int(right.sum())
    # scikit-learn's recall is of those that are right; here it is of all that were wanted.
    return float(average_precision_score(right, score.nan_to_num())) * found / wanted if found else 0.0


def few_shot(
    labels: Int[Tensor, " example"], way: int, shot: int, queries: int, episodes: int, seed: int
) -> list[Questions]:
    """Contexts of `shot` examples of each class, in random order, learnt at once."""
    sampler = EpisodeSampler(labels, torch.Generator().manual_seed(seed))
    drawn = []
    for _ in range(episodes):
        one = sampler.fixed_context(way, shot, queries, 1)
        order = torch.randperm(one.stored.example.shape[1], generator=sampler.generator)
        drawn.append(Questions(Episodes(one.stored.example[:, order], one.stored.label[:, order], way), one.asked))
    return drawn


def one_after_another(
    labels: Int[Tensor, " example"], way: int, shot: int, queries: int, episodes: int, seed: int
) -> list[Questions]:
    """All examples of one class, then all of the next, learnt one by one; questions about all classes at the end."""
    sampler = EpisodeSampler(labels, torch.Generator().manual_seed(seed))
    drawn = (sampler.fixed_context(way, shot, queries, 1) for _ in range(episodes))
    return [Questions(one.stored, one.asked, one_by_one=True) for one in drawn]


def answered(method: Method, x: Float[Tensor, "example embed"], questions: Questions) -> float:
    """The share of questions that is answered rightly."""
    learnt, asked = questions.learnt, questions.asked
    first = 0 if questions.one_by_one else learnt.example.shape[1]
    method.adapt(x[learnt.example[0, :first]], learnt.label[0, :first], learnt.way)
    for example, label in zip(learnt.example[0, first:], learnt.label[0, first:].tolist(), strict=True):
        method.observe(x[example], label)
    parts = asked.example[0].split(QUERIES_AT_ONCE)
    answer = torch.cat([method.predict(x[part]).log_probs.argmax(1) for part in parts])
    return float((answer == asked.label[0]).float().mean())


def watch(method: Method, x: Float[Tensor, "example embed"], stream: Stream, way: int) -> Watched:
    """From an empty memory: predict, then learn."""
    method.adapt(x[:0], stream.label[:0], way)
    answers: list[Scores] = []
    vectors, labels = x[stream.example], stream.label.tolist()
    started = time.process_time()
    for vector, y in zip(vectors, labels, strict=True):
        answers.append(method.predict(vector[None]))
        method.observe(vector, y)
    seconds = (time.process_time() - started) / len(labels)
    correct = torch.tensor([int(a.log_probs[0].argmax()) for a in answers]) == stream.label
    novelty = torch.stack([a.novelty[0] for a in answers])
    confidence = torch.stack([a.log_probs[0].amax().exp() for a in answers])
    new = torch.tensor([y not in labels[:time] for time, y in enumerate(labels)])
    return Watched(correct, new, novelty, confidence, method.kept(), seconds)


def streams(
    labels: Int[Tensor, " example"], per_class: int, seeds: int, way: int | None = None, sorted_by_class: bool = False
) -> list[Stream]:
    """One stream for each seed: `per_class` examples of each class (of `way` of them; of all if None), in random order or class
    by class."""
    return [_stream(labels, per_class, seed, way, sorted_by_class) for seed in range(seeds)]


def _stream(
    labels: Int[Tensor, " example"], per_class: int, seed: int, way: int | None, sorted_by_class: bool
) -> Stream:
    generator = torch.Generator().manual_seed(seed)

    def shuffled(items: Tensor) -> Tensor:
        return items[torch.randperm(len(items), generator=generator)]

    classes = shuffled(labels.unique())[:way]
    examples = [shuffled((labels == c).nonzero()[:, 0])[:per_class] for c in classes]
    shown = torch.cat(examples)
    number = torch.arange(len(classes)).repeat_interleave(torch.tensor([len(e) for e in examples]))
    place = torch.arange(len(shown)) if sorted_by_class else shuffled(torch.arange(len(shown)))
    return Stream(shown[place], number[place])


@dataclass(frozen=True)
class Roaming:
    """RoamingOmniglot (Ren et al. 2021, appendix): places that are left and come back to, and in each of them classes
    that follow a Chinese restaurant process. All labels are given."""

    length: int = 150
    places: int = 5
    classes_per_place: int = 10
    most_per_class: int = 6
    discount: float = 0.2
    strength: float = 1.0
    move: float = 0.2
    """Probability of another place at each step."""

    @property
    def classes(self) -> int:
        return self.places * self.classes_per_place

    def streams(self, labels: Int[Tensor, " example"], count: int, seed: int) -> list[Stream]:
        generator = torch.Generator().manual_seed(seed)
        return [self.draw(labels, generator) for _ in range(count)]

    def draw(self, labels: Int[Tensor, " example"], generator: torch.Generator) -> Stream:
        """One stream. Deviation: the classes of a place are drawn from all alphabets, not from one."""
        waiting = [self._seating(generator) for _ in range(self.places)]
        order = torch.randperm(int(labels.max()) + 1, generator=generator)[: self.classes]
        drawings = [(labels == c).nonzero()[:, 0] for c in order]
        drawings = [d[torch.randperm(len(d), generator=generator)].tolist() for d in drawings]
        place = 0
        example: list[int] = []
        label: list[int] = []
        while len(example) < self.length and any(waiting):
            if float(torch.rand((), generator=generator)) < self.move or not waiting[place]:
                others = [p for p in range(self.places) if waiting[p] and p != place] or [place]
                place = others[int(torch.randint(len(others), (), generator=generator))]
            y = place * self.classes_per_place + waiting[place].pop(0)
            example.append(drawings[y].pop())
            label.append(y)
        return Stream(torch.tensor(example), torch.tensor(label))

    def _seating(self, generator: torch.Generator) -> list[int]:
        """Which class of a place is met when, for its share of the stream."""
        count: list[int] = []
        seating: list[int] = []
        while len(seating) < self.length // self.places:
            known = [n - self.discount if n < self.most_per_class else 0.0 for n in count]
            new = self.strength + self.discount * len(count) if len(count) < self.classes_per_place else 0.0
            weights = torch.tensor([*known, new])
            if not float(weights.sum()):
                break
            chosen = int(torch.multinomial(weights, 1, generator=generator))
            if chosen == len(count):
                count.append(0)
            count[chosen] += 1
            seating.append(chosen)
        return seating
