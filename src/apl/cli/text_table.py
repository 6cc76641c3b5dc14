"""Texts in a file or from standard input: CSV, TSV, JSON lines, or one text per line."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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


def read_text_table(path: Path, labelled: bool = True) -> list[TextLine]:
    """The texts of a table; a `ValueError` names the file and the line that is wrong.

    A table to learn from is `labelled`: each line needs a label. In others a label may be missing.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise ValueError(f"there is no file {path}") from None
    return read_texts(content, str(path), path.suffix.lower(), labelled)


def read_texts(content: bytes, name: str, suffix: str, labelled: bool = False) -> list[TextLine]:
    """The texts in `content`. Without a suffix the first line decides: a table's head, a JSON object, or a plain text."""
    try:
        decoded = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(f"{name} is not UTF-8: save it as UTF-8 first") from None
    text = decoded.replace("\r\n", "\n").replace("\r", "\n")
    found = [_line(name, record, labelled) for record in _records(text, name, suffix)]
    if not found:
        raise ValueError(f"{name} holds no texts")
    return found


def _records(content: str, name: str, suffix: str) -> Iterator[Record]:
    head = content.split("\n", 1)[0]
    if suffix == ".jsonl" or (not suffix and head.lstrip().startswith("{")):
        return _json_lines(name, content)
    if suffix or any(column in TEXT_NAMES for column in _columns(head, _delimiter(head))):
        return _csv(name, content, "\t" if suffix == ".tsv" else _delimiter(head))
    return ((number, {"text": line}) for number, line in enumerate(content.splitlines(), 1) if line.strip())


def _line(name: str, record: Record, labelled: bool) -> TextLine:
    line, fields = record
    text = _field(name, line, fields, TEXT_NAMES)
    label = _field(name, line, fields, LABEL_NAMES, required=labelled)
    if text is None or not text.strip():
        raise ValueError(f"{name}, line {line}: the text is empty")
    if labelled and (label is None or not label.strip()):
        raise ValueError(f"{name}, line {line}: the label is empty")
    return TextLine(line, text, None if label is None or not label.strip() else label.strip())


def _delimiter(head: str) -> str:
    """Where the comma is the decimal point, spreadsheets put semicolons between columns."""
    if "\t" in head:
        return "\t"
    return ";" if ";" in head and "," not in head else ","


def _columns(head: str, delimiter: str) -> list[str]:
    return [column.strip().strip('"').lower() for column in head.split(delimiter)]


def _csv(name: str, content: str, delimiter: str) -> Iterator[Record]:
    reader = csv.reader(io.StringIO(content), delimiter=delimiter, strict=True)
    mark = {",": "a comma", ";": "a semicolon", "\t": "a tab"}[delimiter]
    try:
        header = [column.strip().lower() for column in next(reader, [])]
        for values in reader:
            if not values:
                continue
            if len(values) != len(header):
                problem = f"{len(values)} columns where the first line has {len(header)}"
                raise ValueError(f"{name}, line {reader.line_num}: {problem} (a text with {mark} needs quotes)")
            yield reader.line_num, dict(zip(header, values, strict=True))
    except csv.Error as error:
        raise ValueError(f"{name}, line {reader.line_num}: {error}") from None


def _json_lines(name: str, content: str) -> Iterator[Record]:
    for number, line in enumerate(content.split("\n"), 1):
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
        except ValueError as error:
            raise ValueError(f"{name}, line {number}: {error}") from None
        if not isinstance(fields, dict):
            raise ValueError(f'{name}, line {number}: expected an object such as {{"text": "…", "label": "…"}}')
        yield number, fields


def _field(name: str, line: int, fields: dict[str, Any], names: tuple[str, ...], required: bool = True) -> str | None:
    column = next((column for column in names if column in fields), None)
    if column is None:
        if not required:
            return None
        there = ", ".join(map(str, fields)) or "nothing"
        raise ValueError(f"{name}, line {line}: no column {' or '.join(names)} (there is {there})")
    value = fields[column]
    if value is None and not required:
        return None
    if isinstance(value, (str, int)) and not isinstance(value, bool):
        return str(value)
    raise ValueError(f"{name}, line {line}: {column} is {type(value).__name__}, expected text")
