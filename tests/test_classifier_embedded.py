"""Examples embedded once for several verbs, and what is written in the transaction of a batch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from apl import OnlineClassifier
from apl.classifier.inputs import Examples
from apl.store import AlreadyAnswered, StoreDamaged
from apl.store.transfer import export_memory, read_exported


def sheets(count: int, seed: int = 0) -> list[np.ndarray]:
    chance = np.random.default_rng(seed)
    return [(chance.random((20, 20)) > 0.8).astype(np.uint8) * 255 for _ in range(count)]


def test_every_verb_takes_embedded_examples() -> None:
    pictures, names = sheets(6), ["a", "b", "c", "a", "b", "c"]
    plain, once = OnlineClassifier.from_pretrained("drawings"), OnlineClassifier.from_pretrained("drawings")
    embedded = once.embed(pictures)
    assert [r.to_dict() for r in once.learn_many(embedded, names)] == [
        r.to_dict() for r in plain.learn_many(pictures, names)
    ]
    asked = once.embed(sheets(3, 1))
    assert once.predict(asked).tolist() == plain.predict(sheets(3, 1)).tolist()
    np.testing.assert_allclose(once.predict_proba(asked), plain.predict_proba(sheets(3, 1)), atol=1e-5)
    np.testing.assert_allclose(once.predict_new(asked), plain.predict_new(sheets(3, 1)), atol=1e-5)
    assert once.predict_one(asked[:1]) == plain.predict_one(sheets(3, 1)[0])
    assert once.explain(asked[1:2]).predicted == plain.predict_one(sheets(3, 1)[1])
    kept = once.learn_one(asked[2:], "new")
    assert kept.row is not None and once.store.payload(kept.row) == asked.payload(2) is not None
    with pytest.raises(ValueError, match="got 3"):
        once.predict_one(asked)


def test_examples_that_were_read_one_by_one_are_embedded_together() -> None:
    clf = OnlineClassifier.from_pretrained("drawings")
    pictures = sheets(4)
    together = clf.embed([clf.read(picture, ink="light") for picture in pictures])
    apart = Examples.joined([clf.embed([picture]) for picture in pictures])
    np.testing.assert_allclose(together.vectors, apart.vectors, atol=1e-4)
    assert [together.payload(i) for i in range(4)] == [apart.payload(i) for i in range(4)]
    with pytest.raises(ValueError, match="dark ink"):
        clf.read(pictures[0], ink="dark")


def test_examples_of_another_encoder_are_refused() -> None:
    drawings, vectors = OnlineClassifier.from_pretrained("drawings"), OnlineClassifier.for_features(256)
    embedded = vectors.embed(np.ones((1, 256)))
    with pytest.raises(ValueError, match="another encoder"):
        drawings.learn_one(embedded, "a")
    with pytest.raises(ValueError, match="same encoder"):
        Examples.joined([embedded, drawings.embed(sheets(1))])
    assert len(drawings) == 0


def test_probabilities_of_many_are_those_of_each_and_an_empty_memory_answers_too() -> None:
    clf = OnlineClassifier.for_features(4)
    X = np.eye(4)
    assert [(dict(p), p.new_class) for p in clf.predict_proba_many(X[:2])] == [({}, 1.0), ({}, 1.0)]
    clf.learn_many(X, ["a", "b", "c", "d"])
    for x, many, two in zip(X, clf.predict_proba_many(X), clf.predict_proba_many(X, top=2), strict=True):
        assert many == clf.predict_proba_one(x) and list(many) == list(clf.predict_proba_one(x))
        assert list(two.items()) == list(many.items())[:2] and two.new_class == many.new_class


def test_receipts_and_settings_are_written_with_the_examples_or_not_at_all(tmp_path: Path) -> None:
    with OnlineClassifier.for_features(4, memory=tmp_path / "m.apl") as clf:
        learnt = clf.learn_many(
            np.eye(4)[:2],
            ["a", "b"],
            settings=lambda receipts: {"rows": [one.row for one in receipts]},
            receipts=lambda receipts: {"key": [one.row for one in receipts]},
        )
        assert clf.store.receipt("key") == clf.store.setting("rows") == [one.row for one in learnt]
        with pytest.raises(AlreadyAnswered):
            clf.learn_many(np.eye(4)[2:], ["c", "d"], settings={"rows": 0}, receipts={"key": 1})
        assert clf.store.receipt("key") == clf.store.setting("rows") == [1, 2]
        assert clf.counts() == {"a": 1, "b": 1}


def test_a_class_is_renamed_and_joins_one_of_that_name(tmp_path: Path) -> None:
    with OnlineClassifier.for_features(4, memory=tmp_path / "m.apl") as clf:
        clf.learn_many(np.eye(4)[:3], ["a", "b", "c"])
        assert clf.rename("a", 7) == [1] and clf.predict_one(np.eye(4)[0]) == 7
        assert clf.rename("b", "c") == [2] and clf.counts() == {7: 1, "c": 2}
        with pytest.raises(KeyError, match="no class 'a'"):
            clf.rename("a", "b")


def test_an_exported_memory_is_imported_into_an_open_one(tmp_path: Path) -> None:
    clf, other = OnlineClassifier.for_features(4), OnlineClassifier.for_features(4)
    clf.learn_many(np.eye(4)[:2], ["a", "b"])
    export_memory(clf.store, tmp_path / "out")
    other.learn_one(np.eye(4)[0], "a")
    copied = other.import_memory(read_exported(tmp_path / "out"))
    assert (copied.written, copied.already_there) == (1, 1)
    assert other.predict_one(np.eye(4)[1]) == "b"


def test_a_sibling_has_a_memory_of_its_own_and_the_same_model(tmp_path: Path) -> None:
    template = OnlineClassifier.from_pretrained("drawings")
    with template.sibling(memory=tmp_path / "m.apl", name="letters") as clf:
        clf.learn_one(template.embed(sheets(1)), "a")
    assert len(template) == 0
    with OnlineClassifier.load(tmp_path / "m.apl", name="letters") as again:
        assert again.model == "drawings" and again.counts() == {"a": 1}


@pytest.mark.parametrize("recorded", [{"model": 7}, {"k": 10**9}, {"ink": 3}, {"ageing": None}])
def test_a_memory_whose_parameters_cannot_be_used_is_refused_as_damaged(tmp_path, recorded) -> None:
    with OnlineClassifier(memory=tmp_path / "m.apl") as classifier:
        classifier.learn_one([1, 2, 3], "a")
        kept = classifier.store.setting("classifier")
        classifier.store.update_settings({"classifier": kept | recorded})
    with pytest.raises(StoreDamaged, match="cannot be used"):
        OnlineClassifier.load(tmp_path / "m.apl")


def test_a_memory_does_not_say_where_it_is_searched(tmp_path) -> None:
    with OnlineClassifier(memory=tmp_path / "m.apl") as classifier:
        classifier.learn_one([1, 2, 3], "a")
        kept = classifier.store.setting("classifier")
        classifier.store.update_settings({"classifier": kept | {"index": "milvus+http://elsewhere", "read_only": True}})
    with OnlineClassifier.load(tmp_path / "m.apl") as again:
        assert again.index is None and not again.read_only
