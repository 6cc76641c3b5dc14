"""What every memory promises, whatever its backend: one suite over RAM, SQLite and PostgreSQL."""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from apl.store import (
    AlreadyAnswered,
    FingerprintMismatch,
    Forgotten,
    NewRow,
    NoSuchMemory,
    Row,
    RowChanged,
    RowUpdate,
    SourceShare,
    Store,
    StoreBusy,
    StoreError,
    delete_memory,
    list_memories,
    open_store,
)
from apl.store.sqlite import SqliteStore
from apl.store.transfer import export_memory, import_memory
from apl.store.verify import verify

pytest_plugins = ["store_servers"]

WIDTH = 4
numbers = count()


@dataclass
class Place:
    """A place for one new memory of a test, and a way to open it."""

    kind: str
    url: str
    name: str
    opened: list[Store] = field(default_factory=list)

    def open(self, name: str | None = None, **options: Any) -> Store:
        options = {"fingerprint": "encoder-1", "width": WIDTH} | options
        store = open_store(self.url, name or self.name, **options)
        self.opened.append(store)
        return store


def new_place(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    match kind:
        case "ram":
            place = Place("ram", "ram:", "memory")
        case "sqlite":
            place = Place("sqlite", str(tmp_path / "test.apl"), "memory")
        case _:
            place = Place("postgres", request.getfixturevalue("postgres_url"), f"memory-{next(numbers)}")
    yield place
    for store in place.opened:
        store.close()


@pytest.fixture(params=["ram", "sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    yield from new_place(request.param, request, tmp_path)


@pytest.fixture(params=["sqlite", "postgres"])
def lasting(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """A place in which a memory outlives its store."""
    yield from new_place(request.param, request, tmp_path)


def row(label: str | int = "a", value: float = 0.0, **more: Any) -> NewRow:
    return NewRow(label, np.full(WIDTH, value, np.float32), **more)


def seen(stored: Row) -> tuple[Any, ...]:
    """A row in a form that can be compared."""
    return (
        *(stored.id, type(stored.label), stored.label, stored.key.tolist()),
        *(stored.surprise_nats, stored.written_at, stored.source, stored.payload, stored.count),
    )


def test_rows_come_back_exactly_as_they_were_written(place: Place) -> None:
    store = place.open()
    assert store.count() == 0 and store.load().keys.shape == (0, WIDTH) and list(store.rows()) == []
    rng = np.random.default_rng(0)
    labels = [
        "7",
        7,
        -(2**63),
        2**63 - 1,
        "",
        "Ærøskøbing 東京 🙂",
        "'; DROP TABLE rows; --",
        '" or id > 0 or "',
    ]
    details = [
        {"source": None, "payload": None},
        {"source": "", "payload": b""},
        {"source": "a/b 'c' \"d\".png", "payload": bytes(range(256)), "surprise_nats": math.inf},
        {"written_at": 1.5, "surprise_nats": 0.1 + 0.2},
    ]
    new = [
        NewRow(label, rng.standard_normal(WIDTH).astype(np.float32), **details[number % 4])
        for number, label in enumerate(labels)
    ]
    ids = store.append(new)
    assert ids == list(range(ids[0], ids[0] + 8)) and ids[0] >= 1
    stored = list(store.rows())
    assert [r.id for r in stored] == ids
    for given, kept in zip(new, stored, strict=True):
        assert (kept.label, type(kept.label), kept.source, kept.payload) == (
            *(given.label, type(given.label), given.source, given.payload),
        )
        assert kept.key.dtype == np.float32 and kept.key.tobytes() == given.key.tobytes()
        assert kept.surprise_nats == given.surprise_nats
        assert kept.written_at == given.written_at if given.written_at else kept.written_at > 1.7e9
    snapshot = store.load()
    assert snapshot.ids.tolist() == ids and snapshot.keys.tobytes() == b"".join(r.key.tobytes() for r in new)
    assert snapshot.labels == labels and snapshot.sources == [r.source for r in stored]
    assert snapshot.surprise_nats.tolist() == [r.surprise_nats for r in stored]
    assert snapshot.written_at.tolist() == [r.written_at for r in stored]
    assert seen(store.row(ids[2])) == seen(stored[2]) and store.payload(ids[2]) == bytes(range(256))
    assert store.payload(ids[0]) is None and store.payload(ids[1]) == b""
    assert verify(store) == [] and store.info.rows == store.count() == len(snapshot) == 8
    with pytest.raises(StoreError, match="has no row 999"):
        store.row(999)


def test_a_closed_memory_can_be_opened_again_and_is_the_same(lasting: Place) -> None:
    with lasting.open() as store:
        store.append(
            [row("a", 1.0, source="s", payload=b"p"), row(3, 2.0)],
            settings={"sigma": 0.75, "seen": [1, None]},
        )
        before, info = [seen(r) for r in store.rows()], store.info
    with pytest.raises(StoreError, match="closed"):
        store.count()
    again = lasting.open()
    assert [seen(r) for r in again.rows()] == before
    assert again.settings() == {"sigma": 0.75, "seen": [1, None]} and again.info == info


def test_an_id_is_never_given_twice(lasting: Place) -> None:
    with lasting.open() as store:
        ids = store.append([row(), row()])
        assert store.delete([ids[1]]) == [ids[1]]
    assert lasting.open().append([row()])[0] > ids[1]


def test_rows_are_deleted_by_id_label_and_source(place: Place) -> None:
    store = place.open()
    a, b, c, d, e = store.append([row("7"), row(7), row(7, source="x"), row("b", source="x"), row("b", source="y")])
    assert store.delete_label(7) == [b, c]
    assert store.delete_label(7) == [] and store.delete_label("nothing") == []
    assert store.forget_source("x").gone == [d] and store.forget_source("nowhere") == Forgotten([], [])
    assert store.delete([e, 999, e]) == [e]
    assert store.load().ids.tolist() == [a]
    with pytest.raises(StoreError):
        store.payload(b)
    # A repeated request is answered as before, unless its class was forgotten by name. Then it has no answer any more, and is
    # not done again.
    for forget, left in ((lambda id: store.delete([id]), {"label": "c"}), (lambda id: store.delete_label("c"), {})):
        (id,) = store.replace([], [row("c")], receipts={f"{left}": {"label": "c"}})
        assert forget(id) == [id] and store.receipt(f"{left}") == left
    with pytest.raises(AlreadyAnswered, match="{}"):
        store.replace([], [row("c")], receipts={"{}": {"label": "c"}})
    assert verify(store) == []


def test_replacing_happens_altogether_or_not_at_all(place: Place) -> None:
    store = place.open()
    old = store.append([row("a", 1.0), row("b", 2.0)])
    new = store.replace([old[0]], [row("c", 3.0)], settings={"n": 1})
    assert store.load().ids.tolist() == [old[1], *new] and store.settings() == {"n": 1}
    with pytest.raises(StoreError, match=f"no row {old[0]} .*nothing was written"):
        store.replace([old[0], old[1]], [row("d", 4.0)], settings={"n": 2})
    assert store.load().labels == ["b", "c"] and store.settings() == {"n": 1}


def share(source: str | None, value: float, count: int = 1) -> SourceShare:
    return SourceShare(source, np.full(WIDTH, value * count, np.float64), count)


def kept(store: Store, id: int) -> dict[str | None, tuple[int, list[float]]]:
    """The shares of a row: count and mean of each source."""
    found = store.shares([id]).get(id, [])
    assert len({one.source for one in found}) == len(found)
    return {one.source: (one.count, (one.total / one.count).tolist()) for one in found}


def test_a_merge_changes_a_row_in_place_and_keeps_what_each_source_contributed(place: Place) -> None:
    store = place.open()
    a, b = store.append([row("a", 1.0, source="s", payload=b"old"), row("b", 2.0)])
    before = store.row(a).generation
    mean = np.full(WIDTH, 1.5, np.float32)
    change = RowUpdate(a, key=mean, count=2, shares=(share("t", 2.0),), seen_generation=before)
    store.replace([], [row("c", 3.0, count=5)], update=[change], settings={"n": 1})
    assert store.load().ids.tolist()[:2] == [a, b] and store.load().counts.tolist() == [2, 1, 5]
    merged = store.row(a)
    assert (merged.label, merged.source, merged.payload, merged.count) == ("a", "s", b"old", 2)
    assert merged.has_shares and merged.generation > before and merged.key.tolist() == mean.tolist()
    assert kept(store, a) == {"s": (1, [1.0] * WIDTH), "t": (1, [2.0] * WIDTH)} and kept(store, b) == {}
    assert store.rows_of_source("t") == store.rows_of_source("s") == [a] and store.rows_of_source("nowhere") == []
    # Shares of one source add up; examples without a source are one share.
    more = (share("t", 4.0), share(None, 5.0), share(None, 7.0))
    store.replace([], [], update=[RowUpdate(a, key=np.full(WIDTH, 3.8, np.float32), count=5, shares=more)])
    assert kept(store, a) == {"s": (1, [1.0] * WIDTH), "t": (2, [3.0] * WIDTH), None: (2, [6.0] * WIDTH)}
    assert sorted(store.sources()) == [("s", "a"), ("t", "a")]
    assert store.recall(np.full((1, WIDTH), 3.8, np.float32), 1).distances[0].tolist() == [0.0]
    store.delete([a])
    assert kept(store, a) == {} and store.rows_of_source("t") == [] and verify(store) == []


def test_nothing_is_kept_of_merged_examples_without_a_source(place: Place) -> None:
    store = place.open()
    a, b = store.append([row("a", 1.0), row("b", 1.0, source="s")])
    for size in range(2, 6):
        update = [RowUpdate(a, key=np.full(WIDTH, size, np.float32), count=size, shares=(share(None, 9.0),))]
        # Nor of those of the row's own source: the row says it all.
        update += [RowUpdate(b, key=np.full(WIDTH, 2.0, np.float32), count=size, shares=(share("s", 2.0),))]
        store.replace([], [], update=update)
    assert store.shares([a, b]) == {} and not store.row(b).has_shares
    # The first named example makes a share of what was there before.
    store.replace(
        [], [], update=[RowUpdate(a, key=np.full(WIDTH, 5.5, np.float32), count=6, shares=(share("t", 8.0),))]
    )
    assert kept(store, a) == {None: (5, [5.0] * WIDTH), "t": (1, [8.0] * WIDTH)}
    # A count that grows without shares is of examples without a source.
    store.replace([], [], update=[RowUpdate(a, key=np.full(WIDTH, 5.0, np.float32), count=7)])
    assert kept(store, a)[None][0] == 6
    np.testing.assert_allclose(kept(store, a)[None][1], (35 - 8) / 6)
    with pytest.raises(ValueError, match="more examples than it gains; nothing was written"):
        store.replace([], [], update=[RowUpdate(a, count=8, shares=(share("t", 1.0, 3),))])


def test_forgetting_a_source_leaves_the_mean_of_the_others(place: Place) -> None:
    store = place.open()
    alone, first, later = store.append(
        [row("a", 1.0, source="x"), row("a", 1.0, source="x", payload=b"p"), row("a", 1.0, source="y", payload=b"q")],
        settings={"readers": {"w": 1}, "other": 2},
    )
    for id, source in ((first, "y"), (later, "x")):
        shares = (share(source, 3.0), share(None, 5.0))
        store.replace([], [], update=[RowUpdate(id, key=np.full(WIDTH, 3.0, np.float32), count=3, shares=shares)])
    assert store.rows_of_source("x") == [alone, first, later]
    generation = store.generation()
    assert store.forget_source("x", settings={"readers": None}) == Forgotten([alone], [first, later])
    assert store.generation() == generation + 1 and store.settings() == {"readers": None, "other": 2}
    # The row that x began has lost its picture; its source is one of the others.
    one, other = store.row(first), store.row(later)
    assert (one.key.tolist(), one.count, one.payload) == ([4.0] * WIDTH, 2, None) and one.source != "x"
    assert (other.key.tolist(), other.count, other.source, other.payload) == ([3.0] * WIDTH, 2, "y", b"q")
    assert store.rows_of_source("x") == [] and kept(store, later) == {"y": (1, [1.0] * WIDTH), None: (1, [5.0] * WIDTH)}
    assert {t.label: (t.rows, t.examples) for t in store.totals().classes} == {"a": (2, 4)}
    np.testing.assert_allclose(store.totals().classes[0].total, [14.0] * WIDTH)
    assert store.forget_source("y") == Forgotten([], [first, later]) and store.shares([first, later]) == {}
    assert store.load().keys.tolist() == [[5.0] * WIDTH] * 2 and store.load().sources == [None, None]
    assert verify(store) == []


def test_without_sources_rows_are_all_that_is_kept(place: Place) -> None:
    store = place.open(keep_sources=False)
    (a,) = store.append([row("a", 1.0, source="x")])
    store.replace(
        [], [], update=[RowUpdate(a, key=np.full(WIDTH, 2.0, np.float32), count=2, shares=(share("y", 3.0),))]
    )
    assert store.row(a).source is None and store.shares([a]) == {} and store.sources() == []
    with pytest.raises(StoreError, match="keeps no sources"):
        store.forget_source("x")
    assert not store.info.keep_sources
    if place.kind != "ram":
        store.close()
        with pytest.raises(StoreError, match="keep_sources=False: that cannot change"):
            place.open(keep_sources=True)
        assert not place.open().keep_sources


def test_an_update_of_a_row_that_has_changed_is_refused(place: Place) -> None:
    store = place.open()
    (a,) = store.append([row("a", 1.0)])
    seen = store.row(a).generation
    store.replace([], [], update=[RowUpdate(a, count=2, seen_generation=seen)])
    generation = store.generation()
    with pytest.raises(RowChanged, match=f"row {a} has been changed .*nothing was written"):
        store.replace([], [row("b")], update=[RowUpdate(a, count=3, seen_generation=seen)])
    assert store.generation() == generation and store.count() == 1


def test_a_source_or_a_label_too_long_for_an_index_is_refused_alone(place: Place) -> None:
    store = place.open()
    for wrong in (row("a", source="東" * 1000), row("東" * 1000)):
        with pytest.raises(ValueError, match="has 3000 bytes, the most is 2000; nothing was written"):
            store.append([wrong])
    with pytest.raises(ValueError, match="3000 bytes"):
        store.replace([], [row("a")], receipts={"東" * 1000: 1})
    longest = "東" * 666
    (id,) = store.append([row(longest, source=longest)])
    assert store.rows_of_source(longest) == store.ids_of_label(longest) == [id]


def test_every_memory_has_an_identity_of_its_own(lasting: Place) -> None:
    with lasting.open() as store, lasting.open("another") as other:
        identity = store.identity
        assert len(identity) == 32 and identity != other.identity
    assert lasting.open().identity == identity
    assert {info.name: info.identity for info in list_memories(lasting.url)}[lasting.name] == identity
    lasting.opened[-1].close()
    delete_memory(lasting.url, lasting.name)
    assert lasting.open().identity != identity
    delete_memory(lasting.url, "another")


def test_a_merge_that_cannot_be_whole_does_not_happen(place: Place) -> None:
    store = place.open()
    (a,) = store.append([row("a", 1.0)])
    generation = store.generation()
    for update, error in (
        ([RowUpdate(a, count=2), RowUpdate(999, count=2)], "no row 999"),
        ([RowUpdate(a, count=2), RowUpdate(a, count=3)], "updated twice"),
        ([RowUpdate(a, count=0)], "at least one example"),
        ([RowUpdate(a, key=np.full(WIDTH, math.nan, np.float32))], "NaN"),
        ([RowUpdate(a, count=2, shares=(SourceShare("s", np.zeros(3)),))], "4 finite numbers"),
    ):
        with pytest.raises((StoreError, ValueError), match=f"{error}.*nothing was written"):
            store.replace([], [row("b")], update=update, settings={"n": 1})
    with pytest.raises(StoreError, match="removed and updated"):
        store.replace([a], [], update=[RowUpdate(a, count=2)])
    assert store.load().counts.tolist() == [1] and store.settings() == {} and store.generation() == generation


def test_an_id_is_known_before_its_row_is_written(place: Place) -> None:
    store = place.open()
    (before,) = store.append([row("a")])
    first, second, third = store.reserve(3)
    assert before < first < second < third
    assert store.append([row("c", id=second), row("b", id=first)], settings={"written": first}) == [second, first]
    assert store.load().ids.tolist() == [before, first, second] and store.load().labels == ["a", "b", "c"]
    assert store.append([row("d")])[0] > third
    for taken in (first, before, 10**6):
        with pytest.raises(StoreError, match="from `reserve`; nothing was written"):
            store.append([row("e"), row("e", id=taken)])
    assert store.append([row("late", id=third)]) == [third] and store.count() == 5


def test_a_receipt_is_written_with_its_rows_and_once(lasting: Place) -> None:
    with lasting.open() as store:
        (id,) = store.reserve()
        store.replace([], [row("a", id=id)], receipts={"key": {"row": id, "é": [None]}})
        with pytest.raises(AlreadyAnswered, match="'key' already; nothing was written"):
            store.replace([], [row("b")], receipts={"other": 1, "key": 2}, settings={"n": 1})
        assert store.load().labels == ["a"] and store.settings() == {} and store.receipt("other") is None
    again = lasting.open()
    assert again.receipt("key") == {"row": id, "é": [None]} and again.receipt("nothing") is None
    assert again.settings() == {}


def test_a_copy_can_follow_its_memory(lasting: Place) -> None:
    writer = lasting.open()
    chance = random.Random(3)
    reader = lasting.open(read_only=True)
    start = reader.load()
    copy = {int(id): start.labels[n] for n, id in enumerate(start.ids)}
    counts = dict.fromkeys(copy, 1)
    generation = start.generation
    for step in range(25):
        for _ in range(chance.randrange(3)):
            ids = writer.load().ids.tolist()
            some = chance.sample(ids, min(len(ids), chance.randrange(3)))
            new = [row(f"{step}-{n}") for n in range(chance.randrange(3))]
            if some and chance.random() < 0.5:
                writer.replace([], new, update=[RowUpdate(id, label=f"new {step}", count=step + 2) for id in some])
            else:
                writer.replace(some, new, settings={"step": step})
        changes = reader.changes(generation)
        for id in changes.removed:
            copy.pop(id, None)
        copy |= dict(zip(changes.rows.ids.tolist(), changes.rows.labels, strict=True))
        counts |= dict(zip(changes.rows.ids.tolist(), changes.rows.counts.tolist(), strict=True))
        generation = changes.generation
        truth = writer.load()
        assert generation == truth.generation == reader.generation()
        assert copy == dict(zip(truth.ids.tolist(), truth.labels, strict=True))
        assert [counts[id] for id in truth.ids.tolist()] == truth.counts.tolist()
    assert reader.changes(generation).removed == [] and len(reader.changes(generation).rows) == 0


def test_one_bad_row_keeps_the_whole_batch_out(place: Place) -> None:
    store = place.open()
    bad: list[tuple[NewRow, type[Exception], str]] = [
        (row("a", math.nan), ValueError, "NaN"),
        (NewRow("a", np.zeros(WIDTH + 1, np.float32)), ValueError, "has 4 numbers"),
        (row(2**63), ValueError, "64 bits"),
        (row(True), TypeError, "text or an integer"),
        (row("a\0b"), ValueError, "zero character"),
        (row("x" * 9000), ValueError, "9000 bytes"),
        (row("\ud800"), ValueError, "UTF-8"),
        (row("a", surprise_nats=math.nan), ValueError, "NaN"),
    ]
    for wrong, error, message in bad:
        with pytest.raises(error, match=f"row 1 of 2.*{message}.*nothing was written"):
            store.append([row("fine"), wrong])
    with pytest.raises(ValueError):
        store.append([row("fine")], settings={"x": math.nan})
    assert store.count() == 0
    assert store.append([]) == []


def test_settings_are_kept_apart_from_one_another(place: Place) -> None:
    store = place.open()
    assert store.settings() == {}
    store.update_settings({"a": 1, "text": "'\"é"})
    store.update_settings({"a": {"deep": [True, None]}})
    assert store.settings() == {"a": {"deep": [True, None]}, "text": "'\"é"}


def test_a_reader_learns_that_the_memory_has_changed(lasting: Place) -> None:
    writer = lasting.open()
    ids = writer.append([row("a", 1.0)])
    reader = lasting.open(read_only=True)
    snapshot = reader.load()
    assert reader.generation() == snapshot.generation
    for write in (
        lambda: writer.append([row("b")]),
        lambda: writer.delete(ids),
        lambda: writer.update_settings({"n": 1}),
    ):
        before = reader.generation()
        write()
        assert reader.generation() > before
    assert reader.generation() > snapshot.generation and reader.load().labels == ["b"]
    assert reader.settings() == {"n": 1} and reader.count() == 1
    for forbidden in (
        lambda: reader.append([row()]),
        lambda: reader.delete([1]),
        lambda: reader.update_settings({}),
    ):
        with pytest.raises(StoreError, match="reading only"):
            forbidden()


def test_a_memory_in_a_file_has_one_writer_and_one_on_a_server_any_number(lasting: Place) -> None:
    first = lasting.open()
    first.append([row("a")])
    with lasting.open("another"):
        pass
    if lasting.kind == "postgres":
        lasting.open().append([row("b")])
        assert first.load().labels == ["a", "b"]
        return
    with pytest.raises(StoreBusy, match="open for writing elsewhere"):
        lasting.open()
    with pytest.raises(StoreBusy):
        delete_memory(lasting.url, lasting.name)
    first.append([row("b")])
    threading.Timer(0.2, first.close).start()
    assert lasting.open(timeout=20.0).load().labels == ["a", "b"]


def test_recalled_rows_are_the_nearest_and_totals_are_those_of_the_rows(place: Place) -> None:
    store = place.open()
    assert store.recall(np.zeros((2, WIDTH), np.float32), 3).ids == [[], []]
    for k, width, message in ((0, WIDTH, "at least 1"), (1, 2, "4 numbers")):
        with pytest.raises(ValueError, match=message):
            store.recall(np.zeros((1, width), np.float32), k)
    assert store.totals().classes == []
    rng = np.random.default_rng(2)
    keys = rng.standard_normal((30, WIDTH)).astype(np.float32)
    ids = store.append([NewRow(n % 3 or "0", key, source=f"s{n}", count=1 + n % 2) for n, key in enumerate(keys)])
    store.replace([ids[0], ids[4]], [], update=[RowUpdate(ids[7], label="moved", key=keys[3], count=9)])
    rows = {r.id: r for r in store.rows()}
    asked = rng.standard_normal((4, WIDTH)).astype(np.float32)
    for k in (1, 5, 40):
        found = store.recall(asked, k)
        for key, near, distances in zip(asked, found.rows, found.distances, strict=True):
            far = {id: float(np.linalg.norm(one.key.astype(np.float64) - key)) for id, one in rows.items()}
            expected = sorted(rows, key=lambda id: (np.float32(far[id]), id))[:k]
            assert [r.id for r in near] == expected
            np.testing.assert_allclose(distances, [far[id] for id in expected], rtol=1e-5)
            for one in near:
                assert seen(replace(one, payload=rows[one.id].payload)) == seen(rows[one.id])
    totals = {(type(t.label), t.label): (t.rows, t.examples, t.total) for t in store.totals().classes}
    assert len(totals) == 4
    for kind, label in totals:
        own = [one for one in rows.values() if one.label == label and type(one.label) is kind]
        count, examples, total = totals[kind, label]
        assert (count, examples) == (len(own), sum(one.count for one in own))
        np.testing.assert_allclose(total, sum(one.count * one.key.astype(np.float64) for one in own), atol=1e-5)
    store.delete_label("moved")
    before = store.totals()
    assert {t.label for t in before.classes} == {"0", 1, 2} and before.complete
    store.append([NewRow("late", keys[0], count=3)])
    store.delete_label(2)
    after = store.totals(before.generation)
    # Where a class is gone, all that are left are told.
    assert after.generation == store.generation() and after.complete
    assert {t.label for t in after.classes} == {"0", 1, "late"}
    # A class that comes back is the youngest.
    store.append([NewRow(2, keys[1])])
    assert [t.label for t in store.totals().classes][-2:] == ["late", 2]
    assert store.class_counts()[2] == (1, 1)
    changed = store.totals(after.generation)
    assert changed.complete or {t.label: (t.rows, t.examples) for t in changed.classes} == {2: (1, 1)}


def test_nearness_and_totals_follow_the_metric(place: Place) -> None:
    if place.kind == "ram":
        pytest.skip("a memory in RAM is opened once")
    rng = np.random.default_rng(3)
    keys = (rng.standard_normal((20, WIDTH)) * rng.uniform(0.5, 5, (20, 1))).astype(np.float32)
    with place.open(metric="cosine") as store:
        ids = store.append([NewRow(n % 2, key, count=1 + n) for n, key in enumerate(keys)])
    direction = keys / np.linalg.norm(keys, axis=1, keepdims=True)
    asked = rng.standard_normal((1, WIDTH)).astype(np.float32)
    distance = np.linalg.norm(direction - asked / np.linalg.norm(asked), axis=1)
    for read_only in (False, True):
        # The memory knows, whatever is asked for later.
        with place.open(metric="euclidean", read_only=read_only) as store:
            found = store.recall(asked, 5)
            assert found.ids[0] == [ids[n] for n in np.argsort(distance, kind="stable")[:5]]
            assert found.distances[0].tolist() == pytest.approx(np.sort(distance)[:5].tolist(), rel=1e-4)
            for total in store.totals().classes:
                expected = sum((1 + n) * direction[n] for n in range(total.label, 20, 2))
                np.testing.assert_allclose(total.total, expected, rtol=1e-4)
                assert (total.rows, total.examples) == (10, sum(1 + n for n in range(total.label, 20, 2)))


def test_keys_of_another_encoder_are_refused(lasting: Place) -> None:
    with lasting.open() as store:
        store.append([row("a")])
    with pytest.raises(FingerprintMismatch, match="'encoder-1'.*'encoder-2'.*apl memory reembed"):
        lasting.open(fingerprint="encoder-2")
    with pytest.raises(StoreError, match="have 4 numbers.*makes 8"):
        lasting.open(width=8)
    as_it_is = lasting.open(fingerprint=None, width=None)
    assert (as_it_is.fingerprint, as_it_is.width, as_it_is.count()) == ("encoder-1", WIDTH, 1)


def test_memories_are_listed_kept_apart_and_deleted(lasting: Place) -> None:
    other = lasting.name + ".b_-"
    with lasting.open() as one, lasting.open(other, width=2) as two:
        one.append([row("a")], settings={"mine": 1})
        two.append([NewRow("b", np.ones(2, np.float32))] * 2)
        assert one.load().labels == ["a"] and two.load().labels == ["b", "b"] and two.settings() == {}
    infos = {info.name: info for info in list_memories(lasting.url)}
    assert list(infos) == sorted(infos)
    assert (infos[lasting.name].rows, infos[other].rows, infos[other].width) == (1, 2, 2)
    delete_memory(lasting.url, other)
    assert other not in {info.name for info in list_memories(lasting.url)}
    with pytest.raises(NoSuchMemory, match="no memory named"):
        delete_memory(lasting.url, other)
    with pytest.raises(NoSuchMemory, match="no memory named"):
        lasting.open(other, read_only=True)
    assert lasting.open().load().labels == ["a"]
    for name in ("", "a/b", "x" * 65, "a b", "é"):
        with pytest.raises(ValueError, match="a memory's name"):
            open_store(lasting.url, name)


def test_threads_take_turns(place: Place) -> None:
    store = place.open()
    with ThreadPoolExecutor(4) as threads:
        batches = list(threads.map(lambda n: store.append([row(n), row(n)]), range(12)))
    assert all(second == first + 1 for first, second in batches)
    assert sorted(id for batch in batches for id in batch) == store.load().ids.tolist()


class Model:
    """What a store should do, in a dictionary."""

    def __init__(self) -> None:
        self.kept: dict[int, NewRow] = {}
        self.values: dict[str, Any] = {}
        self.given = 0

    def append(self, new: list[NewRow]) -> list[int]:
        return self.replace([], new)

    def replace(self, gone: list[int], new: list[NewRow], settings: dict[str, Any] | None = None) -> list[int]:
        self.delete(gone)
        ids = [self.given + n + 1 for n in range(len(new))]
        self.given += len(new)
        self.kept |= dict(zip(ids, new, strict=True))
        self.values |= settings or {}
        return ids

    def delete(self, gone: list[int]) -> list[int]:
        return [id for id in sorted(gone) if self.kept.pop(id, None) is not None]

    def delete_label(self, label: str | int) -> list[int]:
        return self.delete([id for id, one in self.kept.items() if one.label == label])

    def forget_source(self, source: str) -> Forgotten:
        return Forgotten(self.delete([id for id, one in self.kept.items() if one.source == source]), [])


def test_any_sequence_of_writes_ends_as_it_does_in_a_dictionary(place: Place) -> None:
    store, model = place.open(), Model()
    chance = random.Random(0)
    ids: dict[int, int] = {}
    for step in range(80):
        new = [
            row(
                chance.choice(["a", "b", 1, 2]),
                float(step + n),
                source=chance.choice([None, "x", "y"]),
                written_at=1.0,
            )
            for n in range(chance.randint(0, 3))
        ]
        there = sorted(model.kept)
        some = [int(id) for id in chance.sample(there, min(len(there), chance.randint(0, 2)))]
        act: Callable[[Any, list[int]], list[int]] = chance.choice(
            [
                lambda s, gone: s.append(new),
                lambda s, gone: s.replace(gone, new, settings={"step": step}),
                lambda s, gone: s.delete(gone),
                lambda s, gone: s.delete_label(new[0].label) if new else [],
                lambda s, gone: s.forget_source("x").gone if len(there) > 8 else s.append(new),
            ]
        )
        expected = act(model, some)
        got = act(store, [ids[id] for id in some])
        assert len(got) == len(expected)
        ids |= dict(zip(expected, got, strict=True))
    assert store.settings() == model.values
    in_model = [seen(replace(one.written(0), id=ids[id])) for id, one in sorted(model.kept.items())]
    assert [seen(r) for r in store.rows()] == in_model and len(in_model) == store.count() > 0


def test_a_memory_can_be_carried_to_another_backend(place: Place, tmp_path: Path) -> None:
    store = place.open()
    store.append([row("7", 1.0, payload=b"x", source="s"), row(7, 2.0)], settings={"sigma": 1})
    export_memory(store, tmp_path / "exported")
    with open_store(None, fingerprint="encoder-1", width=WIDTH) as copy:
        assert import_memory(tmp_path / "exported", copy).written == 2
        assert [seen(r)[1:] for r in copy.rows()] == [seen(r)[1:] for r in store.rows()]
        assert copy.settings() == {"sigma": 1}
    assert import_memory(tmp_path / "exported", store).written == 0


def test_urls_say_where_a_memory_lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = {"fingerprint": "e", "width": 2}
    for url in (
        "sqlite:///relative.apl",
        f"sqlite:///{tmp_path}/absolute.apl",
        tmp_path / "path.apl",
        "bare:name.apl",
    ):
        open_store(url, **made).close()
    assert {p.name for p in tmp_path.iterdir()} == {
        "relative.apl",
        "absolute.apl",
        "path.apl",
        "bare:name.apl",
    }
    assert isinstance(open_store(None, **made), SqliteStore)
    for wrong in ("redis://x", "sqlite://x.apl", "sqlite:///"):
        with pytest.raises(StoreError, match="use a path|has no path"):
            open_store(wrong, **made)
    with pytest.raises(ValueError, match="approximate=True is for memories on a server"):
        open_store("x.apl", approximate=True, **made)


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    for name in [name for name in sys.modules if name.startswith("apl.store.postgres")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(StoreError, match=r"pip install 'apl-memory\[postgres\]'"):
        open_store("postgresql://h/d", fingerprint="e", width=2)


def test_milvus_is_not_a_memory() -> None:
    with pytest.raises(StoreError, match="index beside a memory.*memory='postgresql://…'"):
        open_store("milvus+http://h:19530", fingerprint="e", width=2)
