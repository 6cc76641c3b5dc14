"""How many labels it takes to come to 95 % of the accuracy that labelling the whole pool gives, 20 labels at a time.

One classifier learns what each method chooses. The first choice of margin and entropy sampling is random. MaxHerding (Bae et al.,
2024) is scikit-activeml's, with the kernel width of its authors. adaptive-classifier suggests by a model of its own, which is
trained anew on all labels so far; it is for text, so it is given the requests.
"""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import lru_cache
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from apl import OnlineClassifier
from experiments.bench.loop_sets import KINDS, POOL, SETS, Kind, Pool, estimates, pool
from experiments.paper.results import Cell, Row

AT_ONCE, GOAL = 20, 0.95
ADAPTIVE, REQUESTS = "adaptive-classifier", ("banking77", "clinc150")
Choose = Callable[[OnlineClassifier, Pool, np.ndarray, np.random.Generator], np.ndarray]
"""Places in the pool to label next, among those left."""


def at_random(clf: OnlineClassifier, given: Pool, left: np.ndarray, chance: np.random.Generator) -> np.ndarray:
    return chance.permutation(left)[:AT_ONCE]


def suggested(clf: OnlineClassifier, given: Pool, left: np.ndarray, chance: np.random.Generator) -> np.ndarray:
    return left[[one.index for one in clf.suggest(given.x[left], AT_ONCE)]]


def uncertain(doubt: Callable[[np.ndarray], np.ndarray]) -> Choose:
    def choose(clf: OnlineClassifier, given: Pool, left: np.ndarray, chance: np.random.Generator) -> np.ndarray:
        if not len(clf):
            return at_random(clf, given, left, chance)
        return left[np.argsort(-doubt(clf.predict_proba(given.x[left])), kind="stable")[:AT_ONCE]]

    return choose


def max_herding(clf: OnlineClassifier, given: Pool, left: np.ndarray, chance: np.random.Generator) -> np.ndarray:
    from skactiveml.pool import MaxHerding

    known = given.y.astype(float)
    known[left] = np.nan
    strategy = MaxHerding(metric_dict={"gamma": 1.0}, random_state=int(chance.integers(2**31)))
    found: np.ndarray = strategy.query(given.x, known, batch_size=min(AT_ONCE, len(left)))
    return found


def adaptive(clf: OnlineClassifier, given: Pool, left: np.ndarray, chance: np.random.Generator) -> np.ndarray:
    known = np.setdiff1d(np.arange(len(given.y)), left)
    if not len(known):
        return at_random(clf, given, left, chance)
    model = _adaptive_classifier(given.x)
    model.add_examples([str(at) for at in known], [str(given.y[at]) for at in known])
    found = model.suggest_labels([str(at) for at in left], n=AT_ONCE, diverse=True)
    return left[[at for at, _ in found]]


def _adaptive_classifier(vectors: np.ndarray) -> Any:
    """Its texts are places in the pool, whose vectors are looked up; its own network is not made."""
    from adaptive_classifier import AdaptiveClassifier, classifier

    class OnVectors(AdaptiveClassifier):
        def _get_embeddings(self, texts: list[str]) -> list[Any]:
            return list(torch.from_numpy(vectors[[int(text) for text in texts]]))

    network: Any = SimpleNamespace(config=SimpleNamespace(hidden_size=vectors.shape[1]), to=lambda device: network)
    named = {"AutoModel": network, "AutoTokenizer": None}
    with ExitStack() as made:
        for name, what in named.items():
            made.enter_context(patch.object(getattr(classifier, name), "from_pretrained", return_value=what))
        return OnVectors("vectors", use_onnx=False)


METHODS: dict[str, Choose] = {
    "random": at_random,
    "margin": uncertain(lambda p: np.diff(-np.partition(-p, 1, axis=1)[:, :2])[:, 0]),
    "entropy": uncertain(lambda p: -(p * np.log(np.maximum(p, 1e-12))).sum(1)),
    **({"MaxHerding": max_herding} if importlib.util.find_spec("skactiveml") else {}),
    **({ADAPTIVE: adaptive} if importlib.util.find_spec("adaptive_classifier") else {}),
    "suggest": suggested,
}


@lru_cache(maxsize=1)
def drawn(name: str, kind: Kind, draw: int) -> tuple[Pool, float]:
    """A pool, and the accuracy that labelling all of it gives."""
    given = pool(name, kind, draw)
    with OnlineClassifier(keep_images=False) as clf:
        clf.learn_many(given.x, given.y)
        return given, float(clf.score(given.asked, given.truth))


def curve(given: Pool, choose: Choose, goal: float, seed: int) -> tuple[list[float], float]:
    """Accuracy after each round, and the labels needed to reach the goal (between two rounds by a straight line) and to be
    there a round later as well."""
    chance, left, accuracy, labels = np.random.default_rng(seed), np.arange(len(given.y)), [0.0], [0]
    with OnlineClassifier(keep_images=False) as clf:
        while min(accuracy[-2:]) < goal and len(left):
            chosen = choose(clf, given, left, chance)
            clf.learn_many(given.x[chosen], given.y[chosen])
            left = np.setdiff1d(left, chosen)
            labels.append(len(given.y) - len(left))
            accuracy.append(float(clf.score(given.asked, given.truth)))
    reached = len(accuracy) - 1
    while accuracy[reached - 1] >= goal:
        reached -= 1
    between = slice(reached - 1, reached + 1)
    return accuracy, float(np.interp(goal, accuracy[between], labels[between]))


def suggest_cells(draws: int) -> Iterator[Cell]:
    """One row for each draw and method."""
    for draw, kind, name, method in itertools.product(range(draws), KINDS, SETS, METHODS):
        if method == ADAPTIVE and name not in REQUESTS:
            continue
        about: Row = {"part": "suggest", "set": name, "kind": kind, "draw": draw, "method": method}
        of: Row = {"pool": POOL}
        yield Cell(about, lambda: [{**about, **of, **labels_needed(name, kind, draw, METHODS[method])}], of)


def labels_needed(name: str, kind: Kind, draw: int, choose: Choose) -> Row:
    given, whole = drawn(name, kind, draw)
    accuracy, labels = curve(given, choose, GOAL * whole, draw)
    found = {"labels": labels, "accuracy_of_all": whole, "curve": [round(a, 4) for a in accuracy]}
    return {**found, "n": len(given.y), "split": given.split}


def summary(rows: list[Row]) -> list[Row]:
    """Labels of each method, its share of random's, and how many more `suggest` needs, on the same draws."""
    cells: dict[tuple[str, str], dict[str, dict[int, float]]] = {}
    for row in rows:
        if row["part"] == "suggest":
            methods = cells.setdefault((row["set"], row["kind"]), {})
            methods.setdefault(row["method"], {})[row["draw"]] = row["labels"]
    found: list[Row] = []
    for (name, kind), methods in cells.items():
        random, ours = methods.get("random", {}), methods.get("suggest", {})
        for method, labels in methods.items():
            draws = sorted(labels.keys() & random.keys() & ours.keys())
            figures = [
                {"labels": labels[d], "share": labels[d] / random[d], "labels_ours_more": ours[d] - labels[d]}
                for d in draws
            ]
            if draws:
                found.append({"set": name, "kind": kind, "method": method, "draws": len(draws), **estimates(figures)})
    return found
