"""A student learns from a joint encoder: it starts as one of its parts, comes nearer, resumes bit for bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from apl.checkpoint import read_json
from apl.config import ConvConfig, Group, JointConfig
from apl.data.jitter import JitterConfig
from apl.data.source import DataSource, Mirrored
from apl.encoder import ConvEncoder, JointEncoder, build_encoder, embed_all
from apl.training.run import RunOptions
from apl.weights_file import read_tensors, save_model
from experiments.training.distil import DistilConfig, distil, laid_over

PART = ConvConfig(image_size=16, stem_channels=8, stem_stride=2, groups=(Group(16, 1), Group(8, 1)))
GLYPHS = DataSource("glyphs", rotations=False, glyph_classes=20)


@pytest.fixture
def config(tmp_path: Path) -> DistilConfig:
    torch.manual_seed(0)
    joint = JointConfig((PART, replace(PART, stem_channels=4)), 32)
    save_model(tmp_path / "teacher", build_encoder(joint), joint, {"made": "for a test"}, half=False)
    return DistilConfig(str(tmp_path / "teacher"), data=GLYPHS, mirrored="none", steps=4, batch=12, warmup_steps=2)


def alike(one: torch.nn.Module, other: torch.nn.Module) -> float:
    images = GLYPHS.load("validation", 16).images[:60]
    return float(F.cosine_similarity(embed_all(one, images), embed_all(other, images)).mean())


def test_the_student_comes_nearer_to_its_teacher(
    config: DistilConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("experiments.training.distil._fitted_map", lambda own, goal: torch.randn(32, own.shape[1]))
    teacher = build_encoder(JointConfig((PART, replace(PART, stem_channels=4)), 32))
    teacher.load_state_dict(read_tensors(tmp_path / "teacher" / "model.safetensors"))
    still = JitterConfig(rotation_degrees=0.0, scale=0.0, shear=0.0, shift=0.0, elastic=0.0, thickness=0.0)
    easy = replace(config, pen_share=0.0, jitter=still, learning_rate=3e-3, batch=32)
    early = distil(replace(easy, steps=1, learning_rate=0.0), RunOptions(tmp_path / "early"))
    late = distil(replace(easy, steps=40), RunOptions(tmp_path / "late"))
    assert alike(late, teacher) > alike(early, teacher) + 0.1
    provenance = read_json(tmp_path / "late" / "encoder" / "model.json")["provenance"]
    assert provenance["teacher"] == {"made": "for a test"} and provenance["steps"] == 40


def test_an_interrupted_student_ends_as_one_that_was_not(config: DistilConfig, tmp_path: Path) -> None:
    whole = distil(config, RunOptions(tmp_path / "whole"))
    assert isinstance(whole, JointEncoder) and len(whole.parts) == 1
    distil(config, RunOptions(tmp_path / "parts", minutes=0.0))
    parts = distil(config, RunOptions(tmp_path / "parts", resume=True))
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), parts.parameters(), strict=True))


def test_a_student_with_weights_keeps_its_own_space(config: DistilConfig, tmp_path: Path) -> None:
    made = distil(replace(config, steps=30, learning_rate=3e-3), RunOptions(tmp_path / "first"))
    assert isinstance(made, JointEncoder)
    # The same function, its numbers in another order: its teacher must be turned to that order.
    shuffled = JointEncoder(made.config)
    shuffled.load_state_dict(made.state_dict())
    shuffled.project.weight.data = shuffled.project.weight.data.flip(0)
    save_model(tmp_path / "shuffled", shuffled, shuffled.config, {})
    on = replace(config, student_from=str(tmp_path / "shuffled"), learning_rate=1e-4)
    later = distil(on, RunOptions(tmp_path / "later"))
    assert alike(later, shuffled.eval()) > 0.9


def test_printed_characters_are_learnt_beside_the_taught_ones(
    config: DistilConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    distil(replace(config, steps=1), RunOptions(tmp_path / "first"))
    more = DataSource("glyphs", rotations=False, glyph_classes=12)
    images = more.load("train", 16)
    monkeypatch.setattr("experiments.training.distil.load_printed", lambda size: images)
    on = replace(config, student_from=str(tmp_path / "first" / "encoder"), printed_share=0.5, thinnest=1)

    def recognised(steps: int) -> float:
        place = tmp_path / str(steps)
        student = distil(replace(on, steps=steps, batch=24, learning_rate=5e-3), RunOptions(place))
        directions = read_tensors(place / f"state-{steps}.safetensors")["module.directions"]
        assert len(directions) == 20 + 12
        seen = F.normalize(embed_all(student, images.images), dim=1) @ F.normalize(directions, dim=1).T
        return float((seen.argmax(1) == images.labels + 20).float().mean())

    assert recognised(60) > recognised(1) + 0.1


def test_a_single_network_has_nothing_to_distil(config: DistilConfig, tmp_path: Path) -> None:
    save_model(tmp_path / "one", ConvEncoder(PART), PART, {})
    with pytest.raises(ValueError, match="nothing to distil"):
        distil(replace(config, teacher=str(tmp_path / "one")), RunOptions(tmp_path / "two"))


def test_figures_are_laid_over_one_another() -> None:
    images = GLYPHS.load("validation", 16).images[:8].float() / 255
    over = laid_over(images, torch.Generator().manual_seed(0))
    assert over.shape == (4, 1, 16, 16) and float(over.max()) <= 1


def test_validation_classes_are_trained_on_only_where_asked_and_change_nothing_kept_for_the_decoder() -> None:
    more = replace(GLYPHS, with_validation=True)

    def names(source: DataSource, mirrored: Mirrored) -> set[str]:
        return set(source.load_training(16, mirrored).class_names)

    held_out = set(GLYPHS.load("validation", 16).class_names)
    assert not held_out & names(GLYPHS, "none") and names(more, "none") == held_out | names(GLYPHS, "none")
    kept = names(GLYPHS, "for_decoder")
    assert kept <= names(more, "for_decoder") and not kept & names(more, "for_encoder")
