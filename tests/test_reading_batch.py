"""What a whole batch allows: the regression on all rows, and examples left out of the memory once."""

from __future__ import annotations

import numpy as np
import pytest

from apl.memory import COUNT, LABEL, ClassTotals, Neighbours
from apl.reading.batch import WholeRegression, sharpened, without_itself
from apl.reading.readers import ClassStatistics


def statistics(keys: np.ndarray, label: np.ndarray, way: int) -> ClassStatistics:
    total = np.zeros((1, way, keys.shape[1]))
    np.add.at(total[0], label, keys)
    examples = np.bincount(label, minlength=way).astype(np.float32)[None]
    return ClassStatistics.of(ClassTotals(total, examples, total.sum(1), np.vecdot(total, total)))


def batch(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    label = np.arange(24) % 3
    centres = random.normal(size=(3, 40))
    return centres[label] + random.normal(size=(24, 40)), label, centres


def test_shares_are_large_for_the_class_of_a_row_and_add_up_to_about_one():
    keys, label, _ = batch()
    regression = WholeRegression.of(keys, label, np.ones(24, np.float32), statistics(keys, label, 3))
    shares = regression.shares(keys)
    assert (shares.argmax(1) == label).all()
    assert shares.sum(1) == pytest.approx(np.ones(24), abs=0.2)


def test_a_row_of_many_examples_is_fitted_more_closely():
    keys, label, _ = batch()
    label[0] = (label[0] + 1) % 3
    counted = np.ones(24, np.float32)
    once = WholeRegression.of(keys, label, counted, statistics(keys, label, 3)).shares(keys[:1])
    counted[0] = 50
    often = WholeRegression.of(keys, label, counted, statistics(keys, label, 3)).shares(keys[:1])
    assert often[0, label[0]] > once[0, label[0]]


def test_the_sum_of_pool_and_shares_is_a_distribution_over_the_known_classes():
    log_probs = np.log([[0.6, 0.3, 0.1, 1e-9]])
    log_probs[0, 3] = -np.inf
    known = np.array([True, True, True, False])
    answer = np.exp(sharpened(log_probs, np.array([[0.1, 0.9, 0.0, 0.5]]), known))
    assert answer.sum() == pytest.approx(1)
    assert answer[0, 3] == 0 and answer[0].argmax() == 1


def test_an_example_is_taken_out_of_the_mean_of_its_row():
    examples = np.array([[1.0, 0.0], [0.0, 1.0]], np.float32)
    columns = {
        "embedding": np.array([[[examples.mean(0), [3.0, 3.0]]]], np.float32),
        LABEL: np.zeros((1, 1, 2), int),
        COUNT: np.array([[[2.0, 1.0]]], np.float32),
    }
    found = Neighbours(columns, np.zeros((1, 1, 2)), np.ones((1, 1, 2), bool), np.array([[[7, 9]]]))
    left = without_itself(found, examples[None, :1], np.array([7]))
    assert left.columns["embedding"][0, 0].tolist() == [[0, 1], [3, 3]]
    assert left.examples[0, 0].tolist() == [1, 1] and left.mask.all()
    alone = without_itself(found, examples[None, :1], np.array([9]))
    assert alone.mask[0, 0].tolist() == [True, False]
