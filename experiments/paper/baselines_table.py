"""What is made of the rows of `experiments.paper.baselines`: the means, the figure and the README's table."""

from __future__ import annotations

from pathlib import Path

from experiments.paper.plot import OTHER, OURS, figure
from experiments.paper.results import Row, load_rows, load_whole
from experiments.paper.table1 import PAPER

OURS_NAME = "Ours"
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
KEPT, TIME = "kept of 2538", "ms"
"""Of the online stream of 423 classes."""


def cells(rows: list[Row], intervals: bool = False) -> dict[str, dict[str, float]]:
    """Method → cell → value, or half of its 95 % interval."""
    table: dict[str, dict[str, float]] = {}
    place = {(protocol, way, shot, number): cell for cell, (protocol, way, shot, number) in CELLS.items()}
    for row in rows:
        for number in ("accuracy", "ap_known", "ap_new"):
            cell = place.get((row["protocol"], row["way"], row["shot"], number))
            wanted = number if not intervals else "ci95" if number == "accuracy" else f"{number}_ci95"
            if cell and row.get(wanted) is not None:
                table.setdefault(row["method"], {})[cell] = row[wanted]
    return table


def means(rows: list[Row]) -> dict[str, dict[str, float | None]]:
    """Over all cells, and without average precision; None where a cell is empty. Ours over the same cells beside it."""
    table = cells(rows)
    ours = table.get(OURS_NAME, {})

    def mean(of: dict[str, float], wanted: list[str]) -> float | None:
        return sum(of[cell] for cell in wanted) / len(wanted) if all(cell in of for cell in wanted) else None

    without = [cell for cell in CELLS if cell not in PRECISIONS]
    return {
        method: {
            "mean": mean(filled, list(CELLS)),
            "mean_without_ap": mean(filled, without),
            "cells": len(filled),
            "mean_of_its_cells": mean(filled, list(filled)),
            "mean_of_ours_in_its_cells": mean(ours, list(filled)),
        }
        for method, filled in table.items()
    }


def baselines_in_short() -> str:
    """For the README: many classes, streams and the means; measured numbers alone stand in these columns."""
    return _table(
        [
            "20-way 1-shot",
            "20-way 5-shot",
            "1000-way 1-shot",
            "1000-way 5-shot",
            "online 423",
            KEPT,
            *PRECISIONS,
            *MEANS,
        ]
    )


def baselines_in_full() -> str:
    return _table([*CELLS, *MEANS, KEPT, TIME], intervals=True)


def settings_tried() -> str:
    """The grid of every method, what each setting reached on validation characters, and what training amounted to."""
    whole = load_whole("baselines")
    lines = [
        f"Every setting had {whole.get('trial_seconds', 0):g} s of one thread's processor time, the best of them (in bold) "
        f"{whole.get('training_seconds', 0):g} s; in brackets what it reached on validation characters, in percent.",
        "",
        "| method | settings tried | steps | weights |",
        "|---|---|---|---|",
    ]
    for name, about in whole.get("methods", {}).items():
        tried = []
        for setting in about["grid"]:
            chosen = {key: value for key, value in setting.items() if key != "validation"}
            words = ", ".join(f"{key.replace('_', ' ')} {value:g}" for key, value in chosen.items())
            words = f"**{words}**" if chosen == about["chosen"] else words
            tried.append(f"{words} ({100 * setting['validation']:.1f})")
        effort = " | ".join(f"{about[key]:,}" if key in about else "–" for key in ("steps", "weights"))
        lines.append(f"| {name} | {'; '.join(tried)} | {effort} |")
    return "\n".join(lines)


def _table(columns: list[str], intervals: bool = False) -> str:
    """Quoted and measured numbers in one Markdown table, clearly apart."""
    rows = load_rows("baselines")
    lines = ["| | " + " | ".join(columns) + " |", "|---|" + "---|" * len(columns)]

    def line(name: str, values: dict[str, str]) -> str:
        return f"| {name} | " + " | ".join(values.get(column, "–") for column in columns) + " |"

    def heading(words: str) -> str:
        return line(f"**{words}**", dict.fromkeys(columns, ""))

    lines.append(heading("quoted: their own encoders, splits and episodes"))
    for name, quoted in PAPER.items():
        values = {f"{way}-way {shot}-shot": f"{value}" for (way, shot), value in quoted.items()}
        if not values.keys().isdisjoint(columns):
            lines.append(line(name, values))
    lines.append(heading("measured: our encoder, frozen, the same episodes"))
    table, mean, half = cells(rows), means(rows), cells(rows, intervals=True) if intervals else {}
    for method in sorted(table, key=lambda name: (mean[name]["mean"] is None, -(mean[name]["mean_of_its_cells"] or 0))):
        values = {cell: f"{100 * value:.1f}" for cell, value in table[method].items()}
        values |= {cell: f"{values[cell]} ± {100 * spread:.1f}" for cell, spread in half.get(method, {}).items()}
        for column, key in MEANS.items():
            if (value := mean[method][key]) is not None:
                values[column] = f"{100 * value:.2f}"
        stream = next((r for r in rows if (r["method"], r["protocol"], r["way"]) == (method, "online", 423)), None)
        if stream:
            values[KEPT], values[TIME] = f"{stream['kept']:.0f}", f"{stream['ms_per_example']:.2g}"
        lines.append(line(f"**{method}**" if method == OURS_NAME else method, values))
    if own := load_rows("baselines-own"):
        lines.append(heading(f"measured: the paper's encoder, trained with the method on {own[0]['images']:,} images"))
        for method in dict.fromkeys(row["method"] for row in own):
            of_method = [row for row in own if row["method"] == method]
            values = {f"{row['way']}-way {row['shot']}-shot": f"{100 * row['accuracy']:.1f}" for row in of_method}
            lines.append(line(f"**{method}**" if method == OURS_NAME else method, values))
    whole = load_whole("baselines")
    reasons: dict[str, list[str]] = {}
    for method, about in whole.get("methods", {}).items():
        if "cannot" in about:
            reasons.setdefault(about["cannot"], []).append(method)
    lines += ["", *(f"Cells that {' and '.join(methods)} leave empty: {why}." for why, methods in reasons.items())]
    if missing := whole.get("not_yet_measured"):
        lines.append(f"Not yet measured (`python -m experiments baselines` goes on there): {', '.join(missing)}.")
    return "\n".join(lines).rstrip()


def draw_figure(rows: list[Row], path: Path) -> None:
    """A line for each method, a point for each cell."""
    table, mean = cells(rows), means(rows)
    methods = sorted(table, key=lambda name: (mean[name]["mean"] is not None, mean[name]["mean_of_its_cells"] or 0))
    panels = {
        "few-shot, few classes": ("5-way 1-shot", "5-way 5-shot", "20-way 1-shot", "20-way 5-shot"),
        "few-shot, many classes": ("423-way 1-shot", "423-way 5-shot", "1000-way 1-shot", "1000-way 5-shot"),
        "online": ("online 20", "online 423"),
        "roaming streams": ("roaming", "AP known", "AP new"),
        "classes one after the other": ("one by one 20", "one by one 423"),
    }
    with figure(path, columns=len(panels), width=2.9, height=4.2) as all_axes:
        for axes, (title, names) in zip(all_axes, panels.items(), strict=True):
            for name, marker in zip(names, "os^D", strict=False):
                values = [100 * table[m].get(name, float("nan")) for m in methods]
                colours = [OURS if m == OURS_NAME else OTHER for m in methods]
                axes.scatter(values, range(len(methods)), c=colours, marker=marker, s=22, label=name)
            axes.set(title=title, xlabel="percent", yticks=range(len(methods)), ylim=(-0.6, len(methods) - 0.4))
            axes.set_yticklabels(methods if axes is all_axes[0] else [])
            axes.grid(axis="x", alpha=0.3)
            axes.legend(frameon=False, fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=2)
