"""What an ensemble learns: the weights of readers against what they should be, and where new begins."""

from __future__ import annotations

import numpy as np
import pytest

from apl.classifier.opening import vector_learner
from apl.memory import ClassTotals
from apl.reading import readers
from apl.reading.ensemble_state import COSINE, COSINE_POWER, DECODER, TRIAL_EXAMPLES, UNIT, Novelty, Pool
from apl.reading.readers import FLOOR, LOCAL_REGRESSION, ClassStatistics, LocalRegression, Readings

WIDTH = 8


def statistics_of(total: np.ndarray, examples: np.ndarray) -> ClassStatistics:
    return ClassStatistics.of(ClassTotals(total, examples, total.sum(1), np.vecdot(total, total)))


def scored(scores: np.ndarray, examples: np.ndarray) -> Readings:
    """Readings of which only the scores count."""
    episodes, queries, _, way = scores.shape
    classes = statistics_of(np.zeros((episodes, way, WIDTH)), examples)
    nothing = np.zeros((episodes, queries, 1))
    nowhere = nothing.astype(int)
    regression = LocalRegression(np.ones((episodes, queries, 1, 1)), nothing, nowhere, nowhere, way)
    shares = np.zeros((episodes, queries, way))
    return Readings(scores, classes, shares, regression, shares)


def after(pool: Pool, readings: Readings, truth: np.ndarray) -> Pool:
    return pool.learnt(readings, pool.log_probs(readings), truth)


def test_a_query_is_no_surer_because_there_are_more_classes_far_away():
    """The unit of a score does not shrink with the number of classes that say nothing."""
    known = np.ones((1, 400), bool)
    scores = np.zeros((1, 1, len(readers.READERS), 400))
    scores[..., 2, :] = np.log(readers.FLOOR)
    scores[..., 2, 0], scores[..., 2, 1] = np.log(0.5), np.log(0.4)
    odds = []
    for way in (4, 400):
        log_probs = Pool.new().log_probs(scored(scores[..., :way], known[:, :way].astype(float)))[0, 0]
        odds.append(log_probs[0] - log_probs[1])
    assert odds[0] == pytest.approx(odds[1])


USUAL = (UNIT * np.where(COSINE_POWER > 0, COSINE, 1))[:, None]
"""How much the scores of readers usually vary."""


def examples(good: int, count: int, seed: int = 0) -> list[tuple[Readings, np.ndarray]]:
    """One reader sees the truth, the others see noise, each as large as its scores usually are."""
    random = np.random.default_rng(seed)
    taught = []
    for _ in range(count):
        truth = random.integers(0, 5, (1, 1))
        scores = random.normal(size=(1, 1, len(readers.READERS), 5))
        scores[0, 0, good, truth[0, 0]] += 4
        taught.append((scored(scores * USUAL[: len(readers.READERS)], np.ones((1, 5))), truth))
    return taught


@pytest.mark.parametrize("good", [0, 1, 2, 3])
def test_the_reader_that_foresees_the_examples_gets_the_weight(good):
    pool = Pool.new()
    for readings, truth in examples(good, 150):
        pool = after(pool, readings, truth)
    assert pool.weight[0].argmax() == good
    others = np.delete(pool.weight[0], good)
    assert pool.weight[0, good] > 3 * np.abs(others).max()


def test_a_stream_that_drifts_changes_its_reader():
    pool = Pool.new()
    for readings, truth in examples(0, 200) + examples(2, 300, seed=1):
        pool = after(pool, readings, truth)
    assert pool.weight[0].argmax() == 2


def test_many_examples_at_once_do_not_carry_the_weights_away():
    """Three readers that agree, and whose first ten examples mislead: a full step of the next 64 would overshoot. One of the three
    may carry what they share."""
    random, pool = np.random.default_rng(0), Pool.new(3)
    for number in range(40):
        examples = 64 if number > 1 else 10
        truth = random.integers(0, 200, (1, examples))
        scores = random.normal(size=(1, examples, 1, 200)) ** 3 + 0.1 * random.normal(size=(1, examples, 3, 200))
        foreseen = 8 * (random.random(examples) < 0.3) * (1 if number else -1)
        scores[0, np.arange(examples), :, truth[0]] += foreseen[:, None]
        pool = after(pool, scored(scores, np.ones((1, 200))), truth)
        assert np.abs(pool.weight).max() < 3


def test_answers_are_probabilities_of_the_known_classes_alone():
    known = np.array([[True, False, True, True]])
    scores = np.random.default_rng(0).normal(size=(1, 3, 3, 4))
    log_probs = Pool.new().log_probs(scored(scores, known.astype(float)))
    assert np.exp(log_probs).sum(-1) == pytest.approx(1)
    assert np.isneginf(log_probs[..., 1]).all()


def test_parallel_episodes_learn_apart():
    first, second = examples(0, 40), examples(2, 40, seed=5)
    both, alone = Pool.new(episodes=2), Pool.new()
    for (one, truth), (other, other_truth) in zip(first, second, strict=True):
        together = scored(np.concatenate([one.scores, other.scores]), np.ones((2, 5)))
        both = after(both, together, np.concatenate([truth, other_truth]))
        alone = after(alone, other, other_truth)
    assert both.weight[1] == pytest.approx(alone.weight[0])
    assert both.weight[0].argmax() == 0


def test_a_decoder_that_was_found_to_say_nothing_is_left_alone_for_a_while():
    pool, random = Pool.new(DECODER + 1), np.random.default_rng(0)
    assert pool.asks_decoder()
    asked = []
    for readings, truth in examples(0, 300):
        asked.append(pool.asks_decoder())
        scores = readings.scores
        if asked[-1]:
            noise = random.normal(size=(1, 1, 1, 5)) * USUAL[DECODER]
            scores = np.concatenate([scores, noise], 2)
        pool = after(pool, scored(scores, readings.classes.examples), truth)
    assert all(asked[:TRIAL_EXAMPLES])
    assert sum(asked) < 250
    assert pool.weight[0].argmax() == 0


def odds_of_new(novelty: Novelty, seen: Readings) -> float:
    return float(novelty.log_odds(*seen.nearness)[0, 0])


def readings(mean: list[float], share: list[float], examples: list[int] | None = None) -> Readings:
    """Of one query: its cosine with each class mean, and the share that each class has of the regression on one row of each."""
    way = len(mean)
    scores = np.zeros((1, 1, 4, way))
    scores[0, 0, LOCAL_REGRESSION] = np.log(np.array(share) + FLOOR)
    label = np.arange(way)[None, None]
    regression = LocalRegression(np.eye(way)[None, None], np.array([[share]]), label, label, way)
    classes = statistics_of(np.zeros((1, way, 2)), np.array([examples or [2] * way], float))
    return Readings(scores, classes, np.array([[mean]]), regression, np.array([[share]]))


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
    assert odds_of_new(novelty, near) < -2
    assert odds_of_new(novelty, far) > 2


def test_the_line_moves_to_where_the_memory_has_known_and_new():
    """With shares that are always small, only a line that was learnt calls the larger ones known."""
    novelty, random = Novelty.new(), np.random.default_rng(1)
    known = readings([0.45, 0.4, 0.4], [0.22, 0.02, 0.02])
    assert odds_of_new(novelty, known) > 0.5
    for _ in range(100):
        share = random.uniform(0.0, 0.05, 3)
        share[0] += 0.2
        novelty = novelty.learnt(readings([0.45, 0.4, 0.4], list(share)), np.array([[0]]))
    assert odds_of_new(novelty, known) < -0.2


def test_one_case_makes_nobody_certain_of_the_next():
    novelty, known = Novelty.new(), [1, 0]
    novelty = novelty.learnt(readings([0.3, 0.0], [0.3, 0.0], known), np.array([[1]]))  # the second class is seen first
    far, near = (odds_of_new(novelty, readings([s, 0.0], [s, 0.0], known)) for s in (0.2, 0.8))
    assert far > near and max(abs(far), abs(near)) < 10


def test_the_line_is_exceeded_by_the_asked_share():
    learner = vector_learner(8)
    memory, near = learner.new_memory(), np.random.default_rng(0).uniform(size=(199, 2))
    log_odds = memory.state.novelty.log_odds(*near.T[:, None])[0]
    for share in (0.05, 0.1, 0.5):
        line = learner.reading.line_of_new(memory, near, share)
        assert (1 / (1 + np.exp(-log_odds)) > line).mean() == pytest.approx(share, abs=0.006)
    assert learner.reading.line_of_new(memory, near[:0], 0.05) == 1


def test_one_class_alone_is_no_error():
    novelty = Novelty.new()
    seen = readings([0.4, 0.0], [0.4, 0.0], [1, 0])
    novelty = novelty.learnt(seen, np.array([[0]]))
    novelty = novelty.learnt(seen, np.array([[1]]))
    assert np.isfinite(odds_of_new(novelty, seen))
