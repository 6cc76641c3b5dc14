"""What every memory promises, whatever its home: one suite over RAM, SQLite, PostgreSQL and Milvus."""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from apl.store import (
    AlreadyAnswered,
    FingerprintMismatch,
    MergedExample,
    NewRow,
    NoSuchMemory,
    Row,
    RowUpdate,
    Store,
    StoreBusy,
    StoreError,
    delete_memory,
    list_memories,
    open_store,
)
from apl.store.ram import RamStore
from apl.store.transfer import export_memory, import_memory, verify

pytest_plugins = ["store_servers"]

WIDTH = 4
numbers = count()


@dataclass
class Home:
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


def emptied(url: str, name: str) -> str:
    """The one memory that all tests on Milvus share, as if new: the server takes seconds to make one."""
    with open_store(url, name, fingerprint="encoder-1", width=WIDTH) as store:
        store.delete(store.load().ids.tolist())
        # With the totals of classes, which are none.
        store._notes.erase()
    return name


def new_home(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Home]:
    match kind:
        case "ram":
            home = Home("ram", "ram:", "memory")
        case "sqlite":
            home = Home("sqlite", str(tmp_path / "test.apl"), "memory")
        case "postgres":
            home = Home("postgres", request.getfixturevalue("postgres_url"), f"memory-{next(numbers)}")
        case _:
            url = request.getfixturevalue("milvus_url")
            home = Home("milvus", url, emptied(url, "memory"))
    yield home
    for store in home.opened:
        store.close()


@pytest.fixture(params=["ram", "sqlite", "postgres", "milvus"])
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Home]:
    yield from new_home(request.param, request, tmp_path)


@pytest.fixture(params=["sqlite", "postgres", "milvus"])
def lasting(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Home]:
    """A home in which a memory outlives its store."""
    yield from new_home(request.param, request, tmp_path)


def row(label: str | int = "a", value: float = 0.0, **more: Any) -> NewRow:
    return NewRow(label, np.full(WIDTH, value, np.float32), **more)


def seen(stored: Row) -> tuple[Any, ...]:
    """A row in a form that can be compared."""
    return (
        *(stored.id, type(stored.label), stored.label, stored.key.tolist()),
        *(stored.surprise_nats, stored.written_at, stored.source, stored.payload, stored.count, stored.extra),
    )


def test_rows_come_back_exactly_as_they_were_written(home: Home) -> None:
    store = home.open()
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


def test_a_closed_memory_can_be_opened_again_and_is_the_same(lasting: Home) -> None:
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


def test_an_id_is_never_given_twice(lasting: Home) -> None:
    with lasting.open() as store:
        ids = store.append([row(), row()])
        assert store.delete([ids[1]]) == [ids[1]]
    assert lasting.open().append([row()])[0] > ids[1]


def test_rows_are_deleted_by_id_label_and_source(home: Home) -> None:
    store = home.open()
    a, b, c, d, e = store.append([row("7"), row(7), row(7, source="x"), row("b", source="x"), row("b", source="y")])
    assert store.delete_label(7) == [b, c]
    assert store.delete_label(7) == [] and store.delete_label("nothing") == []
    assert store.delete_source("x") == [d] and store.delete_source("nowhere") == []
    assert store.delete([e, 999, e]) == [e]
    assert store.load().ids.tolist() == [a]
    with pytest.raises(StoreError):
        store.payload(b)


def test_replacing_happens_altogether_or_not_at_all(home: Home) -> None:
    store = home.open()
    old = store.append([row("a", 1.0), row("b", 2.0)])
    new = store.replace([old[0]], [row("c", 3.0)], settings={"n": 1})
    assert store.load().ids.tolist() == [old[1], *new] and store.settings() == {"n": 1}
    with pytest.raises(StoreError, match=f"no row {old[0]} .*nothing was written"):
        store.replace([old[0], old[1]], [row("d", 4.0)], settings={"n": 2})
    assert store.load().labels == ["b", "c"] and store.settings() == {"n": 1}


def test_a_merge_changes_a_row_in_place_and_keeps_what_was_merged(home: Home) -> None:
    store = home.open()
    a, b = store.append([row("a", 1.0, source="s", payload=b"old"), row("b", 2.0)])
    mean = np.full(WIDTH, 1.5, np.float32)
    examples = (
        MergedExample("s", np.full(WIDTH, 1.0, np.float32)),
        MergedExample("t", np.full(WIDTH, 2.0, np.float16)),
        MergedExample(None, None),
    )
    store.replace(
        [],
        [row("c", 3.0, count=5, extra=b"spread")],
        update=[RowUpdate(a, key=mean, count=3, extra=b"\0\1", merged=examples)],
        settings={"n": 1},
    )
    assert store.load().ids.tolist()[:2] == [a, b] and store.load().counts.tolist() == [3, 1, 5]
    assert store.load().extras == [b"\0\1", None, b"spread"] and store.load().keys[0].tolist() == mean.tolist()
    merged = store.row(a)
    assert (merged.label, merged.source, merged.payload, merged.count) == ("a", "s", b"old", 3)
    kept = store.merged(a)
    assert [example.source for example in kept] == ["s", "t", None] and kept[2].key is None
    assert kept[0].key.dtype == np.float32 and kept[1].key.dtype == np.float16 and kept[1].key.tolist() == [2.0] * WIDTH
    assert store.merged(b) == [] and store.merged_from("t") == [a] and store.merged_from("nowhere") == []
    store.replace([], [], update=[RowUpdate(a, count=4, merged=(MergedExample("u"),))])
    assert [example.source for example in store.merged(a)] == ["s", "t", None, "u"]
    # Forgetting a source: the row is built anew from the others.
    rebuilt = (MergedExample("t", np.full(WIDTH, 2.0, np.float32)),)
    update = RowUpdate(a, key=rebuilt[0].key, count=1, source="t", payload=None, label=7, merged=rebuilt, rebuilt=True)
    store.replace([], [], update=[update])
    now = store.row(a)
    assert (now.label, now.source, now.payload, now.count, now.key.tolist()) == (7, "t", None, 1, [2.0] * WIDTH)
    assert len(store.merged(a)) == 1 and store.merged_from("s") == [] and store.merged_from("t") == [a]
    assert store.nearest(np.full(WIDTH, 2.0, np.float32), 1).distances.tolist() == [0.0]
    store.delete([a])
    assert store.merged(a) == [] and store.merged_from("t") == [] and verify(store) == []


def test_a_merge_that_cannot_be_whole_does_not_happen(home: Home) -> None:
    store = home.open()
    (a,) = store.append([row("a", 1.0)])
    generation = store.generation()
    for update, error in (
        ([RowUpdate(a, count=2), RowUpdate(999, count=2)], "no row 999"),
        ([RowUpdate(a, count=2), RowUpdate(a, count=3)], "updated twice"),
        ([RowUpdate(a, count=0)], "at least one example"),
        ([RowUpdate(a, key=np.full(WIDTH, math.nan, np.float32))], "NaN"),
        ([RowUpdate(a, extra=b"x" * 5000)], "5000 bytes"),
    ):
        with pytest.raises((StoreError, ValueError), match=f"{error}.*nothing was written"):
            store.replace([], [row("b")], update=update, settings={"n": 1})
    with pytest.raises(StoreError, match="removed and updated"):
        store.replace([a], [], update=[RowUpdate(a, count=2)])
    assert store.load().counts.tolist() == [1] and store.settings() == {} and store.generation() == generation


def test_an_id_is_known_before_its_row_is_written(home: Home) -> None:
    store = home.open()
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


def test_a_receipt_is_written_with_its_rows_and_once(lasting: Home) -> None:
    with lasting.open() as store:
        (id,) = store.reserve()
        store.replace([], [row("a", id=id)], receipts={"key": {"row": id, "é": [None]}})
        with pytest.raises(AlreadyAnswered, match="'key' already; nothing was written"):
            store.replace([], [row("b")], receipts={"other": 1, "key": 2}, settings={"n": 1})
        assert store.load().labels == ["a"] and store.settings() == {} and store.receipt("other") is None
    again = lasting.open()
    assert again.receipt("key") == {"row": id, "é": [None]} and again.receipt("nothing") is None
    assert again.settings() == {}


def test_a_copy_can_follow_its_memory(lasting: Home) -> None:
    writer = lasting.open()
    chance = random.Random(3)
    reader = lasting.open(read_only=True)
    start = reader.load()
    copy = {int(id): start.labels[n] for n, id in enumerate(start.ids)}
    counts = dict.fromkeys(copy, 1)
    generation = start.generation
    for step in range(6 if lasting.kind == "milvus" else 25):
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


def test_one_bad_row_keeps_the_whole_batch_out(home: Home) -> None:
    store = home.open()
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


def test_settings_are_kept_apart_from_one_another(home: Home) -> None:
    store = home.open()
    assert store.settings() == {}
    store.update_settings({"a": 1, "text": "'\"é"})
    store.update_settings({"a": {"deep": [True, None]}})
    assert store.settings() == {"a": {"deep": [True, None]}, "text": "'\"é"}


def test_a_reader_learns_that_the_memory_has_changed(lasting: Home) -> None:
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


def test_a_memory_has_one_writer(lasting: Home) -> None:
    first = lasting.open()
    first.append([row("a")])
    if lasting.kind == "milvus":
        # No locks there: the newcomer has it, and the first is told so.
        with lasting.open() as second:
            with pytest.raises(StoreBusy, match="elsewhere; nothing was written"):
                first.append([row("b")])
            second.append([row("c")])
            assert second.load().labels == ["a", "c"]
        return
    with pytest.raises(StoreBusy, match="open for writing elsewhere"):
        lasting.open()
    with pytest.raises(StoreBusy):
        delete_memory(lasting.url, lasting.name)
    with lasting.open("another"):
        pass
    first.append([row("b")])
    threading.Timer(0.2, first.close).start()
    assert lasting.open(timeout=20.0).load().labels == ["a", "b"]


def test_the_nearest_rows_are_the_true_ones_and_the_older_first_among_equals(home: Home) -> None:
    store = home.open()
    rng = np.random.default_rng(1)
    keys = rng.standard_normal((60, WIDTH)).astype(np.float32)
    keys[40:] = keys[:20]
    ids = np.array(store.append([NewRow(number, key) for number, key in enumerate(keys)]))
    removed = store.delete(ids[5:8].tolist())
    kept = ~np.isin(ids, removed)
    for query in rng.standard_normal((3, WIDTH)).astype(np.float32):
        distance = np.linalg.norm(keys[kept].astype(np.float64) - query, axis=1)
        expected = np.argsort(distance, kind="stable")[:57]
        found = store.nearest(query, 100)
        assert found.ids.tolist() == ids[kept][expected].tolist()
        np.testing.assert_allclose(found.distances, distance[expected], rtol=1e-4)
        assert store.nearest(query, 6).distances.tolist() == pytest.approx(distance[expected[:6]].tolist(), rel=1e-4)
    with pytest.raises(ValueError, match="at least 1"):
        store.nearest(keys[0], 0)
    with pytest.raises(ValueError, match="4 numbers"):
        store.nearest(keys[0, :2], 1)


def test_recalled_rows_are_the_nearest_and_totals_are_those_of_the_rows(home: Home) -> None:
    store, model = home.open(), RamStore("model", "encoder-1", WIDTH)
    assert store.recall(np.zeros((2, WIDTH), np.float32), 3).ids.tolist() == [[-1] * 3] * 2
    assert store.totals().classes == []
    rng = np.random.default_rng(2)
    keys = rng.standard_normal((30, WIDTH)).astype(np.float32)
    new = [NewRow(n % 3 or "0", key, source=f"s{n}", count=1 + n % 2) for n, key in enumerate(keys)]
    ids = store.append(new)
    assert model.append(new) == list(range(1, 31))
    for changed, at in ((store, ids), (model, list(range(1, 31)))):
        changed.replace([at[0], at[4]], [], update=[RowUpdate(at[7], label="moved", key=keys[3], count=9)])
    asked = rng.standard_normal((4, WIDTH)).astype(np.float32)
    offset = ids[0] - 1
    for k in (1, 5, 40):
        found, expected = store.recall(asked, k), model.recall(asked, k)
        assert found.labels == expected.labels and found.sources == expected.sources
        assert np.where(found.mask, found.ids - offset, -1).tolist() == expected.ids.tolist()
        assert found.counts.tolist() == expected.counts.tolist()
        assert found.keys.tobytes() == expected.keys.tobytes()
        assert found.distances.tobytes() == expected.distances.tobytes()
    totals = {(type(t.label), t.label): (t.rows, t.examples, t.total) for t in store.totals().classes}
    assert len(totals) == 4
    for truth in model.totals().classes:
        rows, examples, total = totals[type(truth.label), truth.label]
        assert (rows, examples) == (truth.rows, truth.examples)
        np.testing.assert_allclose(total, truth.total, atol=1e-5)
    store.delete_label("moved")
    before = store.totals()
    assert {t.label for t in before.classes} == {"0", 1, 2} and before.complete
    store.append([NewRow("late", keys[0], count=3)])
    store.delete_label(2)
    after = store.totals(before.generation)
    assert after.generation == store.generation()
    if not after.complete:
        assert {t.label: (t.rows, t.examples) for t in after.classes} == {"late": (1, 3), 2: (0, 0)}
    # A class that comes back is the youngest.
    store.append([NewRow(2, keys[1])])
    assert [t.label for t in store.totals().classes][-2:] == ["late", 2]
    assert store.class_counts()[2] == (1, 1) and store.totals(store.generation()).complete == after.complete


def test_nearness_and_totals_follow_the_metric(home: Home) -> None:
    if home.kind == "ram":
        pytest.skip("a memory in RAM is opened once")
    rng = np.random.default_rng(3)
    keys = (rng.standard_normal((20, WIDTH)) * rng.uniform(0.5, 5, (20, 1))).astype(np.float32)
    with home.open() as store:
        ids = store.append([NewRow(n % 2, key, count=1 + n) for n, key in enumerate(keys)])
    direction = keys / np.linalg.norm(keys, axis=1, keepdims=True)
    asked = rng.standard_normal((1, WIDTH)).astype(np.float32)
    distance = np.linalg.norm(direction - asked / np.linalg.norm(asked), axis=1)
    for read_only in (False, True):
        # What was kept by lengths is worked out anew once; from then on the memory knows.
        with home.open(metric="cosine", read_only=read_only) as store:
            found = store.recall(asked, 5)
            assert found.ids[0].tolist() == [ids[n] for n in np.argsort(distance, kind="stable")[:5]]
            assert found.distances[0].tolist() == pytest.approx(np.sort(distance)[:5].tolist(), rel=1e-4)
            for total in store.totals().classes:
                expected = sum((1 + n) * direction[n] for n in range(total.label, 20, 2))
                np.testing.assert_allclose(total.total, expected, rtol=1e-4)
                assert (total.rows, total.examples) == (10, sum(1 + n for n in range(total.label, 20, 2)))


def test_keys_of_another_encoder_are_refused(lasting: Home) -> None:
    with lasting.open() as store:
        store.append([row("a")])
    with pytest.raises(FingerprintMismatch, match="'encoder-1'.*'encoder-2'.*apl memory reembed"):
        lasting.open(fingerprint="encoder-2")
    with pytest.raises(StoreError, match="have 4 numbers.*makes 8"):
        lasting.open(width=8)
    as_it_is = lasting.open(fingerprint=None, width=None)
    assert (as_it_is.fingerprint, as_it_is.width, as_it_is.count()) == ("encoder-1", WIDTH, 1)


def test_memories_are_listed_kept_apart_and_deleted(lasting: Home) -> None:
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


def test_threads_take_turns(home: Home) -> None:
    store = home.open()
    with ThreadPoolExecutor(4) as threads:
        batches = list(threads.map(lambda n: store.append([row(n), row(n)]), range(12)))
    assert all(second == first + 1 for first, second in batches)
    assert sorted(id for batch in batches for id in batch) == store.load().ids.tolist()


def test_any_sequence_of_writes_ends_as_it_does_in_a_dictionary(home: Home) -> None:
    store, model = home.open(), RamStore("model", "encoder-1", WIDTH)
    chance = random.Random(0)
    ids: dict[int, int] = {}
    steps = 25 if home.kind == "milvus" else 80
    for step in range(steps):
        new = [
            row(
                chance.choice(["a", "b", 1, 2]),
                float(step + n),
                source=chance.choice([None, "x", "y"]),
                written_at=1.0,
            )
            for n in range(chance.randint(0, 3))
        ]
        there = list(model.load().ids)
        some = [int(id) for id in chance.sample(there, min(len(there), chance.randint(0, 2)))]
        act: Callable[[Store, list[int]], list[int]] = chance.choice(
            [
                lambda s, gone: s.append(new),
                lambda s, gone: s.replace(gone, new, settings={"step": step}),
                lambda s, gone: s.delete(gone),
                lambda s, gone: s.delete_label(new[0].label) if new else [],
                lambda s, gone: s.delete_source("x") if len(there) > 8 else s.append(new),
            ]
        )
        expected = act(model, some)
        got = act(store, [ids[id] for id in some])
        assert len(got) == len(expected)
        ids |= dict(zip(expected, got, strict=True))
    assert store.settings() == model.settings()
    in_model = [(ids[r.id], *seen(r)[1:]) for r in model.rows()]
    assert [seen(r) for r in store.rows()] == in_model and len(in_model) == store.count() > 0


def test_a_memory_can_be_carried_to_another_home(home: Home, tmp_path: Path) -> None:
    store = home.open()
    store.append([row("7", 1.0, payload=b"x", source="s"), row(7, 2.0)], settings={"sigma": 1})
    export_memory(store, tmp_path / "exported")
    with RamStore("copy", "encoder-1", WIDTH) as copy:
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
    assert isinstance(open_store(None, **made), RamStore)
    for wrong in ("redis://x", "sqlite://x.apl", "sqlite:///"):
        with pytest.raises(StoreError, match="use a path|has no path"):
            open_store(wrong, **made)
    with pytest.raises(ValueError, match="for servers"):
        open_store("x.apl", approximate=True, **made)


@pytest.mark.parametrize(("url", "module"), [("postgresql://h/d", "psycopg"), ("milvus+http://h", "pymilvus")])
def test_a_missing_extra_is_named(url: str, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    for name in [name for name in sys.modules if name.startswith(("apl.store.postgres", "apl.store.milvus"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(StoreError, match=r"pip install 'apl-memory\[(postgres|milvus)\]'"):
        open_store(url, fingerprint="e", width=2)
