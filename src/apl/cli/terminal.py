"""Text for a terminal: names on one line, and tables in columns."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

JOINERS = "\u200c\u200d"
"""Invisible, but Persian, Indic scripts and emoji need them."""


def one_line(text: object) -> str:
    """A name from a file or a memory, with characters that would break or colour the line escaped."""
    return "".join(c if c.isprintable() or c in JOINERS else c.encode("unicode_escape").decode() for c in str(text))


def utf8(name: str) -> str:
    """A file's name as UTF-8; bytes that are not valid are escaped."""
    return name.encode("utf-8", "backslashreplace").decode()


def counted(number: int, noun: str) -> str:
    """A number with its noun: 1 row, 2 rows, 3 classes."""
    plural = noun + ("es" if noun.endswith("s") else "s")
    return f"{number} {noun if number == 1 else plural}"


def remark(text: str) -> None:
    """One line on stderr."""
    print(one_line(text), file=sys.stderr)


def print_json(value: Any) -> None:
    print(json.dumps(value, ensure_ascii=False))


def print_result(result: Mapping[str, Any] | Sequence[Mapping[str, Any]], as_json: bool) -> None:
    """One result on a line, or several of one kind as a table; for programs, JSON."""
    if as_json:
        print_json(result)
    elif isinstance(result, Mapping):
        shown = {name: " ".join(map(str, v)) if isinstance(v, list | tuple) else v for name, v in result.items()}
        print(", ".join(f"{name.replace('_', ' ')} {one_line(v)}" for name, v in shown.items() if v != ""))
    elif result:
        heads = [name.replace("_", " ") for name in result[0]]
        print(table(heads, [list(line.values()) for line in result]))


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Columns under their names; numbers are aligned right, texts left."""
    cells = [list(head), *(list(map(_cell, row)) for row in rows)]
    columns = [_aligned(column) for column in zip(*cells, strict=True)]
    return "\n".join("  ".join(line).rstrip() for line in zip(*columns, strict=True))


def _cell(value: object) -> str:
    return "" if value is None else f"{value:.3f}" if isinstance(value, float) else one_line(value)


def _aligned(column: Sequence[str]) -> list[str]:
    from rich.cells import cell_len  # ideographs take two columns of a terminal, combining marks none

    gaps = [" " * (max(map(cell_len, column)) - cell_len(cell)) for cell in column]
    numbers = all(map(_is_number, column[1:]))
    return [gap + cell if numbers else cell + gap for cell, gap in zip(column, gaps, strict=True)]


def _is_number(cell: str) -> bool:
    try:
        float(cell.removesuffix("%"))
    except ValueError:
        return False
    return True
