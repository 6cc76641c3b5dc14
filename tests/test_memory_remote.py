"""A memory searched on its server answers as one in RAM, for several writers at once."""

from __future__ import annotations

from functools import partial
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from apl.classifier.answers import Receipt
from apl.classifier.online import OnlineClassifier
from apl.classifier.opened import Opened
from apl.classifier.opening import vector_learner
from apl.config import Metric
from apl.memory.remote import RemoteMemory
from apl.memory.staging import Details
from apl.memory.stored import StoredMemory
from apl.store import NewRow, Store, StoreError, open_store

pytest_plugins = ["store_servers"]

WIDTH = 6
EXAMPLES = 20
names = count()


def opened(url: str, name: str, **options: object) -> Store:
    return open_store(url, name, **{"fingerprint": "e", "width": WIDTH, "metric": "cosine", **options})


def classifying(store: Store, kind: type, metric: Metric | None = "cosine", max_rows: int | None = None) -> Opened:
    """By an ensemble that merges, by this metric, or by the plain rule."""
    learner = vector_learner(WIDTH, metric is not None, metric)
    return Opened(learner, kind(store, learner.config.metric, partial(learner.reading.new_state, 1, WIDTH), max_rows))


def taught(side: Opened, key: np.ndarray, label: str | int) -> Receipt:
    [receipt] = side.learn(key[None], [Details(label)])
    return receipt


def stream(seed: int = 0) -> list[tuple[np.ndarray, str | int]]:
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((12, WIDTH)).astype(np.float32)
    labels = rng.integers(0, 12, EXAMPLES)
    keys = centres[labels] + 0.3 * rng.standard_normal((EXAMPLES, WIDTH)).astype(np.float32)
    return [(key, int(label) if label % 2 else f"class {label}") for key, label in zip(keys, labels, strict=True)]


@pytest.mark.parametrize("metric", [None, "euclidean", "cosine"])
def test_engine_and_ram_give_the_same_answers_on_a_stream(
    postgres_url: str, metric: Metric | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A server compares columns as they lie, and so must the copy in RAM.
    monkeypatch.setattr(StoredMemory, "local", False)
    name = f"same-{next(names)}"
    with (
        opened(postgres_url, name, metric=metric or "euclidean") as store,
        open_store(None, fingerprint="e", width=WIDTH) as copy,
    ):
        engine, ram = classifying(store, RemoteMemory, metric), classifying(copy, StoredMemory, metric)
        for number, (key, label) in enumerate(stream()):
            # Several examples in one transaction see one another.
            for example in (key, key + 0.05):
                a, b = taught(engine, example, label), taught(ram, example, label)
                assert (a.predicted, a.written, a.new_label) == (b.predicted, b.written, b.new_label), number
                assert a.surprise_nats == pytest.approx(b.surprise_nats, abs=1e-4)
                assert a.probability_new == pytest.approx(b.probability_new, abs=1e-4)
            engine.memory.commit()
            ram.memory.commit()
            # One's own commit does not make what is known of the classes stale.
            assert not engine.memory.is_stale()
            [shared], [mine] = (side.probabilities(side.predict(key[None])) for side in (engine, ram))
            assert dict(shared) == pytest.approx(dict(mine), abs=1e-4)
        assert len(engine.memory) == len(ram.memory) >= EXAMPLES // 3
        assert store.load().counts.tolist() == copy.load().counts.tolist()
        np.testing.assert_allclose(store.load().keys, copy.load().keys, atol=1e-5)
        assert [row.distance for row in engine.explain(key).neighbours] == pytest.approx(
            [row.distance for row in ram.explain(key).neighbours], abs=1e-5
        )
        gone = engine.memory.forget(engine.memory.ids_of(label))
        assert len(gone) == len(ram.memory.forget(ram.memory.ids_of(label))) and label not in engine.memory.classes


def test_a_memory_made_with_another_metric_is_not_searched_by_this_one(postgres_url: str) -> None:
    name, key = f"metric-{next(names)}", np.ones(WIDTH, np.float32)
    with OnlineClassifier.for_features(WIDTH, memory=postgres_url, name=name, metric="euclidean") as classifier:
        classifier.learn_one(key, "a")
        archive = classifier.store.as_new(list(classifier.store.rows()))
    with pytest.raises(StoreError, match="made with the euclidean metric, which cannot change: make a new memory"):
        OnlineClassifier.for_features(WIDTH, memory=postgres_url, name=name, metric="cosine").predict_one(key)
    with OnlineClassifier.for_features(WIDTH, memory=postgres_url, name=f"{name}-2", metric="cosine") as classifier:
        assert classifier.predict_one(key) is None and classifier.store.metric == "cosine"
        classifier.store.append(archive)
        assert classifier.predict_one(key) == "a"


def test_a_budget_makes_the_row_most_like_the_newcomer_go(postgres_url: str) -> None:
    name = f"budget-{next(names)}"
    with opened(postgres_url, name) as store:
        engine = classifying(store, RemoteMemory, max_rows=20)
        for key, label in stream():
            # A second example finds the first staged.
            receipt, other = taught(engine, key, label), taught(engine, key + 0.5, label)
            engine.memory.commit()
            engine.memory.follow()
            assert not set(other.evicted) & set(store.load().ids.tolist())
            assert len(engine.memory) <= 20
            assert not set(receipt.evicted) & set(store.load().ids.tolist())
        assert len(engine.memory) == store.count()


def test_what_one_service_learnt_the_other_knows_at_once(postgres_url: str) -> None:
    name = f"shared-{next(names)}"
    with opened(postgres_url, name) as one, opened(postgres_url, name) as two:
        first, second = classifying(one, RemoteMemory), classifying(two, RemoteMemory)
        for number, (key, label) in enumerate(stream()[:8]):
            teacher, pupil = (first, second) if number % 2 else (second, first)
            receipt = taught(teacher, key, label)
            teacher.memory.commit()
            pupil.predict(key[None])
            assert label in pupil.memory.classes
            if receipt.written:
                assert pupil.explain(key).neighbours[0].row == receipt.row
        ids = one.load().ids.tolist()
        assert len(set(ids)) == len(ids) == two.count()


def test_what_another_learnt_between_a_question_and_its_commit_is_known_afterwards(postgres_url: str) -> None:
    name, rng = f"between-{next(names)}", np.random.default_rng(0)
    with opened(postgres_url, name) as one, opened(postgres_url, name) as two:
        first, second = classifying(one, RemoteMemory), classifying(two, RemoteMemory)
        keys = rng.standard_normal((3, WIDTH)).astype(np.float32)
        taught(first, keys[0], "x")
        first.memory.commit()
        taught(first, keys[1], "y")
        taught(second, keys[2], "z")
        second.memory.commit()
        first.memory.commit()
        assert first.predict(keys[2][None]).neighbours.mask.sum() == 3
        assert sorted(first.memory.classes) == ["x", "y", "z"]


def test_merges_into_one_row_add_up_and_those_into_a_row_that_is_gone_make_a_row(postgres_url: str) -> None:
    name, keys = f"merges-{next(names)}", np.random.default_rng(0).standard_normal((4, 1, 1, WIDTH)).astype(np.float32)
    with opened(postgres_url, name) as one, opened(postgres_url, name) as two:
        [id] = one.append([NewRow("x", keys[0, 0, 0])])
        sides = [RemoteMemory(store, "cosine") for store in (one, two)]

        def merge(side: RemoteMemory, key: np.ndarray, source: str) -> None:
            side.nearest("embedding", key, 1)
            side.merge({"embedding": key}, np.array([[id]]), [Details("x", source)])

        for side, key, source in zip(sides, keys[1:], "st", strict=False):
            merge(side, key, source)
        for side in sides:
            side.commit()
        assert one.row(id).count == 3 and {share.source for share in one.shares([id])[id]} == {None, "s", "t"}
        np.testing.assert_allclose(one.row(id).key, keys[:3, 0, 0].mean(0), atol=1e-6)
        merge(sides[0], keys[3], "u")
        two.delete([id])
        sides[0].commit()
        [left] = one.rows()
        assert (left.label, left.source, left.count) == ("x", "u", 1) and left.key.tolist() == keys[3, 0, 0].tolist()


def test_a_refused_lesson_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(str(tmp_path / "m.apl"), "m") as store:
        engine = classifying(store, RemoteMemory)
        (key, label), (other, _) = stream()[:2]
        taught(engine, key, label)
        engine.memory.commit()
        with monkeypatch.context() as broken:
            broken.setattr(store, "_writing", lambda *_: (_ for _ in ()).throw(StoreError("away")))
            taught(engine, other, "refused")
            with pytest.raises(StoreError, match="away"):
                engine.memory.commit()
        assert engine.memory.is_stale()
        engine.memory.follow()
        assert engine.memory.classes == [label]
        assert "refused" not in engine.probabilities(engine.predict(other[None]))[0]


def test_two_classifiers_learn_into_one_memory(postgres_url: str) -> None:
    options = {"memory": postgres_url, "name": f"two-{next(names)}"}
    with (
        OnlineClassifier.for_features(WIDTH, **options) as one,
        OnlineClassifier.for_features(WIDTH, **options) as two,
    ):
        for number, (key, label) in enumerate(stream()[:6]):
            teacher, pupil = (one, two) if number % 2 else (two, one)
            receipt = teacher.learn_one(key, label)
            assert receipt.row is None or pupil.explain(key).neighbours[0].row == receipt.row
            assert pupil.predict_one(key) == teacher.predict_one(key)
        assert one.counts() == two.counts() and sum(one.counts().values()) == one.store.count()


def test_the_wrong_place_to_recall_is_named() -> None:
    with pytest.raises(ValueError, match="recall is 'ram', 'engine' or 'approximate'"):
        OnlineClassifier.for_features(WIDTH, recall="elsewhere").learn_one(np.zeros(WIDTH), "a")
