"""How fast: the classifier against the bare encoder, and durable insert-then-search against a numpy scan.

Contenders take turns, so that a busy machine troubles all alike. Two memories are asked: one of noise, to which lessons tell
any label, so that nothing is ever clear and every lesson is written; and one of drawings that belong to classes, whose
lessons tell the truth.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from apl.checkpoint import FOR_DRAWINGS
from apl.classifier.durable_memory import DurableMemory
from apl.classifier.features import feature_learner
from apl.classifier.online import OnlineClassifier
from apl.onnx_session import usual_threads
from apl.store import NewRow, open_store
from experiments.bench.streams import report, save_result
from experiments.bench.timing import Contender, ratio, take_turns

ROWS = 10_000
DURABLE_ROWS = 100_000
CLASSES, BLUR = 423, 0.56
"""Of the memory of drawings. Examples of a class are blurred by this part of the spread between classes, as Omniglot's are."""
WIDTH, NEIGHBOURS, BATCH = 256, 16, 64


def compared(ours: list[float], theirs: list[float]) -> dict[str, float]:
    """Milliseconds of both, and the median over rounds of how much longer ours took."""
    return {"ms": 1000 * median(ours), "against_ms": 1000 * median(theirs), "ratio": ratio(ours, theirs)}


def beside_the_encoder(model: str, directory: Path, rounds: int) -> list[dict[str, Any]]:
    rows = []
    random = np.random.default_rng(0)
    for home, noise in ((home, noise) for home in ("RAM", "a file") for noise in (True, False)):
        url = None if home == "RAM" else directory / f"speed-{noise}.apl"
        with OnlineClassifier.from_pretrained(model, memory=url) as classifier:
            width, size = classifier.store.width, classifier._current.learner.config.encoder.image_size
            keys = random.normal(size=(ROWS, width)).astype(np.float32)
            pictures = [drawing(random, size) for _ in range(16 if noise else CLASSES)]
            if not noise:
                centres = classifier.embed(pictures).vectors
                keys = centres[np.arange(ROWS) % CLASSES] + BLUR * centres.std(0) * keys
            classifier.adopt([NewRow(f"class {n % CLASSES}", key) for n, key in enumerate(keys)])
            networks = classifier._current.learner.networks
            inputs = [p[None, None] for p in pictures[:16]]
            turn = iter(range(10**9))

            def bare() -> None:
                networks.embed(inputs[next(turn) % 16])

            def learn() -> None:
                shown = next(turn) % 16
                classifier.learn_one(pictures[shown], f"class {next(turn) % CLASSES if noise else shown}")

            seconds = take_turns(
                {
                    "encoder": Contender(bare),
                    "predict_one": Contender(lambda: classifier.predict_one(pictures[next(turn) % 16])),
                    "learn_one": Contender(learn),
                },
                rounds,
            )
        for verb in ("predict_one", "learn_one"):
            rows.append(
                {
                    "what": f"{verb} at {ROWS:,} rows{'' if noise else ' of classes'}, memory in {home}",
                    "against": "encoder forward of one image",
                    **compared(seconds[verb], seconds["encoder"]),
                }
            )
            report(rows[-1])
    return rows


def drawing(random: np.random.Generator, size: int) -> np.ndarray:
    """A few strokes: light on dark, in the middle of the sheet."""
    sheet = np.zeros((size, size), np.uint8)
    for _ in range(3):
        x, y = random.integers(size // 5, 4 * size // 5, 2)
        sheet[y : y + 2, size // 5 : 4 * size // 5] = 255
        sheet[size // 5 : 4 * size // 5, x : x + 2] = 255
    return sheet


def durable(directory: Path, rounds: int) -> list[dict[str, Any]]:
    learner = feature_learner(WIDTH)
    random = np.random.default_rng(0)
    keys = random.normal(size=(DURABLE_ROWS, WIDTH)).astype(np.float32)
    path = directory / "durable.apl"
    with open_store(path, fingerprint=learner.fingerprint(), width=WIDTH) as store:
        for start in range(0, DURABLE_ROWS, 10_000):
            store.append([NewRow(n % 1000, keys[n]) for n in range(start, start + 10_000)])
    with open_store(path, fingerprint=learner.fingerprint(), width=WIDTH) as store:
        started = time.perf_counter()
        memory = DurableMemory(learner, store)
        opening = time.perf_counter() - started
        norms = (keys**2).sum(1)
        queries = random.normal(size=(BATCH, WIDTH)).astype(np.float32)
        turn = iter(range(10**9))

        def scan() -> None:
            query = queries[next(turn) % BATCH]
            scores = norms - 2 * (keys @ query)
            best = np.argpartition(scores, NEIGHBOURS)[:NEIGHBOURS]
            best[np.argsort(scores[best])]

        def insert_then_search() -> None:
            query = queries[next(turn) % BATCH]
            memory.stage(query + 1, NewRow(1, query + 1))
            memory.commit()
            memory.ram.nearest("embedding", query[None, None], NEIGHBOURS)

        def search(count: int) -> Callable[[], None]:
            asked = queries[None, :count]
            return lambda: memory.ram.nearest("embedding", asked, NEIGHBOURS)

        seconds = take_turns(
            {
                "scan": Contender(scan),
                "insert_then_search": Contender(insert_then_search),
                "one": Contender(search(1)),
                "batch": Contender(search(BATCH)),
            },
            rounds,
        )
    rows = [
        {
            "what": f"durable insert, then search, at {DURABLE_ROWS:,} rows",
            "against": "numpy scan of the same rows",
            **compared(seconds["insert_then_search"], seconds["scan"]),
        },
        {
            "what": f"search for {BATCH} queries at once, per query",
            "against": "search for one query",
            **compared([s / BATCH for s in seconds["batch"]], seconds["one"]),
        },
        {
            "what": f"opening a file of {DURABLE_ROWS:,} rows",
            "against": None,
            "ms": 1000 * opening,
            "against_ms": None,
            "ratio": None,
        },
    ]
    for row in rows:
        report(row)
    return rows


def run(model: str = FOR_DRAWINGS, rounds: int = 60) -> Path:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as directory:
        rows = beside_the_encoder(model, Path(directory), rounds) + durable(Path(directory), rounds)
    return save_result(
        "bench_classifier", rows, model=model, width=WIDTH, k=NEIGHBOURS, rounds=rounds, threads=usual_threads()
    )
