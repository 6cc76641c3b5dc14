from __future__ import annotations

import pytest
import torch

from apl.config import DecoderConfig, IdentityConfig, LearnerConfig
from apl.controller import WriteAll
from apl.episode import Episodes, EpisodeSampler, run_episode
from apl.learner import Learner

CLASSES, EACH = 12, 7
LABELS = torch.arange(CLASSES).repeat(EACH)


def sampler_of(seed: int = 0, labels: torch.Tensor = LABELS) -> EpisodeSampler:
    return EpisodeSampler(labels, torch.Generator().manual_seed(seed))


def classes_in_label_order(drawn: Episodes, episode: int) -> list[int]:
    """Which class of the data stands behind label 0, 1, … of one episode; fails if a label stands for two."""
    behind = []
    for label in range(drawn.way):
        found = set(LABELS[drawn.example[episode][drawn.label[episode] == label]].tolist())
        assert len(found) == 1, f"label {label} stands for classes {found}"
        behind.append(found.pop())
    return behind


def test_no_example_is_shown_twice_in_an_episode() -> None:
    drawn = sampler_of().online(5, None, 6)
    assert drawn.example.shape == (6, 5 * EACH)
    assert all(len(set(episode)) == 5 * EACH for episode in drawn.example.tolist())


def test_a_label_stands_for_one_class_throughout_an_episode_and_no_class_has_two() -> None:
    drawn = sampler_of().online(5, None, 6)
    for episode in range(6):
        behind = classes_in_label_order(drawn, episode)
        assert len(set(behind)) == 5


def test_classes_are_drawn_anew_and_labels_shuffled_for_every_episode() -> None:
    sampler = sampler_of()
    episodes = [classes_in_label_order(sampler.online(5, None, 1), 0) for _ in range(30)]
    assert len({frozenset(e) for e in episodes}) > 20, "the same classes come back"
    assert {c for e in episodes for c in e} == set(range(CLASSES)), "some classes are never drawn"
    everything = [classes_in_label_order(sampler.online(CLASSES, None, 1), 0) for _ in range(5)]
    assert len({tuple(e) for e in everything}) == 5, "with all classes drawn, labels must still be shuffled"


def test_the_order_of_examples_is_random_across_classes() -> None:
    drawn = sampler_of().online(5, None, 20)
    changes = (drawn.label.diff(dim=1) != 0).float().mean()
    assert changes > 0.6, "examples of one class come in a row"


def test_a_shorter_episode_is_cut_and_a_longer_one_is_all_there_is() -> None:
    assert sampler_of().online(5, 8, 2).example.shape == (2, 8)
    assert sampler_of().online(5, 10_000, 2).example.shape == (2, 5 * EACH)


def test_classes_of_unequal_size_give_streams_of_equal_length() -> None:
    labels = torch.tensor([0] * 3 + [1] * 9 + [2] * 5)
    drawn = sampler_of(labels=labels).online(2, None, 40)
    assert 8 <= drawn.example.shape[1] <= 14
    assert all(len(set(e)) == drawn.example.shape[1] for e in drawn.example.tolist())


def test_the_same_seed_draws_the_same_episodes_and_another_seed_others() -> None:
    one, two, other = (sampler_of(seed).online(5, None, 3) for seed in (1, 1, 2))
    assert torch.equal(one.example, two.example) and torch.equal(one.label, two.label)
    assert not torch.equal(one.example, other.example)


def test_stored_and_asked_examples_are_disjoint_and_as_many_as_wanted() -> None:
    drawn = sampler_of().fixed_context(4, 2, 3, 10)
    assert drawn.stored.example.shape == (10, 8) and drawn.asked.example.shape == (10, 12)
    for episode in range(10):
        stored, asked = (set(part.example[episode].tolist()) for part in (drawn.stored, drawn.asked))
        assert len(stored) == 8 and len(asked) == 12 and not stored & asked
        assert drawn.stored.label[episode].bincount().tolist() == [2] * 4
        assert drawn.asked.label[episode].bincount().tolist() == [3] * 4
        assert classes_in_label_order(drawn.stored, episode) == classes_in_label_order(drawn.asked, episode)


def test_fewer_questions_are_asked_where_a_class_has_no_more_examples() -> None:
    assert sampler_of().fixed_context(4, 5, 100, 2).asked.label[0].bincount().tolist() == [EACH - 5] * 4


def test_what_cannot_be_drawn_is_a_clear_error() -> None:
    sampler = sampler_of()
    for way in (0, 1, CLASSES + 1):
        with pytest.raises(ValueError, match=f"way must lie between 2 and the 12 classes there are, got {way}"):
            sampler.online(way, None, 1)
    with pytest.raises(ValueError, match="length must be at least 1, got 0"):
        sampler.online(4, 0, 1)
    with pytest.raises(ValueError, match="shot must be at least 1, got 0"):
        sampler.fixed_context(4, 0, 5, 1)
    with pytest.raises(ValueError, match="7 shots leave nothing to ask about: a class has only 7 examples"):
        sampler.fixed_context(4, EACH, 5, 1)
    with pytest.raises(ValueError, match="at least two classes"):
        sampler_of(labels=torch.zeros(5, dtype=torch.int64))
    with pytest.raises(ValueError, match="each with at least one example"):
        sampler_of(labels=torch.tensor([0, 2]))


def test_an_episode_runs_batch_by_batch_through_one_memory() -> None:
    inputs = torch.eye(CLASSES).repeat(EACH, 1) * 5
    learner = Learner(LearnerConfig(IdentityConfig(CLASSES), DecoderConfig("nearest"), k=2), WriteAll()).eval()
    drawn = sampler_of().online(4, 10, 3)
    memory = learner.new_memory(3)
    shown = []

    def watch(x: torch.Tensor) -> torch.Tensor:
        shown.append(x)
        return x

    steps = []
    for step in run_episode(learner, memory, inputs, drawn, 4, watch):
        assert len(memory) == min(step.seen + 4, 10), "each batch is learnt before the next is shown"
        steps.append(step)
    assert [step.seen for step in steps] == [0, 4, 8]
    assert torch.equal(torch.cat([step.label for step in steps], 1), drawn.label)
    assert [len(x) for x in shown] == [12, 12, 6]
    assert torch.equal(shown[0].view(3, 4, -1), inputs[drawn.example[:, :4]])
    # What was seen once in an earlier batch is known from then on.
    for step in steps[1:]:
        for episode in range(3):
            for place, label in enumerate(step.label[episode].tolist()):
                if label in drawn.label[episode, : step.seen].tolist():
                    assert step.observation.prediction.label[episode, place] == label
