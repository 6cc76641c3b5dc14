"""How fast OnlineClassifier is: against the bare encoder, and with a large memory in a file against a numpy scan.

Contenders take turns, so that a busy machine slows all alike. Two memories are asked: one of noise, to which any label is given,
so that nothing is ever clear and every example is written; and one of drawings that belong to classes, with true labels.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from apl.checkpoint import FOR_DRAWINGS
from apl.classifier.online import OnlineClassifier
from apl.cli.options import TrainedModel
from apl.exported import load_for_use
from apl.onnx_session import usual_threads
from apl.store import NewRow
from experiments.bench.measurement import ratio, take_turns, threads
from experiments.data.embedded import image_size
from experiments.paper.results import Row, machine, measure_all

ROWS, ROWS_IN_FILE = 10_000, 100_000
CLASSES, BLUR = 423, 0.56
"""Of the memory of drawings. Examples of a class are blurred by this part of the spread between classes, as Omniglot's are."""
WIDTH, NEIGHBOURS = 256, 16
ROUNDS = 60


def row(what: str, against: str, ours: list[float], theirs: list[float]) -> Row:
    """Milliseconds of both, and the median over rounds of how much longer ours took."""
    times = {"ms": 1000 * median(ours), "against_ms": 1000 * median(theirs), "ratio": ratio(ours, theirs)}
    return {"what": what, "against": against, **times}


def beside_the_encoder(model: str, memory: Path | None, noise: bool) -> list[Row]:
    random, learner = np.random.default_rng(0), load_for_use(model)
    with OnlineClassifier.from_pretrained(model, memory=memory) as classifier:
        keys = random.normal(size=(ROWS, classifier.store.width)).astype(np.float32)
        pictures = [drawing(random, image_size(learner.config.encoder)) for _ in range(16 if noise else CLASSES)]
        if not noise:
            centres = classifier.embed(pictures).vectors
            keys = centres[np.arange(ROWS) % CLASSES] + BLUR * centres.std(0) * keys
        classifier.adopt([NewRow(f"class {n % CLASSES}", key) for n, key in enumerate(keys)])
        inputs = [p[None, None] for p in pictures[:16]]
        turn = iter(range(10**9))

        def learn() -> None:
            shown = next(turn) % 16
            classifier.learn_one(pictures[shown], f"class {next(turn) % CLASSES if noise else shown}")

        contenders = {
            "encoder": lambda: learner.embed(inputs[next(turn) % 16][None]),
            "predict_one": lambda: classifier.predict_one(pictures[next(turn) % 16]),
            "learn_one": learn,
        }
        seconds = take_turns(contenders, ROUNDS)
    where = f"{ROWS:,} rows{'' if noise else ' of classes'}, memory in {'RAM' if memory is None else 'a file'}"
    return [
        row(f"{verb} at {where}", "encoder forward of one image", seconds[verb], seconds["encoder"])
        for verb in ("predict_one", "learn_one")
    ]


def drawing(random: np.random.Generator, size: int) -> np.ndarray:
    """A few strokes: light on dark, in the middle of the canvas."""
    canvas = np.zeros((size, size), np.uint8)
    for _ in range(3):
        x, y = random.integers(size // 5, 4 * size // 5, 2)
        canvas[y : y + 2, size // 5 : 4 * size // 5] = 255
        canvas[size // 5 : 4 * size // 5, x : x + 2] = 255
    return canvas


def large_file(path: Path) -> list[Row]:
    random = np.random.default_rng(0)
    keys = random.normal(size=(ROWS_IN_FILE, WIDTH)).astype(np.float32)
    with OnlineClassifier.for_features(WIDTH, memory=path) as classifier:
        for start in range(0, ROWS_IN_FILE, 10_000):
            classifier.adopt([NewRow(n % 1000, keys[n]) for n in range(start, start + 10_000)])
    started = time.perf_counter()
    with OnlineClassifier.for_features(WIDTH, memory=path) as classifier:
        opening: dict[str, Any] = {"ms": 1000 * (time.perf_counter() - started)}
        norms = (keys**2).sum(1)
        queries = iter(random.normal(size=(4 * ROUNDS + 20, WIDTH)).astype(np.float32))
        new_label = iter(range(1000, 10**9))

        def scan() -> None:
            scores = norms - 2 * (keys @ next(queries))
            best = np.argpartition(scores, NEIGHBOURS)[:NEIGHBOURS]
            best[np.argsort(scores[best])]

        contenders = {
            "scan": scan,
            "learn": lambda: classifier.learn_one(next(queries), next(new_label)),
            "predict": lambda: classifier.predict_one(next(queries)),
        }
        seconds = take_turns(contenders, ROUNDS)
    where, against = f"of a vector at {ROWS_IN_FILE:,} rows in a file", "numpy scan of the same rows"
    return [
        row(f"learn_one {where}, written", against, seconds["learn"], seconds["scan"]),
        row(f"predict_one {where}", against, seconds["predict"], seconds["scan"]),
        {
            "what": f"opening a file of {ROWS_IN_FILE:,} rows",
            "against": None,
            "against_ms": None,
            "ratio": None,
            **opening,
        },
    ]


def speed_rows(model: str, directory: Path) -> Iterator[Row]:
    for place in ("RAM", "a file"):
        for noise in (True, False):
            memory = None if place == "RAM" else directory / f"{noise}.apl"
            yield from beside_the_encoder(model, memory, noise)
    yield from large_file(directory / "large.apl")


@dataclass
class Command:
    """Measure the speed of OnlineClassifier and write results/bench_classifier.json."""

    model: TrainedModel = FOR_DRAWINGS

    def run(self) -> None:
        with threads(1), tempfile.TemporaryDirectory() as directory:
            about: dict[str, Any] = {
                "width": WIDTH,
                "k": NEIGHBOURS,
                "rounds": ROUNDS,
                "encoder_threads": usual_threads(),
            }
            rows = speed_rows(self.model, Path(directory))
            measure_all("bench_classifier", rows, **machine(), model=self.model, **about)
