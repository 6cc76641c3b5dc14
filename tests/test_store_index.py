"""An index beside a memory on PostgreSQL: whatever the engine does, answers are exact and nothing acknowledged is lost."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from apl.classifier.online import OnlineClassifier
from apl.config import Metric
from apl.store import NewRow, RowUpdate, Store, StoreError, delete_memory, find_memory, open_store
from apl.store.index import IndexGone, IndexUnavailable

pytest.importorskip("psycopg")
pytest_plugins = ["store_servers"]

WIDTH = 6
numbers = count()


class PlainIndex:
    """An engine in RAM that can be told to misbehave."""

    stale_seconds = 0.0

    def __init__(self) -> None:
        self.name = f"plain {next(numbers)}"
        self.collections: dict[str, dict[int, np.ndarray]] = {}
        self.available = True
        self.asked = 0
        self.before_nearest: Callable[[list[list[int]]], list[list[int]]] = lambda found: found

    def _of(self, collection: str) -> dict[int, np.ndarray]:
        if not self.available:
            raise IndexUnavailable("the engine does not answer")
        if collection not in self.collections:
            raise IndexGone("no such collection")
        return self.collections[collection]

    def create(self, collection: str, width: int, metric: Metric) -> None:
        if not self.available:
            raise IndexUnavailable("the engine does not answer")
        self.collections[collection] = {}

    def put(self, collection: str, ids: Sequence[int], keys: np.ndarray) -> None:
        self._of(collection).update(zip(ids, keys, strict=True))

    def remove(self, collection: str, ids: Sequence[int]) -> None:
        for id in ids:
            self._of(collection).pop(id, None)

    def nearest(self, collection: str, keys: np.ndarray, k: int) -> list[list[int]]:
        rows = self._of(collection)
        self.asked += 1
        found = [sorted(rows, key=lambda id: float(np.linalg.norm(rows[id] - key)))[:k] for key in keys]
        return self.before_nearest(found)

    def drop(self, collection: str) -> None:
        self._of(collection)
        del self.collections[collection]

    def close(self) -> None:
        pass

    @property
    def ids(self) -> set[int]:
        """Of all collections."""
        return {id for rows in self.collections.values() for id in rows}


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> PlainIndex:
    index = PlainIndex()
    monkeypatch.setattr("apl.store.indexed.open_index", lambda url, approximate: index)
    monkeypatch.setattr("apl.store.indexed.RETRY_SECONDS", 0.0)
    return index


def opened(url: str, name: str, **options: object) -> Store:
    defaults = {"fingerprint": "e", "width": WIDTH, "index": "milvus+http://x", "metric": "cosine"}
    return open_store(url, name, **(defaults | options))


def key(chance: np.random.Generator) -> np.ndarray:
    return chance.standard_normal(WIDTH).astype(np.float32)


def same_answers(store: Store, url: str, name: str, k: int = 4) -> None:
    """The answers are those of the database searched alone."""
    asked = np.random.default_rng(9).standard_normal((5, WIDTH)).astype(np.float32)
    with opened(url, name, index=None, read_only=True) as plain:
        mine, theirs = store.recall(asked, k), plain.recall(asked, k)
        assert mine.ids == theirs.ids and np.array_equal(mine.distances, theirs.distances)
        assert mine.generation == plain.generation()


def write_at_random(store: Store, steps: int, seed: int = 0, after: Callable[[int], None] = lambda step: None) -> None:
    chance, dice = np.random.default_rng(seed), random.Random(seed)
    for step in range(steps):
        ids = store.ids()
        if len(ids) > 10 and dice.random() < 0.3:
            store.delete(dice.sample(ids, 2))
        elif ids and dice.random() < 0.4:
            row = store.row(dice.choice(ids))
            store.replace([], [], update=[RowUpdate(row.id, key=key(chance), count=row.count + 1)])
        else:
            store.append([NewRow(f"c{step % 3}", key(chance), source=f"s{step}") for _ in range(3)])
        after(step)


def test_answers_are_those_of_the_database_at_every_step(postgres_url: str, index: PlainIndex) -> None:
    with opened(postgres_url, "in-step") as store:
        write_at_random(store, 30, after=lambda step: same_answers(store, postgres_url, "in-step"))
        assert index.asked > 10 and index.ids == set(store.ids())


def test_an_engine_that_never_answers_is_done_without_and_named_in_the_log(
    postgres_url: str, index: PlainIndex, caplog: pytest.LogCaptureFixture
) -> None:
    index.available = False
    with opened(postgres_url, "never") as store:
        write_at_random(store, 10)
        same_answers(store, postgres_url, "never")
    assert index.collections == {} and "the engine does not answer" in caplog.text


def test_an_engine_that_comes_back_is_filled_with_what_it_missed(postgres_url: str, index: PlainIndex) -> None:
    with opened(postgres_url, "back") as store:

        def toggle(step: int) -> None:
            same_answers(store, postgres_url, "back")
            index.available = step % 5 < 2

        write_at_random(store, 20, after=toggle)
        index.available = True
        store.append([NewRow("last", np.ones(WIDTH, np.float32))])
        same_answers(store, postgres_url, "back")
        assert index.ids == set(store.ids())


def test_an_engine_that_began_anew_is_filled_from_the_beginning(postgres_url: str, index: PlainIndex) -> None:
    with opened(postgres_url, "anew") as store:
        write_at_random(store, 12)
        for _ in range(2):
            index.collections.clear()
            same_answers(store, postgres_url, "anew")
            assert index.ids == set(store.ids())
            index.collections.clear()
            store.append([NewRow("more", np.ones(WIDTH, np.float32))])
            same_answers(store, postgres_url, "anew")
            assert index.ids == set(store.ids())


def test_an_engine_that_was_paused_takes_what_it_was_sent_when_it_goes_on(postgres_url: str, index: PlainIndex) -> None:
    late: list[tuple[Callable[..., None], tuple[object, ...]]] = []

    def paused(act: Callable[..., None], *values: object) -> None:
        late.append((act, values))
        raise IndexUnavailable("no answer in time")

    with opened(postgres_url, "paused") as store:
        write_at_random(store, 12)
        put, remove, nearest = index.put, index.remove, index.nearest
        index.put, index.remove = partial(paused, put), partial(paused, remove)  # type: ignore[method-assign]
        index.nearest = partial(paused, lambda *_: None)  # type: ignore[method-assign]
        write_at_random(store, 8, seed=1, after=lambda step: same_answers(store, postgres_url, "paused"))
        index.put, index.remove, index.nearest = put, remove, nearest  # type: ignore[method-assign]
        for act, values in late:
            act(*values)
        same_answers(store, postgres_url, "paused")
        write_at_random(store, 4, seed=2, after=lambda step: same_answers(store, postgres_url, "paused"))
        assert len(late) > 8 and set(store.ids()) <= index.ids


def test_ids_that_are_gone_or_never_were_are_dropped(postgres_url: str, index: PlainIndex) -> None:
    with opened(postgres_url, "lies") as store:
        write_at_random(store, 20)
        index.before_nearest = lambda found: [[10**6, *one[:3], 10**6 + 1, *one[3:]] for one in found]
        same_answers(store, postgres_url, "lies")
        # So many that too few rows are left: the database searches alone.
        index.before_nearest = lambda found: [[10**6 + n for n in range(len(one))] for one in found]
        same_answers(store, postgres_url, "lies")


@pytest.mark.parametrize(
    "lie",
    [
        lambda found: [[id for id in one for _ in range(2)][: len(one)] for one in found],
        lambda found: [[*one, 2**63, -(2**63) - 1, 0] for one in found],
        lambda found: found[:-1],
        lambda found: [*found, found[0]],
        lambda found: [one[::-1] for one in found],
        lambda found: [[] for _ in found],
    ],
    ids=["every id twice", "ids that cannot be", "an answer too few", "an answer too many", "backwards", "nothing"],
)
def test_nonsense_from_an_engine_changes_no_answer(
    postgres_url: str, index: PlainIndex, lie: Callable[[list[list[int]]], list[list[int]]]
) -> None:
    name = f"nonsense-{index.name.partition(' ')[2]}"
    with opened(postgres_url, name) as store:
        write_at_random(store, 20)
        index.before_nearest = lie
        same_answers(store, postgres_url, name)


def test_removed_rows_that_the_engine_still_returns_are_dropped(postgres_url: str, index: PlainIndex) -> None:
    with opened(postgres_url, "removed") as store:
        write_at_random(store, 20)
        index.remove = lambda collection, ids: None  # type: ignore[method-assign]
        store.delete(store.ids()[:8])
        same_answers(store, postgres_url, "removed")


def test_what_an_engine_cannot_see_yet_is_answered_by_the_database(postgres_url: str, index: PlainIndex) -> None:
    with opened(postgres_url, "lags") as store:
        write_at_random(store, 10)
        time.sleep(0.01)
        store.append([NewRow("settles", np.zeros(WIDTH, np.float32) + 0.5)])
        same_answers(store, postgres_url, "lags")
        index.stale_seconds = 3600.0
        seen = {name: dict(rows) for name, rows in index.collections.items()}
        index._of = lambda collection: seen[collection]  # type: ignore[method-assign]
        index.put = lambda collection, ids, keys: None  # type: ignore[method-assign]
        write_at_random(store, 10, seed=1)
        same_answers(store, postgres_url, "lags")


def test_rows_written_at_once_are_searched_by_the_engine_once_it_shows_them(
    postgres_url: str, index: PlainIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    from apl.store.postgres import PostgresStore

    monkeypatch.setattr("apl.store.indexed.TAIL_AT_MOST", 5)
    index.stale_seconds, alone, chance = 0.1, [], np.random.default_rng(0)
    recall = PostgresStore._recall
    monkeypatch.setattr(PostgresStore, "_recall", lambda *given: alone.append(1) or recall(*given))
    with opened(postgres_url, "settles") as store:
        for rows in (20, 15):
            store.append([NewRow(n, key(chance)) for n in range(rows)])
            store.append([NewRow("more", key(chance)) for n in range(rows)])
            same_answers(store, postgres_url, "settles")
            assert alone
            for _ in range(3):
                time.sleep(0.15)
                alone.clear()
                store.recall(np.ones((1, WIDTH), np.float32), 3)
            assert not alone


def test_an_engine_that_lost_rows_is_noticed_and_filled_anew(postgres_url: str, index: PlainIndex) -> None:
    with opened(postgres_url, "loses") as store:
        store.append([NewRow(n, key(np.random.default_rng(n))) for n in range(20)])
        time.sleep(0.01)
        store.append([NewRow("b", np.ones(WIDTH, np.float32))])
        store.recall(np.ones((1, WIDTH), np.float32), 30)
        (rows,) = index.collections.values()
        rows.pop(3)
        same_answers(store, postgres_url, "loses", k=30)
        assert index.ids == set(store.ids())


def test_two_processes_fill_one_index(postgres_url: str, index: PlainIndex) -> None:
    with opened(postgres_url, "two") as one, opened(postgres_url, "two") as two:
        for step in range(10):
            write_at_random(one if step % 2 else two, 3, seed=step)
            same_answers(one, postgres_url, "two")
            same_answers(two, postgres_url, "two")
        assert index.ids == set(one.ids()) and len(index.collections) == 1


def test_an_index_that_is_too_far_behind_is_built_anew(
    postgres_url: str, index: PlainIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apl.store.reading.GENERATIONS_FOLLOWED", 3)
    with opened(postgres_url, "behind") as store:
        write_at_random(store, 5)
        index.available = False
        write_at_random(store, 8, seed=1)
        index.available = True
        store.append([NewRow("more", np.ones(WIDTH, np.float32))])
        same_answers(store, postgres_url, "behind")
        assert set(store.ids()) == index.ids and len(index.collections) == 1


def test_an_index_can_be_built_anew_on_demand(postgres_url: str, index: PlainIndex) -> None:
    with opened(postgres_url, "reindex") as store:
        write_at_random(store, 10)
        before = set(index.collections)
        assert store.reindex() == store.count()
        assert not before & set(index.collections) and index.ids == set(store.ids())
        same_answers(store, postgres_url, "reindex")


def test_what_is_forgotten_leaves_the_index(postgres_url: str, index: PlainIndex) -> None:
    with opened(postgres_url, "forgets") as store:
        _, b = store.append([NewRow("a", np.ones(WIDTH), source="mine"), NewRow("a", -np.ones(WIDTH), source="b")])
        store.forget_source("mine")
        assert index.ids == {b} and store.ids() == [b]


def test_a_memory_that_is_deleted_leaves_the_index(postgres_url: str, index: PlainIndex) -> None:
    with opened(postgres_url, "deleted") as store:
        write_at_random(store, 3)
    assert index.ids
    delete_memory(postgres_url, "deleted", index="milvus+http://x")
    assert not index.collections and find_memory(postgres_url, "deleted") is None


def test_nobody_waits_for_a_large_index_that_is_filled_anew(
    postgres_url: str, index: PlainIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apl.store.indexed.FILLED_AT_ONCE", 10)
    with opened(postgres_url, "large") as store:
        write_at_random(store, 20)
        index.collections.clear()
        may_go_on, put = threading.Event(), index.put

        def slow(*given: Any) -> None:
            assert may_go_on.wait(60)
            put(*given)

        index.put = slow  # type: ignore[method-assign]
        same_answers(store, postgres_url, "large")
        store.append([NewRow("more", np.ones(WIDTH, np.float32))])
        assert not index.ids
        may_go_on.set()
        deadline = time.monotonic() + 30
        while index.ids != set(store.ids()):
            assert time.monotonic() < deadline
            same_answers(store, postgres_url, "large")


def test_an_index_is_for_a_memory_on_postgresql(tmp_path: Path, postgres_url: str) -> None:
    with pytest.raises(ValueError, match="for memories on PostgreSQL"):
        open_store(tmp_path / "a.apl", fingerprint="e", width=2, index="milvus+http://x")
    with pytest.raises(ValueError, match="an index cannot live in redis://"):
        open_store(postgres_url, "other", fingerprint="e", width=2, index="redis://x")


def test_a_classifier_learns_beside_an_index(postgres_url: str, index: PlainIndex) -> None:
    chance = np.random.default_rng(0)
    with OnlineClassifier.for_features(
        WIDTH, memory=postgres_url, name="classifier", index="milvus+http://x", keep_sources=False
    ) as classifier:
        for number in range(12):
            classifier.learn_one(key(chance) * 0.1 + np.eye(WIDTH)[number % 3], f"c{number % 3}")
        assert classifier.predict_one(np.eye(WIDTH)[1]) == "c1" and index.asked > 0
        assert index.ids == set(classifier.store.ids())
    with pytest.raises(ValueError, match="index= is for memories on PostgreSQL"):
        OnlineClassifier.for_features(WIDTH, index="milvus+http://x")


def test_milvus_killed_paused_and_restarted_changes_no_answer(postgres_url: str, milvus_server) -> None:
    name = f"milvus-{next(numbers)}"
    options = {"index": milvus_server.url, "metric": "euclidean"}
    asked = np.random.default_rng(9).standard_normal((3, WIDTH)).astype(np.float32)

    def check(store: Store) -> None:
        with opened(postgres_url, name, index=None, read_only=True, metric="euclidean") as plain:
            assert store.recall(asked, 5).ids == plain.recall(asked, 5).ids

    with opened(postgres_url, name, **options) as store:
        write_at_random(store, 6)
        check(store)
        time.sleep(store._index.stale_seconds + 1)
        write_at_random(store, 3, seed=1)
        check(store)
        os.killpg(milvus_server._wrapper.pid, signal.SIGSTOP)
        try:
            store.append([NewRow("paused", asked[0])])
            check(store)
        finally:
            os.killpg(milvus_server._wrapper.pid, signal.SIGCONT)
        # It goes on, with what it was sent before, and is filled with what it missed.
        store._unavailable_index_until = 0.0
        store.append([NewRow("continued", asked[1] + 1)])
        check(store)
        milvus_server.stop()
        store.append([NewRow("killed", asked[1])])
        check(store)
        milvus_server.start()
        store._unavailable_index_until = 0.0
        store.append([NewRow("back", asked[2])])
        check(store)
        assert store.reindex() == store.count()
        check(store)
    with pytest.raises(StoreError, match="index beside a memory"):
        open_store(milvus_server.url, fingerprint="e", width=2)
