from __future__ import annotations

import json
import math
import signal
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from apl.checkpoint import CheckpointError, read_json
from apl.config import ConvConfig, DecoderConfig, Group, IdentityConfig, LearnerConfig
from apl.data.source import DataSource
from apl.evaluate import fixed_context
from apl.learner import Learner
from apl.training.episodic import TrainConfig, load_decoder, mean_of_weights, next_episode_cap, train, with_encoder_of
from apl.training.pretrain import PretrainConfig, pretrain
from apl.training.run import Run, RunOptions, plateau
from apl.training.saved_encoder import read_encoder
from apl.weights_file import read_tensors

ENCODER = ConvConfig(image_size=14, stem_channels=8, stem_stride=2, groups=(Group(8, 1), Group(8, 1)))
DECODER = DecoderConfig(hidden=16, blocks=1, heads=2, label_width=8)
GLYPHS = DataSource("glyphs", rotations=False, glyph_classes=12)
PRETRAIN = PretrainConfig(encoder=ENCODER, data=GLYPHS, steps=5, batch=8, warmup_steps=2)
TRAIN = TrainConfig(
    learner=LearnerConfig(encoder=ENCODER, decoder=DECODER, k=3),
    data=GLYPHS,
    ways=(4,),
    parallel=2,
    batch=4,
    longest_episode=3,
    steps=9,
    learning_rate=1e-3,
)
VARIANTS = {
    "end to end, with noise": replace(TRAIN, noise=0.1),
    "several ways, a mean of weights": replace(TRAIN, ways=(2, 4), averaging=0.9),
    "fixed labels": replace(
        TRAIN, learner=replace(TRAIN.learner, decoder=replace(DECODER, kind="lstm", labels="fixed", way=4))
    ),
}


@pytest.fixture(autouse=True)
def drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same characters serve all tests of this file."""
    monkeypatch.setattr(DataSource, "load", load_once)


load_once = cache(DataSource.load)


def final_state(directory: Path) -> dict[str, torch.Tensor]:
    return read_tensors(directory / read_json(directory / "state.json")["tensors"])


def assert_same_state(one: Path, other: Path) -> None:
    a, b = final_state(one), final_state(other)
    assert set(a) == set(b)
    differing = [name for name in a if not torch.equal(a[name], b[name])]
    assert not differing
    ours, theirs = (read_json(d / "state.json")["state"] for d in (one, other))
    assert {**ours, "seconds": 0} == {**theirs, "seconds": 0}


def in_sessions(run: Any, config: Any, directory: Path) -> int:
    """Stop after every round and resume, until done; returns how many sessions it took."""
    sessions = 0
    while sessions == 0 or read_json(directory / "state.json")["state"]["step"] < config.steps:
        run(config, RunOptions(directory, resume=sessions > 0, minutes=0.0))
        sessions += 1
    return sessions


def test_pretraining_interrupted_and_resumed_equals_uninterrupted_bit_for_bit(tmp_path: Path) -> None:
    pretrain(PRETRAIN, RunOptions(tmp_path / "whole"))
    assert in_sessions(pretrain, PRETRAIN, tmp_path / "parts") == PRETRAIN.steps
    assert_same_state(tmp_path / "whole", tmp_path / "parts")
    saved = [(tmp_path / name / "encoder" / "model.safetensors").read_bytes() for name in ("whole", "parts")]
    assert saved[0] == saved[1]


@pytest.mark.parametrize("variant", VARIANTS)
def test_training_interrupted_and_resumed_equals_uninterrupted_bit_for_bit(variant: str, tmp_path: Path) -> None:
    config = VARIANTS[variant]
    train(config, RunOptions(tmp_path / "whole"))
    assert in_sessions(train, config, tmp_path / "parts") > 1
    assert_same_state(tmp_path / "whole", tmp_path / "parts")
    saved = [(tmp_path / name / "model" / "model.safetensors").read_bytes() for name in ("whole", "parts")]
    assert saved[0] == saved[1]


def test_the_same_seed_trains_the_same_and_another_seed_something_else(tmp_path: Path) -> None:
    short = replace(PRETRAIN, steps=2)
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        pretrain(replace(short, seed=seed), RunOptions(tmp_path / name))
    assert_same_state(tmp_path / "a", tmp_path / "b")
    assert not torch.equal(
        final_state(tmp_path / "a")["module.directions"], final_state(tmp_path / "c")["module.directions"]
    )


def test_when_the_time_is_up_the_run_is_saved_and_can_go_on(tmp_path: Path) -> None:
    long = replace(PRETRAIN, steps=10**6)
    pretrain(long, RunOptions(tmp_path, minutes=0.0))
    assert read_json(tmp_path / "state.json")["state"]["step"] == 1
    assert read_json(tmp_path / "encoder" / "model.json")["provenance"]["steps"] == 1
    pretrain(long, RunOptions(tmp_path, resume=True, minutes=0.0))
    assert read_json(tmp_path / "state.json")["state"]["step"] == 2
    assert len(list(tmp_path.glob("state-*"))) == 1, "old checkpoints pile up"


def test_a_run_is_never_overwritten_or_resumed_under_another_configuration(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="nothing to resume in"):
        pretrain(PRETRAIN, RunOptions(tmp_path / "run", resume=True))
    assert not (tmp_path / "run").exists()
    pretrain(PRETRAIN, RunOptions(tmp_path / "run", minutes=0.0))
    before = {p.name: p.read_bytes() for p in (tmp_path / "run").iterdir() if p.is_file()}
    with pytest.raises(CheckpointError, match="already holds a run: use --resume to go on, or another directory"):
        pretrain(PRETRAIN, RunOptions(tmp_path / "run"))
    with pytest.raises(CheckpointError, match="was started with another 'batch': 8, now 16"):
        pretrain(replace(PRETRAIN, batch=16), RunOptions(tmp_path / "run", resume=True))
    assert {p.name: p.read_bytes() for p in (tmp_path / "run").iterdir() if p.is_file()} == before


def test_a_run_may_be_lengthened_when_resumed(tmp_path: Path) -> None:
    pretrain(replace(PRETRAIN, steps=2), RunOptions(tmp_path))
    pretrain(replace(PRETRAIN, steps=4), RunOptions(tmp_path, resume=True))
    assert read_json(tmp_path / "state.json")["state"]["step"] == 4


@pytest.mark.parametrize("damage", ["state", "tensors", "missing", "config"])
def test_a_damaged_run_is_a_clear_error_when_resumed(tmp_path: Path, damage: str) -> None:
    pretrain(replace(PRETRAIN, steps=1), RunOptions(tmp_path))
    tensors = next(tmp_path.glob("state-*.safetensors"))
    match damage:
        case "state":
            (tmp_path / "state.json").write_text('{"tensors":')
        case "tensors":
            tensors.write_bytes(tensors.read_bytes()[:100])
        case "missing":
            tensors.unlink()
        case "config":
            (tmp_path / "config.json").write_text("")
    with pytest.raises(CheckpointError, match="is damaged|not valid JSON|does not exist"):
        pretrain(PRETRAIN, RunOptions(tmp_path, resume=True))


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step is logged and saved."""
    monkeypatch.setattr("apl.training.run.LOG_EVERY_SECONDS", 0)
    monkeypatch.setattr("apl.training.run.SAVE_EVERY_SECONDS", 0)


def test_ctrl_c_saves_and_ends_in_good_order(tmp_path: Path, always: None, monkeypatch: pytest.MonkeyPatch) -> None:
    log, handler = Run.log, signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(Run, "log", lambda run, **said: (log(run, **said), signal.raise_signal(signal.SIGINT)))
    pretrain(replace(PRETRAIN, steps=10**6), RunOptions(tmp_path))
    assert signal.getsignal(signal.SIGINT) is handler
    assert read_json(tmp_path / "state.json")["state"]["step"] == 1
    assert read_json(tmp_path / "encoder" / "model.json")["provenance"]["steps"] == 1
    [logged] = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert {"step", "seconds", "loss", "accuracy", "images_per_second"} == set(logged)


def test_a_killed_run_goes_on_from_its_last_checkpoint(
    tmp_path: Path, always: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def power_cut(run: Run, **said: float) -> None:
        if run.state["step"] == 3:
            raise SystemExit

    with monkeypatch.context() as patched, pytest.raises(SystemExit):
        patched.setattr(Run, "log", power_cut)
        pretrain(PRETRAIN, RunOptions(tmp_path / "killed"))
    assert read_json(tmp_path / "killed" / "state.json")["state"]["step"] == 2
    pretrain(PRETRAIN, RunOptions(tmp_path / "killed", resume=True))
    pretrain(PRETRAIN, RunOptions(tmp_path / "whole"))
    assert_same_state(tmp_path / "killed", tmp_path / "whole")


def test_episodes_are_cut_to_three_times_what_mastery_took_and_lengthen_when_it_was_not_reached() -> None:
    assert next_episode_cap(math.inf, 32, 800) == 96
    assert next_episode_cap(96.0, None, 96) == 192
    assert next_episode_cap(math.inf, None, 800) == 1600
    assert next_episode_cap(200.0, None, 60) == 120, "what was not shown cannot have been too short"
    assert next_episode_cap(192.0, 16, 48) == 48


def test_the_learning_rate_falls_by_a_tenth_every_thousand_steps_to_its_lowest() -> None:
    config = TrainConfig()
    assert config.rate(0) == 1e-4
    assert math.isclose(config.rate(1000), 0.9e-4) and math.isclose(config.rate(2000), 0.81e-4)
    assert config.rate(10**6) == 1e-5


def test_the_pretraining_rate_warms_up_stays_and_falls_to_zero() -> None:
    rates = [plateau(step, 1000, 1.0, 0.5, warmup_steps=10) for step in (0, 9, 400, 750, 999)]
    assert rates == [0.1, 1.0, 1.0, 0.5, pytest.approx(0.002)]


def test_training_starts_from_a_saved_encoder_and_freezes_it_if_asked(tmp_path: Path) -> None:
    pretrain(replace(PRETRAIN, steps=2), RunOptions(tmp_path / "first"))
    start = read_tensors(tmp_path / "first" / "encoder" / "model.safetensors")
    config = with_encoder_of(TRAIN, tmp_path / "first" / "encoder")
    frozen = train(replace(config, freeze_encoder=True), RunOptions(tmp_path / "frozen"))
    assert all(torch.equal(t, start[name]) for name, t in frozen.encoder.state_dict().items())
    moved = train(config, RunOptions(tmp_path / "moved"))
    assert not torch.equal(moved.encoder.stem.weight, start["stem.weight"])
    provenance = read_json(tmp_path / "frozen" / "model" / "model.json")["provenance"]
    assert provenance["encoder"]["trained_as"] == "classifier of the training classes"
    assert {"training", "split", "split_hash", "steps", "seconds", "commit", "validation"} <= set(provenance)
    whole = with_encoder_of(TRAIN, tmp_path / "frozen" / "model")
    again = Learner(whole.learner)
    read_encoder(tmp_path / "frozen" / "model").load_into(again.encoder)
    torch.testing.assert_close(again.encoder.stem.weight, start["stem.weight"], atol=1e-3, rtol=1e-3)
    on = replace(PRETRAIN, steps=1, learning_rate=0.0, encoder_from=str(tmp_path / "frozen" / "model"))
    assert torch.equal(pretrain(on, RunOptions(tmp_path / "on")).stem.weight, again.encoder.stem.weight)


@pytest.mark.parametrize("way", [4, 9])
def test_fixed_labels_start_as_the_first_of_more_and_anew_where_there_were_fewer(way: int, tmp_path: Path) -> None:
    def learner(labels: int) -> Learner:
        return Learner(replace(TRAIN.learner, decoder=replace(DECODER, labels="fixed", way=labels)))

    saved, started = learner(6), learner(way)
    saved.save(tmp_path / "saved", {}, half=False)
    load_decoder(started, str(tmp_path / "saved"))
    ours, theirs = (one.decoder.labels.embedding.weight[:4] for one in (started, saved))
    assert torch.equal(ours, theirs) is (way == 4)
    assert torch.equal(started.decoder.inputs.project.weight, saved.decoder.inputs.project.weight)


def test_the_curve_of_a_model_trained_on_goes_on_from_the_one_before(tmp_path: Path) -> None:
    def images_seen(run: str) -> list[int]:
        curve = read_json(tmp_path / run / "model" / "model.json")["provenance"]["curve"]
        return [at["images"] for at in curve]

    train(TRAIN, RunOptions(tmp_path / "first"))
    seen = TRAIN.steps * TRAIN.parallel * TRAIN.batch
    first = str(tmp_path / "first" / "model")
    train(replace(TRAIN, decoder_from=first, encoder_from=first), RunOptions(tmp_path / "second"))
    assert images_seen("first") == [seen] and images_seen("second") == [seen, 2 * seen]
    train(replace(TRAIN, decoder_from=first), RunOptions(tmp_path / "another"))
    assert images_seen("another") == [seen], "a decoder on another encoder is another run"


def test_another_encoder_than_the_configuration_s_is_refused(tmp_path: Path) -> None:
    pretrain(replace(PRETRAIN, steps=1), RunOptions(tmp_path))
    other = replace(TRAIN.learner, encoder=replace(ENCODER, stem_channels=4))
    with pytest.raises(CheckpointError, match="holds another encoder than the configuration asks for"):
        read_encoder(tmp_path / "encoder").load_into(Learner(other).encoder)


@pytest.mark.parametrize(
    "change,said",
    [
        ({"learner": LearnerConfig(encoder=IdentityConfig(4), decoder=DECODER)}, "training needs an encoder of images"),
        ({"ways": (1,)}, "way must lie between 2 and the 12 classes"),
        ({"ways": (13,)}, "way must lie between 2 and the 12 classes"),
        ({"learner": replace(TRAIN.learner, decoder=DecoderConfig("nearest"))}, "nothing to train"),
        ({"learner": replace(TRAIN.learner, decoder=DecoderConfig("kernel"))}, "nothing to train"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_anything_is_written(
    change: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=said):
        train(replace(TRAIN, **change), RunOptions(tmp_path / "run"))
    assert not (tmp_path / "run" / "model").exists()


def test_a_small_learner_learns_to_tell_apart_characters_it_has_never_seen(tmp_path: Path) -> None:
    glyphs = DataSource("glyphs", rotations=False, glyph_classes=40)
    encoder = ConvConfig(stem_channels=16, stem_kernel=5, stem_stride=2, groups=(Group(24, 2), Group(32, 1)))
    first = PretrainConfig(encoder=encoder, data=glyphs, steps=110, batch=32, warmup_steps=10)
    pretrain(first, RunOptions(tmp_path / "encoder"))
    config = TrainConfig(
        learner=LearnerConfig(encoder=encoder, decoder=replace(DECODER, hidden=32)),
        data=glyphs,
        freeze_encoder=True,
        ways=(5, 20),
        longest_episode=3,
        steps=15,
        learning_rate=1e-3,
    )
    trained = train(with_encoder_of(config, tmp_path / "encoder" / "encoder"), RunOptions(tmp_path / "learner"))
    torch.manual_seed(0)
    untrained = Learner(config.learner)
    unseen = glyphs.load("test", 28)

    def accuracy(learner: Learner) -> float:
        return fixed_context(learner, unseen.images, unseen.labels, way=20, shot=1, episodes=40, seed=0).mean

    before, after = accuracy(untrained), accuracy(trained)
    # Chance is 0.05.
    assert after > 0.5 and after > before + 0.1, f"{before:.3f} untrained, {after:.3f} trained"


def test_a_linear_rate_stays_and_then_falls_to_the_lowest() -> None:
    config = TrainConfig(steps=1000, learning_rate=1e-3, decay_share=0.5, lowest_learning_rate=1e-5)
    assert config.rate(0) == config.rate(500) == 1e-3
    assert math.isclose(config.rate(750), 5e-4)
    assert config.rate(1000) == 1e-5


def test_the_mean_of_the_weights_follows_them_and_is_what_is_saved(tmp_path: Path) -> None:
    config = replace(TRAIN, averaging=0.9)
    mean = mean_of_weights(Learner(config.learner).networks, 0.9)
    before = mean.module.decoder.inputs.project.weight.clone()
    for moved in (1.0, 2.0):
        after = Learner(config.learner).networks
        torch.nn.init.constant_(after.decoder.inputs.project.weight, moved)
        mean.update_parameters(after)
    weight = mean.module.decoder.inputs.project.weight
    assert torch.allclose(weight, torch.full_like(before, 1.1)) and not weight.requires_grad
    saved = train(config, RunOptions(tmp_path)).decoder.inputs.project.weight
    state = final_state(tmp_path)
    name = "decoder.inputs.project.weight"
    assert torch.equal(saved, state[f"average.module.{name}"]) and not torch.equal(saved, state[f"module.{name}"])
