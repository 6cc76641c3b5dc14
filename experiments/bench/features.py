"""Is an example of a known class or of a new one? OnlineClassifier with its default settings on vectors of frozen encoders.

Photographs (EfficientNet-Lite0, ImageNet-mini `val`) and requests (MiniLM, BANKING77 and CLINC150), all vectors at unit
length; drawings and digits behind the bundled model (Omniglot's and MNIST's test parts). Half of the classes are learnt, in random
order, and all are asked about; for CLINC150 its out-of-scope requests. Every draw is the same for all methods. How accurate
answers are on such vectors is measured by `batch` and `peers`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import torch
from jaxtyping import Float, Int
from torch import Tensor
from tyro.conf import arg

from apl.checkpoint import FOR_DRAWINGS
from apl.evaluate import Estimate
from experiments.baselines.methods import ClassMean, Method, NearestNeighbour
from experiments.baselines.shipped import Shipped
from experiments.bench.measurement import threads
from experiments.data.embedded import Embedded, characters, digits, intents, photographs
from experiments.paper.results import Row, machine, measure_all

ASKED_PER_CLASS, MOST_ASKED = 15, 1000
OURS = "ours"


@dataclass(frozen=True)
class Task:
    """What is learnt, in this order, and what is asked. A label of -1 is of a class that was not learnt."""

    x: Float[Tensor, "example embed"]
    y: Int[Tensor, " example"]
    asked: Float[Tensor, "query embed"]
    truth: Int[Tensor, " query"]
    way: int


def novelty(method: Method, task: Task) -> Float[Tensor, " query"]:
    """How new each question looks after the lesson."""
    method.adapt(task.x, task.y, task.way)
    return method.predict(task.asked).novelty


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


def new_or_known_rows(name: str, shot: int, tasks: Iterator[Task], model: str | None = None) -> Iterator[Row]:
    from sklearn.metrics import roc_auc_score

    drawn = list(tasks)
    width = drawn[0].x.shape[1]
    about = {"table": "new or known", "set": name, "known": drawn[0].way, "shot": shot, "draws": len(drawn)}
    methods: dict[str, Method] = {
        OURS: Shipped(model, width),
        "1-NN": NearestNeighbour(),
        "class mean": ClassMean(),
    }
    for method, made in methods.items():
        found, new = [novelty(made, task) for task in drawn], [task.truth < 0 for task in drawn]
        curve = Estimate.of([float(roc_auc_score(truly, one)) for one, truly in zip(found, new, strict=True)])
        row = {**about, "method": method, "auroc": curve.mean, "auroc_ci95": curve.ci95}
        if method == OURS:
            called, truly = torch.cat(found) > 0.5, torch.cat(new)
            row |= {
                "known_called_new": float(called[~truly].float().mean()),
                "new_called_new": float(called[truly].float().mean()),
            }
        yield row


def requests(draws: int) -> Iterator[Row]:
    for name in ("banking77", "clinc150"):
        parts = intents(name)
        asked = [part for part in ("test", "oos_test") if part in parts]
        vectors, labels = (torch.cat([getattr(parts[p], f) for p in asked]) for f in ("embeddings", "labels"))
        every = Embedded(vectors, labels, " and ".join(asked), "")
        for shot in (5, 10):
            yield from new_or_known_rows(name, shot, new_or_known_tasks(parts["train"], every, shot, draws, None))


def photos(draws: int) -> Iterator[Row]:
    data = photographs()
    yield from new_or_known_rows("photographs", 5, new_or_known_tasks(data, data, 5, draws, 100))
    yield from new_or_known_rows("photographs", 5, new_or_known_tasks(data, data, 5, 1, None))


def drawings(draws: int) -> Iterator[Row]:
    sets = (
        ("omniglot", characters(False, model=FOR_DRAWINGS), 200, (3, 5)),
        ("mnist", digits(FOR_DRAWINGS), 10, (10, 50)),
    )
    for name, data, way, shots in sets:
        for shot in shots:
            yield from new_or_known_rows(name, shot, new_or_known_tasks(data, data, shot, draws, way), FOR_DRAWINGS)


@dataclass
class Command:
    """Ask about known and new classes and write results/features.json. Needs ImageNet-mini and the intents (APL_DATA)."""

    draws: Annotated[int, arg(metavar="N")] = 10

    def run(self) -> None:
        if self.draws < 1:
            raise ValueError("draws must be at least 1")
        with threads(1):
            rows = itertools.chain(requests(self.draws), photos(self.draws), drawings(self.draws))
            measure_all("features", rows, **machine(), draws=self.draws)
