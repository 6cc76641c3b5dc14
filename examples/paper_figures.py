"""Draw two of the paper's figures from the committed results: `python examples/paper_figures.py DIRECTORY`.

`python -m experiments sigma thousand-way` measures them anew, and needs Omniglot. Needs matplotlib and a checkout.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

RESULTS = Path(__file__).parents[1] / "results"


def rows_of(name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))["rows"]
    return rows


def threshold(path: Path) -> Path:
    """Effect of the threshold σ on the accuracy and on the number of stored items."""
    rows = sorted(rows_of("sigma"), key=lambda row: float(row["sigma_nats"]))
    sigma = [row["sigma_nats"] for row in rows]
    figure, (above, below) = plt.subplots(2, 1, sharex=True, figsize=(5, 5))
    above.plot(sigma, [row["accuracy_last_100"] for row in rows], "o-")
    above.set(ylabel="accuracy, last 100", ylim=(0, 1.02), title="200-way, 2000 items")
    below.plot(sigma, [row["stored"] for row in rows], "s-")
    below.set(ylabel="items stored", xlabel="σ (nats)", yscale="log")
    for axes in (above, below):
        axes.axvline(math.log(200), ls=":", color="grey")
    figure.savefig(path)
    plt.close(figure)
    return path


def decoders(path: Path) -> Path:
    """Online accuracy of every decoder on the same episodes."""
    rows = rows_of("decoders")
    way = max(row["way"] for row in rows)
    chosen = [row for row in rows if row["way"] == way]
    names = [f"{row['decoder'].replace('_', ' ')}, {row['labels']}" for row in chosen]
    figure, axes = plt.subplots(figsize=(6, 3.4), layout="constrained")
    axes.barh(range(len(chosen)), [row["accuracy"] for row in chosen], xerr=[row["ci95"] for row in chosen])
    axes.set(yticks=range(len(chosen)), yticklabels=names, xlabel="accuracy", title=f"{way}-way online episodes")
    figure.savefig(path)
    plt.close(figure)
    return path


def main(directory: str = ".") -> list[Path]:
    target = Path(directory)
    target.mkdir(parents=True, exist_ok=True)
    return [threshold(target / "sigma.png"), decoders(target / "decoders.png")]


if __name__ == "__main__":
    print(*main(*sys.argv[1:]), sep="\n")
