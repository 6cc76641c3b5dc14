"""The paper's own form: fixed labels and a decoder of 8 blocks of 512.

*Paper's architecture*: its encoder of 12 blocks of 64 at 28×28, the stride on the last of each three, taught as a classifier and
by our ensemble (`apl train paper-encoder`, then `-mild`, `-all`, `-further`); it is trained with a decoder at 200-way (`fixed-200way`,
`paper-200way`), as in the paper, and a decoder of N fixed labels on it follows (`fixed-1000way`, then `fixed-423way`, `fixed-20way`,
`fixed-5way`); at 20-way both are then trained together on episodes (`paper-architecture`). *Paper's recipe*: everything from
scratch through the decoder (`paper-recipe`, then `-further`, eight episodes side by side). The other two
decoders (`fixed-1000way-lstm`, …) stand beside the first online, for the figure of the paper's appendix. A decoder takes
22 MB and is not kept in the repository: where it is neither there nor in runs/, or those very weights of runs/ were measured
before, what was measured is kept. To measure all that is in runs/ anew, delete the result file.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from apl.checkpoint import find_model, is_named, read_json
from apl.evaluate import online
from experiments.paper.online import summary
from experiments.paper.paper_form import with_first_labels
from experiments.paper.plot import OTHER, OURS, PALETTE, QUIET, figure, smooth
from experiments.paper.results import Row, figure_path, load_rows, save_rows
from experiments.paper.subjects import Embedded, Subject, characters
from experiments.paper.table1 import PAPER, SEED, cell

NAME = "fixed-labels"
ARCHITECTURE, RECIPE = "paper's architecture", "paper's recipe"
WAYS = (5, 20, 423, 1000)
MODELS = {
    ARCHITECTURE: {5: "fixed-5way", 20: "paper-architecture", 423: "fixed-423way", 1000: "fixed-1000way"},
    f"{ARCHITECTURE}, working memory": {way: f"fixed-{way}way-working-memory" for way in WAYS[1:]},
    f"{ARCHITECTURE}, LSTM": {way: f"fixed-{way}way-lstm" for way in WAYS[1:]},
    RECIPE: {20: "paper-recipe"},
}
STEADY = 100_000
"""From so many images on the error of a recipe's run falls as a power of their number."""
EPISODES = {5: 1000, 20: 600, 423: 6, 1000: 4}
"""Fewer than in table 1: the paper's decoder takes a hundred times as long as ours."""
ONLINE_EPISODES = {20: 20, 423: 2, 1000: 2}
LONGEST = 4000
"""Examples of an online episode."""
POINTS = 40
"""How many points of an online curve are kept."""


def reproduce(quick: bool = False) -> None:
    rows, earlier = [], load_rows(NAME, quick)
    for method, models in MODELS.items():
        for way, name in models.items():
            rows.extend(measured(method, name, way, quick, earlier))
            save_rows(NAME, rows, quick, recipe_extrapolated=extrapolated(rows))
    if not quick:
        draw_recipe(rows)
        draw_decoders(rows)


def extrapolated(rows: list[Row]) -> dict[str, float | int] | None:
    """After how many images the recipe would be at the paper's 20-way one-shot accuracy, were it to go on as it did; test
    errors are taken to stay as many times the validation errors as they are at the end."""
    tested = recipe_row(rows)
    if tested is None:
        return None
    curve = errors(tested)
    power, factor = power_law(curve)
    on_test = 100 * (1 - tested["accuracy"]) / curve[max(curve)][0]
    wanted = (100 - PAPER["APL (paper)"][20, 1]) / on_test
    return {
        "images_seen": max(curve),
        "power": power,
        "test_over_validation_error": on_test,
        "images": (wanted / factor) ** (1 / power),
    }


def recipe_row(rows: list[Row]) -> Row | None:
    """The one-shot row of a recipe's run, with the curve of its training."""
    return next(
        (row for row in rows if row["method"] == RECIPE and row["shot"] == 1 and "curve" in row["trained"]), None
    )


def errors(tested: Row) -> dict[int, tuple[float, float]]:
    """Images seen, and 20-way validation error in percent at 1 and 5 shots."""
    return {
        at["images"]: tuple(100 * (1 - at[f"val_20way_{shot}shot"]) for shot in (1, 5))
        for at in tested["trained"]["curve"]
    }


def power_law(curve: dict[int, tuple[float, float]]) -> tuple[float, float]:
    """Validation error at 1 shot ≈ factor · images ** power."""
    images, wrong = zip(*((n, one) for n, (one, _) in curve.items() if n >= STEADY), strict=True)
    power, constant = np.polyfit(np.log(images), np.log(wrong), 1)
    return float(power), float(np.exp(constant))


def draw_recipe(rows: list[Row]) -> None:
    reached, tested = extrapolated(rows), recipe_row(rows)
    if reached is None or tested is None:
        return
    curve = errors(tested)
    power, factor = power_law(curve)
    ahead = np.geomspace(STEADY, reached["images"], 50)
    with figure(figure_path("fixed-labels-recipe", False), columns=1) as (axes,):
        axes.loglog(list(curve), [one for one, _ in curve.values()], "o-", color=OURS, label="1 shot")
        axes.loglog(list(curve), [five for _, five in curve.values()], "s-", color=OTHER, label="5 shots")
        axes.loglog(ahead, factor * ahead**power, "--", color=QUIET, label=f"images ** {power:.2f}")
        axes.set(xlabel="images seen", ylabel="20-way validation error, %", title="The paper's recipe, from scratch")
        axes.legend(frameon=False)


def draw_decoders(rows: list[Row]) -> None:
    """Accuracy against items written, the three decoders of fixed labels (paper, appendix)."""
    online_rows = [row for row in rows if row["shot"] == 0]
    if not online_rows:
        return
    with figure(figure_path("fixed-labels-decoders", False), columns=3, width=3.6) as panels:
        for axes, way in zip(panels, WAYS[1:], strict=True):
            for row, colour in zip((r for r in online_rows if r["way"] == way), PALETTE, strict=False):
                label = row["decoder"].replace("_", " ")
                axes.plot(row["stored_curve"], row["accuracy_curve"], color=colour, label=label)
            axes.set(xlabel="items written", ylim=(0, 1.02), title=f"{way}-way, fixed labels")
        panels[0].set_ylabel("accuracy (running mean)")
        panels[0].legend(frameon=False)


def measured(method: str, name: str, way: int, quick: bool, earlier: list[Row]) -> Iterator[Row]:
    """Rows of one model: 1 and 5 shots, and (but for the recipe) online."""
    trained_here = Path("runs") / name / "model"
    place = str(trained_here) if (trained_here / "model.json").is_file() else name
    before = {row["shot"]: row for row in earlier if (row["method"], row["way"]) == (method, way)}
    if place == name and not is_named(name):
        yield from before.values()
        return
    described = read_json(find_model(place) / "model.json")
    parts = ("trained_as", "steps", "seconds", "commit", "validation")
    trained = {part: described["provenance"].get(part) for part in parts}
    if curve := described["provenance"].get("curve"):
        trained["curve"] = curve
    learner = with_first_labels(place, way)
    tested = Subject(method, learner.config.decoder.kind, "fixed", name, learner.on_embeddings())
    for shot in (1, 5) if way not in ONLINE_EPISODES or method == RECIPE or quick else (1, 5, 0):
        if place != name and shot in before and before[shot]["trained"] == trained:
            yield before[shot]
            continue
        data = characters(way > 423, model=place, quick=quick)
        row = cell(tested, data, way, shot, quick, EPISODES[way]) if shot else online_row(tested, data, way)
        yield {**row, "trained": trained}


def online_row(tested: Subject, data: Embedded, way: int) -> Row:
    """Episodes from an empty memory, with the curve of accuracy against items written."""
    episodes, batch = ONLINE_EPISODES[way], 1 if way == 20 else 16
    result = online(
        tested.learner,
        data.embeddings,
        data.labels,
        way=way,
        episodes=episodes,
        seed=SEED,
        length=min(LONGEST, 20 * way),
        batch=batch,
    )
    stored, accuracy = result.stored.float().mean(0), smooth(result.correct.mean(0), max(10, way // 2))
    points = range(0, len(stored), max(1, len(stored) // POINTS))
    curve = {
        "stored_curve": [round(float(stored[t]), 1) for t in points],
        "accuracy_curve": [round(float(accuracy[t]), 4) for t in points],
    }
    return tested.row(data, **summary(result, episodes, last=100 if way == 20 else 1000), **curve)
