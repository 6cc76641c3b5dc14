"""river's own checks, on the wrapper that speaks its types."""

from __future__ import annotations

import itertools

import pytest

pytest.importorskip("river")
from river import checks, datasets

from apl import OnlineClassifier
from apl.classifier.river import RiverClassifier
from apl.store import StoreError

CANNOT_APPLY = {
    "check_bounded_memory_growth": "wants a stream of thousands; `max_rows` is tested by counting rows instead",
}


def short_streams(model, scale: int = 1):
    """Some of the data sets river checks its own estimators with, cut short: what is checked are habits, not skill."""
    yield list(itertools.islice(datasets.Phishing(), 25))
    yield list(itertools.islice(datasets.ImageSegments(), 25))


def river_checks() -> list:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checks, "_yield_datasets", short_streams)
        return list(checks.yield_checks(RiverClassifier()))


@pytest.mark.parametrize("check", river_checks(), ids=lambda check: check.__name__)
def test_river_check(check) -> None:
    if check.__name__ in CANNOT_APPLY:
        pytest.skip(CANNOT_APPLY[check.__name__])
    check(RiverClassifier().clone())


def test_the_budget_holds() -> None:
    classifier = RiverClassifier(max_rows=5, sigma=0.0)
    for number in range(30):
        classifier.learn_one({"x": float(number % 7), "y": 1.0}, number % 3)
    assert len(classifier._inner) == 5


def test_a_bag_of_words_widens_in_steps_and_a_bad_feature_is_named() -> None:
    classifier, widths = RiverClassifier(), set()
    for number in range(90):
        classifier.learn_one({f"word {number}": 1.0, "topic": float(number % 2)}, number % 2)
        widths.add(classifier._inner.store.width)
    assert max(widths) >= 91 and len([w for w in widths if w > 63]) <= 3, sorted(widths)
    with pytest.raises(ValueError, match="'colour' is no number"):
        classifier.learn_one({"colour": "red"}, 1)
    with pytest.raises(ValueError, match="'topic' is NaN"):
        classifier.learn_one({"topic": float("nan")}, 1)


def test_labels_that_are_equal_are_one_class() -> None:
    classifier = RiverClassifier()
    for label in (1, True, 0, False):
        classifier.learn_one({"x": float(label)}, label)
    assert sum(classifier.predict_proba_one({"x": 1.0}).values()) == pytest.approx(1)
    assert classifier.predict_one({"x": 1.0}) == 1


def test_a_memory_in_a_file_goes_on_with_its_names_and_labels(tmp_path) -> None:
    stream = list(itertools.islice(datasets.Phishing(), 60))
    first, alone = RiverClassifier(memory=tmp_path / "m.apl"), RiverClassifier()
    for x, y in stream[:40]:
        first.learn_one(x, y)
        alone.learn_one(x, y)
    first.close()
    again = RiverClassifier(memory=tmp_path / "m.apl")
    for x, y in stream[40:]:
        assert again.predict_proba_one(x) == pytest.approx(alone.predict_proba_one(x), abs=1e-6)
        again.learn_one(x, y)
        alone.learn_one(x, y)
    assert type(again.predict_one(stream[0][0])) is bool
    again.learn_one({**stream[0][0], "one more": 1.0}, "a third label")
    again.close()
    last = RiverClassifier(memory=tmp_path / "m.apl")
    assert set(last.predict_proba_one(stream[0][0])) == {True, False, "a third label"}
    assert last._inner.store.width == len(stream[0][0]) + 1


def test_a_memory_of_another_kind_is_refused(tmp_path) -> None:
    with OnlineClassifier.for_features(2, memory=tmp_path / "m.apl") as other:
        other.learn_one([0, 1], "a")
    with pytest.raises(StoreError, match="not made by RiverClassifier"):
        RiverClassifier(memory=tmp_path / "m.apl").learn_one({"x": 1.0}, 1)
