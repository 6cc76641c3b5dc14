"""New or known, learnt from the memory as it grows."""

from __future__ import annotations

import numpy as np
import pytest

from apl.novelty import Novelty, left_out, log_odds_of_share, nearness
from apl.readers import Readings


def readings(nearest: list[float], mean: list[float], known: list[bool] | None = None) -> Readings:
    scores = np.zeros((1, 1, 3, len(nearest)))
    scores[0, 0, 0], scores[0, 0, 1] = nearest, mean
    return Readings(scores, np.array([known or [True] * len(nearest)]))


def test_nearness_is_the_best_of_each_reader_and_its_lead_over_the_next_class():
    found = nearness(readings([0.2, 0.9, 0.5, 1.0], [0.1, 0.3, 0.8, 1.0], [True, True, True, False]).best)
    assert found[0, 0] == pytest.approx([1, 0.9, 0.8, 0.4, 0.5])


def test_leaving_a_class_out_leaves_what_the_others_would_say():
    seen = readings([0.2, 0.9, 0.5, 0.1], [0.1, 0.3, 0.8, 0.6])
    for truth in range(4):
        others = [n for n in range(4) if n != truth]
        scores = seen.scores[..., others]
        expected = nearness(Readings(scores, np.ones((1, 3), bool)).best)
        without = nearness(left_out(seen, np.array([[truth]])))
        assert without == pytest.approx(expected)


def test_an_empty_memory_finds_everything_new():
    assert np.isposinf(Novelty().logit(readings([0.0, 0.0], [0.0, 0.0], [False, False])))


def test_one_class_alone_is_no_error():
    novelty = Novelty()
    seen = readings([0.4, 0.0], [0.4, 0.0], [True, False])
    novelty.learn(seen, np.array([[0]]))
    novelty.learn(seen, np.array([[1]]))
    assert np.isfinite(novelty.logit(seen)).all()


def taught() -> Novelty:
    """Known examples lie at 0.8 from their own class, others at 0.3."""
    novelty, random = Novelty(), np.random.default_rng(0)
    for lesson in range(200):
        scores = random.normal(0.3, 0.05, 6)
        if lesson % 10:
            scores[lesson % 5] += 0.5
        known = [True] * 5 + [False]
        novelty.learn(readings(list(scores), list(scores - 0.1), known), np.array([[lesson % 5 if lesson % 10 else 5]]))
    return novelty


def test_the_rule_tells_what_is_far_from_everything_from_what_is_near():
    novelty = taught()
    near = readings([0.8, 0.3, 0.3, 0.3, 0.3], [0.7, 0.2, 0.2, 0.2, 0.2])
    far = readings([0.35, 0.3, 0.3, 0.3, 0.3], [0.25, 0.2, 0.2, 0.2, 0.2])
    assert novelty.logit(near)[0, 0] < -2
    assert novelty.logit(far)[0, 0] > 2


def test_what_a_rule_keeps_brings_it_back_as_it_was():
    novelty = taught()
    asked = readings([0.5, 0.3, 0.1], [0.4, 0.2, 0.2])
    assert Novelty.from_dict(novelty.to_dict()).logit(asked) == pytest.approx(novelty.logit(asked))
    assert Novelty.from_dict(None).cases[0] == 0


def test_announced_classes_weigh_by_how_many_were_not_seen_yet():
    odds = log_odds_of_share(np.array([2, 4, 1]), way=4)
    assert odds[0] == pytest.approx(0)
    assert np.isneginf(odds[1])
    assert odds[2] == pytest.approx(np.log(3))


def test_one_case_makes_nobody_certain_of_the_next():
    novelty, known = Novelty(), [True, False]
    novelty.learn(readings([0.3, 0.0], [0.3, 0.0], known), np.array([[1]]))  # the second class is seen first
    far, near = (float(novelty.logit(readings([s, 0.0], [s, 0.0], known))[0, 0]) for s in (0.2, 0.8))
    assert far > near and max(abs(far), abs(near)) < 10
