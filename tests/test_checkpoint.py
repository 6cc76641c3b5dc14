from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from apl.checkpoint import CheckpointError, find_model, from_json, read_json, to_json, write_json
from apl.config import ConvConfig, DecoderConfig, EncoderConfig, Group, IdentityConfig, LearnerConfig
from apl.learner import Learner
from apl.training.presets import PRESETS, preset
from apl.weights_file import load_weights, read_tensors, read_weights, save_model, tensors_hash, write_tensors

TINY = LearnerConfig(
    encoder=ConvConfig(image_size=8, stem_channels=4, groups=(Group(4, 1),)),
    decoder=DecoderConfig(hidden=8, blocks=1, heads=2, label_width=4),
)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    Learner(TINY).save(tmp_path / "model", {"made": "for a test"})
    return tmp_path / "model"


def test_tensors_and_json_come_back_as_written(tmp_path: Path) -> None:
    tensors = {"a": torch.randn(3, 4), "b": torch.arange(5), "c": torch.tensor(2.5), "d": torch.ones(2, 3).T}
    write_tensors(tmp_path / "t.safetensors", tensors)
    again = read_tensors(tmp_path / "t.safetensors")
    assert set(again) == set(tensors) and all(torch.equal(again[n], tensors[n]) for n in tensors)
    write_json(tmp_path / "j.json", {"x": [1, None, "é"]})
    assert read_json(tmp_path / "j.json") == {"x": [1, None, "é"]}


def test_a_write_that_fails_leaves_the_old_file_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.safetensors"
    write_tensors(path, {"a": torch.ones(3)})
    write_json(tmp_path / "j.json", {"x": 1})

    def power_cut(source: Path, target: Path) -> None:
        raise OSError("power cut")

    monkeypatch.setattr("os.replace", power_cut)
    with pytest.raises(OSError, match="power cut"):
        write_tensors(path, {"a": torch.zeros(3)})
    with pytest.raises(OSError, match="power cut"):
        write_json(tmp_path / "j.json", {"x": 2})
    assert torch.equal(read_tensors(path)["a"], torch.ones(3)) and read_json(tmp_path / "j.json") == {"x": 1}


@pytest.mark.parametrize("keep", [0, 4, 100, -1])
def test_truncated_weights_are_named_as_damaged(saved: Path, keep: int) -> None:
    weights = saved / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match=r"model\.safetensors is damaged .* restore it or train again"):
        Learner.load(saved)


@pytest.mark.parametrize(
    "text", ["", "{", "not json", "[]", "3", "null", "{}", '{"config": 3}', '{"config": {"type": "Oracle"}}']
)
def test_what_does_not_describe_a_model_is_refused(saved: Path, text: str) -> None:
    (saved / "model.json").write_text(text)
    with pytest.raises(CheckpointError, match="not valid JSON|expected LearnerConfig|does not describe a model"):
        Learner.load(saved)


@pytest.mark.parametrize(
    "change",
    [
        {"k": "five"},
        {"k": 2.5},
        {"metric": "taxicab"},
        {"decoder": {**to_json(TINY.decoder), "hidden": [8]}},
        {"decoder": {**to_json(TINY.decoder), "kind": "oracle"}},
        {"encoder": {**to_json(TINY.encoder), "groups": 4}},
        {"encoder": {**to_json(TINY.encoder), "groups": [{"type": "Group"}]}},
        {"telepathy": True},
    ],
)
def test_a_description_with_values_of_the_wrong_kind_or_of_another_version_is_refused(
    saved: Path, change: dict[str, object]
) -> None:
    described = read_json(saved / "model.json")
    described["config"].update(change)
    write_json(saved / "model.json", described)
    with pytest.raises(CheckpointError, match="field .telepathy." if "telepathy" in change else None):
        Learner.load(saved)


@pytest.mark.parametrize(
    "other,difference",
    [
        (replace(TINY, decoder=replace(TINY.decoder, hidden=16)), r"is \[8.*\], expected \[16"),
        (replace(TINY, decoder=replace(TINY.decoder, blocks=2)), "it has no tensor 'decoder.blocks.1"),
        (replace(TINY, decoder=replace(TINY.decoder, kind="kernel")), "unexpected tensor 'decoder"),
    ],
)
def test_weights_of_another_architecture_are_refused_naming_the_first_difference(
    saved: Path, other: LearnerConfig, difference: str
) -> None:
    write_json(saved / "model.json", {"config": to_json(other), "provenance": {}})
    with pytest.raises(CheckpointError, match=f"is of another architecture: .*{difference}"):
        Learner.load(saved)


def test_refused_weights_leave_the_module_untouched() -> None:
    module = nn.Linear(2, 3)
    before = module.weight.clone()
    with pytest.raises(CheckpointError, match=r"'bias' is \[4\], expected \[3\]"):
        load_weights(module, {"weight": torch.zeros(3, 2), "bias": torch.zeros(4)}, "it")
    assert torch.equal(module.weight, before)


def test_a_missing_model_is_an_error_that_says_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no model .* give the name of a bundled one"):
        find_model(tmp_path / "nowhere")
    (tmp_path / "model.json").write_text("{}")
    with pytest.raises(CheckpointError):
        Learner.load(tmp_path)
    write_json(tmp_path / "model.json", {"config": to_json(TINY)})
    with pytest.raises(CheckpointError, match=r"model\.safetensors does not exist"):
        Learner.load(tmp_path)


def test_half_precision_is_for_weights_and_not_for_counters(tmp_path: Path) -> None:
    module = nn.BatchNorm2d(4)
    save_model(tmp_path, module, TINY, {}, half=True)
    tensors = read_tensors(tmp_path / "model.safetensors")
    assert tensors["weight"].dtype == torch.float16 and tensors["num_batches_tracked"].dtype == torch.int64


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_survives_being_written_and_read(name: str) -> None:
    config = preset(name)
    assert from_json(type(config), json.loads(json.dumps(to_json(config)))) == config


def test_unions_are_read_back_as_what_they_were() -> None:
    for encoder in (ConvConfig(), IdentityConfig(7, normalise=True)):
        assert from_json(EncoderConfig, to_json(encoder)) == encoder
    with pytest.raises(CheckpointError, match="expected one of ConvConfig, JointConfig, IdentityConfig"):
        from_json(EncoderConfig, {"type": "Retina"})


def test_an_unknown_preset_is_an_error_that_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match="no preset 'omnigloot'; there are: .*glyphs.*omniglot.*drawings"):
        preset("omnigloot")


def test_another_package_called_experiments_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr("apl.training.presets.importlib.import_module", missing)
    assert preset("glyphs") is PRESETS["glyphs"]
    with pytest.raises(ValueError, match="no preset 'drawings'; there are: glyphs-encoder, glyphs, omniglot"):
        preset("drawings")


def test_a_model_that_shares_an_encoder_holds_its_decoder_alone(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apl.checkpoint.BUNDLED", tmp_path)
    whole = Learner.load("model")
    whole.save(tmp_path / "sharing", {}, encoder="model")
    assert all(name.startswith("decoder.") for name in read_tensors(tmp_path / "sharing" / "model.safetensors"))
    again = Learner.load("sharing").networks.state_dict()
    assert all(torch.equal(again[name], tensor) for name, tensor in whole.networks.state_dict().items())


def test_an_encoder_saved_alone_may_be_shared(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apl.checkpoint.IN_CHECKOUT", tmp_path)
    whole = Learner.load(saved)
    save_model(tmp_path / "alone", whole.encoder, whole.encoder.config, {})
    whole.save(tmp_path / "sharing", {}, encoder="alone")
    assert tensors_hash(read_weights(tmp_path / "sharing")) == tensors_hash(read_weights(saved))


def test_a_shared_encoder_that_has_changed_is_refused(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apl.checkpoint.BUNDLED", tmp_path)
    Learner.load("model").save(tmp_path / "sharing", {}, encoder="model")
    torch.manual_seed(1)
    Learner(TINY).save(saved, {})
    with pytest.raises(CheckpointError, match="another encoder than 'model' holds now: train it again"):
        Learner.load("sharing")


def test_models_only_the_experiments_need_are_found_in_a_checkout_and_not_in_the_package() -> None:
    from apl.checkpoint import BUNDLED, IN_CHECKOUT

    assert find_model("paper-recipe-20way").parent == IN_CHECKOUT
    assert [p.name for p in BUNDLED.iterdir() if p.name.startswith(("paper", "analogy"))] == []
    assert sum(f.stat().st_size for f in BUNDLED.rglob("*") if f.is_file()) < 19.5e6


def test_a_checkpoint_is_on_the_disk_before_it_gets_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    sync, rename = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda handle: (done.append(os.readlink(f"/proc/self/fd/{handle}")), sync(handle)))
    monkeypatch.setattr(os, "replace", lambda old, new: (done.append("renamed"), rename(old, new)))
    for write, name in ((write_json, "a.json"), (write_tensors, "a.safetensors")):
        done.clear()
        write(tmp_path / name, {})
        assert done == [str(tmp_path / f"{name}.part"), "renamed", str(tmp_path)]
