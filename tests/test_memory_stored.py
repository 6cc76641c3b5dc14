"""A reader follows its memory: it takes in what changed, and ends where loading everything would."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from apl.memory.staging import Details
from apl.memory.stored import MOST_BEHIND, StoredMemory
from apl.store import NewRow, RowUpdate, Store, StoreUnavailable, open_store

WIDTH = 5


def state(memory: StoredMemory) -> list[tuple]:
    labels = [memory.classes[number] for number in memory.column("label")[0].tolist()]
    ids = memory.column("id")[0].tolist()
    return list(zip(ids, labels, memory.column("embedding")[0].tolist(), strict=True))


def stage(memory: StoredMemory, label: str) -> None:
    rows = {"embedding": np.ones((1, 1, WIDTH), np.float32), "label": np.array([[len(memory.classes)]])}
    memory.write(rows, np.ones((1, 1), bool), [Details(label)])


def random_write(store: Store, chance: random.Random, step: int) -> None:
    ids = store.load().ids.tolist()
    some = chance.sample(ids, min(len(ids), chance.randrange(4)))
    key = np.full(WIDTH, step, np.float32)
    new = [NewRow(chance.choice(["a", "b", step]), key + n, source=f"{step}") for n in range(chance.randrange(3))]
    if chance.random() < 0.5:
        store.replace(some, new)
    else:
        updates = [RowUpdate(id, key=key / 2, label=chance.choice(["a", "c", step]), source="new") for id in some]
        store.replace([], new, update=updates)


def test_following_ends_where_loading_everything_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, chance = tmp_path / "m.apl", random.Random(0)
    with open_store(path, fingerprint="e", width=WIDTH) as writer, open_store(path, read_only=True) as store:
        reader = StoredMemory(store, "euclidean")
        loads = []
        monkeypatch.setattr(store, "load", lambda: loads.append(1))
        for step in range(30):
            for _ in range(chance.randrange(4)):
                random_write(writer, chance, step)
            if reader.is_stale():
                reader.follow()
            truth = StoredMemory(writer, "euclidean")
            assert state(reader) == state(truth) and reader.rows_of_classes() == truth.rows_of_classes()
            assert reader.generation == truth.generation and not reader.is_stale()
        assert loads == [] and len(reader) > 5


def test_a_reader_too_far_behind_loads_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.apl"
    monkeypatch.setattr("apl.store.reading.GENERATIONS_FOLLOWED", 3)
    with open_store(path, fingerprint="e", width=WIDTH) as writer, open_store(path, read_only=True) as store:
        reader = StoredMemory(store, "euclidean")
        for number in range(6):
            (id,) = writer.append([NewRow(number, np.ones(WIDTH, np.float32))])
            writer.delete([id])
        writer.append([NewRow("last", np.ones(WIDTH, np.float32))])
        assert store.changes(reader.generation) is None
        reader.follow()
        assert [label for _, label, *_ in state(reader)] == ["last"]


def test_what_a_store_that_went_away_did_not_take_is_not_answered_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_store(tmp_path / "m.apl", fingerprint="e", width=WIDTH) as store:
        memory = StoredMemory(store, "euclidean")
        stage(memory, "kept")
        memory.commit()
        with monkeypatch.context() as away:
            for verb in ("_writing", "load"):
                away.setattr(store, verb, lambda *_: (_ for _ in ()).throw(StoreUnavailable("away")))
            stage(memory, "refused")
            with pytest.raises(StoreUnavailable):
                memory.commit()
            assert memory.is_stale()
        memory.follow()
        assert memory.classes == ["kept"] and not memory.is_stale()


def test_a_store_that_is_written_when_it_is_asked_ends_as_one_written_at_every_commit() -> None:
    """Named sources, merges, a budget that evicts, failing batches and a forgotten source."""
    memories = [
        StoredMemory(open_store(None, fingerprint="e", width=WIDTH), "euclidean", max_rows=9, lasts=lasts)
        for lasts in (True, False)
    ]
    for memory in memories:
        chance = random.Random(1)
        for step in range(80):
            for _ in range(chance.randrange(3)):
                key = np.array([[[chance.gauss(0, 1) for _ in range(WIDTH)]]], np.float32)
                detail = [Details(chance.choice("abc"), chance.choice([None, "x", "y", f"{step}"]))]
                if len(memory) and chance.random() < 0.7:
                    memory.merge({"embedding": key}, memory.nearest("embedding", key, 1).row[:, :, 0], detail)
                else:
                    memory.write({"embedding": key, "label": np.zeros((1, 1), int)}, np.ones((1, 1), bool), detail)
            if chance.random() < 0.1:
                memory.reload()
            else:
                memory.commit()
            if step == 40:
                memory.forget_source("x")
    one, other = (memory.store for memory in memories)
    kept = [[(r.id, r.label, r.source, r.count, r.has_shares) for r in store.rows()] for store in (one, other)]
    assert kept[0] == kept[1]
    np.testing.assert_allclose(one.load().keys, other.load().keys, atol=1e-5)
    for id in one.ids():
        mine, theirs = ({s.source: s for s in store.shares([id]).get(id, ())} for store in (one, other))
        assert {source: s.count for source, s in mine.items()} == {source: s.count for source, s in theirs.items()}
        for source, share in mine.items():
            np.testing.assert_allclose(share.total, theirs[source].total, atol=1e-4)
    assert one.count() == 9 and any(one.shares(one.ids()).values())


def test_a_store_that_somebody_holds_shows_what_was_committed_since() -> None:
    store = open_store(None, fingerprint="e", width=WIDTH)
    memory = StoredMemory(store, "euclidean", lasts=False)
    for number in range(3):
        stage(memory, f"{number}")
        assert store.count() == number
        memory.commit()
        assert store.count() == number + 1 and store.load().labels[-1] == f"{number}"


def test_what_a_memory_in_ram_cannot_keep_is_refused_at_once() -> None:
    memory = StoredMemory(open_store(None, fingerprint="e", width=WIDTH), "euclidean", lasts=False)
    stage(memory, "kept")
    memory.commit()
    rows = {"embedding": np.ones((1, 1, WIDTH), np.float32), "label": np.array([[0]])}
    with pytest.raises(ValueError, match="3000 bytes"):
        memory.write(rows, np.ones((1, 1), bool), [Details("refused", "x" * 3000)])
    assert memory.classes == ["kept"] and memory.store.load().labels == ["kept"]


def test_a_memory_in_ram_writes_to_its_store_before_much_is_waiting() -> None:
    with open_store(None, fingerprint="e", width=WIDTH) as store:
        memory = StoredMemory(store, "euclidean", lasts=False)
        stage(memory, "a")
        memory.commit()
        example = {"embedding": np.ones((1, 1, WIDTH), np.float32)}
        for number in range(2 * MOST_BEHIND):
            memory.merge(example, np.array([[1]]), [Details("a", source=f"photo {number}")])
            memory.commit()
            waiting = [] if memory._behind is None else memory._behind.updates.values()
            assert sum(len(change.shares) for change in waiting) < MOST_BEHIND
        assert len(store.sources()) == 2 * MOST_BEHIND
