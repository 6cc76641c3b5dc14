"""Printed characters: each is a class, with one picture for every font that has it. Training only.

Omniglot has some 860 training characters; fonts have thousands more, in hands and weights of their own. Only whole
scripts that no test or validation asks about are taken, none of their digits, and nothing of the Latin script.
"""

from __future__ import annotations

import os
import random
import unicodedata
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import numpy as np
import torch
from fontTools.ttLib import TTCollection, TTFont, TTLibError
from PIL import ImageFont

from apl.data.files import DataError, parsed_once
from apl.data.labelled import LabelledImages
from apl.pictures.drawings import fit
from apl.progress import progress_bar

FOLDER = "APL_FONTS"
"""Names the folder with font files (.ttf, .otf, .ttc), at any depth."""

_SCRIPTS = (
    "arabic balinese bamum bopomofo buginese canadian cham cjk devanagari greek gujarati hangul hiragana javanese "
    "katakana khmer lao limbu myanmar new_tai nko ol_chiki runic saurashtra sinhala sundanese tagalog tai_le tai_tham "
    "tai_viet tamil thaana thai tifinagh vai yi"
)
SCRIPTS = tuple(name.replace("_", " ") for name in _SCRIPTS.split())
"""How the Unicode names of the characters taken begin. Not among them: the scripts of Omniglot's test and validation
alphabets and those that look like them (Ethiopic, Cyrillic, Hebrew, Telugu beside Kannada, ...), and the Latin one."""

LIKE_LATIN = frozenset("ΑΒΕΖΗΙΚΜΝΟΡΤΥΧικνορυχϲϳͿϹϺͷϜ")
"""Greek letters that print like Latin ones, or like a digit."""

SYMBOLS = ((0x2190, 0x23FF), (0x25A0, 0x26FF), (0x2701, 0x275E), (0x2794, 0x27BE), (0x27C0, 0x27FF), (0x2900, 0x2BFF))
"""Arrows, signs of mathematics, shapes and ornaments: blocks of characters that belong to no script."""

FONT_SIZE = 72
FEWEST, MOST = 4, 20
"""Fewest fonts in which a character must look different to be taken, and the most that are used."""
BUSIEST = 2.6
"""Strokes crossed by a line through the character, on average, from which on it is too fine to be drawn by hand."""


def is_taken(character: str) -> bool:
    """Whether this character may be learnt from."""
    if unicodedata.numeric(character, None) is not None or unicodedata.decomposition(character):
        return False
    name = unicodedata.name(character, "").lower()
    if any(low <= ord(character) <= high for low, high in SYMBOLS):
        return unicodedata.category(character) in ("Sm", "So") and not {"digit", "latin", "letter"} & set(name.split())
    if unicodedata.category(character) not in ("Lo", "Lu", "Ll") or not name.startswith(SCRIPTS):
        return False
    if name.startswith("cjk"):
        return _is_common(character)
    if name.startswith("hangul syllable"):
        # Of two letters: the thousands with a third would be half of all classes.
        return len(_encodes(character, "euc_kr")) == 2 and (ord(character) - 0xAC00) % 28 == 0
    return character not in LIKE_LATIN and not {"small", "halfwidth", "digit"} & set(_outside_greek(name))


def _outside_greek(name: str) -> list[str]:
    """Small kana are large kana once they fill the sheet; a small Greek letter is another shape than its capital."""
    return [] if name.startswith("greek") else name.split()


def _encodes(character: str, code: str) -> bytes:
    try:
        return character.encode(code)
    except UnicodeEncodeError:
        return b""


def _is_common(character: str) -> bool:
    """Among the characters that mainland China, Taiwan and Japan each count as common."""
    mainland, taiwan, japan = (_encodes(character, code) for code in ("gb2312", "big5", "euc_jp"))
    return (
        len(mainland) == len(taiwan) == len(japan) == 2
        and 0xB0 <= mainland[0] <= 0xD7
        and 0xA4 <= taiwan[0] <= 0xC6
        and 0xB0 <= japan[0] <= 0xCF
    )


@cache
def taken() -> tuple[str, ...]:
    """All characters that may be learnt from."""
    return tuple(character for code in range(0x370, 0x10000) if is_taken(character := chr(code)))


def font_files() -> list[Path]:
    """The font files below the folder that APL_FONTS names."""
    where = os.environ.get(FOLDER, "")
    if not where:
        raise DataError(f"no fonts: set {FOLDER} to a folder with font files (on Debian /usr/share/fonts)")
    files = sorted(path for path in Path(where).rglob("*") if path.suffix.lower() in (".ttf", ".otf", ".ttc"))
    if not files:
        raise DataError(f"no font files (.ttf, .otf, .ttc) below {where}")
    return files


def load_printed(size: int) -> LabelledImages:
    """Every character that may be learnt from and that enough fonts have."""
    files = font_files()
    return parsed_once(f"printed-{size}", files, lambda: print_characters(taken(), files, size))


def print_characters(
    characters: Iterable[str], files: list[Path], size: int, fewest: int = FEWEST, most: int = MOST
) -> LabelledImages:
    """The characters that at least `fewest` of these fonts have, named by themselves."""
    pictures: dict[str, dict[bytes, np.ndarray]] = {character: {} for character in characters}
    with progress_bar() as bar:
        for path in bar.track(files, description="printing characters"):
            for font, has in _faces(path):
                for character in pictures.keys() & has:
                    if (ink := _ink(font, character)) is not None:
                        picture = fit([ink], size)[0]
                        pictures[character].setdefault(picture.tobytes(), picture)
    chance = random.Random(0)
    kept = {
        character: chance.sample(list(found.values()), min(most, len(found)))
        for character, found in pictures.items()
        if len(found) >= fewest and np.median([_strokes_crossed(picture) for picture in found.values()]) < BUSIEST
    }
    if not kept:
        raise DataError(f"none of {len(files)} font files has the characters asked for")
    labels = [number for number, found in enumerate(kept.values()) for _ in found]
    images = np.stack([picture for found in kept.values() for picture in found])
    return LabelledImages(torch.from_numpy(images), torch.tensor(labels), tuple(kept))


def _faces(path: Path) -> Iterator[tuple[ImageFont.FreeTypeFont, set[str]]]:
    """The fonts in a file (a collection has several), each with the characters it has."""
    try:
        with TTCollection(path, lazy=True) if path.suffix.lower() == ".ttc" else TTFont(path, lazy=True) as opened:
            faces = opened.fonts if isinstance(opened, TTCollection) else [opened]
            has = [{chr(code) for code in face.getBestCmap() or ()} for face in faces]
        for number, characters in enumerate(has):
            yield ImageFont.truetype(path, FONT_SIZE, number, layout_engine=ImageFont.Layout.BASIC), characters
    except (OSError, TTLibError):  # no font after all, or a damaged one
        return


def _ink(font: ImageFont.FreeTypeFont, character: str) -> np.ndarray | None:
    try:
        mask = font.getmask(character, "L")
    except OSError:  # a damaged outline
        return None
    wide, high = mask.size
    if min(wide, high) < 3 or max(wide, high) > 4 * FONT_SIZE:
        return None
    ink = np.asarray(mask, np.uint8).reshape(high, wide)
    return ink if ink.max() > 128 else None


def _strokes_crossed(picture: np.ndarray) -> float:
    ink = picture[0] > 128
    entered = (np.diff(ink, axis=0).sum() + np.diff(ink, axis=1).sum()) / 2
    return float(entered / max(1, ink.any(0).sum() + ink.any(1).sum()))
