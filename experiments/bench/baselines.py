"""OnlineClassifier beside simple methods: the same vectors, the same draws, so that differences to ours are paired.

`python -m experiments baselines`: Omniglot's test characters behind the bundled model `omniglot`, in fifteen cells: few-shot accuracy,
streams of 20 and of all 423 classes, roaming streams (Ren et al. 2021) and classes one after the other.
`python -m experiments vinyals`: the split of the few-shot literature, behind the encoder `lake`, which was trained on the background characters
alone: none of this split's test characters is among them.
`python -m experiments peers`: streams of drawings, digits, photographs and requests, where a user would take one of these instead.

Ours is `OnlineClassifier` as it ships; the plain rule is the paper's, nothing merged. The others have unit vectors and no training.
No method can name a class before its first example, so accuracy on a stream is of examples whose class was shown before. Time is the
processor's for answering and learning, without the encoder, on one thread.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, cat

from apl.checkpoint import FOR_DRAWINGS
from apl.evaluate import Estimate
from experiments.baselines.methods import ClassMean, LogisticRegression, Method, NearestNeighbour, StreamingLDA
from experiments.baselines.protocols import (
    Questions,
    Roaming,
    Stream,
    answered,
    few_shot,
    one_after_another,
    streams,
    watch,
)
from experiments.baselines.shipped import Shipped
from experiments.bench.measurement import calibration_error, threads
from experiments.data.embedded import LAKE, MODEL, Embedded, characters, digits, intents, photographs, vinyals
from experiments.paper.results import Row, machine, measure_all

OURS = "apl"
SEED, SEEDS, MANY = 1, 5, 423
EPISODES = {5: 100, 20: 100, MANY: 10, 1000: 5}
"""Of few-shot accuracy, by number of classes."""
LITERATURE_EPISODES = 200
ITERATIONS = {"peers": 100, "baselines": 25}
"""Of logistic regression. Among a thousand classes a hundred would take longer than all else."""


def contenders(
    data: Embedded, model: str | None, iterations: int
) -> Iterator[tuple[str, Method, Float[Tensor, "example embed"]]]:
    """Every method and the vectors it reads; ours with a bundled model's decoder, or without one."""
    unit, width = F.normalize(data.embeddings, dim=1), data.embeddings.shape[1]
    # The bundled encoder's embeddings have length √width.
    given = unit if model is None else unit * width**0.5
    yield OURS, Shipped(model, width), given
    yield "apl, plain rule", Shipped(model, width, consolidate=False), given
    yield "keep everything, nearest neighbour", NearestNeighbour(), unit
    yield "running class mean", ClassMean(), unit
    yield "streaming LDA", StreamingLDA(), unit
    yield "logistic regression, C = 10, refitted", LogisticRegression(iterations), unit


def paired(figures: Mapping[str, Sequence[float]], ours: Mapping[str, Sequence[float]]) -> Row:
    """Mean and interval of each figure over the draws, and the difference ours − this method's on the same draws."""
    row: Row = {}
    for name, values in figures.items():
        mean, difference = Estimate.of(values), Estimate.of_difference(ours[name], values)
        row |= {name: mean.mean, "ci95" if name == "accuracy" else f"{name}_ci95": mean.ci95}
        row |= {f"{name}_difference": difference.mean, f"{name}_difference_ci95": difference.ci95}
    return row


def on_questions(
    about: Row, data: Embedded, drawn: list[Questions], model: str | None, iterations: int
) -> Iterator[Row]:
    ours: dict[str, list[float]] = {}
    for name, method, x in contenders(data, model, iterations):
        found = {"accuracy": [answered(method, x, one) for one in drawn]}
        ours = ours or found
        yield {**about, "method": name, "episodes": len(drawn), **paired(found, ours)}


def on_streams(
    about: Row, data: Embedded, drawn: list[Stream], way: int, model: str | None, iterations: int
) -> Iterator[Row]:
    ours: dict[str, list[float]] = {}
    for name, method, x in contenders(data, model, iterations):
        watched = [watch(method, x, stream, way) for stream in drawn]
        found = {
            "accuracy": [float(one.correct.float().mean()) for one in watched],
            "accuracy_seen": [one.accuracy_seen() for one in watched],
            "accuracy_last_quarter": [one.accuracy_last_quarter() for one in watched],
            "ap_known": [one.average_precision_known() for one in watched],
            "ap_new": [one.average_precision_new() for one in watched],
        }
        ours = ours or found
        confidence, right = (
            cat([part[~one.new] for part, one in zip(parts, watched, strict=True)])
            for parts in ([one.confidence for one in watched], [one.correct for one in watched])
        )
        yield {
            **about,
            "method": name,
            "episodes": len(drawn),
            "examples": len(drawn[0].label),
            **paired(found, ours),
            "ece": calibration_error(confidence, right),
            "rows": fmean(one.kept for one in watched),
            "ms_per_example": 1000 * fmean(one.seconds_per_example for one in watched),
        }


def baseline_rows(quick: bool) -> Iterator[Row]:
    data = characters(False)
    # Half of the drawings are enough for six of each class.
    many = characters(True, few=True)

    def about(protocol: str, way: int, shot: int) -> Row:
        row = {"protocol": protocol, "way": way, "shot": shot, "seed": SEED, "decoder": "bundled", "labels": "any"}
        return {**row, "checkpoint": MODEL, "split": data.split, "split_hash": data.split_hash}

    def count(full: int) -> int:
        return 2 if quick else full

    more = (MODEL, ITERATIONS["baselines"])
    for way, shot in itertools.product(EPISODES, (1, 5)):
        of, queries = many if way > MANY else data, 5 if way < MANY else 1
        drawn = few_shot(of.labels, way, shot, queries, count(EPISODES[way]), SEED)
        yield from on_questions(about("few-shot", way, shot), of, drawn, *more)
    for way, per_class, number in ((20, 20, 10), (MANY, 6, 5)):
        stream = streams(data.labels, 2 if quick else per_class, count(number), way)
        yield from on_streams(about("online", way, 0), data, stream, way, *more)
    world = Roaming()
    roaming = world.streams(data.labels, count(20), SEED)
    yield from on_streams(about("roaming", world.classes, 0), data, roaming, world.classes, *more)
    for way, episodes in ((20, 20), (MANY, 5)):
        drawn = one_after_another(data.labels, way, 5, 5, count(episodes), SEED)
        yield from on_questions(about("one after another", way, 5), data, drawn, *more)


def vinyals_rows(quick: bool) -> Iterator[Row]:
    data = vinyals()
    for way, shot in itertools.product((5, 20), (1, 5)):
        about = {"protocol": "few-shot", "way": way, "shot": shot, "seed": SEED, "checkpoint": LAKE}
        drawn = few_shot(data.labels, way, shot, 5, 2 if quick else LITERATURE_EPISODES, SEED)
        identity = {"split": data.split, "split_hash": data.split_hash}
        yield from on_questions({**about, **identity}, data, drawn, None, ITERATIONS["baselines"])


def peer_rows(quick: bool) -> Iterator[Row]:
    requests, signs = intents("banking77")["test"], characters(False, model=FOR_DRAWINGS)
    seeds = 2 if quick else SEEDS

    def rows(
        name: str, data: Embedded, per_class: int, model: str | None, way: int | None = None, order: str = ""
    ) -> Iterator[Row]:
        about = {"stream": f"{name}, {order or 'random order'}", "seeds": seeds, "split": data.split}
        drawn = streams(data.labels, per_class, seeds, way, sorted_by_class=bool(order))
        classes = way or len(data.labels.unique())
        yield from on_streams(about, data, drawn, classes, model, ITERATIONS["peers"])

    yield from rows("photographs", photographs(), 8, None, way=100)
    yield from rows("BANKING77 requests", requests, 12, None)
    yield from rows("MNIST digits", digits(FOR_DRAWINGS), 60, FOR_DRAWINGS)
    yield from rows("drawings", signs, 6, FOR_DRAWINGS)
    yield from rows("drawings", signs, 6, FOR_DRAWINGS, order="class by class")


def reproduce(quick: bool = False) -> None:
    with threads(1):
        measure_all("baselines", baseline_rows(quick), quick, **machine(), model=MODEL)


def reproduce_vinyals(quick: bool = False) -> None:
    with threads(1):
        measure_all("vinyals", vinyals_rows(quick), quick, **machine(), model=LAKE)


def reproduce_peers(quick: bool = False) -> None:
    with threads(1):
        measure_all("peers", peer_rows(quick), quick, **machine(), model=FOR_DRAWINGS)
