"""The pictures of docs/loop.md, from results/loop.json: `python examples/loop_figures.py [DIRECTORY]`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

ROOT = Path(__file__).parents[1]
SETS = {"omniglot": "Omniglot", "imagenet": "ImageNet-mini", "banking77": "BANKING77", "clinc150": "CLINC150"}
Row = dict[str, Any]


def bars(axes: Axes, rows: list[Row], group: str, figure: str) -> None:
    """One bar for each method in each group, with its interval."""
    if not rows:
        return
    groups, methods = (list(dict.fromkeys(row[key] for row in rows)) for key in (group, "method"))
    width = 0.8 / len(methods)
    for number, method in enumerate(methods):
        mine = {row[group]: row for row in rows if row["method"] == method}
        place = (
            np.array([at for at, name in enumerate(groups) if name in mine]) + (number - len(methods) / 2 + 0.5) * width
        )
        shown = [mine[name] for name in groups if name in mine]
        # The interval of a single draw is not known.
        interval = [row[f"{figure}_ci95"] or 0 for row in shown]
        axes.bar(place, [row[figure] for row in shown], width, yerr=interval, label=method, error_kw={"lw": 0.8})
    axes.set_xticks(range(len(groups)), [SETS.get(name, name) for name in groups])


def suggest(rows: list[Row], needed: list[Row]) -> plt.Figure:
    picture, axes = plt.subplots(1, 3, figsize=(11, 3.2), sharey=True)
    for place, kind in zip(axes, ("even", "uneven", "near-duplicates"), strict=True):
        bars(place, [row for row in needed if row["kind"] == kind and row["method"] != "random"], "set", "share")
        place.axhline(1, color="grey", lw=0.8)
        place.set_title(kind)
        place.tick_params(axis="x", labelsize=7, rotation=20)
    axes[0].set_ylabel("labels, as a share of random's")
    axes[0].legend(fontsize=7)
    return picture


def coverage(rows: list[Row], needed: list[Row]) -> plt.Figure:
    picture, (left, right) = plt.subplots(1, 2, figsize=(11, 3.6), sharey=True)
    mine = [row for row in rows if row["part"] == "coverage"]
    place = np.arange(len(mine))[::-1]
    for name, prefix in (("predict_set", ""), ("split conformal", "split_")):
        for axes, figure in ((left, "coverage_late"), (right, "size_late")):
            axes.plot([row[prefix + figure] for row in mine], place, "o", ms=4, label=name)
    left.axvspan(0.88, 0.92, color="grey", alpha=0.2)
    left.set_yticks(place, [f"{SETS[row['set']]}, {row['order']}" for row in mine], fontsize=7)
    left.set_xlabel("share of sets with the truth")
    right.set_xlabel("labels in a set")
    right.legend(fontsize=7)
    return picture


def review(rows: list[Row], needed: list[Row]) -> plt.Figure:
    picture, axes = plt.subplots(figsize=(7, 3))
    bars(axes, [row for row in rows if row["part"] == "review"], "set", "found")
    axes.set(ylabel="found in the first tenth", ylim=(0, 1))
    axes.legend(fontsize=7, loc="lower right")
    return picture


def drift(rows: list[Row], needed: list[Row]) -> plt.Figure:
    picture, axes = plt.subplots(figsize=(7, 3))
    bars(axes, [row for row in rows if row["part"] == "drift"], "set", "delay")
    axes.set_ylabel("examples until an alarm")
    axes.legend(fontsize=7)
    return picture


def main(directory: str = str(ROOT / "docs" / "images")) -> list[Path]:
    result = json.loads((ROOT / "results" / "loop.json").read_text(encoding="utf-8"))
    plt.rcParams.update({"svg.hashsalt": "loop", "svg.fonttype": "none"})
    paths = []
    for draw in (suggest, coverage, review, drift):
        if draw.__name__ not in {row["part"] for row in result["rows"]}:
            continue
        picture = draw(result["rows"], result["labels_needed"])
        paths.append(Path(directory) / f"loop-{draw.__name__}.svg")
        picture.savefig(paths[-1], bbox_inches="tight", metadata={"Date": None})
        plt.close(picture)
    return paths


if __name__ == "__main__":
    print(*main(*sys.argv[1:]), sep="\n")
