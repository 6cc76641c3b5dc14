"""Text for a terminal: names on one line, and tables in columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

JOINERS = "\u200c\u200d"
"""Invisible, but Persian, Indic scripts and emoji need them."""


def one_line(text: object) -> str:
    """A name from a file or a memory, with characters that would break or colour the line escaped."""
    return "".join(c if c.isprintable() or c in JOINERS else _escaped(c) for c in str(text))


def utf8(name: str) -> str:
    """A file's name as UTF-8; bytes that are not valid are escaped."""
    return name.encode("utf-8", "backslashreplace").decode()


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Columns under their names. The first column is aligned left, the others right."""
    cells = [list(head), *([one_line(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join(
        "  ".join([line[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True))]).rstrip()
        for line in cells
    )


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()
