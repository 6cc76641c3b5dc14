"""What is made of the rows of `experiments.paper.baselines`: the means and the table."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from experiments.paper.published import PAPER
from experiments.paper.results import Row, load_rows, load_whole
from experiments.paper.tables import percent, table

OURS_NAME, PLAIN_NAME = "Ours", "Ours, the paper's rule"
FEW_SHOT = tuple((way, shot) for way in (5, 20, 423, 1000) for shot in (1, 5))
CELLS: dict[str, tuple[str, int, int, str]] = {
    **{f"{way}-way {shot}-shot": ("few-shot", way, shot, "accuracy") for way, shot in FEW_SHOT},
    "online 20": ("online", 20, 0, "accuracy"),
    "online 423": ("online", 423, 0, "accuracy"),
    "roaming": ("roaming", 50, 0, "accuracy"),
    "AP known": ("roaming", 50, 0, "ap_known"),
    "AP new": ("roaming", 50, 0, "ap_new"),
    "one by one 20": ("one after another", 20, 5, "accuracy"),
    "one by one 423": ("one after another", 423, 5, "accuracy"),
}
"""The fifteen cells of a mean: which row, and which number of it."""
PRECISIONS = ("AP known", "AP new")
MEANS = {"mean": "mean", "mean without AP": "mean_without_ap"}
CPM = (
    "Ren et al. (2021) report an AP of 94.17 for their CPM on supervised RoamingOmniglot, with an encoder of their own trained on such "
    "streams; classes of a place come from one alphabet there, here from all."
)
BEHIND = "behind ours, its cells"
KEPT, TIME = "kept of 2538", "ms"
"""Of the online stream of 423 classes."""


def cells(rows: list[Row], what: str = "{}") -> dict[str, dict[str, float]]:
    """Method → cell → value. `what`: the name of the wanted field, made from the number's, such as "{}_ci95"."""
    found: dict[str, dict[str, float]] = {}
    for row in rows:
        for cell, (protocol, way, shot, number) in CELLS.items():
            wanted = what.format(number).replace("accuracy_ci95", "ci95")
            if (row["protocol"], row["way"], row["shot"]) == (protocol, way, shot) and row.get(wanted) is not None:
                found.setdefault(row["method"], {})[cell] = row[wanted]
    return found


def means(rows: list[Row]) -> dict[str, dict[str, float | None]]:
    """Over all cells, and without average precision; None where a cell is empty.

    `behind_ours` is the mean of the paired differences ours − theirs over the cells that the method fills. Cells are independent
    samples of episodes, so the square of its interval is the sum of theirs.
    """
    filled_by, behind, spread = cells(rows), cells(rows, "{}_difference"), cells(rows, "{}_difference_ci95")

    def mean(of: dict[str, float], wanted: Iterable[str]) -> float | None:
        values = [of[cell] for cell in wanted if cell in of]
        return sum(values) / len(values) if values and len(values) == len(list(wanted)) else None

    found: dict[str, dict[str, float | None]] = {}
    for method, filled in filled_by.items():
        intervals = spread.get(method, {})
        total = mean(intervals, filled)
        found[method] = {
            "mean": mean(filled, CELLS),
            "mean_without_ap": mean(filled, [cell for cell in CELLS if cell not in PRECISIONS]),
            "cells": len(filled),
            "mean_of_its_cells": mean(filled, filled),
            "behind_ours": mean(behind.get(method, {}), filled),
            "behind_ours_ci95": None if total is None else math.hypot(*intervals.values()) / len(filled),
        }
    return found


def is_first(rows: list[Row]) -> bool | None:
    """True if every other method that fills all cells is behind ours by more than the interval; None if that was not measured."""
    others = [m for name, m in means(rows).items() if name not in (OURS_NAME, PLAIN_NAME) and m["mean"] is not None]
    if not others or any(m["behind_ours_ci95"] is None for m in others):
        return None
    return all((m["behind_ours"] or 0) > (m["behind_ours_ci95"] or 0) for m in others)


def baselines_finding() -> str:
    """Who is ahead in the mean over all cells, and whether that can be told from chance."""
    rows = load_rows("baselines")
    ranked = sorted(((m["mean"], name) for name, m in means(rows).items() if m["mean"] is not None), reverse=True)
    best = ", ".join(f"{name} {100 * value:.2f}" for value, name in ranked[:4])
    said = {None: "paired differences were not measured", True: "ours is first", False: "no first place for ours"}
    return f"The best means over all cells: {best}; {said[is_first(rows)]}."


def baselines_in_full() -> str:
    return _table([*CELLS, *MEANS, BEHIND, KEPT, TIME], intervals=True)


def settings_tried() -> str:
    """The grid of every method, what each setting reached on validation characters, and what training amounted to."""
    whole = load_whole("baselines")
    lines = []
    for name, about in whole.get("methods", {}).items():
        tried = []
        for setting in about["grid"]:
            chosen = {key: value for key, value in setting.items() if key != "validation"}
            words = ", ".join(f"{key.replace('_', ' ')} {value:g}" for key, value in chosen.items())
            words = f"**{words}**" if chosen == about["chosen"] else words
            tried.append(f"{words} ({100 * setting['validation']:.1f})")
        effort = [f"{about[key]:,}" if key in about else "–" for key in ("steps", "weights")]
        lines.append([name, "; ".join(tried) or "defaults", *effort])
    return (
        f"Every setting had {whole.get('trial_seconds', 0):g} s of one thread's processor time, the best of them (in bold) "
        f"{whole.get('training_seconds', 0):g} s; in brackets what it reached on validation characters, in percent.\n\n"
        + table(["method", "settings tried", "steps", "weights"], lines)
    )


def _table(columns: list[str], intervals: bool = False) -> str:
    """Quoted and measured numbers in one Markdown table, clearly apart."""
    whole = load_whole("baselines")
    lines: list[list[str]] = []
    leader = OURS_NAME if is_first(load_rows("baselines")) else None

    def add(name: str, values: dict[str, str]) -> None:
        lines.append([f"**{name}**" if name == leader else name, *(values.get(column, "–") for column in columns)])

    def heading(words: str) -> None:
        add(f"**{words}**", dict.fromkeys(columns, ""))

    columns = [column for column in columns if column != BEHIND or is_first(load_rows("baselines")) is not None]
    heading("quoted: their own encoders, splits and episodes")
    for name, quoted in PAPER.items():
        values = {f"{way}-way {shot}-shot": f"{value}" for (way, shot), value in quoted.items()}
        if not values.keys().isdisjoint(columns):
            add(name, values)
    heading("measured: our encoder, frozen, the same episodes")
    for name, values in _measured(load_rows("baselines"), intervals):
        add(name, values)
    notes = []
    if missing := whole.get("not_yet_measured"):
        notes.append(f"Not yet measured (`python -m experiments baselines` continues there): {', '.join(missing)}.")
    return "\n".join([table(["", *columns], lines), "", CPM, *notes])


def _measured(rows: list[Row], intervals: bool) -> Iterator[tuple[str, dict[str, str]]]:
    """The columns of every method, the best first."""
    found, mean, half = cells(rows), means(rows), cells(rows, "{}_ci95") if intervals else {}
    for method in sorted(found, key=lambda name: (mean[name]["mean"] is None, -(mean[name]["mean_of_its_cells"] or 0))):
        values = {cell: f"{100 * value:.1f}" for cell, value in found[method].items()}
        values |= {cell: f"{values[cell]} ± {100 * spread:.1f}" for cell, spread in half.get(method, {}).items()}
        for column, key in MEANS.items():
            if (value := mean[method][key]) is not None:
                values[column] = f"{100 * value:.2f}"
        if mean[method]["behind_ours_ci95"] is not None and method != OURS_NAME:
            values[BEHIND] = percent(
                {"accuracy": mean[method]["behind_ours"], "ci95": mean[method]["behind_ours_ci95"]}, digits=2
            )
        stream = next((r for r in rows if (r["method"], r["protocol"], r["way"]) == (method, "online", 423)), None)
        if stream:
            values[KEPT], values[TIME] = f"{stream['kept']:.0f}", f"{stream['ms_per_example']:.2g}"
        yield method, values
