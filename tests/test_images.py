"""Pictures from anywhere become the same sheets."""

from __future__ import annotations

import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from apl.classifier.inputs import InputReader
from apl.encoders.trained import trained_encoder
from apl.pictures.drawings import CANVAS_SIDE, fit, from_png, looks_like_a_photograph, read_image, to_png
from apl.pictures.image_file import open_image


@pytest.fixture
def drawing() -> np.ndarray:
    """An L of full ink (255) on 0."""
    sheet = np.zeros((40, 40), np.uint8)
    sheet[8:32, 10:13] = 255
    sheet[29:32, 10:28] = 255
    return sheet


def test_every_way_of_handing_over_a_drawing_gives_the_same_sheet(drawing: np.ndarray) -> None:
    dark = 255 - drawing
    colour = np.stack([dark] * 3, -1)
    clear = np.dstack([np.zeros_like(drawing)] * 3 + [drawing])
    ways = {
        "light ink": drawing,
        "dark ink": dark,
        "floats": dark / 255,
        "truth values": drawing > 0,
        "64-bit integers": dark.astype(np.int64),
        "16 bits": dark.astype(np.uint16) * 257,
        "colour": colour,
        "colour, channels first": colour.transpose(2, 0, 1),
        "one channel": dark[:, :, None],
        "black ink on glass": clear,
        "white ink on glass": np.dstack([np.full_like(drawing, 255)] * 3 + [drawing]),
        "torch": torch.from_numpy(dark)[None],
        "torch, floats": torch.from_numpy(dark / 255).float(),
        "torch, short floats": torch.from_numpy(dark / 255).bfloat16(),
        "torch, colour": torch.from_numpy(colour.transpose(2, 0, 1).copy()),
        "PIL, grey": Image.fromarray(dark),
        "PIL, colour": Image.fromarray(colour),
        "PIL, alpha": Image.fromarray(clear),
        "PIL, palette": Image.fromarray(colour).convert("P"),
        "PIL, one bit": Image.fromarray(dark).convert("1"),
        "PIL, 16 bits": Image.fromarray(dark.astype(np.uint16) * 257),
        "a list": dark.tolist(),
        "grey paper, faint ink": (dark * 0.3 + 100).astype(np.uint8),
    }
    for name, way in ways.items():
        np.testing.assert_array_equal(read_image(way), drawing, err_msg=name)


def test_polarity_can_be_told(drawing: np.ndarray) -> None:
    both = np.full((40, 40), 128, np.uint8)
    both[5:20, 5:20], both[25:35, 25:30] = 255, 0
    assert read_image(both, ink="dark")[30, 27] == 255 and read_image(both, ink="dark")[10, 10] == 0
    assert read_image(both, ink="light")[30, 27] == 0 and read_image(both, ink="light")[10, 10] == 255
    with pytest.raises(ValueError, match="ink is"):
        read_image(drawing, ink="pink")


def test_a_blank_picture_names_the_ink_that_was_asked_for_and_no_other() -> None:
    blank = np.zeros((20, 20), np.uint8)
    with pytest.raises(ValueError, match="ground$"):
        read_image(blank)
    with pytest.raises(ValueError, match="looking for light ink"):
        read_image(blank, ink="light")


@pytest.mark.parametrize(
    ("image", "said"),
    [
        (np.zeros((0, 5), np.uint8), "empty"),
        (np.zeros((20, 20), np.uint8), "blank"),
        (np.full((20, 20), np.nan), "NaN"),
        (np.full((20, 20), np.inf), "infinity"),
        (np.arange(400.0).reshape(20, 20), "0..1"),
        (np.full((20, 20), 300), "0..255"),
        (np.zeros((20, 20, 7)), "H×W"),
        (np.zeros(20), "H×W"),
        (np.zeros((2, 20, 20, 3)), "H×W"),
        (np.broadcast_to(np.uint8(0), (20_000, 20_000)), "pixels, the most is"),
    ],
)
def test_what_cannot_be_a_picture_is_said_plainly(image: np.ndarray, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read_image(image)


@pytest.mark.parametrize("image", ["letter.png", None, 7, np.array([["a", "b"], ["c", "d"]])])
def test_what_is_not_even_an_array_is_a_type_error(image: object) -> None:
    with pytest.raises(TypeError):
        read_image(image)


def test_a_batch_is_a_batch_and_one_is_one(drawing: np.ndarray) -> None:
    reader = InputReader(trained_encoder("drawings"))
    three = np.stack([drawing] * 3)
    for batch in (
        three,
        three[:, None],
        three[..., None],
        torch.from_numpy(three),
        torch.from_numpy(three)[:, None],
        list(three),
        [Image.fromarray(drawing)] * 3,
    ):
        assert len(reader.many(batch, "auto")) == 3
    for one in (drawing, Image.fromarray(drawing)):
        with pytest.raises((TypeError, ValueError), match="_one"):
            reader.many(one, "auto")
    with pytest.raises(ValueError, match="example 1 of 2"):
        reader.many([drawing, np.zeros((9, 9), np.uint8)], "auto")


def test_large_pictures_are_reduced_and_sheets_survive_as_png(drawing: np.ndarray) -> None:
    sheet = read_image(np.kron(drawing, np.ones((10, 20), np.uint8)))
    assert max(sheet.shape) == CANVAS_SIDE and sheet.shape[0] * 2 == sheet.shape[1]
    np.testing.assert_array_equal(from_png(to_png(sheet)), sheet)


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "P", "1", "CMYK", "LA"])
def test_a_huge_picture_is_made_small_before_it_is_made_floats(drawing: np.ndarray, mode: str) -> None:
    sheet = Image.fromarray(255 - drawing)
    huge = sheet.resize((3000, 3000), Image.Resampling.NEAREST).convert(mode)
    tracemalloc.start()
    found = read_image(huge)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3000 * 3000 * (4 if mode == "P" else len(huge.getbands())) * 4 / 2
    expected = read_image(sheet.resize((1500, 1500), Image.Resampling.NEAREST))
    assert np.abs(found.astype(int) - expected).mean() < 2


def test_where_and_how_large_a_drawing_is_does_not_matter(drawing: np.ndarray) -> None:
    moved, doubled = np.roll(drawing, (5, 9), (0, 1)), np.kron(drawing, np.ones((2, 2), np.uint8))
    plain, other, larger = fit([drawing, moved, doubled], 37)[:, 0].astype(int)
    assert (plain == other).all()
    assert np.abs(plain - larger).mean() < 16, "half a pixel of rounding at the edges at most"


@pytest.mark.parametrize("corner", [(0, 0), (150, 30)])
def test_a_small_drawing_anywhere_on_a_large_sheet_is_found(drawing: np.ndarray, corner: tuple[int, int]) -> None:
    top, left = corner
    large = np.zeros((200, 100), np.uint8)
    large[top : top + 40, left : left + 40] = drawing
    ink = fit([large], 56)[0, 0] > 128
    rows, columns = ink.any(1).nonzero()[0], ink.any(0).nonzero()[0]
    assert 0.5 <= (rows[-1] - rows[0]) / 56 <= 0.8
    assert abs((rows[0] + rows[-1]) / 2 - 28) < 3 and abs((columns[0] + columns[-1]) / 2 - 28) < 3


def test_a_sheet_lit_from_one_side_shows_the_same_drawing(drawing: np.ndarray) -> None:
    evenly = fit([read_image(drawing)], 28).astype(int)
    height, width = np.meshgrid(*(np.linspace(0, 1, side) for side in drawing.shape), indexing="ij")
    light = 0.55 + 0.25 * height + 0.2 * width
    lit = fit([read_image((light - 0.4 * drawing / 255).astype(np.float32))], 28).astype(int)
    assert np.abs(lit - evenly).mean() < 4, "of 255"


def test_ink_on_half_of_the_border_is_not_taken_for_light() -> None:
    sheet = np.full((40, 40), 255, np.uint8)
    sheet[:, :12] = 0
    assert (read_image(sheet) == np.where(sheet == 0, 255, 0)).all()


def clouds(seed: int, side: int = 160) -> np.ndarray:
    """Colours that vary at every scale, as things in a photograph do."""
    random = np.random.default_rng(seed)
    frequency = np.hypot(*np.meshgrid(np.fft.fftfreq(side), np.fft.fftfreq(side))) + 1 / side
    layers = [np.fft.ifft2(np.fft.fft2(random.standard_normal((side, side))) / frequency).real for _ in range(3)]
    shades = np.stack([(layer - layer.min()) / np.ptp(layer) for layer in layers], -1)
    return (255 * shades).astype(np.uint8)


@pytest.mark.parametrize("seed", range(5))
def test_a_photograph_is_told_from_a_drawing_under_any_light(drawing: np.ndarray, seed: int) -> None:
    photograph = clouds(seed)
    assert looks_like_a_photograph(photograph) and looks_like_a_photograph(Image.fromarray(photograph).convert("L"))
    assert not looks_like_a_photograph(drawing) and not looks_like_a_photograph(255 - drawing)
    random = np.random.default_rng(seed)
    ink = np.kron(np.pad(drawing, 4), np.ones((5, 5))) / 255
    height, width = np.meshgrid(*(np.linspace(-1, 1, side) for side in ink.shape), indexing="ij")
    lit = 0.7 + random.uniform(-0.2, 0.2) * height + random.uniform(-0.1, 0.1) * width
    shadow = 1 - 0.3 / (1 + np.exp(-(height + width * random.uniform(-1, 1)) / 0.05))
    corners = 1 - 0.15 * (height**2 + width**2)
    for light in (lit, lit * shadow, lit * corners):
        sheet = (light * (1 - 0.8 * ink) + random.normal(0, 0.02, ink.shape)).clip(0, 1)
        assert not looks_like_a_photograph(sheet), "a drawn sheet under a lamp, with a shadow, or darker in the corners"


@pytest.mark.data
def test_photographs_of_imagenet_are_told_from_drawings(real_data: Path) -> None:
    archive = real_data / "imagenet-mini-1000" / "val.zip"
    if not archive.exists():
        pytest.skip(f"no {archive}")
    with zipfile.ZipFile(archive) as photographs:
        names = [name for name in photographs.namelist() if name.endswith(".webp")][::80]
        told = [looks_like_a_photograph(open_image(photographs.read(name))) for name in names]
    assert np.mean(told) > 0.85
    with zipfile.ZipFile(real_data / "omniglot" / "images_evaluation.zip") as drawings:
        names = [name for name in drawings.namelist() if name.endswith(".png")][::130]
        assert not any(looks_like_a_photograph(open_image(drawings.read(name))) for name in names)


def cross(side: int, thick: int, extent: float = 0.6) -> np.ndarray:
    """How much ink: an upright cross whose arms differ, in the middle of the sheet."""
    ink = np.zeros((side, side), np.float32)
    middle, half = side // 2, int(side * extent / 2)
    ink[middle - half : middle + half, middle - thick // 2 : middle - thick // 2 + thick] = 1
    upper = middle - half // 2
    ink[upper - thick // 2 : upper - thick // 2 + thick, middle - half : middle + half] = 1
    return ink


def agreement(picture: np.ndarray, plain: np.ndarray) -> float:
    """How alike an encoder sees the two."""
    seen = [fit([read_image(one)], 56).ravel().astype(float) for one in (picture, plain)]
    return float(np.corrcoef(*seen)[0, 1])


PLACES = np.meshgrid(np.linspace(-1, 1, 160), np.linspace(-1, 1, 160), indexing="ij")
LIGHTS = {
    "brighter in the middle": 0.9 - 0.1 * (PLACES[0] ** 2 + PLACES[1] ** 2),
    "the shadow of a hand": 0.9 - 0.35 / (1 + np.exp(-30 * PLACES[0])),
    "a soft shadow": 0.9 - 0.35 / (1 + np.exp(-6 * PLACES[1])),
}


@pytest.mark.parametrize("light", LIGHTS.values(), ids=LIGHTS)
def test_under_uneven_light_the_strokes_are_the_ink(light: np.ndarray) -> None:
    ink = cross(160, 6)
    assert agreement((light * (1 - 0.8 * ink)).astype(np.float32), 1 - ink) > 0.85


def test_a_small_drawing_on_a_large_sheet_is_seen_as_one_that_fills_it() -> None:
    drawn = cross(80, 4, 0.9)
    sheet = np.zeros((1600, 1600), np.float32)
    sheet[300:380, 1100:1180] = drawn
    assert agreement(1 - sheet, 1 - drawn) > 0.9


@pytest.mark.parametrize("side", [200, 400, 1000])
def test_a_pen_of_one_pixel_is_no_fainter_than_another(side: int) -> None:
    # A few blots, against which the reduced lines would be faint.
    ink = cross(side, 1)
    ink[side // 2 : side // 2 + side // 50, side // 2 : side // 2 + side // 50] = 1
    seen = fit([read_image(1 - ink)], 56)[0, 0]
    assert np.count_nonzero(seen > 128) >= 0.65 * 56, "most of the lines are hardly there"


def test_pictures_of_a_few_pixels_are_not_called_photographs() -> None:
    digits = pytest.importorskip("sklearn.datasets").load_digits().images[:50] / 16
    assert not any(looks_like_a_photograph(digit.astype(np.float32)) for digit in digits)


def test_the_brightest_within_reach_is_found() -> None:
    from apl.pictures.ink import _brightest

    grey = np.random.default_rng(0).random((9, 14), np.float32)
    for reach in (1, 2, 3, 5):
        wanted = [
            [grey[max(0, y - reach) : y + reach + 1, max(0, x - reach) : x + reach + 1].max() for x in range(14)]
            for y in range(9)
        ]
        assert np.array_equal(_brightest(grey, reach), np.array(wanted))
