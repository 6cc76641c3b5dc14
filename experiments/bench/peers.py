"""Against what a user would take instead: the same vectors, the same streams, predict before learning.

Every method gets the vectors one by one, answers, and is then told the label. Time is the processor's for answering and
learning, without the encoder, on one thread. The first example of a class cannot be answered by anybody;
`accuracy_seen` leaves those out, and so does `ece`, the calibration error of our answers. Streams: drawings of Omniglot's 423
test characters by the bundled encoder, in random order, with three characters under each label, class by class, and
with other classes in its second half; the same of MNIST's test digits, of BANKING77's test requests by MiniLM and of
photographs (100 classes of ImageNet-mini `val` for each seed) by EfficientNet-Lite0.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from apl.checkpoint import FOR_DRAWINGS
from apl.classifier.online import OnlineClassifier
from apl.classifier.open_world import Belief
from apl.data.mnist import load_mnist
from apl.encoder import embed_all
from apl.learner import Learner
from experiments.bench.feature_sets import intents, photographs, unit
from experiments.bench.features import DIGITS, calibration_error
from experiments.bench.peer_methods import (
    EverythingNearest,
    Method,
    NearestMean,
    RefittedRegression,
    RiverNeighbours,
    RunningLDA,
    SklearnNeighbours,
)
from experiments.bench.streams import counted, embedded, report, save_result

Order = Literal["random order", "three classes per label", "class by class", "classes change half-way"]
ORDERS: tuple[Order, ...] = ("random order", "three classes per label", "class by class", "classes change half-way")
SEEDS = 3
MANY = 2000
"""Of a stream longer than this, logistic regression sees one seed of two orders: it takes ten minutes for the rest."""


@dataclass(frozen=True)
class Stream:
    """Vectors in the order in which they are shown, and their labels."""

    x: np.ndarray
    y: list[int]


class Ours:
    """Our classifier behind vectors: with the bundled model's decoder for drawings, without one for the rest."""

    def __init__(self, width: int, model: str | None, consolidate: bool) -> None:
        if model is None:
            self.classifier = OnlineClassifier.for_features(width, keep_images=False, consolidate=consolidate)
        else:
            self.classifier = OnlineClassifier(model, keep_images=False, consolidate=consolidate).open()
        self.world = self.classifier._session().world
        self.confidence: list[float] = []
        """Of each answer."""
        believe = self.world.believe

        def noted(embedding: np.ndarray) -> Belief:
            belief = believe(embedding)
            self.confidence.append(float(belief.known.max(initial=0)))
            return belief

        self.world.believe = noted

    def answer_and_learn(self, x: np.ndarray, y: int) -> int | None:
        receipt = self.world.learn(x, y)
        self.world.commit()
        return receipt.predicted

    def rows(self) -> int:
        return len(self.classifier)


def drawn(
    vectors: np.ndarray, labels: np.ndarray, per_class: int, order: Order, seed: int, way: int | None = None
) -> Stream:
    """`way`: how many of the classes; all of them if None."""
    chance = np.random.default_rng(seed)
    classes = chance.permutation(np.unique(labels))[:way]
    examples = [chance.permutation((labels == c).nonzero()[0])[:per_class] for c in classes]
    shown = np.concatenate(examples)
    number = np.repeat(np.arange(len(classes)), [len(e) for e in examples])
    match order:
        case "random order" | "three classes per label":
            place = chance.permutation(len(shown))
        case "class by class":
            place = np.arange(len(shown))
        case "classes change half-way":
            late = number >= len(classes) / 2
            place = np.concatenate([chance.permutation((~late).nonzero()[0]), chance.permutation(late.nonzero()[0])])
    if order == "three classes per label":
        number = number // 3
    return Stream(vectors[shown[place]], number[place].tolist())


def watched(build: Callable[[], Method], stream: Stream, name: str) -> dict[str, float]:
    method, seen, known = build(), [], set()
    started, right = time.process_time(), []
    for vector, label in counted(name, list(zip(stream.x, stream.y, strict=True))):
        right.append(method.answer_and_learn(vector, label) == label)
        seen.append(label in known)
        known.add(label)
    seconds, last = time.process_time() - started, len(right) // 4
    confidence = getattr(method, "confidence", None)
    calibration = (
        {} if not confidence else {"ece": calibration_error(np.array(confidence)[seen], np.array(right)[seen])}
    )
    return {
        **calibration,
        "accuracy": float(np.mean(right)),
        "accuracy_seen": float(np.mean(np.array(right)[seen])),
        "accuracy_last_quarter": float(np.mean(right[-last:])),
        "rows": method.rows(),
        "ms_per_example": 1000 * seconds / len(right),
    }


def compared(
    name: str, vectors: np.ndarray, labels: np.ndarray, per_class: int, model: str | None, way: int | None = None
) -> Iterator[dict[str, Any]]:
    """All methods on all orders of one set."""
    width, classes = vectors.shape[1], way or len(np.unique(labels))
    capacity = per_class * classes
    methods: dict[str, Callable[[], Method]] = {
        "apl": lambda: Ours(width, model, True),
        "apl, plain rule": lambda: Ours(width, model, False),
        "keep everything, nearest neighbour": lambda: EverythingNearest(capacity, width),
        "running class mean": lambda: NearestMean(classes, width),
        "streaming LDA": lambda: RunningLDA(classes, width),
        "logistic regression, refitted every 40": lambda: RefittedRegression(capacity, width),
    }
    many = capacity > MANY
    for order in ORDERS:
        some = dict(methods)
        if many and order == "random order":
            some["scikit-learn KNeighborsClassifier, refitted"] = lambda: SklearnNeighbours(capacity, width)
            some["river KNNClassifier"] = lambda: RiverNeighbours(capacity)
        if many and order not in ("random order", "three classes per label"):
            del some["logistic regression, refitted every 40"]
        for method, build in some.items():
            seeds = 1 if "scikit" in method or "river" in method or (many and "regression" in method) else SEEDS
            scale = width**0.5 if model is not None and method.startswith("apl") else 1.0
            found = []
            for seed in range(seeds):
                stream = drawn(unit(vectors), labels, per_class, order, seed, way)
                found.append(watched(build, Stream(stream.x * np.float32(scale), stream.y), method))
            row = {key: float(np.mean([score[key] for score in found])) for key in found[0]}
            spread = np.std([score["accuracy_seen"] for score in found], ddof=1) if seeds > 1 else None
            ci95 = None if spread is None else float(1.96 * spread / np.sqrt(seeds))
            about = {"stream": f"{name}, {order}", "method": method, "seeds": seeds, "examples": capacity}
            yield {**about, **row, "accuracy_seen_ci95": ci95, "bytes": row["rows"] * (4 * width + 8)}


def run(model: str = FOR_DRAWINGS) -> Path:
    torch.set_num_threads(1)
    about = {"split": "paper", "part": "test", "seeds": SEEDS}
    learner = Learner.load(model)
    characters, requests, photos = embedded(learner, "test"), intents("banking77")["test"], photographs()
    digits = load_mnist("test", learner.config.encoder.image_size)
    images, labels = digits.images[:DIGITS], digits.labels[:DIGITS].numpy()
    rows = []
    for row in itertools.chain(
        compared("drawings", characters.embeddings.numpy(), characters.labels.numpy(), 6, model),
        compared("MNIST digits", embed_all(learner.encoder, images).numpy(), labels, 60, model),
        compared("BANKING77 requests", requests.vectors, requests.labels, 12, None),
        compared("photographs", photos.vectors, photos.labels, 8, None, way=100),
    ):
        rows.append(row)
        report(row)
        path = save_result("peers", rows, model=model, **about)
    return path
