"""ImageNet with shuffled labels: what is counted, and on which photographs."""

import numpy as np
import pytest
import torch

from apl.paper.imagenet import any_n_learner, row, watch_episodes
from apl.paper.photo_features import PhotoFeatures
from apl.paper.verdicts import FINDINGS


def _made(classes=30, photos=9, width=24):
    chance = np.random.default_rng(0)
    labels = np.repeat(np.arange(classes), photos)
    features = (chance.normal(size=(classes, width))[labels] + 0.1 * chance.normal(size=(len(labels), width))).astype(
        "f4"
    )
    named = np.where(np.arange(len(labels)) % 3 == 0, (labels + 1) % classes, labels)  # a third is named wrongly
    return PhotoFeatures(features, labels, named, "made")


def test_every_photograph_of_the_drawn_classes_is_shown_once_and_classes_apart_are_learnt():
    data = _made()
    watched = watch_episodes(any_n_learner(24), torch.from_numpy(data.features), data, way=10, episodes=3)
    assert watched.result.correct.shape == watched.named.shape == (3, 90)
    measured = row("ours", "lite0", data, watched)
    assert measured["accuracy"] > 0.95 and 1 <= measured["stored_per_class"] < 4
    assert measured["encoder_top1"] == pytest.approx(2 / 3, abs=0.15)
    assert measured["share_of_encoder"] == pytest.approx(measured["accuracy"] / measured["encoder_top1"])


def test_labels_are_shuffled_so_that_nothing_can_be_known_at_the_start():
    data = _made()
    watched = watch_episodes(any_n_learner(24), torch.from_numpy(data.features), data, way=30, episodes=4)
    assert watched.result.correct[:, 0].mean() < 0.5
    assert not torch.equal(watched.result.label[0], watched.result.label[1])


def test_the_verdict_is_by_the_share_of_the_encoder_s_own_accuracy():
    rows = [
        {"method": "m", "encoder": "e", "way": way, "accuracy": 0.5, "ci95": 0.01, "share_of_encoder": share}
        for way, share in ((20, 1.2), (100, 1.0), (1000, 0.6))
    ]
    (finding,) = FINDINGS["imagenet"](rows)
    assert finding.reproduced == "partly" and "1000-way 0.60" in finding.ours
