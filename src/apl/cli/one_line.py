"""Names from files and memories as text for one line of a terminal: what would break or colour the line is spelt out."""

from __future__ import annotations

JOINERS = "\u200c\u200d"
"""Invisible, but Persian, Indic scripts and emoji are not written without them."""


def one_line(text: object) -> str:
    return "".join(c if c.isprintable() or c in JOINERS else _escaped(c) for c in str(text))


def utf8(name: str) -> str:
    """A file's name as UTF-8 can hold it; bytes that are none are spelt out."""
    return name.encode("utf-8", "backslashreplace").decode()


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()
