"""Result files: what an experiment measured, with everything needed to measure it again."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from apl.checkpoint import current_commit, write_json

RESULTS = Path("results")
FIGURES = RESULTS / "figures"

Row = dict[str, Any]


def save_rows(name: str, rows: Iterable[Mapping[str, Any]], quick: bool, **extra: Any) -> Path:
    """Write results/NAME.json (results/quick/NAME.json for the small versions)."""
    directory = RESULTS / "quick" if quick else RESULTS
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{name}.json"
    commit = current_commit()
    write_json(path, {"name": name, **extra, "rows": [{**row, "commit": commit} for row in rows]})
    return path


def load_rows(name: str, quick: bool = False) -> list[Row]:
    path = (RESULTS / "quick" if quick else RESULTS) / f"{name}.json"
    if not path.exists():
        return []
    return json.loads(path.read_text())["rows"]


def figure_path(name: str, quick: bool) -> Path:
    directory = RESULTS / "quick" if quick else FIGURES
    directory.mkdir(parents=True, exist_ok=True)
    return directory / f"{name}.png"
