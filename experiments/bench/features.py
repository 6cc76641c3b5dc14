"""Vectors of frozen encoders: OnlineClassifier with its default settings against what a user would take instead.

Photographs (EfficientNet-Lite0, ImageNet-mini `val`) and requests (MiniLM, BANKING77 and CLINC150), all vectors at unit
length; for `new or known` also drawings and digits behind the bundled model (Omniglot's and MNIST's test parts). `few-shot`: some
examples of each class are learnt in random order, then others asked about. `published`: the training sets of 5 and 10 per intent
that the literature uses, and the whole test set. `new or known`: half of the classes are learnt and all are asked about; for
CLINC150 its out-of-scope requests. Every draw is the same for all methods, so `difference` (ours − theirs) is paired. The
calibration error is that of the answers of all draws together: the few answers of one draw would be mostly chance.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from tyro.conf import arg

from apl.checkpoint import FOR_DRAWINGS
from apl.evaluate import Estimate
from experiments.baselines.interface import FewShotMethod, Scores
from experiments.baselines.prototypical import PrototypicalNetwork
from experiments.baselines.scikit import LogisticBaseline, NeighbourBaseline
from experiments.baselines.shipped import Shipped
from experiments.bench.feature_sets import digits, intents, photographs
from experiments.bench.quality import auroc, calibration_error, report, save
from experiments.bench.timing import threads
from experiments.paper.results import Row
from experiments.paper.subjects import Embedded, characters

ASKED_PER_CLASS, MOST_ASKED = 15, 1000
OURS = "ours"
Methods = dict[str, Callable[[], FewShotMethod]]


@dataclass(frozen=True)
class Task:
    """What is learnt, in this order, and what is asked. A label of -1 is of a class that was not learnt."""

    x: Float[Tensor, "example embed"]
    y: Int[Tensor, " example"]
    asked: Float[Tensor, "query embed"]
    truth: Int[Tensor, " query"]
    way: int


@dataclass(frozen=True)
class Answered:
    scores: Scores
    right: Bool[Tensor, " query"]
    new: Bool[Tensor, " query"]
    kept: int
    seconds: float


def rivals(width: int) -> Methods:
    return {
        "1-NN": lambda: NeighbourBaseline(1),
        "class mean": lambda: PrototypicalNetwork(width).eval(),
        "logistic regression, C = 10": lambda: LogisticBaseline(10.0, iterations=100),
    }


def answer(method: FewShotMethod, task: Task) -> Answered:
    started = time.process_time()
    method.adapt(task.x, task.y, task.way)
    scores = method.predict(task.asked)
    seconds = time.process_time() - started
    return Answered(scores, scores.log_probs.argmax(1) == task.truth, task.truth < 0, method.kept(), seconds)


def shuffled(items: Tensor, generator: torch.Generator) -> Tensor:
    return items[torch.randperm(len(items), generator=generator)]


def task_of(
    learnt: Embedded, asked: Embedded, known: Tensor, shown: Tensor, question: Tensor, generator: torch.Generator
) -> Task:
    """`known` classes get the labels 0, 1, …; what is asked about any other gets -1."""
    number = torch.full((int(max(learnt.labels.max(), asked.labels.max())) + 2,), -1)
    number[known] = torch.arange(len(known))
    shown, question = shuffled(shown, generator), shuffled(question, generator)
    x, y = learnt.embeddings[shown], number[learnt.labels[shown]]
    return Task(x, y, asked.embeddings[question], number[asked.labels[question]], len(known))


def few_shot_tasks(learnt: Embedded, asked: Embedded, way: int, shot: int, draws: int) -> Iterator[Task]:
    """`learnt` and `asked` may be the same: no example is both learnt and asked about."""
    for draw in range(draws):
        generator = torch.Generator().manual_seed(10**6 * draw + 1000 * shot + way)
        classes = shuffled(learnt.labels.unique(), generator)[:way]
        known, questions = [], []
        for c in classes:
            mine = shuffled((learnt.labels == c).nonzero()[:, 0], generator)
            rest = mine[shot:] if learnt is asked else shuffled((asked.labels == c).nonzero()[:, 0], generator)
            known.append(mine[:shot])
            questions.append(rest[:ASKED_PER_CLASS])
        question = shuffled(torch.cat(questions), generator)[:MOST_ASKED]
        yield task_of(learnt, asked, classes, torch.cat(known), question, generator)


def published_tasks(parts: dict[str, Embedded], shot: int) -> Iterator[Task]:
    learnt, asked = parts[f"train_{shot}"], parts["test"]
    everything = torch.arange(len(learnt.labels))
    generator = torch.Generator().manual_seed(0)
    yield task_of(learnt, asked, learnt.labels.unique(), everything, torch.arange(len(asked.labels)), generator)


def new_or_known_tasks(learnt: Embedded, asked: Embedded, shot: int, draws: int, way: int | None) -> Iterator[Task]:
    """Half of the classes (of `way` of them) are learnt, and as many questions are of new classes as of known ones. Where
    `asked` has out-of-scope requests (label -1), all classes are learnt and those are the new ones."""
    outside = bool((asked.labels < 0).any())
    for draw in range(draws):
        generator = torch.Generator().manual_seed(10**6 * draw + 1000 * shot)
        classes = shuffled(learnt.labels.unique(), generator)[:way]
        known = classes if outside else classes[: len(classes) // 2]
        mine = [shuffled((learnt.labels == c).nonzero()[:, 0], generator) for c in known]
        if learnt is asked:
            familiar = torch.cat([examples[shot : shot + ASKED_PER_CLASS] for examples in mine])
        else:
            familiar = torch.isin(asked.labels, known).nonzero()[:, 0]
        strange = (asked.labels < 0) if outside else torch.isin(asked.labels, classes[len(known) :])
        number = min(len(familiar), int(strange.sum()), MOST_ASKED)
        question = torch.cat([shuffled(s, generator)[:number] for s in (familiar, strange.nonzero()[:, 0])])
        yield task_of(learnt, asked, known, torch.cat([examples[:shot] for examples in mine]), question, generator)


def accuracy_rows(table: str, name: str, shot: int, tasks: Iterator[Task]) -> list[Row]:
    """One row for each method, over all tasks."""
    drawn = list(tasks)
    width = drawn[0].x.shape[1]
    about = {"table": table, "set": name, "way": drawn[0].way, "shot": shot, "draws": len(drawn)}
    rows: list[Row] = []
    ours: list[float] = []
    for method, build in {OURS: lambda: Shipped(None, width), **rivals(width)}.items():
        made = build()
        found = [answer(made, task) for task in drawn]
        accuracy = [float(one.right.float().mean()) for one in found]
        ours = accuracy if method == OURS else ours
        mean, difference = Estimate.of(accuracy), Estimate.of_difference(ours, accuracy)
        confidence = torch.cat([one.scores.log_probs.amax(1).exp() for one in found])
        rows.append(
            {
                **about,
                "method": method,
                "accuracy": mean.mean,
                "ci95": mean.ci95,
                "difference": difference.mean,
                "difference_ci95": difference.ci95,
                "rows": sum(one.kept for one in found) / len(found),
                "seconds": sum(one.seconds for one in found) / len(found),
                "ece": calibration_error(confidence, torch.cat([one.right for one in found])),
            }
        )
    return rows


def new_or_known_rows(name: str, shot: int, tasks: Iterator[Task], model: str | None = None) -> list[Row]:
    drawn = list(tasks)
    width, rows = drawn[0].x.shape[1], []
    about = {"table": "new or known", "set": name, "known": drawn[0].way, "shot": shot, "draws": len(drawn)}
    built: Methods = {OURS: lambda: Shipped(model, width), **rivals(width)}
    for method in (OURS, "1-NN", "class mean"):
        made = built[method]()
        found = [answer(made, task) for task in drawn]
        curve = Estimate.of([auroc(one.scores.novelty, one.new) for one in found])
        row = {**about, "method": method, "auroc": curve.mean, "auroc_ci95": curve.ci95}
        if method == OURS:
            called, new = (
                torch.cat(parts) for parts in zip(*((f.scores.novelty > 0.5, f.new) for f in found), strict=True)
            )
            row |= {
                "known_called_new": float(called[~new].float().mean()),
                "new_called_new": float(called[new].float().mean()),
            }
        rows.append(row)
    return rows


def requests(draws: int, draws_of_all: int) -> Iterator[list[Row]]:
    for name in ("banking77", "clinc150"):
        parts = intents(name)
        train, test = parts["train"], parts["test"]
        for shot in (5, 10):
            yield accuracy_rows("published", name, shot, published_tasks(parts, shot))
        asked = [part for part in ("test", "oos_test") if part in parts]
        vectors, labels = (torch.cat([getattr(parts[p], f) for p in asked]) for f in ("embeddings", "labels"))
        every = Embedded(vectors, labels, " and ".join(asked), "")
        for shot in (5, 10):
            yield new_or_known_rows(name, shot, new_or_known_tasks(train, every, shot, draws_of_all, None))
        for way, count in ((20, draws), (len(test.labels.unique()), draws_of_all)):
            for shot in (1, 5, 10):
                yield accuracy_rows("few-shot", name, shot, few_shot_tasks(train, test, way, shot, count))


def photos(draws: int, draws_of_all: int) -> Iterator[list[Row]]:
    data, name = photographs(), "photographs"
    for way, count in ((20, draws), (100, draws_of_all)):
        for shot in (1, 5):
            yield accuracy_rows("few-shot", name, shot, few_shot_tasks(data, data, way, shot, count))
    yield new_or_known_rows(name, 5, new_or_known_tasks(data, data, 5, draws, 100))
    yield new_or_known_rows(name, 5, new_or_known_tasks(data, data, 5, 1, None))


def drawings(draws: int) -> Iterator[list[Row]]:
    sets = (
        ("omniglot", characters(False, model=FOR_DRAWINGS), 200, (3, 5)),
        ("mnist", digits(FOR_DRAWINGS), 10, (10, 50)),
    )
    for name, data, way, shots in sets:
        for shot in shots:
            yield new_or_known_rows(name, shot, new_or_known_tasks(data, data, shot, draws, way), FOR_DRAWINGS)


@dataclass
class Command:
    """Learn vectors of frozen encoders and write results/features.json. Needs ImageNet-mini and the intents (APL_DATA)."""

    draws: Annotated[int, arg(metavar="N")] = 10
    """Draws of 20 classes."""
    draws_of_all: Annotated[int, arg(metavar="N")] = 5
    """Draws of all classes."""

    def run(self) -> None:
        if self.draws < 1 or self.draws_of_all < 1:
            raise ValueError("draws must be at least 1")
        rows: list[Row] = []
        with threads(1):
            for part in (
                requests(self.draws, self.draws_of_all),
                photos(self.draws, self.draws_of_all),
                drawings(self.draws),
            ):
                for found in part:
                    rows += found
                    report(found)
                    save("features", rows, draws=self.draws, draws_of_all=self.draws_of_all)
