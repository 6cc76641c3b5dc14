"""Positions whose columns have units of their own."""

from __future__ import annotations

import numpy as np
import pytest

from apl import OnlineClassifier
from apl.memory import ClassTotals
from apl.reading.positions import ColumnUnits

WIDTH, CLASSES = 5, 4
UNITS = np.array([1.0, 1000.0, 1e-6, 3e7, 0.2])


def table(seed: int, examples: int = 100) -> tuple[np.ndarray, list[str]]:
    """Classes that every column helps to tell apart."""
    random = np.random.default_rng(seed)
    label = np.concatenate([np.arange(CLASSES), random.integers(0, CLASSES, examples - CLASSES)])
    middle = np.random.default_rng(5).normal(0, 1.6, (CLASSES, WIDTH))
    return middle[label] + random.normal(size=(examples, WIDTH)), [f"class {n}" for n in label]


def taught(units: np.ndarray | float = 1.0, **parameters) -> OnlineClassifier:
    clf = OnlineClassifier.for_features(WIDTH, **parameters)
    x, y = table(0)
    clf.learn_many(x * units, y)
    return clf


@pytest.mark.parametrize("parameters", [{}, {"max_rows": 20}])
def test_the_unit_of_a_column_does_not_matter(parameters):
    plain, mixed = taught(**parameters), taught(UNITS, **parameters)
    asked, truth = table(1)
    said, mixed_said = plain.predict_proba(asked), mixed.predict_proba(asked * UNITS)
    assert (said.argmax(1) == mixed_said.argmax(1)).mean() > 0.8
    for clf, queries in ((plain, asked), (mixed, asked * UNITS)):
        assert (clf.predict(queries) == np.array(truth)).mean() > 0.8
    distances = [neighbour.distance for neighbour in mixed.explain(asked[0] * UNITS).neighbours]
    assert distances == sorted(distances)


@pytest.mark.parametrize("shots", [1, 2])
def test_a_few_examples_are_enough_for_a_column_not_to_drown_the_others(shots):
    random, right = np.random.default_rng(2), []
    for _ in range(8):
        # The second column, of the largest numbers, says nothing.
        middle = np.stack([np.arange(1, 5) * 10.0, np.full(4, 5000.0)], 1)
        label = np.repeat(np.arange(4), shots)
        clf = OnlineClassifier.for_features(2)
        clf.learn_many(middle[label] + random.normal(0, [1, 300], (len(label), 2)), label.tolist())
        asked = np.repeat(np.arange(4), 5)
        right.append((clf.predict(middle[asked] + random.normal(0, [1, 300], (20, 2))) == asked).mean())
    assert np.mean(right) > (0.4 if shots == 1 else 0.6)  # by the larger numbers alone, a quarter


def test_a_table_opened_again_answers_as_it_did_and_learns_on_alike(tmp_path):
    clf = taught(UNITS, memory=tmp_path / "table.apl")
    asked, more = table(1)[0] * UNITS, table(2, 60)
    before = clf.predict_proba(asked)
    clf.close()
    with OnlineClassifier.load(tmp_path / "table.apl") as again:
        assert again.predict_proba(asked) == pytest.approx(before, abs=1e-6)
        again.learn_many(more[0] * UNITS, more[1])
        alone = taught(UNITS)
        alone.learn_many(more[0] * UNITS, more[1])
        assert again.predict_proba(asked) == pytest.approx(alone.predict_proba(asked), abs=1e-4)


def test_a_reader_of_a_table_follows_its_units(tmp_path):
    asked = table(1)[0] * UNITS
    with OnlineClassifier.for_features(WIDTH, memory=tmp_path / "table.apl") as clf:
        x, y = table(0)
        clf.learn_many(x[:20] * UNITS, y[:20])
        with OnlineClassifier.load(tmp_path / "table.apl", read_only=True) as reader:
            reader.predict(asked)
            for start in range(20, 90, 35):
                clf.learn_many(x[start : start + 35] * UNITS, y[start : start + 35])
                assert reader.predict_proba(asked) == pytest.approx(clf.predict_proba(asked), abs=1e-6)
            clf.forget(label="class 1")
            assert reader.predict_proba(asked) == pytest.approx(clf.predict_proba(asked), abs=1e-6)


def test_forgetting_goes_on_from_the_same_units_open_or_opened_again(tmp_path):
    asked = table(1)[0] * UNITS
    clf = taught(UNITS, memory=tmp_path / "table.apl")
    clf.forget(label="class 2")
    before = clf.predict_proba(asked)
    clf.close()
    with OnlineClassifier.load(tmp_path / "table.apl") as again:
        assert again.predict_proba(asked) == pytest.approx(before, abs=1e-6)


def test_asking_changes_no_unit():
    clf = taught(UNITS)
    clf.predict_one(table(1)[0][0] * UNITS)
    before = clf._open().memory.state
    clf.predict(table(1)[0] * UNITS * 1e3)
    clf.explain(table(1)[0][0] * UNITS)
    assert clf._open().memory.state is before


def test_columns_that_never_vary_and_the_largest_numbers_do_no_harm():
    x, y = table(0)
    beside = np.tile([7.0, 0.0, 1e15], (len(x), 1))
    clf = OnlineClassifier.for_features()
    clf.learn_many(np.concatenate([x, beside], 1), y)
    asked = table(1)[0]
    alone = taught().predict_proba(asked)
    told = clf.predict_proba(np.concatenate([asked, beside[: len(asked)] + np.array([1, 3, 0])], 1))
    assert told == pytest.approx(alone, abs=1e-4)
    far = np.full((1, 8), 1e15)
    far[0, 1::2] = -3e17
    assert np.isfinite(clf.predict_proba(far)).all() and np.isfinite(clf.predict_new(far)).all()
    clf.learn_one(far[0], "far")
    assert np.isfinite(clf.predict_proba(np.concatenate([asked, beside[: len(asked)]], 1))).all()


def test_the_first_examples_are_answered_whatever_their_numbers():
    for first in (np.zeros(3), np.array([0, 1e-30, 1e15]), np.full(3, -4.0)):
        clf = OnlineClassifier.for_features(3)
        clf.learn_one(first, "first")
        assert clf.predict_one(first + 1) == "first"
        clf.learn_one(first, "second")
        clf.learn_one(first, "first")
        assert np.isfinite(clf.predict_proba([first, first + 1e3])).all()
        far = first + np.array([0, 0, 1e12])
        clf.learn_one(far, "second")
        assert clf.predict_one(far) == "second"


def test_units_are_the_spread_within_classes_once_examples_have_shown_it():
    random = np.random.default_rng(0)
    units = ColumnUnits.new(2)
    middle = np.array([[0.0, 0.0], [50.0, 0.0]])
    label = random.integers(0, 2, 4000)
    key = middle[label] + random.normal(0, [1, 30], (4000, 2))
    total = 1000.0 * middle[None]
    classes = ClassTotals(total, np.array([[1000.0, 1000.0]]), total.sum(1), np.vecdot(total, total))
    for n in range(0, 2000, 4):
        units = units.learnt(key[None, n : n + 4], label[None, n : n + 4], classes)
    first, second = 1 / units.taken(classes).scale[0]  # by all of the spread, 25 and 30
    assert 1 < first < 6 and 20 < second < 40


def test_embeddings_have_no_units():
    """The answers of long vectors are those of a memory that knows nothing of units."""
    random = np.random.default_rng(0)
    x = random.normal(size=(60, 384))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    clf = OnlineClassifier.for_features()
    clf.learn_many(x[:40], [n % 8 for n in range(40)])
    memory = clf._open().memory
    assert memory.scale is None and memory.state.units is None


def test_a_table_sorted_by_class_does_not_keep_all_of_the_first():
    random = np.random.default_rng(0)
    x, y = random.normal(size=(120, 4)) * [1, 10, 0.1, 3] + 50, np.repeat([0, 1, 2], 40)
    x[:, 0] += 8 * y
    clf = OnlineClassifier().fit(x, y)
    assert clf.counts()[0] < 20 and (clf.predict(x) == y).mean() > 0.95


def test_examples_sorted_by_class_teach_that_no_reader_is_wrong():
    """Classes around one another: each lesson of the second class is nearest to a row of the first."""
    random, right = np.random.default_rng(3), []
    for _ in range(2):
        angle = random.uniform(0, 2 * np.pi, 150)
        label = np.repeat([0, 1, 0, 1], [20, 20, 55, 55])
        x = (1 + label)[:, None] * np.stack([np.cos(angle), np.sin(angle)], 1) + random.normal(0, 0.1, (150, 2))
        clf = OnlineClassifier.for_features(2)
        clf.learn_many(x[:40], label[:40].tolist())
        assert (clf._open().memory.state.pool.weight >= 0).all()
        right.append((clf.predict(x[40:]) == label[40:]).mean())
    assert np.mean(right) > 0.8
