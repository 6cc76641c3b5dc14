"""A memory that consolidates: rows are means of their examples, and everything beside them stays in step."""

from __future__ import annotations

import numpy as np
import pytest

from apl.classifier.features import UnitKernelNetworks
from apl.config import DecoderConfig, IdentityConfig, LearnerConfig
from apl.consolidation import COUNT, ConsolidatingMemory
from apl.controller import ConsolidatingController, SurpriseController
from apl.learner import Learner, Observation, explaining_row
from apl.memory import Column
from apl.reading.readers import READERS

WIDTH, WAY = 6, 5
COLUMNS = {"embedding": Column((WIDTH,)), "label": Column((), np.int64)}


def learner_of(controller=None, metric="euclidean") -> Learner:
    config = LearnerConfig(IdentityConfig(WIDTH), DecoderConfig(kind="kernel"), k=8, metric=metric)
    return Learner(config, controller or ConsolidatingController(0.5), UnitKernelNetworks(WIDTH))


def memory_of(episodes: int = 2, metric: str = "euclidean") -> ConsolidatingMemory:
    return ConsolidatingMemory(COLUMNS, ("embedding",), READERS, episodes=episodes, metric=metric)


def write(memory: ConsolidatingMemory, key: np.ndarray, label: np.ndarray) -> np.ndarray:
    rows = {"embedding": key, "label": label, COUNT: np.ones(label.shape, np.float32)}
    return memory.write(rows, np.ones(label.shape, bool))


def some(seed: int, episodes: int = 2, queries: int = 7) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    label = random.integers(0, WAY, (episodes, queries))
    spots = np.random.default_rng(99).normal(size=(WAY, WIDTH))
    key = spots[label] + 0.1 * random.normal(size=(*label.shape, WIDTH))
    return key.astype(np.float32), label


def statistics_from_scratch(memory: ConsolidatingMemory) -> tuple[np.ndarray, np.ndarray]:
    total, examples = np.zeros((memory.episodes, WAY, WIDTH)), np.zeros((memory.episodes, WAY))
    for episode in range(memory.episodes):
        for row in range(memory.counts[episode]):
            key, label = memory.column("embedding")[episode, row], memory.column("label")[episode, row]
            if memory.metric == "cosine":
                key = key / np.linalg.norm(key)
            total[episode, label] += memory.column(COUNT)[episode, row] * key
            examples[episode, label] += memory.column(COUNT)[episode, row]
    return total, examples


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_class_sums_stay_in_step_with_written_merged_and_removed_rows(metric):
    memory, random = memory_of(metric=metric), np.random.default_rng(0)
    for seed in range(4):
        key, label = some(seed)
        write(memory, key, label)
        memory.merge(some(seed + 10)[0], random.integers(-1, memory.counts.min(), (2, 7)))
        gone = np.zeros((2, len(memory)), bool)
        gone[0, seed] = gone[1, 2 * seed] = True
        memory.remove(gone)
        total, examples = statistics_from_scratch(memory)
        kept = memory.statistics(WAY)
        assert kept.total == pytest.approx(total, abs=1e-4)
        assert kept.examples == pytest.approx(examples)


def test_of_many_rows_the_sums_are_not_worked_out_anew_when_one_goes(monkeypatch):
    memory = memory_of()
    for seed in range(4):
        write(memory, *some(seed))
    monkeypatch.setattr(memory, "recount", lambda: pytest.fail("every row was counted again"))
    for _ in range(3):
        memory.remove(np.arange(len(memory)) == np.array([[3], [0]]))
    total, examples = statistics_from_scratch(memory)
    assert memory.statistics(WAY).total == pytest.approx(total, abs=1e-6)
    assert memory.statistics(WAY).examples == pytest.approx(examples)


def test_a_merged_row_is_the_mean_of_its_examples_and_is_found_where_it_now_lies():
    memory = memory_of(episodes=1)
    key, label = some(0, 1, 4)
    write(memory, key, label)
    more = some(1, 1, 3)[0]
    memory.merge(more, np.array([[2, -1, 2]]))
    mean = (key[0, 2] + more[0, 0] + more[0, 2]) / 3
    assert memory.column("embedding")[0, 2] == pytest.approx(mean, abs=1e-6)
    assert memory.column(COUNT)[0].tolist() == [1, 1, 3, 1]
    found = memory.nearest("embedding", mean[None, None], 1)
    assert found.row[0, 0, 0] == 2
    assert found.distance[0, 0, 0] == pytest.approx(0, abs=1e-6)


def shown(learner: Learner, memory: ConsolidatingMemory, seed: int) -> Observation:
    key, label = some(seed, memory.episodes, 1)
    return learner.observe(memory, key, label, WAY)


def test_what_does_not_surprise_is_merged_and_the_memory_stops_growing():
    learner = learner_of()
    memory = learner.new_memory(2)
    seen = [shown(learner, memory, seed) for seed in range(60)]
    assert memory.column(COUNT).sum() == 2 * 60
    assert memory.counts.max() <= 2 * WAY
    for step in seen:
        assert ((step.row >= 0) != (step.merged_into >= 0)).all()
    rows_at_40 = sum((step.row >= 0).sum() for step in seen[40:])
    assert rows_at_40 == 0


def test_a_class_not_seen_before_always_gets_a_row():
    learner = learner_of(ConsolidatingController(sigma_nats=1e9))
    memory = learner.new_memory(1)
    for number in range(WAY):
        key = np.eye(WAY, WIDTH, dtype=np.float32)[number][None, None]
        assert learner.observe(memory, key, np.array([[number]]), WAY).row[0, 0] == number
        assert learner.observe(memory, key, np.array([[number]]), WAY).merged_into[0, 0] == number


def test_the_explaining_row_is_the_nearest_of_the_true_class():
    memory = memory_of(episodes=1)
    key = np.arange(4, dtype=np.float32)[None, :, None] * np.ones((1, 4, WIDTH), np.float32)
    write(memory, key, np.array([[0, 1, 1, 0]]))
    found = memory.nearest("embedding", np.full((1, 3, WIDTH), 1.9, np.float32), 4)
    assert explaining_row(found, np.array([[0, 1, 2]])).tolist() == [[3, 2, -1]]


def test_parallel_episodes_answer_as_each_would_alone():
    learner = learner_of()
    together, alone = learner.new_memory(2), learner.new_memory(1)
    for seed in range(25):
        key, label = some(seed, 2, 1)
        both = learner.observe(together, key, label, WAY)
        single = learner.observe(alone, key[1:], label[1:], WAY)
        assert both.prediction.log_probs[1] == pytest.approx(single.prediction.log_probs[0], abs=1e-4)
        assert both.merged_into[1] == single.merged_into[0]


def test_announced_classes_share_one_distribution_whether_seen_or_not():
    learner = learner_of()
    memory = learner.new_memory(1)
    key, label = some(0, 1, 1)
    empty = learner.predict(memory, key, WAY).log_probs
    assert np.exp(empty) == pytest.approx(1 / WAY)
    for seed in range(12):
        key, label = some(seed, 1, 1)
        learner.observe(memory, key, label % 3, WAY)
        share = np.exp(learner.predict(memory, key, WAY).log_probs)
        assert share.sum() == pytest.approx(1, abs=1e-4)
        assert share[0, 0, 3] == pytest.approx(share[0, 0, 4])


def test_predicting_changes_nothing():
    learner = learner_of()
    memory = learner.new_memory(1)
    for seed in range(15):
        shown(learner, memory, seed)
    key, _ = some(3, 1, 4)
    weight, rows = memory.pool.weight.copy(), memory.column("embedding").copy()
    first = learner.predict(memory, key, WAY).log_probs
    again = learner.predict(memory, key, WAY).log_probs
    assert (first == again).all()
    assert (memory.pool.weight == weight).all() and (memory.column("embedding") == rows).all()


def test_the_plain_rule_is_untouched():
    learner = learner_of(SurpriseController(0.5))
    assert not isinstance(learner.new_memory(1), ConsolidatingMemory)
    assert COUNT not in learner.new_memory(1).spec


def test_directions_alone_count_where_the_metric_is_the_cosine():
    learner = learner_of(metric="cosine")
    plain, longer = learner.new_memory(1), learner.new_memory(1)
    random = np.random.default_rng(0)
    for seed in range(20):
        key, label = some(seed, 1, 1)
        one = learner.observe(plain, key, label, WAY)
        other = learner.observe(longer, key * np.float32(random.uniform(0.5, 3)), label, WAY)
        if not (plain.column(COUNT) > 1).any():
            assert other.prediction.log_probs == pytest.approx(one.prediction.log_probs, abs=1e-4)
    assert longer.counts[0] == plain.counts[0]
