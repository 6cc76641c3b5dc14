"""Readers and their pool: each against the definition written out, and the weights against what they should learn."""

from __future__ import annotations

import numpy as np
import pytest

from apl.memory import ClassTotals
from apl.reading import readers
from apl.reading.class_statistics import ClassStatistics
from apl.reading.pool import COSINE, OF_COSINES, TRIAL_EXAMPLES, UNIT, Pool
from apl.reading.readers import LocalRegression, ReaderInputs, Readings, read

WIDTH, CLASSES = 8, 4


def statistics_of(total: np.ndarray, examples: np.ndarray) -> ClassStatistics:
    total = total.astype(np.float64)
    return ClassStatistics.of(ClassTotals(total, examples, total.sum(1), np.vecdot(total, total)))


def scored(scores: np.ndarray, examples: np.ndarray) -> Readings:
    """Readings of which only the scores count."""
    episodes, queries, _, way = scores.shape
    classes = statistics_of(np.zeros((episodes, way, WIDTH)), examples)
    nothing = np.zeros((episodes, queries, 1))
    regression = LocalRegression(np.ones((episodes, queries, 1, 1)), nothing, nothing.astype(int), way)
    nowhere = np.zeros((episodes, queries, way))
    return Readings(scores, classes, nowhere, regression, nowhere)


def after(pool: Pool, readings: Readings, truth: np.ndarray) -> Pool:
    return pool.learnt(readings, pool.log_probs(readings), truth)


@pytest.fixture
def scene() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    rows = random.normal(size=(12, WIDTH)).astype(np.float32)
    label = random.integers(0, CLASSES - 1, 12)  # the last class is not known
    label[:3] = [0, 1, 2]
    count = random.integers(1, 5, 12).astype(np.float32)
    total = np.zeros((1, CLASSES, WIDTH), np.float32)
    np.add.at(total[0], label, rows * count[:, None])
    examples = np.bincount(label, count, CLASSES)[None].astype(np.float32)
    query = random.normal(size=(1, 2, WIDTH)).astype(np.float32)
    return {"rows": rows, "label": label, "count": count, "total": total, "examples": examples, "query": query}


def said(scene: dict[str, np.ndarray], **changes: np.ndarray) -> Readings:
    scene = {**scene, **changes}
    shape = (1, 2, len(scene["rows"]))
    rows = np.broadcast_to(scene["rows"], (*shape, WIDTH))
    label, count = (np.broadcast_to(scene[name], shape) for name in ("label", "count"))
    statistics = statistics_of(scene["total"], scene["examples"])
    return read(ReaderInputs(scene["query"], rows, label, np.ones(shape, bool), count, statistics))


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def test_the_nearest_row_and_the_class_mean_are_cosines_seen_from_the_centre(scene):
    readings = said(scene)
    centre = scene["total"][0].sum(0) / (scene["examples"].sum() + 1)
    for query in range(2):
        moved = scene["query"][0, query] - centre
        for number in range(CLASSES - 1):
            own = scene["rows"][scene["label"] == number]
            nearest = max(cosine(moved, row - centre) for row in own)
            mean = scene["total"][0, number] / scene["examples"][0, number]
            assert readings.scores[0, query, 0, number] == pytest.approx(nearest, abs=1e-5)
            assert readings.scores[0, query, 1, number] == pytest.approx(cosine(moved, mean - centre), abs=1e-5)
            assert readings.plain[0, query, number] == pytest.approx(cosine(scene["query"][0, query], mean), abs=1e-5)
    assert readings.classes.known.tolist() == [[True, True, True, False]]


def test_local_regression_is_kernel_ridge_regression_of_the_labels(scene):
    readings = said(scene)
    centre = scene["total"][0].sum(0) / (scene["examples"].sum() + 1)
    rows = scene["rows"] - centre
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    kernel = np.exp((rows @ rows.T - 1) / readers.KERNEL_WIDTH) + np.diag(readers.NOISE / scene["count"])
    told = np.eye(CLASSES)[scene["label"]]
    for query in range(2):
        moved = scene["query"][0, query] - centre
        near = np.exp((rows @ (moved / np.linalg.norm(moved)) - 1) / readers.KERNEL_WIDTH)
        share = near @ np.linalg.solve(kernel, told)
        expected = np.log(np.clip(share, 0, None) + readers.FLOOR)
        assert readings.scores[0, query, 2] == pytest.approx(expected, abs=1e-4)


def test_the_class_density_is_that_of_a_normal_distribution_whose_mean_is_not_known_for_sure(scene):
    """Written out with numbers: one variance within classes, one between them, what is left of the second after n examples."""
    within, query = 0.3, scene["query"][0, 0].astype(np.float64)
    shape = (1, 2, len(scene["rows"]))
    rows = np.broadcast_to(scene["rows"], (*shape, WIDTH))
    label, count = (np.broadcast_to(scene[name], shape) for name in ("label", "count"))
    statistics = statistics_of(scene["total"], scene["examples"])
    found = read(ReaderInputs(scene["query"], rows, label, np.ones(shape, bool), count, statistics, within))
    centre = scene["total"][0].sum(0) / (scene["examples"].sum() + 1)
    spread = query @ query - centre @ centre
    inside, between = within * spread / WIDTH, (1 - within) * spread / WIDTH
    expected = []
    for number in range(CLASSES - 1):
        seen = scene["examples"][0, number]
        left = 1 / (1 / between + seen / inside)
        mean = centre + left * seen / inside * (scene["total"][0, number] / seen - centre)
        variance = inside + left
        expected.append(-(np.square(query - mean).sum() / variance + WIDTH * np.log(variance)) / 2)
    differences = np.diff(found.scores[0, 0, 3, : CLASSES - 1]) * WIDTH / within
    assert differences == pytest.approx(np.diff(expected), rel=1e-3)


def test_a_query_is_no_surer_because_there_are_more_classes_far_away(scene):
    """The unit of a score does not shrink with the number of classes that say nothing."""
    known = np.ones((1, 400), bool)
    scores = np.zeros((1, 1, len(readers.READERS), 400))
    scores[..., 2, :] = np.log(readers.FLOOR)
    scores[..., 2, 0], scores[..., 2, 1] = np.log(0.5), np.log(0.4)
    odds = []
    for way in (4, 400):
        log_probs = Pool.new(readers.READERS).log_probs(scored(scores[..., :way], known[:, :way].astype(float)))[0, 0]
        odds.append(log_probs[0] - log_probs[1])
    assert odds[0] == pytest.approx(odds[1])


def test_rows_that_were_not_recalled_say_nothing(scene):
    alone = said(scene)
    shape = (1, 2, 13)
    rows = np.zeros((*shape, WIDTH), np.float32)
    rows[..., :12, :] = scene["rows"]
    label, count, mask = np.zeros(shape, int), np.zeros(shape, np.float32), np.zeros(shape, bool)
    label[..., :12], count[..., :12], mask[..., :12] = scene["label"], scene["count"], True
    statistics = statistics_of(scene["total"], scene["examples"])
    padded = read(ReaderInputs(scene["query"], rows, label, mask, count, statistics))
    assert padded.scores == pytest.approx(alone.scores, abs=1e-5)


def usual(names: tuple[str, ...]) -> np.ndarray:
    """How much the scores of these readers usually vary."""
    cosine = [COSINE if name in OF_COSINES else 1 for name in names]
    return np.array([UNIT[name] for name in names] * np.array(cosine))[:, None]


def lessons(good: int, count: int, seed: int = 0) -> list[tuple[Readings, np.ndarray]]:
    """One reader sees the truth, the others see noise, each as large as its scores usually are."""
    random = np.random.default_rng(seed)
    taught = []
    for _ in range(count):
        truth = random.integers(0, 5, (1, 1))
        scores = random.normal(size=(1, 1, len(readers.READERS), 5))
        scores[0, 0, good, truth[0, 0]] += 4
        taught.append((scored(scores * usual(readers.READERS), np.ones((1, 5))), truth))
    return taught


@pytest.mark.parametrize("good", [0, 1, 2, 3])
def test_the_reader_that_foresees_the_lessons_gets_the_weight(good):
    pool = Pool.new(readers.READERS)
    for readings, truth in lessons(good, 150):
        pool = after(pool, readings, truth)
    assert pool.weight[0].argmax() == good
    others = np.delete(pool.weight[0], good)
    assert pool.weight[0, good] > 3 * np.abs(others).max()


def test_a_stream_that_drifts_changes_its_reader():
    pool = Pool.new(readers.READERS)
    for readings, truth in lessons(0, 200) + lessons(2, 300, seed=1):
        pool = after(pool, readings, truth)
    assert pool.weight[0].argmax() == 2


def test_many_lessons_at_once_do_not_carry_the_weights_away():
    """Three readers that agree, and whose first ten lessons mislead: a full step of the next 64 would overshoot."""
    random, pool = np.random.default_rng(0), Pool.new(("nearest row", "class mean", "local regression"))
    for number in range(40):
        lessons = 64 if number > 1 else 10
        truth = random.integers(0, 200, (1, lessons))
        scores = random.normal(size=(1, lessons, 1, 200)) ** 3 + 0.1 * random.normal(size=(1, lessons, 3, 200))
        foreseen = 8 * (random.random(lessons) < 0.3) * (1 if number else -1)
        scores[0, np.arange(lessons), :, truth[0]] += foreseen[:, None]
        pool = after(pool, scored(scores, np.ones((1, 200))), truth)
        assert np.abs(pool.weight).max() < 2


def test_answers_are_probabilities_of_the_known_classes_alone():
    known = np.array([[True, False, True, True]])
    scores = np.random.default_rng(0).normal(size=(1, 3, 3, 4))
    log_probs = Pool.new(readers.READERS).log_probs(scored(scores, known.astype(float)))
    assert np.exp(log_probs).sum(-1) == pytest.approx(1)
    assert np.isneginf(log_probs[..., 1]).all()


def test_parallel_episodes_learn_apart():
    first, second = lessons(0, 40), lessons(2, 40, seed=5)
    both, alone = Pool.new(readers.READERS, episodes=2), Pool.new(readers.READERS)
    for (one, truth), (other, other_truth) in zip(first, second, strict=True):
        together = scored(np.concatenate([one.scores, other.scores]), np.ones((2, 5)))
        both = after(both, together, np.concatenate([truth, other_truth]))
        alone = after(alone, other, other_truth)
    assert both.weight[1] == pytest.approx(alone.weight[0])
    assert both.weight[0].argmax() == 0


def test_a_decoder_that_was_found_to_say_nothing_is_left_alone_for_a_while():
    names = (*readers.READERS, readers.DECODER)
    pool, random = Pool.new(names), np.random.default_rng(0)
    assert pool.needs(readers.DECODER)
    asked = []
    for readings, truth in lessons(0, 300):
        asked.append(pool.needs(readers.DECODER))
        scores = readings.scores
        if asked[-1]:
            noise = random.normal(size=(1, 1, 1, 5)) * usual((readers.DECODER,))
            scores = np.concatenate([scores, noise], 2)
        pool = after(pool, scored(scores, readings.classes.examples), truth)
    assert all(asked[:TRIAL_EXAMPLES])
    assert sum(asked) < 250
    assert pool.weight[0].argmax() == 0
