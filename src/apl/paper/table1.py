"""Table 1: Omniglot test accuracy with 1 or 5 stored examples of each of 5, 20, 423 or 1000 classes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from apl.checkpoint import find_model, is_named, read_json
from apl.evaluate import fixed_context
from apl.learner import Learner
from apl.paper.results import Row, load_rows, save_rows
from apl.paper.subjects import Embedded, Subject, characters, subject

NAME = "table1"
CELLS = tuple((way, shot) for way in (5, 20, 423, 1000) for shot in (1, 5))
SEED = 1
QUERIES = 5
VIEWS = 5
"""Drawings averaged in an embedding, in rows of their own: the drawing and slightly deformed copies of it."""

PAPER_FORM = {"paper's architecture": "paper-{way}way-started", "paper's recipe": "paper-{way}way"}
"""Fixed labels, a model for each number of classes: the encoder started as a classifier, or everything from scratch."""

PAPER = {
    "Matching nets": {(5, 1): 98.1, (5, 5): 98.9, (20, 1): 93.8, (20, 5): 98.5},
    "CNP": {(5, 1): 95.3, (5, 5): 98.5, (20, 1): 89.9, (20, 5): 96.8},
    "MANN": {(5, 1): 82.2, (5, 5): 94.9},
    "MAML": {(5, 1): 98.7, (5, 5): 99.9, (20, 1): 95.8, (20, 5): 98.9},
    "SNAIL": {(5, 1): 99.07, (5, 5): 99.78, (20, 1): 97.64, (20, 5): 99.35},
    "APL (paper)": {
        (5, 1): 97.9,
        (5, 5): 99.9,
        (20, 1): 97.2,
        (20, 5): 97.6,
        (423, 1): 73.5,
        (423, 5): 88.0,
        (1000, 1): 68.9,
        (1000, 5): 78.9,
    },
}
"""The published numbers, in percent."""


def reproduce(quick: bool = False) -> None:
    rows, earlier = [], load_rows(NAME, quick)
    for row in measured(quick, earlier):
        rows.append(row)
        save_rows(NAME, rows, quick)


def measured(quick: bool, earlier: list[Row]) -> Iterator[dict]:
    for decoder in ("relational", "kernel", "class_mean", "nearest"):
        for way, shot in CELLS:
            yield _cell(subject(decoder), characters(way > 423, quick=quick), way, shot, quick)
    for way, shot in () if quick else CELLS:  # five times the embeddings take longer than a small version may
        several = replace(subject(), method=f"ours, mean of {VIEWS} views")
        yield _cell(several, characters(way > 423, views=VIEWS), way, shot, quick)
    for method, name in PAPER_FORM.items():
        for way in (5, 20, 423, 1000):
            yield from _fixed_labels(method, name.format(way=way), way, quick, earlier)


def _fixed_labels(method: str, name: str, way: int, quick: bool, earlier: list[Row]) -> Iterator[dict]:
    """The paper's own form. Its weights are too large to ship: without them, what was measured is kept."""
    trained_here = Path("runs") / name / "model"
    place = trained_here if (trained_here / "model.json").is_file() else name
    if place == name and not is_named(name):
        yield from (row for row in earlier if (row["method"], row["way"]) == (method, way))
        return
    learner = Learner.load(place)
    tested = Subject(method, learner.config.decoder.kind, "fixed", name, learner.on_embeddings())
    provenance = read_json(find_model(place) / "model.json")["provenance"]
    trained = {part: provenance.get(part) for part in ("trained_as", "steps", "seconds", "commit", "validation")}
    for shot in (1, 5):
        data = characters(way > 423, model=str(place), quick=quick)
        yield {**_cell(tested, data, way, shot, quick), "trained": trained}


def _cell(tested: Subject, data: Embedded, way: int, shot: int, quick: bool) -> dict:
    episodes = (1000 if way <= 20 else 20) // (20 if quick else 1)
    estimate = fixed_context(
        tested.learner,
        data.embeddings,
        data.labels,
        way=way,
        shot=shot,
        episodes=episodes,
        seed=SEED,
        queries=QUERIES,
    )
    figures = {"way": way, "shot": shot, "episodes": episodes, "seed": SEED}
    return tested.row(data, **figures, accuracy=estimate.mean, ci95=estimate.ci95)
