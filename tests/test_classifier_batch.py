"""A whole batch handed over at once."""

from __future__ import annotations

import numpy as np
import pytest

from apl import OnlineClassifier
from apl.classifier.interleave import interleaved


def sorted_batch(seed: int = 0) -> tuple[np.ndarray, list[str]]:
    """Five classes of six, one after the other."""
    random = np.random.default_rng(seed)
    label = np.repeat(np.arange(5), 6)
    return random.normal(size=(5, 80))[label] + 1.5 * random.normal(size=(30, 80)), [f"class {n}" for n in label]


def test_classes_take_turns_in_the_order_of_their_first_appearance():
    assert interleaved(["b", "b", "a", "b", "c", "a"]) == [0, 2, 4, 1, 5, 3]
    assert interleaved([]) == []


def test_a_batch_is_learnt_as_if_classes_came_in_turns():
    x, y = sorted_batch()
    batch, single = OnlineClassifier.for_features(80), OnlineClassifier.for_features(80)
    receipts = batch.learn_many(x, y)
    order = interleaved(y)
    expected = {i: single.learn_one(x[i], y[i]) for i in order}
    assert [r.label for r in receipts] == y
    assert [r.written for r in receipts] == [expected[i].written for i in range(len(y))]
    assert [r.surprise_nats for r in receipts] == pytest.approx([expected[i].surprise_nats for i in range(len(y))])
    assert batch.predict_proba(x) == pytest.approx(single.predict_proba(x), abs=1e-6)


def test_fit_answers_the_same_for_sorted_and_for_interleaved_data():
    x, y = sorted_batch()
    order = interleaved(y)
    one = OnlineClassifier().fit(x, y)
    other = OnlineClassifier().fit(x[order], [y[i] for i in order])
    assert np.array_equal(one.predict_proba(x), other.predict_proba(x))


def test_partial_fit_keeps_the_order():
    x, y = sorted_batch()
    batch, single = OnlineClassifier().partial_fit(x, y), OnlineClassifier.for_features(80)
    for vector, label in zip(x, y, strict=True):
        single.learn_one(vector, label)
    assert np.array_equal(batch.predict_proba(x), single.predict_proba(x))
