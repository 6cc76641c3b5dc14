"""Training on coloured pictures of one's own, and using what came out of it without torch."""

from __future__ import annotations

import base64
import io
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from absent_torch import APL, without_torch
from PIL import Image

from apl.cli import main
from apl.pictures.drawings import fit, read_image
from apl.training.presets import PRESETS

COLOURS = {
    "red": (220, 60, 60), "green": (40, 140, 60), "blue": (70, 90, 230), "yellow": (200, 190, 30),
    "violet": (150, 60, 200), "turquoise": (40, 170, 180), "orange": (230, 130, 30), "pink": (230, 110, 170),
}  # fmt: skip


def blot(colour: tuple[int, int, int], seed: int, size: tuple[int, int] = (40, 30)) -> Image.Image:
    """The same shapes in every colour: only by its colour can a class be told."""
    chance = np.random.default_rng(seed)
    pixels = np.full((size[1], size[0], 3), 235.0)
    left, top = chance.integers(4, 10, 2)
    pixels[top : top + 14, left : left + 20] = colour
    return Image.fromarray((pixels + chance.normal(0, 6, pixels.shape)).clip(0, 255).astype(np.uint8))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of coloured pictures, and a model trained on it and exported."""
    place = tmp_path_factory.mktemp("colour")
    for name, colour in COLOURS.items():
        (place / "own" / name).mkdir(parents=True)
        for number in range(6):
            blot(colour, number).save(place / "own" / name / f"{number}.png")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PRESETS, "glyphs-encoder", replace(PRESETS["glyphs-encoder"], steps=25, batch=16))
        patch.chdir(place)
        assert main(["train", "glyphs", "--data", "own", "--colour", "--steps", "5"]) == 0
        assert main(["export", "runs/glyphs/model"]) == 0
    return place


def test_a_model_trained_on_colours_tells_them_apart_without_torch(place: Path) -> None:
    for name in ("red", "green", "blue"):
        (place / "known" / name).mkdir(parents=True)
        for number in range(3):
            blot(COLOURS[name], 20 + number).save(place / "known" / name / f"{number}.png")
    words = ("learn", "known", "--memory", "m.apl", "--model", "runs/glyphs/model", "--json")
    assert json.loads(without_torch(APL, *words, cwd=place))["learnt"] == 9

    (place / "asked").mkdir()
    exif = Image.Exif()
    exif[0x0112] = 6
    blot(COLOURS["red"], 31).save(place / "asked" / "turned.jpg", exif=exif, quality=95)
    blot(COLOURS["green"], 30).convert("RGBA").save(place / "asked" / "alpha.png")
    blot(COLOURS["blue"], 32, (200, 160)).save(place / "asked" / "large.webp")
    blot(COLOURS["blue"], 33).convert("L").save(place / "asked" / "grey.png")
    names = ("turned.jpg", "alpha.png", "large.webp", "grey.png")
    words = ("predict", *(f"asked/{name}" for name in names), "--memory", "m.apl", "--json")
    answers = [json.loads(line)["label"] for line in without_torch(APL, *words, cwd=place).splitlines()]
    assert answers[:3] == ["red", "green", "blue"] and answers[3] in ("red", "green", "blue")

    told = without_torch(APL, "explain", "asked/alpha.png", "--memory", "m.apl", "--json", cwd=place)
    assert json.loads(told)["predicted"] == "green"
    shown = np.asarray(Image.open(place / "alpha.explained.png").convert("RGB"), int)
    assert np.abs(shown[..., 1] - shown[..., 0]).max() > 60, "the explanation is in colour"


def test_the_keys_of_kept_pictures_can_be_made_anew(place: Path) -> None:
    from apl import OnlineClassifier

    clf = OnlineClassifier.from_pretrained(place / "runs/glyphs/model")
    seen = [blot(colour, 40) for colour in COLOURS.values()]
    clf.learn_many(seen, list(COLOURS))
    kept = [clf.store.payload(row.id) for row in clf.store.rows()]
    apart = np.linalg.norm(clf.embed_payloads(kept) - clf.embed(seen).vectors, axis=1)
    between = np.linalg.norm(clf.embed(seen).vectors[:, None] - clf.embed(seen).vectors[None], axis=2)
    assert apart.max() < between[between > 0].min()
    assert clf.input_kind == "photo"


def test_the_service_takes_photographs_for_such_a_model(place: Path) -> None:
    from apl.service.app import create_app
    from apl.service.bodies import Question, read_examples
    from apl.service.settings import Settings

    service = create_app(Settings(model=str(place / "runs/glyphs/model"), memory="ram:")).state.service
    model = service.model
    assert model.input_kind == "photo"
    blot(COLOURS["red"], 0).save(file := io.BytesIO(), "PNG")
    question = Question(image=base64.b64encode(file.getvalue()).decode())
    assert len(model.embed(read_examples(model, [question], 10_000))) == 1


def test_without_colour_it_is_said_that_colours_are_left_out_and_drawings_are_prepared_as_in_use(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from apl.data.folder import load_folder, split_folder

    monkeypatch.chdir(place)
    assert main(["train", "glyphs-encoder", "--data", "own", "--steps", "1", "--directory", "grey"]) == 0
    assert "--colour" in capsys.readouterr().err
    described = json.loads((place / "grey/encoder/model.json").read_text())
    assert described["config"]["channels"] == 1
    first = split_folder("own").train[0]
    used = fit([read_image(Image.open(place / "own" / first / "0.png"))], 28)
    np.testing.assert_array_equal(load_folder("own", "train", 28).images[0], used[0])


@pytest.mark.parametrize(
    "words, told",
    [
        ("train glyphs --colour", "name their directory with --data"),
        (
            "train omniglot-encoder-distilled --data own --colour",
            "--data is not valid with preset omniglot-encoder-distilled",
        ),
        ("train glyphs --data own --colour --encoder omniglot", "the encoder omniglot sees grey"),
    ],
)
def test_colour_where_it_cannot_be_is_refused(
    words: str, told: str, place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    assert main([*words.split(), "--directory", "refused"]) == 2
    assert re.search(told, err := capsys.readouterr().err), err
    assert not Path("refused").exists()
