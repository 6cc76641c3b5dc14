"""Printed characters: nothing that a test or validation asks about is learnt from, and every picture is of its character."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import matplotlib
import pytest
import torch

from apl.data.files import DataError
from apl.data.omniglot import PAPER_TEST, VALIDATION
from experiments.data.fonts import font_files, is_taken, print_characters, taken

MATPLOTLIB = Path(matplotlib.get_data_path()) / "fonts" / "ttf"

UNICODE_NAMES = {
    "Bengali": ("BENGALI",),
    "Ge_ez": ("ETHIOPIC",),
    "Glagolitic": ("GLAGOLITIC",),
    "Gurmukhi": ("GURMUKHI",),
    "Kannada": ("KANNADA", "TELUGU"),
    "Malayalam": ("MALAYALAM",),
    "Manipuri": ("MEETEI",),
    "Old_Church_Slavonic_(Cyrillic)": ("CYRILLIC", "COPTIC"),
    "Oriya": ("ORIYA",),
    "Tibetan": ("TIBETAN", "PHAGS-PA", "LEPCHA"),
    "Armenian": ("ARMENIAN",),
    "Early_Aramaic": ("IMPERIAL ARAMAIC", "PHOENICIAN", "SAMARITAN", "SYRIAC", "MANDAIC"),
    "Hebrew": ("HEBREW",),
    "Mkhedruli_(Georgian)": ("GEORGIAN",),
}
"""What the scripts of the alphabets held out, and those that look like them, are called in Unicode."""


def test_no_character_of_an_alphabet_held_out_is_learnt_from() -> None:
    assert set(UNICODE_NAMES) == PAPER_TEST | VALIDATION
    held_out = tuple(word for words in UNICODE_NAMES.values() for word in words)
    assert not [c for c in taken() if unicodedata.name(c).startswith(held_out)]


def test_no_digit_and_no_latin_letter_is_learnt_from() -> None:
    for character in taken():
        name = unicodedata.name(character)
        assert unicodedata.numeric(character, None) is None, name
        assert not {"LATIN", "DIGIT", "NUMBER", "NUMERAL"} & set(name.split()), name
        assert not any(c.isascii() and c.isalnum() for c in unicodedata.normalize("NFKD", character)), name
    assert min(taken()) >= "Ͱ"


@pytest.mark.parametrize(
    ("character", "is_one"), [("あ", True), ("ぁ", False), ("木", True), ("三", False), ("λ", True)]
)
def test_what_is_taken_by_example(character: str, is_one: bool) -> None:
    assert is_taken(character) is is_one


def test_a_character_has_one_picture_for_every_font_that_differs_and_none_for_fonts_without_it() -> None:
    files = [MATPLOTLIB / f"{name}.ttf" for name in ("DejaVuSans", "DejaVuSans", "DejaVuSerif", "DejaVuSans-Bold")]
    files.append(MATPLOTLIB / "STIXSizOneSymReg.ttf")  # has no Greek letters
    printed = print_characters("λΩあ", files, 32, fewest=3)
    assert printed.class_names == ("λ", "Ω") and printed.images.shape == (6, 1, 32, 32)
    assert (printed.images.amax((1, 2, 3)) > 200).all()
    again = print_characters("λΩあ", files, 32, fewest=3)
    assert torch.equal(printed.images, again.images)


def test_without_fonts_it_says_how_to_give_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("APL_FONTS", raising=False)
    with pytest.raises(DataError, match="set APL_FONTS to a folder"):
        font_files()
    monkeypatch.setenv("APL_FONTS", str(tmp_path))
    with pytest.raises(DataError, match="no font files"):
        font_files()
    with pytest.raises(DataError, match="none of 1 font files"):
        print_characters("あ", [MATPLOTLIB / "DejaVuSans.ttf"], 32)
    monkeypatch.setenv("APL_FONTS", str(MATPLOTLIB))
    assert len(font_files()) > 10
