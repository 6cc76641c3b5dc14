"""Figure 3d: 1000-way accuracy against items written, beside the fixed context of five per class."""

from __future__ import annotations

from apl.evaluate import fixed_context, online
from experiments.paper.online import SEED, summary
from experiments.paper.plot import PALETTE, QUIET, figure, smooth
from experiments.paper.results import figure_path, save_rows
from experiments.paper.subjects import characters, subject

WAY = 1000
LOWER_SIGMAS = (0.5, 0.05)
"""Thresholds in nats below the model's own, which write more."""


def reproduce(quick: bool = False) -> None:
    data = characters(True, quick=quick)
    fixed = fixed_context(
        subject().learner, data.embeddings, data.labels, way=WAY, shot=5, episodes=2 if quick else 20, seed=SEED
    )
    rows = [
        subject().row(
            data,
            way=WAY,
            shot=5,
            episodes=2 if quick else 20,
            seed=SEED,
            accuracy=fixed.mean,
            ci95=fixed.ci95,
            stored=5 * WAY,
        )
    ]
    with figure(figure_path("thousand-way", quick)) as (axes,):
        runs = [(None, True), *((sigma, False) for sigma in (None, *LOWER_SIGMAS))]
        for (sigma, consolidate), colour in zip(runs, PALETTE, strict=False):
            tested = subject(sigma_nats=sigma, consolidate=consolidate)
            episodes, length = (1, 4000) if quick else (3 if sigma is None else 2, None)
            result = online(
                tested.learner,
                data.embeddings,
                data.labels,
                way=WAY,
                episodes=episodes,
                seed=SEED,
                length=length,
                batch=16,
            )
            stored, accuracy = result.stored.float().mean(0), smooth(result.correct.mean(0), 500)
            points = range(250, result.correct.shape[1], 250)
            curve = {
                "stored_curve": [round(float(stored[t]), 1) for t in points],
                "accuracy_curve": [round(float(accuracy[t]), 4) for t in points],
            }
            nats = tested.learner.controller.threshold_nats(WAY)
            rows.append(tested.row(data, **summary(result, episodes, last=1000), sigma_nats=nats, **curve))
            save_rows("thousand-way", rows, quick)
            axes.plot(stored, accuracy, color=colour, label=f"{tested.method}, σ = {nats:.2g} nats")
        axes.axhline(fixed.mean, color=QUIET, ls="--", label="fixed context: 5000 stored")
        axes.axhline(0.789, color=QUIET, ls=":", label="paper's fixed context")
        axes.set(xlabel="items written", ylabel="accuracy", ylim=(0, 1), title="1000-way, unseen characters")
        axes.legend(frameon=False)
