"""Foreign pictures: six formats, upright, never more than allowed, and no other program is ever started."""

from __future__ import annotations

import io
import struct
import subprocess
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import apl
from apl.pictures.image_file import FORMATS, open_image

EPS = b"""%!PS-Adobe-3.0 EPSF-3.0
%%BoundingBox: 0 0 20 20
%%EndComments
newpath 5 5 moveto 15 15 lineto stroke
showpage
%%EOF
"""


@pytest.fixture
def no_other_program(monkeypatch: pytest.MonkeyPatch) -> None:
    def started(*arguments: object, **_: object) -> None:
        pytest.fail(f"a program was started: {arguments}")

    for name in ("Popen", "run", "call", "check_call", "check_output"):
        monkeypatch.setattr(subprocess, name, started)


def sheet() -> Image.Image:
    pixels = np.full((20, 30, 3), 255, np.uint8)
    pixels[4:8, 4:26] = 0
    return Image.fromarray(pixels)


def encoded(image: Image.Image, form: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def huge_png(side: int) -> bytes:
    """A small file that says it unpacks to side × side pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0))
    body = zlib.compress(bytes((1 + (side + 7) // 8) * side))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", body) + chunk(b"IEND", b"")


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_that_is_named_can_be_read(form: str, tmp_path: Path) -> None:
    data = encoded(sheet(), form)
    (tmp_path / "picture.png").write_bytes(data)
    for source in (data, tmp_path / "picture.png", str(tmp_path / "picture.png")):
        assert open_image(source).size == (30, 20)


def test_postscript_is_refused_whatever_its_name(no_other_program: None, tmp_path: Path) -> None:
    (tmp_path / "drawing.png").write_bytes(EPS)
    for source in (EPS, tmp_path / "drawing.png"):
        with pytest.raises(ValueError, match="not a picture: it may be PNG, JPEG"):
            open_image(source)


@pytest.mark.parametrize("form", ["PPM", "ICO", "PCX", "TGA", "SGI"])
def test_other_formats_are_refused(form: str) -> None:
    with pytest.raises(ValueError, match="not a picture"):
        open_image(encoded(sheet(), form))


def test_a_photograph_stands_the_way_the_camera_was_held() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turned a quarter to the right
    turned = open_image(encoded(sheet(), "JPEG", exif=exif.tobytes(), quality=100))
    assert turned.size == (20, 30)
    upright = np.asarray(sheet().rotate(-90, expand=True).convert("L")).astype(int)
    assert np.abs(np.asarray(turned.convert("L")).astype(int) - upright).max() < 32


@pytest.mark.parametrize("side", [9_000, 20_000])
def test_a_picture_that_unpacks_to_too_much_is_refused_in_one_sentence(side: int) -> None:
    with pytest.raises(ValueError, match="pixels, the most is 64,000,000: reduce it first"):
        open_image(huge_png(side))
    with pytest.raises(ValueError, match="30×20 pixels, the most is 100"):
        open_image(encoded(sheet(), "PNG"), most_pixels=100)


def test_a_photograph_up_to_four_times_too_large_is_read_at_half_its_size() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    photograph = Image.effect_noise((301, 200), 40).convert("RGB")
    data = encoded(photograph, "JPEG", exif=exif.tobytes())
    smaller = open_image(data, most_pixels=20_000)
    assert smaller.size == (100, 151)
    assert open_image(data, most_pixels=60_200).size == (200, 301)
    for too_few in (15_000, 1):
        with pytest.raises(ValueError, match="301×200 pixels, the most is"):
            open_image(data, most_pixels=too_few)
    with pytest.raises(ValueError, match="301×200 pixels, the most is 20,000"):
        open_image(encoded(photograph, "PNG"), most_pixels=20_000)


def test_a_small_jpeg_that_walks_over_its_picture_thousands_of_times_is_refused_at_once(tmp_path: Path) -> None:
    whole = encoded(Image.new("L", (64, 64)), "JPEG", progressive=True)
    start = whole.rindex(b"\xff\xda")
    many = whole[:start] + 5000 * whole[start:-2] + whole[-2:]
    (tmp_path / "many.jpg").write_bytes(many)
    for source in (many, tmp_path / "many.jpg"):
        with pytest.raises(ValueError, match="damaged"):
            open_image(source)
    assert open_image(whole).size == (64, 64)


@pytest.mark.parametrize(("order", "big"), [("<", False), (">", False), ("<", True)])
def test_a_tiff_of_very_many_pieces_is_refused_before_it_is_opened(order: str, big: bool, monkeypatch) -> None:
    whole = encoded(sheet(), "TIFF")
    assert open_image(whole).size == (30, 20)
    side, offset = 200, 16
    pieces = struct.pack(f"{order}{side * side}I", *[offset] * side**2)
    number, long = ("Q", "Q") if big else ("I", "I")
    tags = [(256, side), (257, side), (258, 8), (259, 1), (262, 1), (277, 1), (322, 1), (323, 1)]
    entries = [struct.pack(f"{order}HH{number}{long}", tag, 16 if big else 4, 1, value) for tag, value in tags]
    entries.append(struct.pack(f"{order}HH{number}{long}", 324, 4, side * side, offset))
    head = (b"II" if order == "<" else b"MM") + struct.pack(f"{order}H", 43 if big else 42)
    head += (
        struct.pack(f"{order}HHQ", 8, 0, offset + len(pieces))
        if big
        else struct.pack(f"{order}I", offset + len(pieces))
    )
    table = struct.pack(f"{order}{'Q' if big else 'H'}", len(entries)) + b"".join(entries) + bytes(8)
    monkeypatch.setattr(Image, "open", lambda *_, **__: pytest.fail("it was opened"))
    with pytest.raises(ValueError, match="damaged"):
        open_image(head.ljust(offset, b"\0") + pieces + table)


def test_damaged_and_missing_files_are_said_plainly(tmp_path: Path) -> None:
    whole = encoded(Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64), np.uint8)), "PNG")
    for data in (whole[:-2000], whole[:40] + bytes(60) + whole[100:]):
        with pytest.raises(ValueError, match="damaged|not a picture"):
            open_image(data)
    with pytest.raises(ValueError, match="no such file"):
        open_image(tmp_path / "nothing.png")
    with pytest.raises(ValueError, match="is a directory"):
        open_image(tmp_path)


def test_no_other_module_decodes_pictures_by_itself() -> None:
    source = Path(apl.__file__).parent
    found = [path.name for path in source.rglob("*.py") if "Image.open(" in path.read_text(encoding="utf-8")]
    assert found == ["image_file.py"]
