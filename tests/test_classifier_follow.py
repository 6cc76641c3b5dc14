"""A reader follows its memory: it takes in what changed, and ends where loading everything would."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from apl.classifier.durable_memory import DurableMemory
from apl.classifier.features import feature_learner
from apl.store import NewRow, RowUpdate, Store, StoreUnavailable, open_store

WIDTH = 5


def state(memory: DurableMemory) -> list[tuple]:
    labels = [memory.classes[number] for number in memory.labels().tolist()]
    return list(zip(memory.ids, labels, memory.keys().tolist(), memory.sources, strict=True))


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
        learner = feature_learner(WIDTH).on_embeddings()
        reader = DurableMemory(learner, store)
        loads = []
        monkeypatch.setattr(store, "load", lambda: loads.append(1))
        for step in range(60):
            for _ in range(chance.randrange(4)):
                random_write(writer, chance, step)
            if reader.is_stale():
                reader.follow()
            truth = DurableMemory(learner, writer)
            assert state(reader) == state(truth) and reader.counts() == truth.counts()
            assert reader.generation == truth.generation and not reader.is_stale()
        assert loads == [] and len(reader) > 5


def test_a_reader_too_far_behind_loads_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.apl"
    monkeypatch.setattr("apl.store.sqlite.GENERATIONS_FOLLOWED", 3)
    with open_store(path, fingerprint="e", width=WIDTH) as writer, open_store(path, read_only=True) as store:
        reader = DurableMemory(feature_learner(WIDTH).on_embeddings(), store)
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
        memory = DurableMemory(feature_learner(WIDTH).on_embeddings(), store)
        key = np.ones(WIDTH, np.float32)
        memory.stage(key, NewRow("kept", key))
        memory.commit()
        with monkeypatch.context() as away:
            for verb in ("_write", "_load"):
                away.setattr(store, verb, lambda *_: (_ for _ in ()).throw(StoreUnavailable("away")))
            memory.stage(key, NewRow("refused", key))
            with pytest.raises(StoreUnavailable):
                memory.commit()
            assert memory.is_stale()
        memory.follow()
        assert memory.classes == ["kept"] and not memory.is_stale()
