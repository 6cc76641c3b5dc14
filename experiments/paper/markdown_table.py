"""Markdown tables, and numbers in them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(line) + " |" for line in (head, ["---"] * len(head), *lines))


def percent(row: Mapping[str, Any], name: str = "accuracy", digits: int = 1) -> str:
    """A share in percent with its interval, where it has one."""
    spread = row.get("ci95" if name == "accuracy" else f"{name}_ci95")
    interval = "" if spread is None else f" ± {100 * spread:.{digits}f}"
    return f"{100 * row[name]:.{digits}f}{interval}"
