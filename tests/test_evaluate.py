from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from apl.config import DecoderConfig, IdentityConfig, LearnerConfig
from apl.controller import Controller, SurpriseController, WriteAll
from apl.evaluate import Estimate, OnlineResult, fixed_context, online
from apl.learner import Learner

CLASSES, EACH, WIDTH = 30, 12, 16


def learner_of(controller: Controller | None = None) -> Learner:
    return Learner(LearnerConfig(IdentityConfig(WIDTH), DecoderConfig("nearest"), k=3), controller)


def clusters(seed: int = 0) -> tuple[Tensor, Tensor]:
    """Classes so far apart that the nearest row is always of the right one."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(CLASSES).repeat_interleave(EACH)
    centres = 20 * torch.randn(CLASSES, WIDTH, generator=generator)
    return centres[labels] + 0.1 * torch.randn(len(labels), WIDTH, generator=generator), labels


def noise(seed: int = 0) -> tuple[Tensor, Tensor]:
    inputs, labels = clusters(seed)
    return inputs[torch.randperm(len(inputs), generator=torch.Generator().manual_seed(seed))], labels


@pytest.mark.parametrize("way,shot", [(2, 1), (5, 5), (30, 1)])
def test_separable_classes_are_always_told_apart_from_a_fixed_context(way: int, shot: int) -> None:
    estimate = fixed_context(learner_of(), *clusters(), way=way, shot=shot, episodes=10, seed=0)
    assert estimate.mean == 1.0 and estimate.ci95 == 0.0


def test_inputs_that_say_nothing_of_their_class_are_guessed_at_chance() -> None:
    estimate = fixed_context(learner_of(), *noise(), way=5, shot=1, episodes=300, seed=0)
    assert abs(estimate.mean - 0.2) < 0.03 and 0 < estimate.ci95 < 0.03


def test_every_episode_counts_once_and_progress_is_told() -> None:
    told: list[int] = []
    inputs, labels = noise()
    fixed_context(learner_of(), inputs, labels, way=30, shot=1, episodes=11, seed=0, progress=told.append)
    assert told[-1] == 11 and told == sorted(told)


def test_many_episodes_at_once_give_the_same_figure_as_few(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, labels = noise()

    def measured() -> Estimate:
        return fixed_context(learner_of(), inputs, labels, way=5, shot=1, episodes=60, seed=0, queries=11)

    at_once = measured()
    monkeypatch.setattr("apl.evaluate.QUERIES_AT_ONCE", 110)
    few = measured()
    # Drawn in another order, so the same only up to chance.
    assert abs(at_once.mean - few.mean) < at_once.ci95 + few.ci95


def test_the_same_seed_measures_the_same_and_another_seed_something_else() -> None:
    one, two, other = (fixed_context(learner_of(), *noise(), way=5, shot=1, episodes=20, seed=s) for s in (1, 1, 2))
    assert one == two != other


def test_the_interval_is_students() -> None:
    estimate = Estimate.of(torch.tensor([0.2, 0.4, 0.6, 0.8]))
    spread = math.sqrt(sum((v - 0.5) ** 2 for v in (0.2, 0.4, 0.6, 0.8)) / 3)
    assert math.isclose(estimate.mean, 0.5, rel_tol=1e-6)
    assert math.isclose(estimate.ci95, 3.182446 * spread / 2, rel_tol=1e-6)
    assert math.isclose(Estimate.of([0.0, 1.0]).ci95, 12.706205 * math.sqrt(0.5) / math.sqrt(2), rel_tol=1e-6)
    assert math.isnan(Estimate.of([0.5]).ci95), "one episode has no interval"


def test_a_difference_is_paired_and_excludes_zero_only_beyond_its_interval() -> None:
    hard_and_easy = [0.1, 0.5, 0.9, 0.3]
    better = [value + gain for value, gain in zip(hard_and_easy, (0.04, 0.05, 0.06, 0.05), strict=True)]
    assert Estimate.of_difference(better, hard_and_easy).excludes_zero, "what all episodes share does not count"
    assert not Estimate.of_difference([0.1, 0.9, 0.2, 0.6], hard_and_easy).excludes_zero
    assert not Estimate.of_difference([0.5], [0.1]).excludes_zero, "one episode proves nothing"
    with pytest.raises(ValueError, match="the same episodes, got 1 and 2"):
        Estimate.of_difference([0.5], [0.1, 0.2])


def test_online_separable_classes_cost_one_mistake_or_guess_and_one_row_each() -> None:
    result = online(learner_of(), *clusters(), way=6, episodes=5, seed=0)
    assert result.correct.shape == (5, 6 * EACH)
    for episode in range(5):
        seen: set[int] = set()
        for time, label in enumerate(result.label[episode].tolist()):
            if label in seen:
                assert result.correct[episode, time] == 1 and result.written[episode, time] == 0
            else:
                assert result.written[episode, time] == 1, "a class never seen is a surprise"
            seen.add(label)
    assert result.stored[:, -1].tolist() == [6] * 5
    assert result.stored_at_end() == Estimate(6.0, 0.0)
    assert result.accuracy_last(40).mean == 1.0 and result.accuracy().mean < 1.0


def test_online_stored_counts_what_was_written_and_nothing_else() -> None:
    everything = online(learner_of(WriteAll()), *noise(), way=4, episodes=3, seed=0)
    assert torch.equal(everything.stored, torch.arange(1, 4 * EACH + 1).expand(3, -1))
    nothing = online(learner_of(SurpriseController(sigma_nats=math.inf)), *noise(), way=4, episodes=3, seed=0)
    assert nothing.stored.eq(0).all()
    torch.testing.assert_close(nothing.probability, torch.full((3, 4 * EACH), 0.25))


def test_online_noise_is_guessed_at_chance() -> None:
    result = online(learner_of(), *noise(), way=5, episodes=40, seed=0, parallel=40)
    # Each example is shown once, so the class of the nearest earlier one says nothing (or slightly the wrong thing).
    assert abs(result.accuracy().mean - 0.2) < 0.05


def test_online_batches_and_parallel_episodes_cover_every_example() -> None:
    told: list[int] = []
    result = online(
        learner_of(), *clusters(), way=6, episodes=5, seed=0, length=50, batch=7, parallel=2, progress=told.append
    )
    assert result.correct.shape == result.stored.shape == result.probability.shape == (5, 50)
    assert told == [2, 4, 5]
    assert (result.stored.diff(dim=1) == result.written[:, 1:]).all()


def test_the_last_examples_alone_make_the_last_accuracy() -> None:
    correct = torch.tensor([[0.0, 0.0, 1.0, 1.0], [0.0, 1.0, 0.0, 1.0]])
    zeros = torch.zeros(2, 4, dtype=torch.int64)
    result = OnlineResult(correct, correct, zeros, zeros, zeros, correct, way=2)
    assert (
        result.accuracy().mean == 0.5 and result.accuracy_last(2).mean == 0.75 and result.accuracy_last(1).mean == 1.0
    )


def test_a_learner_in_training_is_measured_in_evaluation_mode() -> None:
    learner = learner_of().train()
    fixed_context(learner, *clusters(), way=5, shot=1, episodes=2, seed=0)
    assert not learner.networks.training


def test_every_answer_is_tallied_under_the_classes_of_the_data() -> None:
    inputs, labels = clusters()
    pairs: list[tuple[Tensor, Tensor]] = []
    fixed_context(
        learner_of(), inputs, labels, way=5, shot=1, episodes=4, seed=0, queries=3, tally=lambda *p: pairs.append(p)
    )
    truth, answered = (torch.cat([pair[i].flatten() for pair in pairs]) for i in (0, 1))
    assert len(truth) == 4 * 5 * 3 and torch.equal(truth, answered) and len(truth.unique()) > 5
    pairs.clear()
    result = online(learner_of(), inputs, labels, way=5, episodes=4, seed=0, tally=lambda *p: pairs.append(p))
    truth, answered = (torch.cat([pair[i].flatten() for pair in pairs]) for i in (0, 1))
    assert float((truth == answered).float().mean()) == pytest.approx(result.accuracy().mean)
