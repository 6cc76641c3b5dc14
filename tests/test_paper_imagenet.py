"""ImageNet with shuffled labels: what is counted, and on which photographs."""

import sys
import types

import numpy as np
import pytest
import torch
from PIL import Image

from apl.encoders import MissingExtraError
from apl.paper.imagenet import any_n_learner, row, watch_episodes
from apl.paper.imagenet_decoders import DecoderTraining, train, trained_decoders
from apl.paper.inception import InceptionEncoder
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


def test_a_decoder_of_fixed_labels_is_trained_saved_and_found_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = _made(classes=6)
    training = DecoderTraining(way=5, kind="lstm", hidden=16, minutes=0.01, parallel=2)
    keys = torch.from_numpy(data.features)
    train(training, keys, torch.from_numpy(data.labels))
    ((way, kind, learner, provenance),) = trained_decoders("lite0")
    assert (way, kind) == (5, "lstm") and provenance["steps"] >= 1
    assert watch_episodes(learner, keys, data, way, episodes=1).result.correct.shape == (1, 45)
    assert trained_decoders("lite2") == []


class _Network(torch.nn.Module):
    """What timm's Inception-ResNet-v2 offers, in small: the mean colour stands for what is seen."""

    def __init__(self):
        super().__init__()
        self.classifier = torch.nn.Linear(1536, 1000)

    def forward_features(self, x):
        assert x.shape[1:] == (3, 299, 299) and -1 <= float(x.min()) <= float(x.max()) <= 1
        return x.repeat(1, 512, 1, 1)

    def forward_head(self, x, pre_logits=False):
        assert pre_logits
        return x.mean((2, 3))

    def get_classifier(self):
        return self.classifier


def test_the_paper_s_encoder_is_loaded_through_timm(monkeypatch):
    asked = []

    def create_model(name, pretrained):
        asked.append((name, pretrained))
        return _Network()

    monkeypatch.setitem(sys.modules, "timm", types.SimpleNamespace(create_model=create_model))
    encoder = InceptionEncoder()
    assert asked == [("inception_resnet_v2.tf_in1k", True)]
    white = encoder.embed([encoder.read(Image.new("RGB", (40, 30), "white"))])
    assert white.shape == (1, 1536) and white.min() == pytest.approx(1)
    assert encoder.imagenet_class(white).shape == (1,) and encoder.embed([]).shape == (0, 1536)


def test_without_timm_or_its_hub_the_error_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(MissingExtraError, match="pip install timm"):
        InceptionEncoder()

    def create_model(name, pretrained):
        raise OSError("no route to the hub")

    monkeypatch.setitem(sys.modules, "timm", types.SimpleNamespace(create_model=create_model))
    with pytest.raises(MissingExtraError, match="could not be fetched: no route"):
        InceptionEncoder()
