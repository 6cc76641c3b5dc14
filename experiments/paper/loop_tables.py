"""The tables of docs/loop.md, from results/loop.json."""

from __future__ import annotations

import json
from collections.abc import Iterator

from experiments.paper.results import Row, load_rows, result_path
from experiments.paper.tables import percent, table

SETS = {"omniglot": "Omniglot", "imagenet": "ImageNet-mini", "banking77": "BANKING77", "clinc150": "CLINC150"}
KINDS = {"even": 0.7, "uneven": 0.5, "near-duplicates": 0.5}
"""Pools, and the share of random's labels that was asked for."""
METHODS = ("margin", "entropy", "MaxHerding", "adaptive-classifier", "suggest")


def number(row: Row, name: str, digits: int = 0) -> str:
    """A figure with its interval, where it has one."""
    spread = row.get(f"{name}_ci95")
    return f"{row[name]:.{digits}f}" + ("" if spread is None else f" ± {spread:.{digits}f}")


def labels_needed() -> str:
    """Labels of random choice; each method's as a share of it; what was asked for; and how many more the best other needs."""
    found = json.loads(result_path("loop").read_text(encoding="utf-8"))["labels_needed"]
    by = {(row["kind"], row["set"], row["method"]): row for row in found}
    lines = []
    for kind, asked in KINDS.items():
        for name, title in SETS.items():
            mine = {method: by[kind, name, method] for method in METHODS if (kind, name, method) in by}
            cells = [percent(mine[method], "share", 0) if method in mine else "–" for method in METHODS]
            ours = mine.pop("suggest")
            best = min(mine, key=lambda method: float(mine[method]["share"]))
            reached = f"{100 * asked:.0f}: {'reached' if ours['share'] <= asked else 'missed'}"
            rival = f"{number(mine[best], 'labels_ours_more')} ({best})"
            lines.append([f"{title}, {kind}", number(by[kind, name, "random"], "labels"), *cells, reached, rival])
    head = ["pool", "random, labels", *(f"{method}, %" for method in METHODS)]
    return table([*head, "asked for, %", "suggest less the best other, labels"], lines)


def coverage() -> str:
    lines = []
    for row in _rows("coverage"):
        shown = [percent(row, name) for name in ("coverage", "coverage_late", "split_coverage_late")]
        sizes = [number(row, name, 1) for name in ("size_late", "split_size_late")]
        lines.append([f"{SETS[row['set']]}, {row['order']}", *shown[:2], sizes[0], shown[2], sizes[1]])
    late = "second half, %", "labels in a set"
    return table(["stream", "whole stream, %", *late, *(f"split conformal: {name}" for name in late)], lines)


def review() -> str:
    lines = []
    for row, theirs in _pairs("review", "review", "cleanlab, self_confidence"):
        figures = [f"{one['auroc']:.4f} / {percent(one, 'found')}" for one in (row, theirs)]
        lines.append([SETS[row["set"]], *figures, number(theirs, "auroc_ours_more", 4)])
    return table(["set", "review: AUROC / found, %", "cleanlab, self-confidence", "AUROC, difference"], lines)


def drift() -> str:
    lines = []
    for row, theirs in _pairs("drift", "drift", "ADWIN on the error"):
        figures = [f"{number(one, 'delay')} / {number(one, 'false_alarms_per_1000', 1)}" for one in (row, theirs)]
        name = str(row["set"])
        lines.append([SETS.get(name, name), *figures, number(theirs, "delay_ours_more")])
    return table(["stream", "drift: delay / false alarms per 1,000", "ADWIN on the error", "delay, difference"], lines)


def speed() -> str:
    asked = {"suggest": "2 s", "review": "5 s", "predict_set": "1.1 times predict_proba_one"}
    lines: list[list[str]] = []
    for row in _rows("speed"):
        measured = f"{row['seconds']:.1f} s" if "seconds" in row else f"{row['times_predict_proba_one']:.2f} times"
        lines.append([row["verb"], f"{row['n']:,}", measured, asked[row["verb"]]])
    return table(["verb", "vectors of 384 numbers", "one thread", "at most"], lines)


def _rows(part: str) -> list[Row]:
    return [row for row in load_rows("loop") if row["part"] == part]


def _pairs(part: str, ours: str, other: str) -> Iterator[tuple[Row, Row]]:
    """The rows of both methods, set by set."""
    by = {(row["set"], row["method"]): row for row in _rows(part)}
    yield from ((row, by[name, other]) for (name, method), row in by.items() if method == ours)
