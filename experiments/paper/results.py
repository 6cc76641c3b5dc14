"""Result files: what an experiment measured, with everything needed to measure it again."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from apl.checkpoint import current_commit, without_nan, write_json

RESULTS = Path("results")
FIGURES = RESULTS / "figures"

Row = dict[str, Any]


@dataclass(frozen=True)
class Cell:
    """Rows that are measured together."""

    where: Row
    """What all rows of this cell, and no others of the file, have in these columns."""
    measure: Callable[[], Iterable[Row]]
    of: Row = field(default_factory=dict)
    """Columns that tell the weights: rows of others are measured again."""

    def rows_in(self, rows: list[Row]) -> list[Row]:
        return [row for row in rows if self.where.items() <= row.items()]

    def is_measured(self, rows: list[Row]) -> bool:
        return bool(rows) and all(self.of.items() <= row.items() for row in rows)


def measure_missing(
    name: str, cells: Iterable[Cell], quick: bool, about: Callable[[list[Row]], Row] = lambda rows: {}
) -> list[Row]:
    """Measure the cells that the file does not hold yet, and return all its rows: those of models that are not at hand stay,
    and a run that was stopped goes on where it was. `about` makes what stands in the file beside the rows."""
    rows, commit = load_rows(name, quick), current_commit()
    for cell in cells:
        before = cell.rows_in(rows)
        if cell.is_measured(before):
            continue
        found = [{"commit": commit, **row} for row in cell.measure()]
        report(found)
        rows = [row for row in rows if row not in before] + found
        save_rows(name, rows, quick, **about(rows))
    save_rows(name, rows, quick, **about(rows))
    return rows


def measure_all(name: str, rows: Iterator[Row], quick: bool = False, **about: Any) -> list[Row]:
    """Measure everything anew; saved after every row."""
    found: list[Row] = []
    for row in rows:
        found.append(row)
        report([row])
        save_rows(name, found, quick, **about)
    return found


def report(rows: Iterable[Mapping[str, Any]]) -> None:
    """A line of progress for each row."""
    for row in rows:
        print({name: value for name, value in row.items() if "curve" not in name}, file=sys.stderr, flush=True)


def machine() -> Row:
    """What times depend on."""
    threads = torch.get_num_threads()
    return {
        "machine": platform.machine(),
        "threads": threads,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def result_path(name: str, quick: bool = False) -> Path:
    return (RESULTS / "quick" if quick else RESULTS) / f"{name}.json"


def save_rows(name: str, rows: Iterable[Mapping[str, Any]], quick: bool, **extra: Any) -> Path:
    """Write results/NAME.json (results/quick/NAME.json for the small versions). A row that was kept from an earlier
    measurement has its own commit already."""
    path = result_path(name, quick)
    path.parent.mkdir(parents=True, exist_ok=True)
    commit = current_commit()
    content = {"name": name, "quick": quick, **extra, "rows": [{"commit": commit, **row} for row in rows]}
    write_json(path, without_nan(content))
    return path


def load_rows(name: str, quick: bool = False) -> list[Row]:
    path = result_path(name, quick)
    rows: list[Row] = json.loads(path.read_text())["rows"] if path.exists() else []
    return rows


def figure_path(name: str, quick: bool, part: str = "") -> Path:
    directory = RESULTS / "quick" if quick else FIGURES
    directory.mkdir(parents=True, exist_ok=True)
    return directory / f"{name}{part and '-' + part}.png"
