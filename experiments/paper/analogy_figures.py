"""The figure of the analogy task: accuracy against examples seen."""

from __future__ import annotations

from pathlib import Path

from experiments.paper.plot import PALETTE, QUIET, figure
from experiments.paper.results import Row


def draw_curves(rows: list[Row], path: Path) -> None:
    """Left: our best, the solver and the one-shot line. Then k with the paper's decoder, then the three decoders."""
    curves: dict[str, list[Row]] = {}
    for row in rows:
        if row["level"] == "shuffled" and row["method"] in ("ours", "ours, the paper's decoder"):
            curves.setdefault(row["checkpoint"], []).append(row)
    panels = [
        ([name for name in curves if "-k" not in name], "our best"),
        ([name for name in curves if "relational" in name and "two" not in name], "relational decoder, one hop"),
        ([name for name in curves if "-k16" in name], "the paper's decoders, k = 16"),
    ]
    panels = [(names, title) for names, title in panels if names]
    if not panels:
        return
    known = next(iter(curves.values()))
    seen = [row["seen"] for row in known]
    with figure(path, columns=len(panels)) as axes:
        for panel, (names, title) in zip(axes, panels, strict=True):
            panel.plot(seen, [row["solver"] for row in known], color="black", linewidth=1, label="exact solver")
            line = [row["one_shot"] for row in known]
            panel.plot(seen, line, color=QUIET, linestyle="--", linewidth=2, label="perfect one-shot")
            for name, colour in zip(names, PALETTE, strict=False):
                asked = "*" if curves[name][0].get("rows_asked_in_training") else ""
                label = name.removeprefix("analogy-").replace("-", " ").replace("relational k", "k = ") + asked
                panel.plot(seen, [row["accuracy"] for row in curves[name]], ".-", color=colour, label=label)
            panel.set(xlabel="examples seen (* rows asked in training)", title=title, ylim=(0, 1.02), xlim=(0, 100))
            panel.legend(frameon=False, fontsize=8)
        axes[0].set_ylabel("accuracy on combinations never seen")
