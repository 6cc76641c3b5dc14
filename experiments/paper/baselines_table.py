"""The table of docs/RESULTS.md from results/baselines.json: fifteen cells of equal weight, their mean, and how far each method is
behind ours."""

from __future__ import annotations

import math
from statistics import fmean

from experiments.paper.published import VINYALS
from experiments.paper.results import Row, load_rows
from experiments.paper.tables import OURS, percent, table

CELLS: dict[str, tuple[str, int, int, str]] = {
    **{f"{way}-way {shot}-shot": ("few-shot", way, shot, "accuracy") for way in (5, 20, 423, 1000) for shot in (1, 5)},
    "online 20": ("online", 20, 0, "accuracy_seen"),
    "online 423": ("online", 423, 0, "accuracy_seen"),
    "roaming": ("roaming", 50, 0, "accuracy_seen"),
    "AP known": ("roaming", 50, 0, "ap_known"),
    "AP new": ("roaming", 50, 0, "ap_new"),
    "one by one 20": ("one after another", 20, 5, "accuracy"),
    "one by one 423": ("one after another", 423, 5, "accuracy"),
}
"""Column → which row, and which figure of it."""
CPM = (
    "AP known is the measure of Ren et al. (2021), who report 94.17 for their CPM on supervised RoamingOmniglot, with an encoder of their own "
    "trained on such streams; classes of a place come from one alphabet there, here from all."
)
Cells = dict[str, tuple[Row, str]]


def of_methods(rows: list[Row]) -> dict[str, Cells]:
    """Method → column → its row and figure. Methods without all cells are left out."""
    found: dict[str, Cells] = {}
    for row in rows:
        for column, (*where, figure) in CELLS.items():
            if [row["protocol"], row["way"], row["shot"]] == where:
                found.setdefault(row["method"], {})[column] = (row, figure)
    return {method: cells for method, cells in found.items() if len(cells) == len(CELLS)}


def mean(cells: Cells) -> float:
    return fmean(row[figure] for row, figure in cells.values())


def behind(cells: Cells) -> tuple[float, float]:
    """The mean of the paired differences ours − theirs. Cells are independent samples, so the square of its interval is the sum of
    theirs."""
    differences = [row[f"{figure}_difference"] for row, figure in cells.values()]
    spread = [row[f"{figure}_difference_ci95"] for row, figure in cells.values()]
    return fmean(differences), math.hypot(*spread) / len(cells)


def is_first(methods: dict[str, Cells]) -> bool:
    """Every other method is behind ours by more than the interval."""
    others = [behind(cells) for method, cells in methods.items() if not method.startswith(OURS)]
    return bool(others) and all(difference > ci95 for difference, ci95 in others)


def baselines() -> list[str]:
    """What stands on the page: a sentence, the table and the published number beside it."""
    methods = of_methods(load_rows("baselines"))
    if not methods:
        return []
    ranked = sorted(methods, key=lambda method: -mean(methods[method]))
    lines = []
    for method in ranked:
        cells = methods[method]
        values = [percent(row, figure) for row, figure in cells.values()]
        difference, ci95 = behind(cells)
        stream = cells["online 423"][0]
        against = "" if method == OURS else percent({"accuracy": difference, "ci95": ci95}, digits=2)
        cost = [f"{stream['rows']:.0f}", f"{stream['ms_per_example']:.1f}"]
        lines.append([method, *values, f"{100 * mean(cells):.2f}", against, *cost])
    said = "Ours is first." if is_first(methods) else "No first place for ours: not every difference excludes zero."
    head = ["", *CELLS, "mean", "behind ours", "kept of 2538", "ms"]
    introduction = "The encoder of `omniglot`, frozen; the same draws for every method, so differences are paired; 95 % intervals by Student's t. "
    return [introduction + said, table(head, lines), CPM]


def on_vinyals() -> list[str]:
    """The split of the literature: published numbers, and every method behind one encoder."""
    found: dict[str, dict[tuple[int, int], str]] = {}
    for row in load_rows("vinyals"):
        found.setdefault(row["method"], {})[row["way"], row["shot"]] = percent(row, digits=2)
    if not found:
        return []
    cells = [(way, shot) for way in (5, 20) for shot in (1, 5)]
    published = {name: {cell: f"{value}" for cell, value in by.items()} for name, by in VINYALS.items()}
    lines = [[name, *(by.get(cell, "–") for cell in cells)] for name, by in {**published, **found}.items()]
    said = (
        "Test characters of Vinyals et al.; the encoder `lake` was trained on the 964 background characters, fewer than the 1,200 of "
        "this split, and was not trained on episodes."
    )
    return [said, table(["", *(f"{way}-way {shot}-shot" for way, shot in cells)], lines)]
