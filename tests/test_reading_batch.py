"""What a whole batch allows: the regression on all rows, and examples left out of the memory once."""

from __future__ import annotations

import numpy as np
import pytest

from apl.memory import COUNT, LABEL, ClassTotals, Neighbours
from apl.reading.batch import WholeRegression, _kernel, readings_without_itself, with_regression, without_itself
from apl.reading.readers import CLASS_DENSITY, CLASS_MEAN, ClassStatistics, ReaderInputs, read, unit


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


def test_the_class_of_a_row_has_the_largest_logit_and_a_class_without_rows_has_none():
    keys, label, _ = batch()
    regression = WholeRegression.of(keys, label, np.ones(24, np.float32), statistics(keys, label, 4))
    logits = regression.logits(keys)
    assert (logits[:, :3].argmax(1) == label).all()
    assert logits[:, 3] == pytest.approx(np.zeros(24), abs=1e-9)


def test_the_regression_is_that_of_scikit_learn():
    from sklearn.linear_model import LogisticRegression

    keys, label, centres = batch()
    asked = np.random.default_rng(1).normal(size=(200, 40)) + centres[np.arange(200) % 3]
    classes = statistics(keys, label, 3)
    regression = WholeRegression.of(keys, label, np.ones(24, np.float32), classes)

    def features(vectors: np.ndarray) -> np.ndarray:
        """Such that products are the kernel's values."""
        values, axes = np.linalg.eigh(_kernel(regression.direction @ regression.direction.T))
        return _kernel(unit(vectors - regression.centre) @ regression.direction.T) @ axes / np.sqrt(values)

    fitted = LogisticRegression(C=10.0, fit_intercept=False, max_iter=1000).fit(features(keys), label)
    logits = regression.logits(asked)
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    assert probabilities == pytest.approx(fitted.predict_proba(features(asked)), abs=0.03)


def test_a_row_of_many_examples_is_fitted_more_closely():
    keys, label, _ = batch()
    label[0] = (label[0] + 1) % 3
    counted = np.ones(24, np.float32)
    once = WholeRegression.of(keys, label, counted, statistics(keys, label, 3)).logits(keys[:1])
    counted[0] = 50
    often = WholeRegression.of(keys, label, counted, statistics(keys, label, 3)).logits(keys[:1])
    assert often[0, label[0]] > once[0, label[0]]


def test_the_sum_of_pool_and_regression_is_a_distribution_over_the_known_classes():
    log_probs = np.log([[0.6, 0.3, 0.1, 1e-9]])
    log_probs[0, 3] = -np.inf
    known = np.array([True, True, True, False])
    answer = np.exp(with_regression(log_probs, np.array([[0.1, 0.9, 0.0, 0.5]]), known))
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


def test_leaving_an_example_out_changes_what_its_own_class_scores_and_nothing_else():
    keys, label, _ = batch()
    classes = statistics(keys, label, 3)
    some = {"rows": keys[None, None, 3:9].repeat(3, 1), "label": label[None, None, 3:9].repeat(3, 1)}
    mask = np.ones((1, 3, 6), bool)
    given = ReaderInputs(keys[None, :3], **some, mask=mask, examples=mask.astype(np.float32), classes=classes)
    whole, left = read(given), readings_without_itself(given, label[:3])
    rest = statistics(keys[1:], label[1:], 3)
    for reader in (CLASS_MEAN, CLASS_DENSITY):
        before, after = whole.scores[0, 0, reader], left.scores[0, 0, reader]
        assert after[label[0]] < before[label[0]]
        assert after[1:].tolist() == before[1:].tolist()
    mean = rest.total[0, 0] / 7 - classes.centre[0]
    asked = keys[0] - classes.centre[0]
    cosine = mean @ asked / np.linalg.norm(mean) / np.linalg.norm(asked)
    assert left.scores[0, 0, CLASS_MEAN, 0] == pytest.approx(cosine, abs=1e-5)
