"""Encoders trained apart and joined into one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from apl.cli import main
from apl.config import ConvConfig, Group
from apl.data.source import DataSource
from apl.encoder import ConvEncoder, JointEncoder, build_encoder
from apl.training.presets import PRESETS
from apl.training.run import RunOptions
from apl.training.saved_encoder import read_encoder
from apl.weights_file import save_model
from experiments.training.join import JoinConfig, join, main_directions

FIRST = ConvConfig(image_size=14, stem_channels=8, stem_stride=2, groups=(Group(8, 1), Group(8, 1)))
SECOND = replace(FIRST, stem_channels=4, groups=(Group(6, 2), Group(4, 1)))
GLYPHS = DataSource("glyphs", rotations=False, glyph_classes=12)


@pytest.fixture
def parts(tmp_path: Path) -> tuple[str, ...]:
    torch.manual_seed(0)
    for number, config in enumerate((FIRST, SECOND)):
        save_model(tmp_path / str(number), ConvEncoder(config), config, {"number": number}, half=False)
    return str(tmp_path / "0"), str(tmp_path / "1")


def test_as_wide_as_its_parts_it_measures_angles_as_they_do_side_by_side(
    parts: tuple[str, ...], tmp_path: Path
) -> None:
    width = 8 * 4 + 4 * 4
    joined = join(JoinConfig(parts, width, GLYPHS, drawings=100), RunOptions(tmp_path / "joined"))
    images = torch.rand(6, 1, 14, 14)
    with torch.no_grad():
        apart = torch.cat([build(part)(images) for part in parts], 1)
        together = joined(images)
    assert together.shape == (6, width)
    torch.testing.assert_close(together.norm(dim=1), torch.full((6,), width**0.5))
    cosines = [F.normalize(e, dim=1) @ F.normalize(e, dim=1).T for e in (together, apart)]
    torch.testing.assert_close(*cosines, atol=1e-5, rtol=1e-5)


def test_what_is_joined_already_can_be_joined_with_another(parts: tuple[str, ...], tmp_path: Path) -> None:
    join(JoinConfig(parts, 10, GLYPHS, drawings=60), RunOptions(tmp_path / "two"))
    two = str(tmp_path / "two" / "encoder")
    joined = join(JoinConfig((two, parts[0]), 10 + 8 * 4, GLYPHS, drawings=100), RunOptions(tmp_path / "three"))
    images = torch.rand(6, 1, 14, 14)
    with torch.no_grad():
        of_two = build(two)
        apart = torch.cat([of_two.project(of_two.side_by_side(images)), build(parts[0])(images)], 1)
        together = joined(images)
    assert len(joined.parts) == 3
    cosines = [F.normalize(e, dim=1) @ F.normalize(e, dim=1).T for e in (together, apart)]
    torch.testing.assert_close(*cosines, atol=1e-5, rtol=1e-5)


def build(part: str) -> torch.nn.Module:
    saved = read_encoder(part)
    encoder = build_encoder(saved.config).eval()
    encoder.load_state_dict(saved.tensors)
    return encoder


def test_what_is_saved_is_what_was_made_and_says_where_it_comes_from(parts: tuple[str, ...], tmp_path: Path) -> None:
    joined = join(JoinConfig(parts, 10, GLYPHS, drawings=60), RunOptions(tmp_path / "joined"))
    again, images = build(str(tmp_path / "joined" / "encoder")), torch.rand(3, 1, 14, 14)
    assert isinstance(again, JointEncoder) and again.config.image_size == 14
    with torch.inference_mode():
        assert torch.equal(again(images), joined(images))
    provenance = read_encoder(tmp_path / "joined" / "encoder").provenance
    assert [part["number"] for part in provenance["parts"]] == [0, 1]


def test_the_main_directions_are_those_in_use() -> None:
    generator = torch.Generator().manual_seed(0)
    plane = torch.linalg.qr(torch.randn(9, 2, generator=generator)).Q
    vectors = torch.randn(50, 2, generator=generator) @ plane.T
    directions = main_directions(vectors, 2)
    torch.testing.assert_close(directions @ directions.T, torch.eye(2), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(vectors @ directions.T @ directions, vectors, atol=1e-5, rtol=1e-5)
    with pytest.raises(ValueError, match="9 numbers have no 10 directions"):
        main_directions(vectors, 10)


def test_encoders_of_different_image_sizes_are_refused(parts: tuple[str, ...], tmp_path: Path) -> None:
    larger = replace(FIRST, image_size=28)
    save_model(tmp_path / "larger", ConvEncoder(larger), larger, {}, half=False)
    with pytest.raises(ValueError, match="images of the same size"):
        join(JoinConfig((parts[0], str(tmp_path / "larger")), 10, GLYPHS), RunOptions(tmp_path / "joined"))


def test_the_command_joins_and_refuses_what_means_nothing_to_it(
    parts: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(PRESETS, "joint", JoinConfig(parts, 10, GLYPHS, drawings=60))
    assert main(["train", "joint", "--directory", str(tmp_path / "run")]) == 0
    assert "validation" in capsys.readouterr().out
    assert main(["train", "joint", "--directory", str(tmp_path / "run"), "--steps", "3"]) != 0
    assert "is not valid" in capsys.readouterr().err
