"""Sets of labels: how often they contain the truth, and what they rest on."""

from __future__ import annotations

import numpy as np
import pytest

from apl import LabelSet, OnlineClassifier
from apl.memory.history import KEPT, History

CLASSES, WIDTH = 8, 16
CENTRES = np.random.default_rng(0).normal(size=(CLASSES, WIDTH))


def stream(kind: str, number: int = 300) -> tuple[np.ndarray, list[str]]:
    random = np.random.default_rng(1)
    label = random.integers(0, CLASSES, number)
    if kind == "class by class":
        label.sort()
    x = CENTRES[label] + 1.5 * random.normal(size=(number, WIDTH))
    if kind == "labels change half-way":
        label[number // 2 :] = (label[number // 2 :] + 3) % CLASSES
    return x.astype(np.float32), [f"class {n}" for n in label]


def taught(number: int = 60, **parameters) -> OnlineClassifier:
    classifier = OnlineClassifier(**parameters)
    classifier.learn_many(*stream("even", number))
    return classifier


@pytest.mark.parametrize("kind", ["class by class", "labels change half-way"])
def test_the_truth_is_in_the_set_as_often_as_was_asked_for(kind):
    classifier, inside = OnlineClassifier(), []
    for x, y in zip(*stream(kind), strict=True):
        if len(classifier):
            found = classifier.predict_set(x, coverage=0.9)
            inside.append(y in found if y in classifier.counts() else found.new)
        classifier.learn_one(x, y)
    assert np.mean(inside) == pytest.approx(0.9, abs=0.03)


def test_after_a_whole_batch_the_truth_is_in_the_set_as_often_as_was_asked_for():
    """Even where labels are pure chance."""
    random = np.random.default_rng(3)
    x, label = random.normal(size=(250, 100)), random.integers(0, 3, 250)
    classifier = OnlineClassifier().fit(x[:150], label[:150])
    inside = [int(y) in classifier.predict_set(one) for one, y in zip(x[150:], label[150:], strict=True)]
    assert np.mean(inside) == pytest.approx(0.9, abs=0.1)


def test_a_batch_of_single_examples_judges_what_is_new():
    classifier = OnlineClassifier()
    classifier.learn_many(10 * CENTRES, range(CLASSES))
    classifier.learn_many(-10 * CENTRES, range(CLASSES, 2 * CLASSES))
    assert classifier.predict_set(10 * np.roll(CENTRES[0], 1)).new


def test_sets_are_small_where_the_classes_are_apart():
    random = np.random.default_rng(2)
    number = np.arange(200) % CLASSES
    classifier = OnlineClassifier()
    classifier.learn_many(10 * CENTRES[number] + random.normal(size=(200, WIDTH)), number)
    sizes = [len(classifier.predict_set(x, coverage=0.99).labels) for x in 10 * CENTRES]
    assert np.mean(sizes) <= 1


def test_labels_come_most_probable_first():
    classifier = taught()
    x, _ = stream("even", 70)
    for one in x[60:]:
        found, probabilities = classifier.predict_set(one, coverage=0.98), classifier.predict_proba_one(one)
        assert list(found.labels) == list(probabilities)[: len(found.labels)]


def test_with_too_few_examples_the_set_holds_everything():
    classifier = taught(8)
    known = set(classifier.counts())
    found = classifier.predict_set(CENTRES[0], coverage=0.9)
    assert set(found.labels) == known and found.new and found.examples < 9


def test_an_empty_memory_answers_something_new():
    assert OnlineClassifier.for_features(3).predict_set([0, 0, 1]) == LabelSet((), True, 0.9, 0)


@pytest.mark.parametrize("coverage", [0.0, 1.0, -0.1, 1.5, float("nan")])
def test_a_coverage_outside_0_to_1_is_refused(coverage):
    with pytest.raises(ValueError, match="coverage is a share between 0 and 1"):
        taught(12).predict_set(CENTRES[0], coverage=coverage)


def test_labels_7_and_text_7_are_told_apart():
    assert 7 in LabelSet((7,), False, 0.9, 10) and "7" not in LabelSet((7,), False, 0.9, 10)


def test_a_memory_opened_again_gives_the_same_sets(tmp_path):
    x, _ = stream("even", 70)
    with taught(memory=tmp_path / "a.apl") as classifier:
        sets = [classifier.predict_set(one, 0.8) for one in x[60:]]
    with OnlineClassifier.load(tmp_path / "a.apl") as again:
        assert [again.predict_set(one, 0.8) for one in x[60:]] == sets


def test_a_saved_copy_gives_the_same_sets(tmp_path):
    classifier = taught()
    x, _ = stream("even", 70)
    classifier.save(tmp_path / "copy.apl")
    with OnlineClassifier.load(tmp_path / "copy.apl") as copy:
        assert [copy.predict_set(one) for one in x[60:]] == [classifier.predict_set(one) for one in x[60:]]


@pytest.mark.parametrize("consolidate", [True, False])
def test_the_paper_s_rule_has_a_history_as_well(consolidate, tmp_path):
    with taught(memory=tmp_path / "a.apl", consolidate=consolidate) as classifier:
        assert classifier.predict_set(CENTRES[0]).examples == (60 if consolidate else 59)
    with OnlineClassifier.load(tmp_path / "a.apl") as again:
        assert again.predict_set(CENTRES[0]).examples > 9


def test_forgetting_a_source_forgets_what_was_learnt_with_it(tmp_path):
    classifier = taught(memory=tmp_path / "a.apl")
    x, y = stream("even", 61)
    classifier.learn_one(x[-1], y[-1], source="somebody")
    classifier.forget(source="somebody")
    assert classifier.predict_set(CENTRES[0]).examples == 0


def test_a_history_holds_the_latest_examples_and_no_names():
    history = History()
    for n in range(KEPT + 20):
        history = history.after(float(n % 7), float(n % 5), "a private name")
    assert len(history) == KEPT and history.seen == KEPT + 20
    assert "private" not in str(history.to_dict())
    again = History.read(history.to_dict())
    assert again.to_dict() == history.to_dict() and again.threshold_nats(0.9) == history.threshold_nats(0.9)


@pytest.mark.parametrize(
    "damage",
    [
        {"score": "x"},
        {"score": ""},
        {"shift": [1]},
        {"seen": -1},
        {"seen": "a"},
        {"surprise": 3},
        {"label": None},
        {"shift": [1e308] * 10},
    ],
)
def test_a_damaged_history_starts_over(damage):
    history = History()
    for n in range(20):
        history = history.after(float(n), float(n), "a")
    assert len(History.read({**history.to_dict(), **damage})) == 0 == len(History.read(None)) == len(History.read(3))
