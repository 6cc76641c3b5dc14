"""One contract for every memory: in RAM, stored, and remote. A learner cannot tell them apart."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from apl.config import DecoderConfig, IdentityConfig, LearnerConfig, Metric
from apl.controller import ConsolidatingController, Controller, SurpriseController, WriteAll
from apl.learner import Learner, Observation
from apl.memory import COUNT, LABEL, Memory
from apl.memory.remote import RemoteMemory
from apl.memory.stored import StoredMemory
from apl.reading.ensemble import EnsembleReading
from apl.reading.kernel import KernelReading, VectorNetworks
from apl.store import open_store

WIDTH, WAY = 6, 5
KINDS = ("ram", "stored in RAM", "stored in a file", "remote")
COMBINATIONS = [(0, 0), (1, 0), (2, 1), (3, 0), (4, 1), (1, 1)]
"""Of controllers and readings."""
CONTROLLERS: list[Controller] = [
    SurpriseController(0.5),
    ConsolidatingController(0.5),
    ConsolidatingController(sigma_nats=1e9),
    WriteAll(),
    SurpriseController(sigma_nats=math.inf),
]
every_kind = pytest.mark.parametrize("kind", KINDS)


def learner_of(
    controller: Controller | None = None, reading: Any = EnsembleReading, metric: Metric = "cosine"
) -> Learner:
    config = LearnerConfig(IdentityConfig(WIDTH), DecoderConfig(kind="kernel"), k=8, metric=metric)
    return Learner(config, controller or ConsolidatingController(0.5), VectorNetworks(WIDTH), reading)


def memory_of(kind: str, learner: Learner, folder: Path) -> Memory:
    if kind == "ram":
        return learner.new_memory()
    place = folder / "memory.apl" if kind == "stored in a file" else None
    store = open_store(place, fingerprint="test", width=WIDTH, metric=learner.config.metric)
    made = RemoteMemory if kind == "remote" else StoredMemory
    return made(store, learner.config.metric, partial(learner.reading.new_state, 1, WIDTH), numbered=True)


def some(seed: int, queries: int = 7) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    label = random.integers(0, WAY, (1, queries))
    spots = np.random.default_rng(99).normal(size=(WAY, WIDTH))
    return (spots[label] + 0.3 * random.normal(size=(1, queries, WIDTH))).astype(np.float32), label


def written(memory: Memory, key: np.ndarray, label: np.ndarray) -> np.ndarray:
    return memory.write({"embedding": key, LABEL: label}, np.ones(label.shape, bool))


def totals_from_rows(memory: Memory, metric: Metric) -> tuple[np.ndarray, np.ndarray]:
    keys, label, count = memory.column("embedding")[0], memory.column(LABEL)[0], memory.column(COUNT)[0]
    if metric == "cosine":
        keys = keys / np.linalg.norm(keys, axis=1, keepdims=True)
    total, examples = np.zeros((WAY, WIDTH)), np.zeros(WAY)
    np.add.at(total, label, keys * count[:, None])
    np.add.at(examples, label, count)
    return total, examples


@every_kind
def test_what_is_written_is_recalled_nearest_first(kind: str, tmp_path: Path) -> None:
    memory = memory_of(kind, learner_of(metric="euclidean"), tmp_path)
    key, label = some(0)
    rows = written(memory, key, label)
    assert len(set(rows[0].tolist())) == 7 and len(memory) == 7
    asked = some(1, 3)[0]
    found = memory.nearest("embedding", asked, 9)
    distance = np.linalg.norm(asked[0][:, None] - key[0][None], axis=-1)
    order = distance.argsort(1)
    assert found.mask.sum(-1).tolist() == [[7, 7, 7]]
    assert found.row[0, :, :7].tolist() == rows[0][order].tolist() and (found.row[0, :, 7:] == -1).all()
    np.testing.assert_allclose(found.distance[0, :, :7], np.sort(distance, 1), rtol=1e-5)
    assert found.columns[LABEL][0, :, :7].tolist() == label[0][order].tolist()
    assert np.array_equal(found.columns["embedding"][0, :, :7], key[0][order])
    assert (found.columns[COUNT][0, :, :7] == 1).all()


@every_kind
def test_only_what_is_chosen_is_written(kind: str, tmp_path: Path) -> None:
    memory = memory_of(kind, learner_of(), tmp_path)
    key, label = some(0, 3)
    rows = memory.write({"embedding": key, LABEL: label}, np.array([[True, False, True]]))
    assert (rows[0] >= 0).tolist() == [True, False, True] and len(memory) == 2


@every_kind
def test_a_row_is_the_mean_of_what_was_merged_into_it(kind: str, tmp_path: Path) -> None:
    memory = memory_of(kind, learner_of(metric="euclidean"), tmp_path)
    key, label = some(0, 4)
    rows = written(memory, key, label)
    more = some(1, 3)[0]
    memory.nearest("embedding", more, 4)
    memory.merge({"embedding": more}, np.array([[rows[0, 2], -1, rows[0, 2]]]))
    mean = (key[0, 2] + more[0, 0] + more[0, 2]) / 3
    found = memory.nearest("embedding", mean[None, None], 1)
    assert found.row[0, 0, 0] == rows[0, 2] and found.examples[0, 0, 0] == 3
    assert found.distance[0, 0, 0] == pytest.approx(0, abs=1e-6)
    assert len(memory) == 4


@every_kind
@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_class_totals_stay_in_step_with_the_rows(kind: str, metric: Metric, tmp_path: Path) -> None:
    memory = memory_of(kind, learner_of(metric=metric), tmp_path)
    random = np.random.default_rng(0)
    for seed in range(4):
        key, label = some(seed)
        rows = written(memory, key, label)
        more = some(seed + 10)[0]
        recalled = memory.nearest("embedding", more, 3)
        memory.merge({"embedding": more}, np.where(random.random((1, 7)) < 0.5, recalled.row[:, :, 0], -1))
        commit(memory)
        memory.remove(rows[:, seed : seed + 1])
        kept = memory.class_totals(WAY)
        total, examples = totals_from_rows(memory, metric)
        np.testing.assert_allclose(kept.total[0], total, atol=1e-4)
        np.testing.assert_allclose(kept.examples[0], examples)
        np.testing.assert_allclose(kept.everything[0], total.sum(0), atol=1e-4)
        assert memory.classes_stored(WAY)[0].tolist() == (examples > 0).tolist()


@every_kind
def test_rows_are_merged_into_and_removed_by_their_handles(kind: str, tmp_path: Path) -> None:
    memory = memory_of(kind, learner_of(metric="euclidean"), tmp_path)
    key, label = some(0, 5)
    rows = written(memory, key, label)
    commit(memory)
    with pytest.raises(ValueError, match="there is no"):
        memory.merge({"embedding": key[:, :1]}, np.array([[999]]))
    memory.remove(rows[:, 1:2])
    assert len(memory) == 4
    assert memory.nearest("embedding", key[:, 1:2], 1).distance[0, 0, 0] > 0
    assert memory.nearest("embedding", key[:, 2:3], 1).distance[0, 0, 0] == 0


@every_kind
def test_the_version_changes_with_every_change(kind: str, tmp_path: Path) -> None:
    memory = memory_of(kind, learner_of(), tmp_path)
    key, label = some(0, 2)
    seen = [memory.version]
    rows = written(memory, key, label)
    seen.append(memory.version)
    memory.nearest("embedding", key, 2)
    memory.merge({"embedding": key[:, :1]}, rows[:, :1])
    seen.append(memory.version)
    commit(memory)
    memory.remove(rows[:, :1])
    seen.append(memory.version)
    assert len(set(seen)) == 4


def commit(memory: Any) -> None:
    if hasattr(memory, "commit"):
        memory.commit()


def stream(learner: Learner, memory: Memory, length: int = 40) -> list[Observation]:
    seen = []
    for seed in range(length):
        key, label = some(seed, 1)
        seen.append(learner.observe(memory, key, label, WAY))
        commit(memory)
    return seen


@pytest.mark.parametrize(("number", "reading"), COMBINATIONS)
def test_every_controller_works_with_every_memory_and_reading_and_sees_no_difference(
    number: int, reading: int, tmp_path: Path
) -> None:
    controller = CONTROLLERS[number]
    learner = learner_of(controller, (EnsembleReading, KernelReading)[reading])
    outcomes = []
    for kind in KINDS:
        memory = memory_of(kind, learner, tmp_path)
        seen = stream(learner, memory)
        log_probs = np.concatenate([step.prediction.log_probs[0] for step in seen])
        outcomes.append((log_probs, [bool(step.written.any()) for step in seen], len(memory)))
        if controller == SurpriseController(sigma_nats=math.inf):
            assert len(memory) == 0
        if controller == WriteAll():
            assert len(memory) == 40
        if isinstance(controller, ConsolidatingController):
            assert memory.class_totals(WAY).examples.sum() == 40
    for log_probs, kept, rows in outcomes[1:]:
        np.testing.assert_allclose(np.exp(log_probs), np.exp(outcomes[0][0]), atol=1e-4)
        assert (kept, rows) == outcomes[0][1:]


@pytest.mark.parametrize("reading", [EnsembleReading, KernelReading])
def test_what_a_reading_has_learnt_is_kept_with_the_rows(reading: Any, tmp_path: Path) -> None:
    learner = learner_of(reading=reading, metric="euclidean")
    memory = memory_of("stored in a file", learner, tmp_path)
    stream(learner, memory)
    asked = some(99)[0]
    before = learner.predict(memory, asked, WAY).log_probs
    memory.store.close()
    again = memory_of("stored in a file", learner, tmp_path)
    np.testing.assert_allclose(learner.predict(again, asked, WAY).log_probs, before, atol=1e-4)
    again.store.close()
