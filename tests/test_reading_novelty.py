"""New or known, learnt from the memory as it grows."""

from __future__ import annotations

import numpy as np
import pytest

from apl.memory import ClassTotals
from apl.reading.class_statistics import ClassStatistics
from apl.reading.novelty import Novelty, log_odds_of_share
from apl.reading.readers import FLOOR, LOCAL_REGRESSION, LocalRegression, ReaderInputs, Readings, read


def statistics_of(total: np.ndarray, examples: np.ndarray, everything: np.ndarray | None = None) -> ClassStatistics:
    everything = total.sum(1) if everything is None else everything
    return ClassStatistics.of(ClassTotals(total, examples, everything, np.vecdot(total, total)))


def readings(mean: list[float], share: list[float], examples: list[int] | None = None) -> Readings:
    """Of one query: its cosine with each class mean, and the share that each class has of the regression on one row of each."""
    way = len(mean)
    scores = np.zeros((1, 1, 4, way))
    scores[0, 0, LOCAL_REGRESSION] = np.log(np.array(share) + FLOOR)
    regression = LocalRegression(np.eye(way)[None, None], np.array([[share]]), np.arange(way)[None, None], way)
    classes = statistics_of(np.zeros((1, way, 2)), np.array([examples or [2] * way], float))
    return Readings(scores, classes, np.array([[mean]]), regression, np.array([[share]]))


def test_leaving_a_class_out_leaves_what_a_memory_without_it_would_say():
    random = np.random.default_rng(0)
    rows, label = random.normal(size=(12, 5)).astype(np.float32), np.arange(12) % 4
    query = random.normal(size=(1, 1, 5)).astype(np.float32)

    def of(some: np.ndarray, centre: ClassStatistics | None = None) -> tuple[Readings, ClassStatistics]:
        total = np.stack([rows[some & (label == c)].sum(0) for c in range(4)])[None].astype(np.float64)
        examples = np.array([[(some & (label == c)).sum() for c in range(4)]], np.float32)
        # Only the centre remembers the class.
        everything = None if centre is None else centre.centre.astype(np.float64) * (examples.sum() + 1)
        classes = statistics_of(total, examples, everything)
        shape = (1, 1, int(some.sum()))
        found = rows[some][None, None], label[some][None, None], np.ones(shape, bool), np.ones(shape)
        return read(ReaderInputs(query, *found, classes)), classes

    whole, classes = of(np.ones(12, bool))
    for truth in range(4):
        without, _ = of(label != truth, classes)
        for left, expected in zip(whole.nearness_without(np.array([[truth]])), without.nearness, strict=True):
            assert left == pytest.approx(expected, abs=1e-6)


def test_an_empty_memory_finds_everything_new():
    assert np.isposinf(Novelty.new().logit(readings([0.0, 0.0], [0.0, 0.0], [0, 0])))


def test_one_class_alone_is_no_error():
    novelty = Novelty.new()
    seen = readings([0.4, 0.0], [0.4, 0.0], [1, 0])
    novelty = novelty.learnt(seen, np.array([[0]]))
    novelty = novelty.learnt(seen, np.array([[1]]))
    assert np.isfinite(novelty.logit(seen)).all()


def taught(offset: float = 0.0, spread: float = 0.05) -> Novelty:
    """What belongs to no class lies about 0.3 from the nearest; what does, ten times the spread nearer to its own."""
    novelty, random = Novelty.new(), np.random.default_rng(0)
    for lesson in range(200):
        mean = random.normal(offset + 0.3, spread, 6)
        share = random.uniform(0.0, 0.2, 6)
        if lesson % 10:
            mean[lesson % 5] += 10 * spread
            share[lesson % 5] += 0.6
        examples = [3] * 5 + [0]
        truth = lesson % 5 if lesson % 10 else 5
        novelty = novelty.learnt(readings(list(mean), list(share), examples), np.array([[truth]]))
    return novelty


@pytest.mark.parametrize(("offset", "spread"), [(0.0, 0.05), (0.4, 0.02), (-0.2, 0.07)])
def test_the_rule_tells_new_from_known_whatever_the_encoder_calls_near(offset, spread):
    novelty = taught(offset, spread)
    near = readings([offset + 0.3 + 10 * spread] + [offset + 0.3] * 4, [0.7, 0.1, 0.1, 0.1, 0.0])
    far = readings([offset + 0.3 + spread] + [offset + 0.3] * 4, [0.1, 0.1, 0.1, 0.1, 0.0])
    assert novelty.logit(near)[0, 0] < -2
    assert novelty.logit(far)[0, 0] > 2


def test_the_line_moves_to_where_the_memory_has_known_and_new():
    """With shares that are always small, only a line that was learnt calls the larger ones known."""
    novelty, random = Novelty.new(), np.random.default_rng(1)
    known = readings([0.45, 0.4, 0.4], [0.22, 0.02, 0.02])
    assert novelty.logit(known)[0, 0] > 0.5
    for _ in range(100):
        share = random.uniform(0.0, 0.05, 3)
        share[0] += 0.2
        novelty = novelty.learnt(readings([0.45, 0.4, 0.4], list(share)), np.array([[0]]))
    assert novelty.logit(known)[0, 0] < -0.2


def test_announced_classes_weigh_by_how_many_were_not_seen_yet():
    odds = log_odds_of_share(np.array([2, 4, 1]), way=4)
    assert odds[0] == pytest.approx(0)
    assert np.isneginf(odds[1])
    assert odds[2] == pytest.approx(np.log(3))


def test_one_case_makes_nobody_certain_of_the_next():
    novelty, known = Novelty.new(), [1, 0]
    novelty = novelty.learnt(readings([0.3, 0.0], [0.3, 0.0], known), np.array([[1]]))  # the second class is seen first
    far, near = (float(novelty.logit(readings([s, 0.0], [s, 0.0], known))[0, 0]) for s in (0.2, 0.8))
    assert far > near and max(abs(far), abs(near)) < 10
