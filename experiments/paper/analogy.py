"""The number-analogy task with our deduction decoder, measured as the paper's decoders are (`analogy_plain.py`)."""

from __future__ import annotations

from pathlib import Path

import torch

from apl.checkpoint import find_model, is_named, read_description
from apl.learner import Learner
from experiments.data.analogy import AnalogyTask
from experiments.paper.analogy_plain import EPISODES, SEED, fixed_row, shuffled_row
from experiments.paper.plot import PALETTE, QUIET, figure
from experiments.paper.results import Row, figure_path, load_rows, save_rows
from experiments.training.analogy import embedded_sampler

TASKS = {
    "analogy-fixed": AnalogyTask(level="fixed"),
    "analogy-shuffled": AnalogyTask(),
    "analogy-glyphs": AnalogyTask(symbols="glyphs"),
}


def reproduce(quick: bool = False) -> None:
    """Measure every model of ours on MNIST's test digits."""
    rows = [measured(name, task, 20 if quick else EPISODES) for name, task in TASKS.items() if is_named(name)]
    save_rows("analogy", rows, quick, note="accuracy is on combinations not seen before in the episode")
    draw_curves(rows + load_rows("analogy-plain", quick), figure_path("analogy", quick))


def measured(name: str, task: AnalogyTask, episodes: int) -> Row:
    learner = Learner.load(name)
    provenance = read_description(find_model(name))["provenance"]
    sampler = embedded_sampler(learner, task, "test", torch.Generator().manual_seed(SEED))
    figures = fixed_row if task.level == "fixed" else shuffled_row
    return {
        "method": "ours",
        "level": task.level,
        "symbols": task.symbols,
        "decoder": learner.config.decoder.kind,
        "labels": "fixed",
        "k": learner.config.k,
        "hops": learner.config.hops,
        "rule": "surprise",
        "checkpoint": name,
        "split": "mnist test",
        "seed": SEED,
        "trained": {part: provenance[part] for part in ("steps", "seconds", "commit")},
        **figures(learner, task, sampler, episodes),
    }


def draw_curves(rows: list[Row], path: Path) -> None:
    """Figure 5: our decoder, the paper's relational decoder by k, and its three decoders at k = 16."""
    curves = [row for row in rows if "curve" in row and row["rule"] == "surprise"]
    plain = [row for row in curves if row["method"] != "ours"]
    panels = {
        "our decoder": [(r["symbols"].replace("_", " "), r) for r in curves if r["method"] == "ours"],
        "relational, plain": [(f"k = {r['k']}", r) for r in plain if r["decoder"] == "relational"],
        "k = 16, plain": [(r["decoder"].replace("_", " "), r) for r in plain if r["k"] == 16],
    }
    shown = {title: drawn for title, drawn in panels.items() if drawn}
    if not shown:
        return
    with figure(path, columns=len(shown)) as axes:
        for panel, (title, drawn) in zip(axes, shown.items(), strict=True):
            points = drawn[0][1]["curve"]
            seen = [point["seen"] for point in points]
            panel.plot(seen, [point["solver"] for point in points], color="black", linewidth=1, label="exact solver")
            panel.plot(seen, [point["one_shot"] for point in points], color=QUIET, ls="--", label="perfect one-shot")
            for (label, row), colour in zip(drawn, PALETTE, strict=False):
                panel.plot(seen, [point["accuracy"] for point in row["curve"]], ".-", color=colour, label=label)
            panel.set(xlabel="examples seen", title=title, ylim=(0, 1.02), xlim=(0, 100))
            panel.legend(frameon=False, fontsize=8)
        axes[0].set_ylabel("accuracy on combinations never seen")
