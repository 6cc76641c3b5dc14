"""Pictures of the paper's form: an online episode, and the threshold of surprise."""

from __future__ import annotations

from pathlib import Path

import torch

from experiments.paper.plot import OTHER, OURS, QUIET, figure, smooth
from experiments.paper.results import Row


def draw_online(rows: list[Row], path: Path) -> None:
    """Figure 3a: accuracy and memory of a 5-way episode."""
    found = next((row for row in rows if row["measure"] == "online"), None)
    if found is None:
        return
    with figure(path) as (axes,):
        accuracy = smooth(torch.tensor(found["accuracy_curve"]), 5)
        axes.plot(accuracy, color=OURS, label="accuracy (mean of last 5)")
        axes.set(xlabel="examples seen", ylabel="accuracy", ylim=(0, 1.02), title="5-way online, unseen characters")
        memory = axes.twinx()
        stored = [stored / found["way"] for stored in found["stored_curve"]]
        memory.plot(stored, color=OTHER, label="stored per class")
        memory.set(ylabel="stored per class", ylim=(0, 4))
        axes.legend(loc="center right", frameon=False)
        memory.legend(loc="lower right", frameon=False)


def draw_sigma(rows: list[Row], path: Path) -> None:
    """Appendix: final accuracy and memory against σ, at 200-way."""
    swept = [row for row in rows if row["measure"] == "sigma"]
    if not swept:
        return
    ratios = [row["sigma_ratio"] for row in swept]
    with figure(path) as (axes,):
        axes.plot(ratios, [row["accuracy"] for row in swept], "o-", color=OURS, label="accuracy of the last 100")
        axes.axvline(1.0, color=QUIET, ls=":", label="σ = ln N")
        axes.set(xlabel="σ / ln N", ylabel="accuracy", ylim=(0, 1.02), title=f"{swept[0]['way']}-way")
        memory = axes.twinx()
        memory.plot(ratios, [row["stored"] for row in swept], "s-", color=OTHER, label="stored at the end")
        memory.set(ylabel="stored items", ylim=(0, None))
        axes.legend(frameon=False, loc="center left")
        memory.legend(frameon=False, loc="upper right")
