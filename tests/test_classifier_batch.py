"""A whole batch handed over at once."""

from __future__ import annotations

import numpy as np
import pytest

from apl import OnlineClassifier
from apl.classifier import online
from apl.classifier.inputs import interleaved
from apl.classifier.opened import Opened
from apl.reading.batch import WholeRegression


def sorted_batch(seed: int = 0) -> tuple[np.ndarray, list[str]]:
    """Five classes of six, one after the other."""
    random = np.random.default_rng(seed)
    label = np.repeat(np.arange(5), 6)
    return random.normal(size=(5, 80))[label] + 1.5 * random.normal(size=(30, 80)), [f"class {n}" for n in label]


def test_classes_take_turns_in_the_order_of_their_first_appearance():
    assert interleaved(["b", "b", "a", "b", "c", "a"]) == [0, 2, 4, 1, 5, 3]
    assert interleaved([]) == []


def test_a_batch_with_a_budget_is_learnt_as_if_classes_came_in_turns():
    x, y = sorted_batch()
    batch, single = (OnlineClassifier.for_features(80, max_rows=100) for _ in range(2))
    receipts = batch.learn_many(x, y)
    order = interleaved(y)
    expected = {i: single.learn_one(x[i], y[i]) for i in order}
    assert [r.label for r in receipts] == y
    assert [r.written for r in receipts] == [expected[i].written for i in range(len(y))]
    assert [r.surprise_nats for r in receipts] == pytest.approx([expected[i].surprise_nats for i in range(len(y))])
    assert [row.count for row in batch.store.rows()] == [row.count for row in single.store.rows()]


def test_batches_in_a_row_make_no_regression_until_a_question_is_asked(monkeypatch: pytest.MonkeyPatch):
    x, y = sorted_batch()
    made: list[int] = []
    make = WholeRegression.of
    monkeypatch.setattr(WholeRegression, "of", lambda *rows: made.append(len(rows[0])) or make(*rows))
    clf = OnlineClassifier.for_features(80)
    for part in (slice(0, 18), slice(18, 24), slice(24, 30)):
        clf.learn_many(x[part], y[part])
    assert made == []
    clf.predict(x)
    assert made == [len(clf)]


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


def blobs(count: int, classes: int = 6, noise: float = 1.2, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    centres = np.random.default_rng(99).normal(size=(classes, 80))
    random = np.random.default_rng(seed)
    label = random.permutation(np.arange(count) % classes)
    return (centres[label] + noise * random.normal(size=(count, 80))).astype(np.float32), label


def test_a_batch_is_read_by_the_regression_on_all_rows_until_a_single_example_comes(tmp_path):
    x, y = blobs(60)
    # With a budget examples of a batch are learnt one after the other.
    batch, stream = OnlineClassifier(max_rows=1000).fit(x, y), OnlineClassifier(max_rows=1000)
    for i in interleaved(y.tolist()):
        stream.learn_one(x[i], y[i])
    asked = blobs(30, seed=1)[0]
    assert len(batch) == len(stream)
    assert not np.allclose(batch.predict_proba(asked), stream.predict_proba(asked), atol=1e-3)
    assert batch.predict_proba(asked) == pytest.approx(
        np.array([list(dict(sorted(batch.predict_proba_one(one).items())).values()) for one in asked]), abs=1e-5
    )
    for clf in (batch, stream):
        clf.learn_one(asked[0], 0)
    # What the first example was surprised by differs; what the memories hold hardly does.
    assert batch.predict_proba(asked) == pytest.approx(stream.predict_proba(asked), abs=0.05)


def test_a_batch_answers_the_same_after_it_was_saved_and_opened(tmp_path):
    x, y = blobs(60)
    asked = blobs(30, seed=1)[0]
    clf = OnlineClassifier().fit(x, y)
    clf.save(tmp_path / "batch.apl")
    with OnlineClassifier.load(tmp_path / "batch.apl") as again:
        assert again.predict_proba(asked) == pytest.approx(clf.predict_proba(asked), abs=1e-6)
        assert again.predict(asked, false_alarms=0.2).tolist() == clf.predict(asked, false_alarms=0.2).tolist()


def test_sorted_data_is_learnt_as_well_as_shuffled_data():
    x, y = blobs(120, classes=12, noise=1.8)
    asked, truth = blobs(600, classes=12, noise=1.8, seed=1)
    order = np.argsort(y, kind="stable")
    accuracy = [
        float((OnlineClassifier().fit(x[o], y[o]).predict(asked) == truth).mean()) for o in (np.arange(len(y)), order)
    ]
    assert accuracy[0] == pytest.approx(accuracy[1], abs=0.02) and min(accuracy) > 0.8


def test_false_alarms_are_as_many_as_asked_for_and_new_classes_are_called_new():
    x, y = blobs(1000, classes=20)
    known = y < 10
    learn, asked = slice(0, 400), slice(400, 1000)
    clf = OnlineClassifier().fit(x[learn][known[learn]], y[learn][known[learn]])
    for share in (0.05, 0.2):
        called = np.array([label is None for label in clf.predict(x[asked], false_alarms=share)])
        assert called[known[asked]].mean() == pytest.approx(share, abs=0.05)
        assert called[~known[asked]].mean() > 0.5
        line = clf.new_threshold(share)
        assert called.tolist() == (clf.predict_new(x[asked]) > line).tolist()
    one = x[asked][0]
    assert clf.predict_one(one, false_alarms=0.05) == clf.predict([one], false_alarms=0.05)[0]


def test_a_stream_calibrates_false_alarms_too():
    x, y = blobs(700)
    clf = OnlineClassifier().partial_fit(x[:200], y[:200])
    called = np.array([label is None for label in clf.predict(x[200:], false_alarms=0.1)])
    assert called.mean() == pytest.approx(0.1, abs=0.06)


def test_predict_calls_new_what_exceeds_the_given_probability():
    x, y = blobs(60)
    clf = OnlineClassifier().fit(x, y)
    asked = np.concatenate([x[:5], -x[:5]])
    expected = [
        None if new > 0.5 else label for new, label in zip(clf.predict_new(asked), clf.predict(asked), strict=True)
    ]
    assert clf.predict(asked, new_above=0.5).tolist() == expected
    assert None in expected and set(expected) != {None}


def test_bad_rates_are_refused():
    x, y = blobs(30)
    clf = OnlineClassifier().fit(x, y)
    for bad in (
        {"false_alarms": 0.0},
        {"false_alarms": 1.5},
        {"false_alarms": 0.1, "new_above": 0.5},
        {"new_above": 2.0},
    ):
        for ask in (lambda bad=bad: clf.predict(x, **bad), lambda bad=bad: clf.predict_one(x[0], **bad)):
            with pytest.raises(ValueError, match="false_alarms|new_above"):
                ask()
    plain = OnlineClassifier(consolidate=False).fit(x, y)
    with pytest.raises(ValueError, match="consolidate=True"):
        plain.predict(x, false_alarms=0.1)


def exchanged(count: int) -> tuple[np.ndarray, list[int]]:
    """Labels change their meaning half-way."""
    x, y = blobs(count, noise=2.0)
    return x, [int(label) if n < count // 2 else int(label + 1) % 6 for n, label in enumerate(y)]


def test_old_rows_go_when_labels_change_their_meaning():
    x, y = exchanged(300)
    right = {}
    for ageing in (True, False):
        clf = OnlineClassifier(ageing=ageing)
        receipts = [clf.learn_one(a, b) for a, b in zip(x, y, strict=True)]
        right[ageing] = np.mean([r.predicted == r.label for r in receipts[225:]])
        assert any(r.evicted for r in receipts) == ageing
        assert not any(r.evicted for r in receipts[:150])
        assert set(clf.classes_) == set(range(6))
    assert right[True] > right[False] + 0.03


def test_ageing_lasts_with_the_memory(tmp_path):
    x, y = exchanged(300)
    whole = OnlineClassifier().partial_fit(x, y)
    for part in (slice(0, 170), slice(170, 300)):
        with OnlineClassifier(memory=tmp_path / "a.apl") as lasting:
            lasting.partial_fit(x[part], y[part])
            assert lasting.ageing
    with OnlineClassifier.load(tmp_path / "a.apl", read_only=True) as again:
        assert again.counts() == whole.counts() and again.predict(x).tolist() == whole.predict(x).tolist()
    assert sum(row.count for row in whole.store.rows()) < len(x)


def test_explanations_name_the_few_rows_that_carried_the_answer():
    x, y = blobs(60)
    clf = OnlineClassifier().fit(x, y)
    explanation = clf.explain(blobs(1, seed=1)[0][0])
    by_class: dict[object, float] = {}
    for row in explanation.neighbours:
        by_class[row.label] = by_class.get(row.label, 0) + row.weight
    for label, weight in by_class.items():
        assert weight == pytest.approx(explanation.probabilities[label], abs=1e-5)
    assert 0 < len(explanation.carried) <= 8
    assert sum(row.weight for row in explanation.carried) >= 0.5
    assert "nearest row" in explanation.why and repr(explanation.predicted) in explanation.why


def test_truth_values_are_one_and_zero_and_fit_returns_what_it_was_given():
    X = np.random.default_rng(0).normal(size=(20, 3))
    y = X[:, 0] > 0
    clf = OnlineClassifier().fit(X, y)
    assert clf.classes_.dtype == bool and clf.classes_.tolist() == [False, True]
    assert clf.predict(X).dtype == bool and clf.score(X, y) > 0.8
    assert clf.partial_fit(X, y).classes_.dtype == bool
    assert clf.learn_one(X[0], True).label == 1
    assert clf.partial_fit(X[:1], [2]).classes_.tolist() == [0, 1, 2]
    assert OnlineClassifier().fit(X, y.astype(int)).classes_.dtype != bool


class Interrupted:
    """An encoder that is interrupted at its third call."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, numbers: list[float]) -> np.ndarray:
        self.calls += 1
        if self.calls == 3:
            raise KeyboardInterrupt
        return np.array([[number, 1.0] for number in numbers])


def test_an_interrupted_batch_keeps_what_was_committed_if_it_is_asked_to(monkeypatch, tmp_path):
    monkeypatch.setattr(online, "KEPT_AT_ONCE", 4)
    numbers, labels = list(range(20)), [f"c{n % 5}" for n in range(20)]
    with OnlineClassifier(encoder=Interrupted(), memory=tmp_path / "m.apl") as clf:
        with pytest.raises(KeyboardInterrupt):
            clf.learn_many(numbers, labels, keep=True)
        assert sum(row.count for row in clf.store.new_rows()) == 8
    with OnlineClassifier(encoder=Interrupted()) as clf:
        clf.encoder.calls = 1
        assert len(clf.learn_many(numbers, labels)) == 20
    whole = OnlineClassifier(encoder=lambda numbers: [[number, 1.0] for number in numbers])
    assert [told.label for told in whole.learn_many(numbers, labels, keep=True)] == labels
    with pytest.raises(ValueError, match="keep=True divides"):
        whole.learn_many(numbers, labels, keep=True, settings={"a": 1})


def test_examples_of_different_known_classes_are_predicted_together(monkeypatch):
    asked: list[int] = []
    predict = Opened.predict
    monkeypatch.setattr(Opened, "predict", lambda self, queries: asked.append(len(queries)) or predict(self, queries))
    x, y = blobs(30)
    OnlineClassifier().learn_many(x, y)
    assert asked == [1] * 6 + [6] * 4, "the first example of a class is learnt alone"
    for one_at_a_time in (OnlineClassifier(max_rows=4).learn_many, OnlineClassifier().partial_fit):
        asked.clear()
        one_at_a_time(x, y)
        assert set(asked) == {1}


def test_a_batch_that_is_predicted_together_is_learnt_as_well_as_one_after_the_other():
    (x, y), (asked, truth) = blobs(240, noise=4.0), blobs(600, noise=4.0, seed=1)
    together, stream = OnlineClassifier(), OnlineClassifier()
    together.learn_many(x, y)
    for i in interleaved(y.tolist()):
        stream.learn_one(x[i], int(y[i]))
    assert abs(together.score(asked, truth) - stream.score(asked, truth)) < 0.04
    assert abs(len(together) - len(stream)) < 24
