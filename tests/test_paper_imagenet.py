"""ImageNet with shuffled labels: what is counted, and on which photographs."""

import types

import numpy as np
import pytest
import torch

from experiments.data.embedded import PhotoFeatures
from experiments.paper import imagenet
from experiments.paper.imagenet import DecoderTraining, any_n_learner, row, train, watch_episodes
from experiments.paper.results import load_rows


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


def test_decoders_of_fixed_labels_are_trained_in_pieces_measured_once_and_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data, config = _made(classes=1000), DecoderTraining(5, hidden=16, blocks=1, parallel=2, steps=8)
    monkeypatch.setattr(imagenet, "TRAININGS", (config,))
    monkeypatch.setattr(imagenet, "PLAIN_EPISODES", {5: 10})
    monkeypatch.setattr(imagenet, "photo_features", lambda encoder, part: data)
    keys, labels = torch.from_numpy(data.features), torch.from_numpy(data.labels)
    assert not train(config, keys, labels, minutes=0.0) and not config.trained
    imagenet.Command(train=True, quick=True).run()
    rows = load_rows("imagenet-plain", quick=True)
    assert [(r["method"], r["way"], r["rule"]) for r in rows] == [
        ("the paper's form", 5, "plain"),
        ("nearest neighbour", 5, "plain"),
    ]
    assert rows[0]["trained"]["steps"] == 8 and 0 <= rows[0]["trained"]["validation"]["val_accuracy"] <= 1
    assert rows[1]["accuracy"] > 0.9, "classes far apart"
    monkeypatch.setattr(imagenet, "watch_episodes", lambda *given: pytest.fail("measured twice"))
    imagenet.reproduce_plain(quick=True)


def test_classes_to_validate_on_are_not_trained_on_where_some_can_be_spared():
    assert [imagenet.shown_classes(way) for way in (20, 100, 1000)] == [900, 900, 1000]


def test_both_keys_are_measured_at_every_number_of_classes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = _made(classes=40, photos=4)
    monkeypatch.setattr(imagenet, "photo_features", lambda encoder, part: data)
    monkeypatch.setattr(imagenet, "photo_encoder", lambda model: types.SimpleNamespace(keys=lambda x, weight: x))
    monkeypatch.setattr(imagenet, "EPISODES", {20: 1, 30: 1})
    monkeypatch.setattr(imagenet, "draw", lambda rows, quick: None)
    imagenet.reproduce(quick=True)
    rows = load_rows("imagenet", quick=True)
    assert [(row["way"], row["method"]) for row in rows] == [
        (way, method) for method in (imagenet.NAMED, imagenet.ACTIVATIONS) for way in (20, 30)
    ]
    assert len(rows[0]["curve"]["accuracy"]) == len(rows[0]["curve"]["written"]) <= 60
