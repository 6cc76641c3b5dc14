"""The four ways in which every method is measured, episode by episode.

`few_shot`: a context of `shot` examples of each class, then questions. `online`: predict, then learn, from nothing.
`roaming`: streams with places and classes that come back (Ren et al. 2021). `one_after_another`: all examples of one class, then
all of the next; questions about all of them at the end.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from apl.episode import Episodes, EpisodeSampler
from experiments.baselines.interface import EpisodicMethod, FewShotMethod, Scores

QUERIES_AT_ONCE = 1024
TASKS_AT_ONCE, PAIRS_AT_ONCE = 20, 25_000_000
"""How many tasks are computed side by side, where that is cheaper, and a bound on their queries × examples."""


@dataclass(frozen=True)
class Watched:
    """One stream, example by example."""

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

    def accuracy_on_known(self) -> float:
        return float(self.correct[~self.new].float().mean())

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
    order = score.argsort(descending=True, stable=True)
    ranked, sorted_score = right[order].double(), score[order]
    # Precision is read at the end of a run of equal scores, so that the order within it does not count.
    last_of_run = torch.searchsorted(-sorted_score, -sorted_score, right=True) - 1
    found = ranked.cumsum(0)[last_of_run]
    precision = found / (last_of_run + 1)
    return float((precision * ranked).sum() / max(wanted, 1))


def few_shot(
    method: FewShotMethod,
    x: Float[Tensor, "example embed"],
    labels: Int[Tensor, " example"],
    *,
    way: int,
    shot: int,
    queries: int,
    episodes: int,
    seed: int,
) -> Float[Tensor, " episode"]:
    """The accuracy of each episode. The context comes in random order. Every method gets the same episodes."""
    sampler = EpisodeSampler(labels, torch.Generator().manual_seed(seed))
    drawn = [shuffled_context(sampler, way, shot, queries) for _ in range(episodes)]
    if not isinstance(method, EpisodicMethod) or not method.side_by_side:
        return torch.tensor([after_context(method, x, *one) for one in drawn])
    accuracy: list[Tensor] = []
    at_once = min(TASKS_AT_ONCE, max(1, PAIRS_AT_ONCE // (way * shot * way * queries)))
    for start in range(0, episodes, at_once):
        stored, questions = zip(*drawn[start : start + at_once], strict=True)
        context, query = (torch.cat([part.example for part in parts]) for parts in (stored, questions))
        label, truth = (torch.cat([part.label for part in parts]) for parts in (stored, questions))
        with torch.no_grad():
            answer = method.logits(x[context], label, x[query], way).argmax(2)
        accuracy.append((answer == truth).float().mean(1))
    return torch.cat(accuracy)


def shuffled_context(sampler: EpisodeSampler, way: int, shot: int, queries: int) -> tuple[Episodes, Episodes]:
    """One episode: what is stored, in random order, and what is asked."""
    drawn = sampler.fixed_context(way, shot, queries, 1)
    order = torch.randperm(drawn.stored.example.shape[1], generator=sampler.generator)
    return Episodes(drawn.stored.example[:, order], drawn.stored.label[:, order], way), drawn.asked


def after_context(
    method: FewShotMethod, x: Float[Tensor, "example embed"], stored: Episodes, questions: Episodes
) -> float:
    method.adapt(x[stored.example[0]], stored.label[0], stored.way)
    return asked(method, x, questions)


def asked(method: FewShotMethod, x: Float[Tensor, "example embed"], questions: Episodes) -> float:
    example, label = questions.example[0], questions.label[0]
    answers = [method.predict(x[part]).log_probs.argmax(1) for part in example.split(QUERIES_AT_ONCE)]
    return float((torch.cat(answers) == label).float().mean())


def online(
    method: FewShotMethod,
    x: Float[Tensor, "example embed"],
    labels: Int[Tensor, " example"],
    *,
    way: int,
    per_class: int,
    streams: int,
    seed: int,
) -> list[Watched]:
    """`per_class` examples of each class on average, in random order."""
    sampler = EpisodeSampler(labels, torch.Generator().manual_seed(seed))
    drawn = (sampler.online(way, way * per_class, 1) for _ in range(streams))
    return [watch(method, x, one.example[0], one.label[0], way) for one in drawn]


def watch(
    method: FewShotMethod,
    x: Float[Tensor, "example embed"],
    example: Int[Tensor, " time"],
    label: Int[Tensor, " time"],
    way: int,
) -> Watched:
    """From an empty memory: predict, then learn."""
    method.adapt(x[:0], label[:0], way)
    answers: list[Scores] = []
    vectors, labels = x[example], label.tolist()
    started = time.process_time()
    for vector, y in zip(vectors, labels, strict=True):
        answers.append(method.predict(vector[None]))
        method.observe(vector, y)
    seconds = (time.process_time() - started) / len(labels)
    correct = torch.tensor([int(a.log_probs[0].argmax()) for a in answers]) == label
    novelty = torch.stack([a.novelty[0] for a in answers])
    confidence = torch.stack([a.log_probs[0].amax().exp() for a in answers])
    return Watched(correct, first_of_class(label), novelty, confidence, method.kept(), seconds)


def first_of_class(label: Int[Tensor, " time"]) -> Bool[Tensor, " time"]:
    return torch.tensor([y not in label[:time] for time, y in enumerate(label)])


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

    def draw(self, labels: Int[Tensor, " example"], generator: torch.Generator) -> Episodes:
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
        return Episodes(torch.tensor([example]), torch.tensor([label]), self.classes)

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


def roaming(
    method: FewShotMethod,
    x: Float[Tensor, "example embed"],
    labels: Int[Tensor, " example"],
    *,
    streams: int,
    seed: int,
    world: Roaming | None = None,
) -> list[Watched]:
    world, generator = world or Roaming(), torch.Generator().manual_seed(seed)
    drawn = (world.draw(labels, generator) for _ in range(streams))
    return [watch(method, x, one.example[0], one.label[0], one.way) for one in drawn]


def one_after_another(
    method: FewShotMethod,
    x: Float[Tensor, "example embed"],
    labels: Int[Tensor, " example"],
    *,
    way: int,
    shot: int,
    queries: int,
    episodes: int,
    seed: int,
) -> Float[Tensor, " episode"]:
    """Accuracy over all classes, after the last."""
    sampler = EpisodeSampler(labels, torch.Generator().manual_seed(seed))
    accuracy = []
    for _ in range(episodes):
        drawn = sampler.fixed_context(way, shot, queries, 1)
        method.adapt(x[:0], drawn.stored.label[0, :0], way)
        for example, label in zip(drawn.stored.example[0], drawn.stored.label[0].tolist(), strict=True):
            method.observe(x[example], label)
        accuracy.append(asked(method, x, drawn.asked))
    return torch.tensor(accuracy)
