"""Figure 3d: 1000-way accuracy against items written, beside the fixed context of five per class."""

from __future__ import annotations

from apl.evaluate import fixed_context, online
from apl.paper.online import SEED, summary
from apl.paper.plot import OURS, QUIET, figure, smooth
from apl.paper.results import figure_path, save_rows
from apl.paper.subjects import characters, subject

WAY = 1000


def reproduce(quick: bool = False) -> None:
    tested, data = subject(), characters(True)
    episodes, length = (1, 4000) if quick else (5, None)
    result = online(
        tested.learner, data.embeddings, data.labels, way=WAY, episodes=episodes, seed=SEED, length=length, batch=16
    )
    fixed = fixed_context(
        tested.learner, data.embeddings, data.labels, way=WAY, shot=5, episodes=2 if quick else 20, seed=SEED
    )
    stored, accuracy = result.stored.float().mean(0), smooth(result.correct.mean(0), 500)
    points = range(250, result.correct.shape[1], 250)
    curve = {"stored_curve": [round(float(stored[t]), 1) for t in points],
             "accuracy_curve": [round(float(accuracy[t]), 4) for t in points]}  # fmt: skip
    rows = [
        tested.row(data, **summary(result, episodes, last=1000), **curve),
        tested.row(data, way=WAY, shot=5, episodes=2 if quick else 20, seed=SEED, accuracy=fixed.mean,
                   ci95=fixed.ci95, stored=5 * WAY),
    ]  # fmt: skip
    save_rows("thousand-way", rows, quick)
    with figure(figure_path("thousand-way", quick)) as (axes,):
        axes.plot(stored, accuracy, color=OURS, label="online (mean of last 500)")
        axes.axhline(fixed.mean, color=QUIET, ls="--", label="fixed context: 5000 stored")
        axes.axhline(0.789, color=QUIET, ls=":", label="paper's fixed context")
        axes.set(xlabel="items written", ylabel="accuracy", ylim=(0, 1), title="1000-way, unseen characters")
        axes.legend(frameon=False)
