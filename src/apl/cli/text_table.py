"""Texts with labels in a file: CSV, TSV or JSON lines, with a column for the text and one for the label."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SUFFIXES = (".csv", ".tsv", ".jsonl")
TEXT_NAMES = ("text", "sentence", "utterance", "query")
LABEL_NAMES = ("label", "category", "intent", "class")


@dataclass(frozen=True)
class LabelledText:
    """One line of a table."""

    line: int
    text: str
    label: str


def is_text_table(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES


def read_text_table(path: Path) -> list[LabelledText]:
    """Every line that holds a text; a `ValueError` names the file and the line that is wrong."""
    try:
        content = path.read_text("utf-8-sig")
    except FileNotFoundError:
        raise ValueError(f"there is no file {path}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8: save it as UTF-8 first") from None
    rows = _json_lines(path, content) if path.suffix.lower() == ".jsonl" else _csv(path, content)
    found = []
    for line, row in rows:
        text, label = _field(path, line, row, TEXT_NAMES), _field(path, line, row, LABEL_NAMES)
        if not text.strip() or not label.strip():
            missing = "text" if not text.strip() else "label"
            raise ValueError(f"{path}, line {line}: the {missing} is empty")
        found.append(LabelledText(line, text, label.strip()))
    if not found:
        raise ValueError(f"{path} holds no texts")
    return found


def _csv(path: Path, content: str) -> list[tuple[int, dict[str, Any]]]:
    head = content.split("\n", 1)[0]
    # Where the comma is the decimal point, spreadsheets put semicolons between columns.
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ";" if ";" in head and "," not in head else ","
    reader = csv.reader(io.StringIO(content), delimiter=delimiter, strict=True)
    rows: list[tuple[int, dict[str, Any]]] = []
    named = {",": "a comma", ";": "a semicolon", "\t": "a tab"}[delimiter]
    try:
        header = [name.strip().lower() for name in next(reader, [])]
        for values in reader:
            if not values:
                continue
            if len(values) != len(header):
                told = f"{len(values)} columns where the first line has {len(header)}"
                raise ValueError(f"{path}, line {reader.line_num}: {told} (a text with {named} needs quotes)")
            rows.append((reader.line_num, dict(zip(header, values, strict=True))))
    except csv.Error as error:
        raise ValueError(f"{path}, line {reader.line_num}: {error}") from None
    return rows


def _json_lines(path: Path, content: str) -> list[tuple[int, dict[str, Any]]]:
    rows = []
    for number, line in enumerate(content.split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from None
        if not isinstance(row, dict):
            raise ValueError(f'{path}, line {number}: expected an object such as {{"text": "…", "label": "…"}}')
        rows.append((number, row))
    return rows


def _field(path: Path, line: int, row: dict[str, Any], names: tuple[str, ...]) -> str:
    for name in names:
        if name in row:
            value = row[name]
            if isinstance(value, (str, int)) and not isinstance(value, bool):
                return str(value)
            raise ValueError(f"{path}, line {line}: {name} is {type(value).__name__}, expected text")
    there = ", ".join(map(str, row)) or "nothing"
    raise ValueError(f"{path}, line {line}: no column {' or '.join(names)} (there is {there})")
