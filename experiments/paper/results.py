"""Result files: what an experiment measured, with everything needed to measure it again."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from apl.checkpoint import current_commit, without_nan, write_json

RESULTS = Path("results")
FIGURES = RESULTS / "figures"

Row = dict[str, Any]


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
    rows: list[Row] = load_whole(name, quick).get("rows", [])
    return rows


def load_whole(name: str, quick: bool = False) -> dict[str, Any]:
    """A result file with what stands in it beside the rows; empty where there is none."""
    path = result_path(name, quick)
    whole: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return whole


def figure_path(name: str, quick: bool, part: str = "") -> Path:
    directory = RESULTS / "quick" if quick else FIGURES
    directory.mkdir(parents=True, exist_ok=True)
    return directory / f"{name}{part and '-' + part}.png"
