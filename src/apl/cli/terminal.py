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
    """Columns under their names; numbers are aligned right, texts left."""
    cells = [list(head), *([one_line(cell) for cell in row] for row in rows)]
    columns = [_aligned(column) for column in zip(*cells, strict=True)]
    return "\n".join("  ".join(line).rstrip() for line in zip(*columns, strict=True))


def _aligned(column: Sequence[str]) -> list[str]:
    width = max(map(len, column))
    numbers = all(map(_is_number, column[1:]))
    return [cell.rjust(width) if numbers else cell.ljust(width) for cell in column]


def _is_number(cell: str) -> bool:
    try:
        float(cell.removesuffix("%"))
    except ValueError:
        return False
    return True


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()
