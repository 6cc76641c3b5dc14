"""Readers, each against the definition written out."""

from __future__ import annotations

import numpy as np
import pytest

from apl.memory import ClassTotals
from apl.reading import readers
from apl.reading.readers import ClassStatistics, ReaderInputs, Readings, read

WIDTH, CLASSES = 8, 4


def statistics_of(total: np.ndarray, examples: np.ndarray) -> ClassStatistics:
    total = total.astype(np.float64)
    return ClassStatistics.of(ClassTotals(total, examples, total.sum(1), np.vecdot(total, total)))


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


def test_leaving_a_class_out_leaves_what_a_memory_without_it_would_say():
    random = np.random.default_rng(0)
    rows, label = random.normal(size=(12, 5)).astype(np.float32), np.arange(12) % 4
    query = random.normal(size=(1, 1, 5)).astype(np.float32)

    def of(some: np.ndarray, centre: ClassStatistics | None = None) -> tuple[Readings, ClassStatistics]:
        total = np.stack([rows[some & (label == c)].sum(0) for c in range(4)])[None].astype(np.float64)
        examples = np.array([[(some & (label == c)).sum() for c in range(4)]], np.float32)
        # Only the centre remembers the class.
        everything = total.sum(1) if centre is None else centre.centre.astype(np.float64) * (examples.sum() + 1)
        classes = ClassStatistics.of(ClassTotals(total, examples, everything, np.vecdot(total, total)))
        shape = (1, 1, int(some.sum()))
        found = rows[some][None, None], label[some][None, None], np.ones(shape, bool), np.ones(shape)
        return read(ReaderInputs(query, *found, classes)), classes

    whole, classes = of(np.ones(12, bool))
    for truth in range(4):
        without, _ = of(label != truth, classes)
        for left, expected in zip(whole.nearness_without(np.array([[truth]])), without.nearness, strict=True):
            assert left == pytest.approx(expected, abs=1e-6)
