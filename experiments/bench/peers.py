"""OnlineClassifier against what a user would take instead: the same vectors, the same streams, predict before learning.

Time is the processor's for answering and learning, without the encoder, on one thread. No method can name a class before its
first example; `accuracy_seen` leaves those out, and so does the calibration error of our answers. Every seed draws one stream
for all methods, so `difference` (ours − theirs, in accuracy_seen) is paired. Sets: drawings of Omniglot's 423 test characters
and MNIST's test digits by the bundled encoder, BANKING77's test requests by MiniLM, and photographs (100 classes of ImageNet-mini
`val` for each seed) by EfficientNet-Lite0.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Int
from torch import Tensor

from apl.checkpoint import FOR_DRAWINGS
from apl.evaluate import Estimate
from experiments.baselines.interface import FewShotMethod
from experiments.baselines.protocols import Watched, watch
from experiments.baselines.prototypical import PrototypicalNetwork
from experiments.baselines.scikit import LogisticBaseline, NeighbourBaseline
from experiments.baselines.shipped import Shipped
from experiments.baselines.streaming_lda import StreamingLDA
from experiments.bench.feature_sets import digits, intents, photographs
from experiments.bench.quality import calibration_error, report, save
from experiments.bench.timing import threads
from experiments.paper.results import Row
from experiments.paper.subjects import Embedded, characters

Order = Literal["random order", "class by class"]
SEEDS = 5
OURS = "apl"


def methods(width: int, model: str | None) -> dict[str, Callable[[], FewShotMethod]]:
    """Ours with the bundled model's decoder for drawings, without one for other vectors."""
    return {
        OURS: lambda: Shipped(model, width),
        "apl, plain rule": lambda: Shipped(model, width, consolidate=False),
        "keep everything, nearest neighbour": lambda: NeighbourBaseline(1),
        "running class mean": lambda: PrototypicalNetwork(width).eval(),
        "streaming LDA": lambda: StreamingLDA.from_nothing(width),
        "logistic regression, C = 10, refitted": lambda: LogisticBaseline(10.0, iterations=100),
    }


@dataclass(frozen=True)
class Stream:
    """Examples in the order in which they are shown, and their labels."""

    example: Int[Tensor, " time"]
    label: Int[Tensor, " time"]


def drawn(labels: Int[Tensor, " example"], per_class: int, order: Order, seed: int, way: int | None = None) -> Stream:
    """`way`: how many of the classes; all of them if None."""
    generator = torch.Generator().manual_seed(seed)

    def shuffled(items: Tensor) -> Tensor:
        return items[torch.randperm(len(items), generator=generator)]

    classes = shuffled(labels.unique())[:way]
    examples = [shuffled((labels == c).nonzero()[:, 0])[:per_class] for c in classes]
    shown = torch.cat(examples)
    number = torch.arange(len(classes)).repeat_interleave(torch.tensor([len(e) for e in examples]))
    place = shuffled(torch.arange(len(shown))) if order == "random order" else torch.arange(len(shown))
    return Stream(shown[place], number[place])


def compared(
    name: str, data: Embedded, per_class: int, model: str | None, order: Order = "random order", way: int | None = None
) -> Iterator[Row]:
    """All methods on the streams of one set."""
    x, width = F.normalize(data.embeddings, dim=1), data.embeddings.shape[1]
    classes = way or len(data.labels.unique())
    streams = [drawn(data.labels, per_class, order, seed, way) for seed in range(SEEDS)]
    ours: list[float] = []
    for method, build in methods(width, model).items():
        made = build()
        # The bundled encoder's embeddings have length √width.
        given = x * width**0.5 if isinstance(made, Shipped) and model is not None else x
        found = [watch(made, given, stream.example, stream.label, classes) for stream in streams]
        seen = [one.accuracy_on_known() for one in found]
        ours = seen if method == OURS else ours
        about = {"stream": f"{name}, {order}", "method": method, "seeds": SEEDS, "split": data.split}
        yield {**about, "examples": len(streams[0].label), **scored(found, ours, seen)}


def scored(found: list[Watched], ours: list[float], seen: list[float]) -> Row:
    known, difference = Estimate.of(seen), Estimate.of_difference(ours, seen)
    confidence = torch.cat([one.confidence[~one.new] for one in found])
    right = torch.cat([one.correct[~one.new] for one in found])
    return {
        "accuracy": fmean([float(one.correct.float().mean()) for one in found]),
        "accuracy_seen": known.mean,
        "accuracy_seen_ci95": known.ci95,
        "difference": difference.mean,
        "difference_ci95": difference.ci95,
        "accuracy_last_quarter": fmean([float(one.correct[-len(one.correct) // 4 :].float().mean()) for one in found]),
        "ece": calibration_error(confidence, right),
        "rows": fmean([one.kept for one in found]),
        "ms_per_example": 1000 * fmean([one.seconds_per_example for one in found]),
    }


def run(model: str = FOR_DRAWINGS) -> Path:
    requests, signs = intents("banking77")["test"], characters(False, model=model)
    rows: list[Row] = []
    with threads(1):
        for row in itertools.chain(
            compared("photographs", photographs(), 8, None, way=100),
            compared("BANKING77 requests", requests, 12, None),
            compared("MNIST digits", digits(model), 60, model),
            compared("drawings", signs, 6, model),
            compared("drawings", signs, 6, model, "class by class"),
        ):
            rows.append(row)
            report([row])
            path = save("peers", rows, model=model)
    return path
