"""Table 1: Omniglot test accuracy with 1 or 5 stored examples of each of 5, 20, 423 or 1000 classes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from apl.checkpoint import FOR_DRAWINGS
from apl.evaluate import fixed_context, variant
from experiments.paper.results import save_rows
from experiments.paper.subjects import Embedded, Subject, characters, subject

NAME = "table1"
CELLS = tuple((way, shot) for way in (5, 20, 423, 1000) for shot in (1, 5))
SEED = 1
QUERIES = 5
OTHER_MODELS = {"ours, one network": "omniglot-one", "ours, for all pens": FOR_DRAWINGS}
"""Their encoders have also seen the validation characters, once they were chosen."""
VIEWS = 5
"""Drawings averaged in an embedding, in rows of their own: the drawing and slightly deformed copies of it."""

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
    rows = []
    for row in measured(quick):
        rows.append(row)
        save_rows(NAME, rows, quick)


def measured(quick: bool) -> Iterator[dict]:
    for decoder in ("relational", "kernel", "class_mean", "nearest"):
        for way, shot in CELLS:
            yield cell(subject(decoder), characters(way > 423, quick=quick), way, shot, quick)
    for method, model in OTHER_MODELS.items():
        other = Subject(method, "relational", "neighbourhood", model, variant(model).on_embeddings())
        for way, shot in CELLS:
            yield cell(other, characters(way > 423, model=model, quick=quick), way, shot, quick)
    for way, shot in () if quick else CELLS:  # five times the embeddings take longer than a small version may
        several = replace(subject(), method=f"ours, mean of {VIEWS} views")
        yield cell(several, characters(way > 423, views=VIEWS), way, shot, quick)


def cell(tested: Subject, data: Embedded, way: int, shot: int, quick: bool, episodes: int | None = None) -> dict:
    """One number of the table, with what was tested on what."""
    episodes = max(1, (episodes or (1000 if way <= 20 else 20)) // (20 if quick else 1))
    estimate = fixed_context(
        tested.learner, data.embeddings, data.labels, way=way, shot=shot, episodes=episodes, seed=SEED, queries=QUERIES
    )
    figures = {"way": way, "shot": shot, "episodes": episodes, "seed": SEED}
    return tested.row(data, **figures, accuracy=estimate.mean, ci95=estimate.ci95)
