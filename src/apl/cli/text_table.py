"""Texts in a file or from standard input: CSV, TSV, JSON lines, or one text per line."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from apl.store.rows import checked_text

SUFFIXES = (".csv", ".tsv", ".jsonl")
TEXT_NAMES = ("text", "sentence", "utterance", "query")
LABEL_NAMES = ("label", "category", "intent", "class")

Record = tuple[int, dict[str, Any]]
"""The number of a line, and its fields by name."""


@dataclass(frozen=True)
class TextLine:
    """One line of a table."""

    line: int
    text: str
    label: str | None


def is_text_table(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES


def read_texts(content: bytes, name: str, suffix: str = "", labelled: bool = False) -> list[TextLine]:
    """The texts in `content`; a `ValueError` names the line that is wrong. If `labelled`, each line needs a label.

    Without a suffix the first line decides: a table's head, a JSON object, or a plain text.
    """
    try:
        decoded = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(f"{name} is not UTF-8: save it as UTF-8 first") from None
    text = decoded.replace("\r\n", "\n").replace("\r", "\n")
    found = [_line(f"{name}, line {line}", line, fields, labelled) for line, fields in _records(text, name, suffix)]
    if not found:
        raise ValueError(f"{name} holds no texts")
    return found


def _records(content: str, name: str, suffix: str) -> Iterator[Record]:
    head = content.split("\n", 1)[0]
    if suffix == ".jsonl" or (not suffix and head.lstrip().startswith("{")):
        return _json_lines(name, content)
    delimiter = "\t" if suffix == ".tsv" else _delimiter(head)
    columns = [column.strip().strip('"').lower() for column in head.split(delimiter)]
    if suffix or any(column in TEXT_NAMES for column in columns):
        return _csv(name, content, delimiter)
    return ((number, {"text": line}) for number, line in enumerate(content.split("\n"), 1) if line.strip())


def _delimiter(head: str) -> str:
    """Where the comma is the decimal point, spreadsheets put semicolons between columns."""
    if "\t" in head:
        return "\t"
    return ";" if ";" in head and "," not in head else ","


def _csv(name: str, content: str, delimiter: str) -> Iterator[Record]:
    reader = csv.DictReader(io.StringIO(content), delimiter=delimiter, strict=True)
    mark = {",": "a comma", ";": "a semicolon", "\t": "a tab"}[delimiter]
    try:
        reader.fieldnames = columns = [column.strip().lower() for column in reader.fieldnames or ()]
        if twice := sorted({column for column in columns if column and columns.count(column) > 1}):
            raise ValueError(f"{name}: two columns are named {twice[0]!r}")
        for fields in reader:
            if None in fields or None in fields.values():
                problem = f"another number of columns than in the first line (a text with {mark} needs quotes)"
                raise ValueError(f"{name}, line {reader.line_num}: {problem}")
            yield reader.line_num, fields
    except csv.Error as error:
        raise ValueError(f"{name}, line {reader.reader.line_num}: {error}") from None


def _json_lines(name: str, content: str) -> Iterator[Record]:
    for number, line in enumerate(content.split("\n"), 1):
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{name}, line {number}: {error}") from None
        if not isinstance(fields, dict):
            raise ValueError(f'{name}, line {number}: expected an object such as {{"text": "…", "label": "…"}}')
        yield number, fields


def _line(where: str, line: int, fields: dict[str, Any], labelled: bool) -> TextLine:
    text = _field(where, fields, TEXT_NAMES, required=True)
    label = _field(where, fields, LABEL_NAMES, required=labelled).strip()
    try:
        return TextLine(line, text, checked_text(label, "label") or None)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def _field(where: str, fields: dict[str, Any], names: tuple[str, ...], required: bool) -> str:
    """The column under one of these names; "" if it is missing and not required."""
    column = next((name for name in names if name in fields), None)
    if column is None and required:
        raise ValueError(f"{where}: no column {' or '.join(names)} (there is {', '.join(fields) or 'nothing'})")
    value = None if column is None else fields[column]
    if isinstance(value, bool) or not isinstance(value, str | int | None):
        raise ValueError(f"{where}: {column} is {type(value).__name__}, expected text")
    told = "" if value is None else str(value)
    if required and not told.strip():
        raise ValueError(f"{where}: the {names[0]} is empty")
    return told
