"""Appendix, "Effect of threshold parameter": memory size and final accuracy against σ, 200-way, 2000 items."""

from __future__ import annotations

import math

from apl.evaluate import online
from experiments.paper.online import SEED, summary
from experiments.paper.plot import OTHER, OURS, QUIET, figure
from experiments.paper.results import figure_path, save_rows
from experiments.paper.subjects import characters, subject

WAY, ITEMS = 200, 2000
SIGMAS = (0.0, 0.01, 0.05, 0.2, 0.5, 1.0, 2.0, 3.0, 0.75 * math.log(WAY), 4.5, 5.0, math.log(WAY), 5.5, 6.0, 8.0)


def reproduce(quick: bool = False) -> None:
    data = characters(False)
    episodes = 1 if quick else 5
    rows = []
    for sigma in (0.0, 0.5, 0.75 * math.log(WAY), 6.0) if quick else SIGMAS:
        tested = subject(sigma_nats=sigma)
        result = online(
            tested.learner, data.embeddings, data.labels, way=WAY, episodes=episodes, seed=SEED, length=ITEMS, batch=4
        )
        rows.append(tested.row(data, **summary(result, episodes, last=100), sigma_nats=sigma))
        save_rows("sigma", rows, quick)
    sigmas = [row["sigma_nats"] for row in rows]
    with figure(figure_path("sigma", quick)) as (axes,):
        axes.plot(
            sigmas, [row["accuracy_last_100"] for row in rows], "o-", color=OURS, label="accuracy of the last 100"
        )
        axes.set(xlabel="σ (nats)", ylabel="accuracy", ylim=(0, 1.02), title="200-way, 2000 items")
        axes.axvline(math.log(WAY), color=QUIET, ls=":", label="ln 200")
        memory = axes.twinx()
        memory.plot(sigmas, [row["stored"] for row in rows], "s-", color=OTHER, label="stored at the end")
        memory.set(ylabel="stored items", ylim=(0, None))
        axes.legend(frameon=False, loc="center left")
        memory.legend(frameon=False, loc="upper right")
