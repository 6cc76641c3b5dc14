"""Sets of labels and alarms on streams: predict, then learn.

`coverage`: sets that are to contain the truth nine times out of ten, beside split conformal prediction on the same scores (its
quantile is that of the first half; `late` figures are of the second). `drift`: streams that change in the middle. Alarms before
that are false; the delay is that of the first alarm after it, or half the stream. ADWIN is river's, with default settings, on
whether the prediction was wrong.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from apl import OnlineClassifier
from experiments.bench.loop_sets import SETS, beside, estimates, source
from experiments.paper.results import Cell, Row

COVERAGE, FIRST = 0.9, 10
"""What is asked for, and the examples that do not count: a set must hold everything while there are fewer."""
EXCHANGED = "labels exchanged half-way"
ORDERS = ("random order", "class by class", "classes change half-way", EXCHANGED)
WAY, LENGTH, CHANGING_LENGTH = 77, 1000, 2000
ASK_EVERY = 8
"""Examples between two calls of `drift`."""
Stream = tuple[np.ndarray, np.ndarray]


def stream(name: str, order: str, seed: int, length: int = 0) -> Stream:
    found, chance = source(name), np.random.default_rng(seed)
    classes = chance.permutation(np.unique(found.y))[:WAY]
    shown = np.concatenate(
        [chance.permutation((found.y == c).nonzero()[0])[: (length or LENGTH) // WAY] for c in classes]
    )
    y = np.argsort(classes)[np.searchsorted(np.sort(classes), found.y[shown])]
    if order != "class by class":
        # A stable sort by half leaves the random order within each.
        place = chance.permutation(len(y))
        late = y[place] >= WAY / 2
        place = place[np.argsort(late, kind="stable")] if order == "classes change half-way" else place
        shown, y = shown[place], y[place]
    if order == EXCHANGED:
        # Each label stands for what another one stood for.
        others = chance.permutation(WAY)
        y[len(y) // 2 :] = np.roll(others, 1)[np.argsort(others)][y[len(y) // 2 :]]
    return found.x[shown], y


def sets_on(x: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """How often our sets and those of split conformal prediction hold the truth, and how large they are."""
    inside, size, truth, scores = [], [], [], []
    with OnlineClassifier.for_features(x.shape[1], keep_images=False) as clf:
        for one, label in zip(x, y.tolist(), strict=True):
            opened = clf._open()
            if len(clf):
                with opened.current():
                    prediction = opened.predict(one[None])
                    found = opened.label_set(prediction, COVERAGE)
                number = opened.memory.names.number(label)
                scores.append(-opened.learner.networks.array(prediction.log_probs)[0, 0])
                inside.append(found.new if number is None else label in found)
                truth.append(scores[-1][-1 if number is None else number])
                size.append(len(found))
            clf.learn_one(one, label)
    half = len(truth) // 2
    line = np.sort(truth[:half])[int(np.ceil((half + 1) * COVERAGE)) - 1]
    return {
        "coverage": float(np.mean(inside[FIRST:])),
        "coverage_late": float(np.mean(inside[half:])),
        "size_late": float(np.mean(size[half:])),
        "split_coverage_late": float(np.mean(np.array(truth[half:]) <= line)),
        "split_size_late": float(np.mean([(score <= line).sum() for score in scores[half:]])),
    }


def coverage_cells(draws: int) -> Iterator[Cell]:
    for name, order in itertools.product(SETS, ORDERS):
        about: Row = {"part": "coverage", "set": name, "order": order, "draws": draws}
        yield Cell(about, lambda: [{**about, **coverage(name, order, draws)}])


def coverage(name: str, order: str, draws: int) -> Row:
    streams = [stream(name, order, seed) for seed in range(draws)]
    found = estimates([sets_on(*one) for one in streams])
    return {"asked": COVERAGE, "n": len(streams[0][1]), "split": source(name).split, **found}


def changing(seed: int) -> Iterator[tuple[str, Stream]]:
    """Streams that change in the middle."""
    from river.datasets import synth

    size = {"n_classes": 4, "n_features": 10, "n_centroids": 20}
    halves: dict[str, list[Any]] = {
        "SEA": [synth.SEA(variant=variant, seed=seed + variant, noise=0.1) for variant in (0, 3)],
        "RBF": [synth.RandomRBF(seed_model=2 * seed + half, seed_sample=seed, **size) for half in (0, 1)],
    }
    for name, parts in halves.items():
        pairs = [pair for part in parts for pair in part.take(CHANGING_LENGTH // 2)]
        yield name, (np.array([list(map(float, x.values())) for x, _ in pairs]), np.array([int(y) for _, y in pairs]))
    yield "omniglot", stream("omniglot", EXCHANGED, seed, CHANGING_LENGTH)


def alarms_on(x: np.ndarray, y: np.ndarray) -> dict[str, list[int]]:
    """When each method raises an alarm: it did not a moment before."""
    from river.drift import ADWIN

    adwin, ours, theirs, raised = ADWIN(), [], [], False
    with OnlineClassifier(keep_images=False) as clf:
        for time, (one, label) in enumerate(zip(x, y.tolist(), strict=True)):
            wrong = len(clf) > 0 and clf.predict_one(one) != label
            clf.learn_one(one, label)
            before = adwin.estimation
            adwin.update(wrong)
            if adwin.drift_detected and adwin.estimation > before:
                theirs.append(time)
            if time % ASK_EVERY == ASK_EVERY - 1:
                before, raised = raised, clf.drift().alarm
                ours += [time] if raised and not before else []
    return {"drift": ours, "ADWIN on the error": theirs}


def drift_cells(draws: int) -> Iterator[Cell]:
    yield Cell({"part": "drift", "draws": draws}, lambda: drift_rows(draws))


def drift_rows(draws: int) -> Iterator[Row]:
    measured: dict[tuple[str, int], dict[str, list[dict[str, float]]]] = {}
    for seed in range(draws):
        for name, (x, y) in changing(seed):
            half = len(y) // 2
            for method, times in alarms_on(x, y).items():
                late = [time - half for time in times if time >= half]
                figures = {"noticed": float(bool(late)), "delay": late[0] if late else half}
                figures["false_alarms_per_1000"] = 1000 * sum(time < half for time in times) / half
                measured.setdefault((name, len(y)), {}).setdefault(method, []).append(figures)
    for (name, length), found in measured.items():
        about: Row = {"part": "drift", "set": name, "draws": draws, "n": length}
        yield from ({**about, **row} for row in beside(found, "drift"))
