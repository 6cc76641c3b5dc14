"""A folder of two letters, a small model that tells them apart, and how a command is called: shared by tests."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from apl.cli import main
from apl.config import ConvConfig, DecoderConfig, Group, LearnerConfig
from apl.encoders.python_callable import CallableEncoder
from apl.learner import Learner


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    torch.manual_seed(0)
    encoder = ConvConfig(image_size=20, stem_channels=8, stem_stride=2, groups=(Group(8, 1), Group(8, 1)))
    directory = tmp_path_factory.mktemp("model")
    Learner(LearnerConfig(encoder, DecoderConfig(hidden=16, blocks=1, heads=2), k=5)).save(directory, {})
    return str(directory)


def draw_letters(directory: Path) -> Path:
    for label, rows, columns in (("I", slice(3, 17), slice(9, 11)), ("dash", slice(9, 11), slice(3, 17))):
        (directory / label).mkdir(parents=True)
        for number in range(3):
            sheet = np.full((20, 20), 255, np.uint8)
            sheet[rows, columns] = 0
            Image.fromarray(np.roll(sheet, number, 1)).save(directory / label / f"{number}.png")
    return directory


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    return draw_letters(tmp_path / "letters")


@pytest.fixture(scope="module")
def learnt(model: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The memory of the letters, learnt once for all tests of a file."""
    place = tmp_path_factory.mktemp("learnt")
    assert (
        main(["learn", str(draw_letters(place / "letters")), "--memory", str(place / "m.apl"), "--model", model]) == 0
    )
    return place / "m.apl"


@pytest.fixture
def memory(pictures: Path, learnt: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(learnt, tmp_path / "letters.apl"))


@pytest.fixture
def letters_as_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of the encoder for texts, one that counts letters."""

    def counted(texts: list[str]) -> np.ndarray:
        return np.array([[text.lower().count(chr(97 + i)) for i in range(26)] for text in texts], np.float32)

    encoder = CallableEncoder(counted, fingerprint="letters", kind="text")
    encoder.width = 26
    monkeypatch.setattr("apl.classifier.keeping.open_encoder", lambda name: encoder)


def call(capsys: pytest.CaptureFixture, *arguments: object) -> dict:
    """The one JSON object a command prints when it succeeds."""
    status, out, err = said(capsys, *arguments, "--json")
    assert status == 0, err
    return json.loads(out)


def said(capsys: pytest.CaptureFixture, *arguments: object) -> tuple[int, str, str]:
    capsys.readouterr()
    status = main([str(argument) for argument in arguments])
    return status, *capsys.readouterr()


def scribble(path: Path, seed: int) -> None:
    """A drawing unlike the others."""
    sheet = np.full((20, 20), 255, np.uint8)
    for row, column in np.random.default_rng(seed).integers(2, 16, (4, 2)):
        sheet[row : row + 2, 2:column] = 0
        sheet[row:18, column : column + 2] = 0
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(sheet).save(path)
