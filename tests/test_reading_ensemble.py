"""Several readers of a memory that merges: what they answer, and what they keep."""

from __future__ import annotations

import base64
from collections.abc import Callable

import numpy as np
import pytest
import torch

from apl.config import DecoderConfig, IdentityConfig, LearnerConfig
from apl.controller import ConsolidatingController, SurpriseController
from apl.learner import Learner, Observation
from apl.memory import COUNT, Column, RamMemory
from apl.reading.ensemble import EnsembleReading
from apl.reading.ensemble_state import DECODER, EnsembleState
from apl.reading.kernel import VectorNetworks
from apl.reading.readers import READERS

WIDTH, WAY = 6, 5
COLUMNS = {"embedding": Column((WIDTH,)), "label": Column((), np.int64)}


def learner_of(controller=None, metric="euclidean") -> Learner:
    config = LearnerConfig(IdentityConfig(WIDTH), DecoderConfig(kind="kernel"), k=8, metric=metric)
    return Learner(config, controller or ConsolidatingController(0.5), VectorNetworks(WIDTH), EnsembleReading)


def memory_of(episodes: int = 2) -> RamMemory:
    return RamMemory(COLUMNS, ("embedding",), episodes=episodes)


def write(memory: RamMemory, key: np.ndarray, label: np.ndarray) -> np.ndarray:
    rows = {"embedding": key, "label": label, COUNT: np.ones(label.shape, np.float32)}
    return memory.write(rows, np.ones(label.shape, bool))


def some(seed: int, episodes: int = 2, queries: int = 7) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    label = random.integers(0, WAY, (episodes, queries))
    spots = np.random.default_rng(99).normal(size=(WAY, WIDTH))
    key = spots[label] + 0.1 * random.normal(size=(*label.shape, WIDTH))
    return key.astype(np.float32), label


def test_of_many_rows_the_totals_are_not_counted_anew_when_one_goes(monkeypatch):
    memory = memory_of()
    for seed in range(4):
        write(memory, *some(seed))
    memory.class_totals()
    monkeypatch.setattr(memory, "count_classes", lambda: pytest.fail("every row was counted again"))
    for _ in range(3):
        memory.remove(np.array([[3], [0]]))
    kept = memory.class_totals(WAY)
    for episode in range(2):
        label = memory.column("label")[episode, : memory.counts[episode]]
        assert kept.examples[episode].tolist() == np.bincount(label, minlength=WAY).tolist()
        keys = memory.column("embedding")[episode, : memory.counts[episode]]
        assert kept.everything[episode] == pytest.approx(keys.sum(0), abs=1e-4)


def test_a_memory_that_is_never_asked_for_totals_keeps_none():
    learner = learner_of(SurpriseController(0.5))
    plain = Learner(learner.config, SurpriseController(0.5))
    memory = plain.new_memory(2)
    for seed in range(5):
        plain.observe(memory, *map(torch.from_numpy, some(seed)), WAY)
    assert memory._totals is None and memory.state is None


def shown(learner: Learner, memory: RamMemory, seed: int) -> Observation:
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


def test_the_row_to_merge_into_is_the_nearest_of_the_true_class():
    memory = memory_of(episodes=1)
    key = np.arange(4, dtype=np.float32)[None, :, None] * np.ones((1, 4, WIDTH), np.float32)
    write(memory, key, np.array([[0, 1, 1, 0]]))
    found = memory.nearest("embedding", np.full((1, 3, WIDTH), 1.9, np.float32), 4)
    assert found.nearest_of(np.array([[0, 1, 2]])).tolist() == [[3, 2, -1]]


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
    rows, first = memory.column("embedding").copy(), learner.predict(memory, key, WAY).log_probs
    state = memory.state
    again = learner.predict(memory, key, WAY).log_probs
    assert (first == again).all()
    assert memory.state is state and (memory.column("embedding") == rows).all()


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


def taught_state(metric: str = "euclidean") -> EnsembleState:
    learner = learner_of(metric=metric)
    memory = learner.new_memory(1)
    for seed in range(30):
        shown(learner, memory, seed)
    return memory.state


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_a_state_that_was_kept_comes_back_as_it_was(metric):
    state = taught_state(metric)
    columns = WIDTH if metric == "euclidean" else None
    again = EnsembleState.from_dict(len(READERS), columns, state.to_dict())
    assert again.to_dict() == state.to_dict()
    fresh = EnsembleState.from_dict(DECODER + 1, columns, state.to_dict())
    assert fresh.pool.examples[0] == 0  # other readers: from the prior


def changed(kept: dict, change: Callable[[np.ndarray], np.ndarray]) -> dict:
    """The same with other numbers."""
    numbers = np.frombuffer(base64.b64decode(kept["numbers"]), "<f8").copy()
    return {**kept, "numbers": base64.b64encode(change(numbers).tobytes()).decode()}


def put(place: int, value: float) -> Callable[[np.ndarray], np.ndarray]:
    def change(numbers: np.ndarray) -> np.ndarray:
        numbers[place] = value
        return numbers

    return change


DAMAGES = {
    "no table": lambda kept: 3,
    "a part is missing": lambda kept: {name: value for name, value in kept.items() if name != "numbers"},
    "a part is a number": lambda kept: {**kept, "numbers": 5},
    "no text of numbers": lambda kept: {**kept, "numbers": "?"},
    "a number too few": lambda kept: changed(kept, lambda numbers: numbers[:-1]),
    "infinite": lambda kept: changed(kept, put(0, np.inf)),
    "too large": lambda kept: changed(kept, put(0, 1e308)),
    "a weight too large": lambda kept: changed(kept, put(0, 1e13)),
    "negative": lambda kept: changed(kept, put(-1, -1.0)),
    "no precision": lambda kept: changed(kept, lambda numbers: 0 * numbers),
    "neither true nor false": lambda kept: {**kept, "batch": 1},
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_state_is_one_clear_error(damage):
    with pytest.raises(ValueError, match="damaged"):
        EnsembleState.from_dict(len(READERS), WIDTH, DAMAGES[damage](taught_state().to_dict()))


def test_a_prediction_stays_what_it_was_when_the_memory_learns_on():
    learner = learner_of()
    memory = learner.new_memory(1)
    for seed in range(20):
        shown(learner, memory, seed)
    key, label = some(50, 1, 1)
    prediction, expected = learner.predict(memory, key, WAY), learner.predict(memory, key, WAY).log_probs.copy()
    learner.learn(memory, learner.predict(memory, key, WAY), label)
    shown(learner, memory, 60)
    assert prediction.log_probs == pytest.approx(expected, abs=1e-6)
