"""Which examples are worth a label."""

from __future__ import annotations

import numpy as np
import pytest

from apl import OnlineClassifier

CLASSES, WIDTH = 12, 16
CENTRES = 3 * np.random.default_rng(0).normal(size=(CLASSES, WIDTH))


def examples(label: np.ndarray, seed: int = 1) -> np.ndarray:
    noise = np.random.default_rng(seed).normal(size=(len(label), WIDTH))
    return (CENTRES[label] + noise).astype(np.float32)


def taught(known: int = 4, each: int = 6) -> OnlineClassifier:
    classifier = OnlineClassifier()
    label = np.arange(known * each) % known
    classifier.learn_many(examples(label), label)
    return classifier


def test_examples_of_new_classes_come_first():
    pool = np.arange(48) % CLASSES
    found = taught().suggest(examples(pool, 2), 8)
    assert sum(pool[one.index] >= 4 for one in found) >= 7
    assert all(one.probability_new > 0.5 for one in found[:5])


def test_suggestions_are_of_different_classes():
    pool = np.repeat(np.arange(CLASSES), 10)
    found = taught().suggest(examples(pool, 2), 8)
    assert len({pool[one.index] for one in found}) >= 7


def test_a_copy_of_a_chosen_example_is_not_chosen():
    x = np.repeat(examples(np.arange(4, 8), 2), 5, axis=0)
    found = taught().suggest(x, 4)
    assert sorted(one.index // 5 for one in found) == [0, 1, 2, 3]


def test_an_example_between_two_classes_is_torn_between_them():
    classifier = OnlineClassifier()
    classifier.learn_many([[n % 2, n / 100] for n in range(60)], ["left", "right"] * 30)
    pool = [[0.0, 0.21], [1.0, 0.22], [0.5, 0.2], [0.0, 0.31], [1.0, 0.32]]
    [first] = classifier.suggest(pool, 1)
    assert first.index == 2 and set(first.labels) == {"left", "right"}


def test_while_nothing_is_known_typical_examples_of_different_groups_come_first():
    pool = np.repeat(np.arange(4), 15)
    x = np.concatenate([examples(pool), 40 * np.ones((1, WIDTH), np.float32)])
    found = OnlineClassifier().suggest(x, 4)
    assert sorted(pool[one.index] for one in found) == [0, 1, 2, 3]
    assert "no class is known yet" in found[0].reason and found[0].labels == ()


def test_of_a_pool_that_is_known_it_says_so():
    classifier = taught(known=3, each=20)
    found = classifier.suggest(examples(np.arange(6) % 3, 3), 6)
    assert sum(one.reason.startswith("probably") for one in found) >= 4


def test_nothing_is_learnt_and_every_example_comes_once_at_most():
    classifier = taught()
    rows, pool = len(classifier), examples(np.arange(10) % CLASSES, 2)
    found = classifier.suggest(pool, 50)
    assert sorted(one.index for one in found) == list(range(10)) and len(classifier) == rows
    assert classifier.suggest(classifier.embed(pool), 50) == found


def test_an_empty_pool_has_no_suggestions():
    assert taught().suggest([], 5) == [] == OnlineClassifier().suggest(np.zeros((0, 3)), 5)


def test_a_pool_without_a_length_is_read_or_refused():
    pool = examples(np.arange(3))
    assert taught().suggest(iter(pool), 2) == taught().suggest(pool, 2)
    for nothing in (None, np.float32(3)):
        with pytest.raises(ValueError):
            taught().suggest(nothing, 2)


@pytest.mark.parametrize("n", [0, -1])
def test_fewer_than_one_is_refused(n):
    with pytest.raises(ValueError, match="n must be at least 1"):
        taught().suggest(examples(np.arange(3)), n)


def test_asking_about_suggested_examples_teaches_more_than_asking_about_any():
    random = np.random.default_rng(3)
    share = 1 / np.arange(1, CLASSES + 1)
    pool = random.choice(CLASSES, 300, p=share / share.sum())
    x, test = examples(pool, 4), np.repeat(np.arange(CLASSES), 5)
    any_of_them = OnlineClassifier()
    any_of_them.learn_many(x[:20], pool[:20])
    asked = OnlineClassifier()
    for _ in range(4):
        at = [one.index for one in asked.suggest(x, 5)]
        asked.learn_many(x[at], pool[at])
    assert asked.score(examples(test, 5), test) > any_of_them.score(examples(test, 5), test) + 0.1
