"""The best of very many classes, found without the posterior, against the posterior."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import apl
from apl.best_class import NOT_CLEAR, clear_best_class
from apl.classifier import open_world
from apl.reading.readers import READERS, ClassStatistics, Pool, Scene, read

QUERIES, CLASSES, RECALLED, WIDTH = 60, 300, 6, 8


def scene(seed: int) -> Scene:
    random = np.random.default_rng(seed)
    examples = random.integers(0, 4, (1, CLASSES)).astype(np.float32)
    total = random.normal(size=(1, CLASSES, WIDTH)) * np.sqrt(examples)[..., None] + 0.3 * examples[..., None]
    query = (random.normal(size=(1, QUERIES, WIDTH)) + 0.3).astype(np.float32)
    known = examples[0].nonzero()[0]
    label = random.choice(known[:40], (1, QUERIES, RECALLED))  # several rows of one class
    rows = (random.normal(size=(1, QUERIES, RECALLED, WIDTH)) + query[:, :, None]).astype(np.float32)
    mask = random.random((1, QUERIES, RECALLED)) < 0.8
    mask[0, 0] = False
    count = random.integers(1, 4, label.shape).astype(np.float32)
    return Scene(query, rows, label, mask, count, ClassStatistics.of(total, examples))


@pytest.mark.parametrize("weight", [None, [0.5, -0.2, -0.3, 0.9], [-0.4, 0.6, 0.1, -0.1]])
@pytest.mark.parametrize("positions", [False, True])
def test_the_best_class_is_the_one_that_the_whole_posterior_puts_first(weight, positions):
    pool = Pool(READERS)
    pool.variance[:], pool.lessons[:] = 0.3, 4
    if weight is not None:
        pool.weight[:] = weight
    seen = scene(3).of_positions() if positions else scene(3)
    log_probs = pool.log_probs(read(seen))[0]
    found = clear_best_class(seen, pool)
    clear = found != NOT_CLEAR
    first, second = np.sort(log_probs)[:, -1], np.sort(log_probs)[:, -2]
    assert np.array_equal(clear, first - second > 1e-4) and clear.mean() > 0.9
    assert np.array_equal(found[clear], log_probs.argmax(1)[clear])


def test_where_two_classes_are_alike_nothing_is_said():
    pool = Pool(READERS)
    pool.variance[:], pool.lessons[:] = 0.3, 4
    seen = scene(4)
    twice = ClassStatistics.of(np.tile(seen.classes.total, (1, 2, 1)), np.tile(seen.classes.examples, (1, 2)))
    seen = replace(seen, classes=twice, mask=np.zeros_like(seen.mask))
    assert (clear_best_class(seen, pool) == NOT_CLEAR).all()


@pytest.mark.parametrize("width", [8, 40])
def test_very_many_classes_are_answered_as_few_are_and_only_close_cases_ask_for_all_probabilities(width, monkeypatch):
    random = np.random.default_rng(0)
    clf = apl.OnlineClassifier.for_features(width)
    centres = random.normal(size=(60, width))
    label = [f"class {i}" for i in range(60)]
    clf.fit(np.tile(centres, (2, 1)) + 0.1 * random.normal(size=(120, width)), [*label, *label])
    clf.forget(label="class 7")
    asked = np.concatenate([centres + 0.3 * random.normal(size=(60, width)), random.normal(size=(200, width))])
    whole = clf.predict(asked)
    assert np.array_equal(whole, clf.classes_[clf.predict_proba(asked).argmax(1)])
    monkeypatch.setattr(open_world, "VERY_MANY_CLASSES", 10)
    believe, asked_for_all = open_world.OpenWorld.believe, []
    monkeypatch.setattr(
        open_world.OpenWorld,
        "believe",
        lambda self, embedding: asked_for_all.append(len(embedding)) or believe(self, embedding),
    )
    assert np.array_equal(clf.predict(asked), whole)
    assert sum(asked_for_all) < len(asked) / 10


@pytest.mark.parametrize("very_many", [2, 500])
def test_of_classes_that_are_alike_the_first_by_its_name_is_said(very_many, monkeypatch):
    monkeypatch.setattr(open_world, "VERY_MANY_CLASSES", very_many)
    points = np.repeat(np.eye(4), 2, axis=0)
    clf = apl.OnlineClassifier.for_features(4).fit(np.tile(points, (2, 1)), list("hgfedcba" * 2))
    assert clf.predict(np.eye(4)).tolist() == list("geca")
    assert np.array_equal(clf.predict(np.eye(4)), clf.classes_[clf.predict_proba(np.eye(4)).argmax(1)])
