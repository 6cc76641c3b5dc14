"""Labels that look wrong are found, and put right exactly."""

from __future__ import annotations

import numpy as np
import pytest

from apl import OnlineClassifier
from apl.store import StoreError

CLASSES, WIDTH = 6, 8
CENTRES = 4 * np.random.default_rng(0).normal(size=(CLASSES, WIDTH))


def examples(number: int = 120) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(1)
    label = np.arange(number) % CLASSES
    return (CENTRES[label] + random.normal(size=(number, WIDTH))).astype(np.float32), label


def keys(classifier: OnlineClassifier) -> dict[int, tuple[object, int, list[float]]]:
    return {row.id: (row.label, row.count, row.key.tolist()) for row in classifier.store.rows()}


def test_planted_mistakes_come_first():
    x, y = examples()
    wrong = np.arange(0, 120, 10)
    y[wrong] = (y[wrong] + 1) % CLASSES
    classifier = OnlineClassifier()
    receipts = classifier.learn_many(x, y)
    rows = {receipts[n].row: (y[n] - 1) % CLASSES for n in wrong if receipts[n].row is not None}
    assert len(rows) > 6
    found = classifier.review()
    first = found[: len(rows)]
    assert len({suspect.row for suspect in first} & set(rows)) >= 0.8 * len(rows)
    assert all(suspect.suggested == rows[suspect.row] for suspect in first if suspect.row in rows)
    assert [s.surprise_nats for s in found] == sorted((s.surprise_nats for s in found), reverse=True)


def test_review_leaves_the_memory_as_it_was():
    classifier = OnlineClassifier()
    x, y = examples()
    classifier.learn_many(x, y)
    before, answers = keys(classifier), classifier.predict_proba(x)
    everything = classifier.review(everything=True)
    assert {suspect.row for suspect in everything} <= set(before)
    assert keys(classifier) == before and np.array_equal(classifier.predict_proba(x), answers)


def test_nothing_and_a_single_row_of_each_class_raise_no_suspicion():
    assert OnlineClassifier().review() == []
    assert OnlineClassifier.for_features(WIDTH).review(everything=True) == []
    classifier = OnlineClassifier()
    classifier.learn_one(CENTRES[0], "a")
    classifier.learn_one(CENTRES[1], "b")
    assert classifier.review(everything=True) == []


def shared_row() -> tuple[OnlineClassifier, int]:
    """A row of examples of two sources."""
    classifier = OnlineClassifier()
    x, y = examples(60)
    classifier.learn_many(x, y, sources=["one"] * 30 + ["two"] * 30)
    shares = classifier.store.shares([row.id for row in classifier.store.rows()])
    return classifier, next(id for id, parts in shares.items() if {part.source for part in parts} == {"one", "two"})


def test_a_merged_row_is_reviewed_source_by_source():
    classifier, row = shared_row()
    found = [suspect.source for suspect in classifier.review(everything=True) if suspect.row == row]
    assert sorted(found) == ["one", "two"]


def test_relabelling_a_source_leaves_the_others_exactly():
    classifier, row = shared_row()
    before, shares = classifier.store.row(row), {s.source: s for s in classifier.store.shares([row])[row]}
    new = classifier.relabel(row, "other", source="two")
    left, moved = classifier.store.row(row), classifier.store.row(new)
    assert (left.label, left.count) == (before.label, shares["one"].count)
    assert (moved.label, moved.count, moved.source) == ("other", shares["two"].count, "two")
    assert left.key == pytest.approx(shares["one"].total / shares["one"].count, rel=1e-6)
    assert moved.key == pytest.approx(shares["two"].total / shares["two"].count, rel=1e-6)
    # What is left consists of the first source alone, so forgetting the second takes nothing from it.
    classifier.forget(source="two")
    assert classifier.store.row(row).key.tolist() == left.key.tolist()


def test_relabelling_lasts_and_is_one_transaction(tmp_path):
    with OnlineClassifier(memory=tmp_path / "a.apl") as classifier:
        classifier.learn_many(*examples(30))
        [row, *_] = keys(classifier)
        generation = classifier.store.generation()
        assert classifier.relabel(row, 77) == row
        assert classifier.store.generation() == generation + 1
        assert classifier.counts()[77] == 1
    with OnlineClassifier.load(tmp_path / "a.apl") as again:
        assert again.store.row(row).label == 77


def test_relabelling_to_the_same_name_changes_nothing(tmp_path):
    with OnlineClassifier(memory=tmp_path / "a.apl") as classifier:
        classifier.learn_many(*examples(30))
        [row, *_] = keys(classifier)
        generation = classifier.store.generation()
        assert classifier.relabel(row, classifier.store.row(row).label) == row
        assert classifier.store.generation() == generation


def test_bad_relabelling_is_refused_and_changes_nothing():
    classifier, row = shared_row()
    before = keys(classifier)
    with pytest.raises(StoreError, match="no row 9999"):
        classifier.relabel(9999, "a")
    with pytest.raises(StoreError, match="nothing of source 'three' is in row"):
        classifier.relabel(row, "a", source="three")
    with pytest.raises(ValueError, match="must not be empty"):
        classifier.relabel(row, "")
    assert keys(classifier) == before


def test_relabelling_in_ram_keeps_what_the_readers_learnt():
    classifier = OnlineClassifier()
    x, y = examples(60)
    classifier.learn_many(x, y)
    weights = [opinion.weight for opinion in classifier.explain(x[0]).readers]
    [row, *_] = keys(classifier)
    classifier.relabel(row, "other")
    assert [opinion.weight for opinion in classifier.explain(x[0]).readers] == pytest.approx(weights)
    assert classifier.predict_set(x[0]).examples == 60


@pytest.mark.parametrize("named", [True, False])
def test_right_examples_of_a_merged_row_are_not_judged_by_a_wrong_row_alone(named):
    x, y = examples(60)
    y[0] = 1
    classifier = OnlineClassifier(sigma=2.0)
    receipts = classifier.learn_many(x, y, sources=[f"source {n}" for n in range(60)] if named else None)
    assert classifier.counts()[1] == 2, "one row of all that is right, and one of what is wrong"
    suspects = [suspect for suspect in classifier.review() if suspect.label == 1]
    assert [suspect.row for suspect in suspects] == [receipts[0].row or receipts[0].merged_into]
