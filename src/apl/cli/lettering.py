"""Text on pictures: in a font that has its characters, or else as escapes one can read; never as empty boxes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from functools import cache
from itertools import islice
from pathlib import Path

from PIL import ImageFont

FONTS_TRIED = 400
NOWHERE = "\U0010fffe"
"""A character that no font has: what is drawn for it stands for any that is missing."""

Font = ImageFont.FreeTypeFont


def lettered(text: str, size: int) -> tuple[str, Font]:
    """The text as it can be drawn, and the font to draw it in."""
    text = "".join(character if character.isprintable() else " " for character in text)
    plain = _default(size)
    if not missing(text, plain):
        return text, plain
    best, lacking = plain, missing(text, plain)
    for path in islice(_system_fonts(), FONTS_TRIED):
        font = _loaded(path, size)
        if font is None or len(absent := missing(text, font)) >= len(lacking):
            continue
        best, lacking = font, absent
        if not lacking:
            break
    return "".join(escaped(c) if c in lacking else c for c in text), best


def missing(text: str, font: Font) -> set[str]:
    """The characters this font has no shape for."""
    return {c for c in set(text) if not c.isspace() and _shape(c, font) == _shape(NOWHERE, font)}


def escaped(character: str) -> str:
    return character.encode("ascii", "backslashreplace").decode()


def _shape(character: str, font: Font) -> tuple[tuple[int, int], bytes]:
    mask = font.getmask(character)
    return mask.size, bytes(mask)


@cache
def _default(size: int) -> Font:
    """The font that comes with Pillow."""
    return ImageFont.load_default(size)


@cache
def _loaded(path: Path, size: int) -> Font | None:
    try:
        return ImageFont.truetype(path, size)
    except (OSError, ValueError):
        return None


def _system_fonts() -> Iterator[Path]:
    """Font files where systems keep them; the plain cut of a family before its bold and slanted ones."""
    home = Path.home()
    match sys.platform:
        case "win32":
            places = [Path(os.environ.get("WINDIR", "C:/Windows")) / "Fonts"]
        case "darwin":
            places = [Path("/System/Library/Fonts"), Path("/Library/Fonts"), home / "Library/Fonts"]
        case _:
            places = [
                Path("/usr/share/fonts"),
                Path("/usr/local/share/fonts"),
                home / ".local/share/fonts",
                home / ".fonts",
            ]
    found = [path for place in places for path in place.rglob("*") if path.suffix.lower() in (".ttf", ".otf", ".ttc")]
    fancy = ("bold", "italic", "oblique", "mono", "serif", "light", "condensed")
    yield from sorted(found, key=lambda path: (sum(word in path.name.lower() for word in fancy), path.name))
