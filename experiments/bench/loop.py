"""What to label next, sets of labels, labels that look wrong, changes: how well, beside what others would use.

`review`: one label in ten is wrong; cleanlab ranks by the out-of-fold probabilities of a logistic regression. `speed`: processor
seconds on made vectors. For the other parts see the modules beside this one. A run that was stopped goes on where it was.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from tyro.conf import arg

from apl import OnlineClassifier
from experiments.bench.loop_sets import SETS, beside, pool
from experiments.bench.loop_streams import coverage_cells, drift_cells
from experiments.bench.loop_suggest import suggest_cells, summary
from experiments.bench.measurement import ratio, take_turns, threads
from experiments.paper.results import Cell, Row, machine, measure_missing

WRONG, READ = 0.1, 0.1
"""The share of labels planted wrong, and the share of the list that somebody reads."""
VECTORS, WIDTH, CLASSES, ROUNDS = 10_000, 384, 100, 400


def reviewed(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Surprise of each example, which is its own source; those that cannot be judged come last."""
    score = np.full(len(y), -1.0)
    with OnlineClassifier(keep_images=False) as clf:
        clf.learn_many(x, y, sources=[str(n) for n in range(len(y))])
        for suspect in clf.review(everything=True):
            score[int(suspect.source or 0)] = suspect.surprise_nats
    return score


def rankings(x: np.ndarray, y: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    yield "review", reviewed(x, y)
    if importlib.util.find_spec("cleanlab"):
        from cleanlab.rank import get_label_quality_scores
        from sklearn.linear_model import LogisticRegression
        from sklearn.model_selection import StratifiedKFold, cross_val_predict

        model, folds = LogisticRegression(C=10.0, tol=1e-3), StratifiedKFold(5, shuffle=True, random_state=0)
        probabilities = cross_val_predict(model, x, y, cv=folds, method="predict_proba")
        for method in ("self_confidence", "normalized_margin"):
            yield f"cleanlab, {method}", -get_label_quality_scores(y, probabilities, method=method)


def review_cells(draws: int) -> Iterator[Cell]:
    for name in SETS:
        yield Cell({"part": "review", "set": name, "draws": draws}, lambda: review_rows(name, draws))


def review_rows(name: str, draws: int) -> Iterator[Row]:
    from sklearn.metrics import roc_auc_score

    found: dict[str, list[dict[str, float]]] = {}
    for draw in range(draws):
        given, chance = pool(name, "even", draw), np.random.default_rng(draw)
        labels, y = np.unique(given.y, return_inverse=True)
        wrong = chance.permutation(len(y)) < WRONG * len(y)
        y = np.where(wrong, (y + chance.integers(1, len(labels), len(y))) % len(labels), y)
        for method, score in rankings(given.x, y):
            first = np.argsort(-score, kind="stable")[: round(READ * len(y))]
            figures = {
                "auroc": float(roc_auc_score(wrong, score)),
                "found": float(wrong[first].sum() / wrong.sum()),
            }
            found.setdefault(method, []).append(figures)
    about: Row = {"part": "review", "set": name, "draws": draws, "n": len(y), "split": given.split}
    yield from ({**about, **row} for row in beside(found, "review"))


def speed_rows() -> list[Row]:
    chance, y = np.random.default_rng(0), np.arange(VECTORS) % CLASSES
    x = (chance.normal(size=(CLASSES, WIDTH))[y] + chance.normal(size=(VECTORS, WIDTH))).astype(np.float32)
    rows: list[Row] = []

    def timed(verb: str, call: Callable[[], object]) -> None:
        started = time.thread_time()
        call()
        rows.append({"part": "speed", "verb": verb, "n": VECTORS, "seconds": time.thread_time() - started})

    with OnlineClassifier(keep_images=False) as clf:
        clf.learn_many(x[:1000], y[:1000])
        timed("suggest", lambda: clf.suggest(x, 20))
        turn = iter(chance.permutation(VECTORS).tolist())
        verbs = {"predict_set": clf.predict_set, "predict_proba_one": clf.predict_proba_one}
        contenders = {name: lambda verb=verb: verb(x[next(turn)]) for name, verb in verbs.items()}
        times = ratio(*take_turns(contenders, ROUNDS).values())
        rows.append({"part": "speed", "verb": "predict_set", "n": ROUNDS, "times_predict_proba_one": times})
    with OnlineClassifier(keep_images=False, sigma=0.0) as clf:
        clf.learn_many(x, y)
        timed("review", clf.review)
    return rows


PARTS: dict[str, Callable[[int], Iterator[Cell]]] = {
    "speed": lambda draws: iter([Cell({"part": "speed"}, speed_rows)]),
    "drift": drift_cells,
    "review": review_cells,
    "coverage": coverage_cells,
    "suggest": suggest_cells,
}


@dataclass
class Command:
    """Measure suggest, predict_set, review and drift, and write results/loop.json. Needs Omniglot, ImageNet-mini and the intents
    (APL_DATA) and river; scikit-activeml, adaptive-classifier and cleanlab take part where they are installed."""

    only: Literal["suggest", "coverage", "review", "drift", "speed"] | None = None
    """One part alone."""
    draws: Annotated[int, arg(metavar="N")] = 5
    quick: bool = False
    """One draw, into results/quick."""

    def run(self) -> None:
        if self.draws < 1:
            raise ValueError("draws must be at least 1")
        draws, parts = 1 if self.quick else self.draws, [self.only] if self.only else PARTS
        with threads(1):
            cells = (cell for part in parts for cell in PARTS[part](draws))
            measure_missing("loop", cells, self.quick, lambda rows: {**machine(), "labels_needed": summary(rows)})
