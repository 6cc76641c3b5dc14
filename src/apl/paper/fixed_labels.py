"""The paper's own form: fixed labels and a decoder of 8 blocks of 512.

*Paper's architecture*: its encoder of 12 blocks of 64 at 28×28, started as a classifier (`apl train paper-encoder`), taught by
our ensemble (`paper-encoder-taught`, `paper-encoder-taught-all`), and a decoder of N fixed labels on it (`apl train fixed-1000way`,
then `fixed-423way`, `fixed-20way`, `fixed-5way`); at 20-way both are then trained together on episodes (`apl train
paper-architecture`). *Paper's recipe*: everything from scratch through the decoder (`apl train paper-20way`). A decoder takes
22 MB and is not kept in the repository: where it is neither there nor in runs/, what was measured before is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from apl.checkpoint import find_model, is_named, read_json
from apl.learner import Learner
from apl.paper.plot import OTHER, OURS, QUIET, figure
from apl.paper.results import Row, figure_path, load_rows, save_rows
from apl.paper.subjects import Subject, characters
from apl.paper.table1 import PAPER, cell
from apl.training.episodic import load_decoder

NAME = "fixed-labels"
ARCHITECTURE, RECIPE = "paper's architecture", "paper's recipe"
WAYS = (5, 20, 423, 1000)
MODELS = {
    ARCHITECTURE: {5: "fixed-5way", 20: "paper-architecture", 423: "fixed-423way", 1000: "fixed-1000way"},
    f"{ARCHITECTURE}, working memory": {way: f"fixed-{way}way-working-memory" for way in WAYS[1:]},
    f"{ARCHITECTURE}, LSTM": {way: f"fixed-{way}way-lstm" for way in WAYS[1:]},
    RECIPE: {20: "paper-20way"},
}
CURVE = {
    22_800: (19.5, 58.4),
    111_104: (81.5, 93.3),
    175_392: (85.4, 94.6),
    251_712: (88.3, 95.7),
    325_488: (88.9, 95.9),
    396_128: (90.2, 96.5),
    480_000: (90.7, 96.6),
}
"""The recipe's run: images seen, and 20-way accuracy at 1 / 5 shots on validation characters, from its log."""
STEADY = 100_000
"""From so many images on the error falls as a power of their number."""
EPISODES = {5: 1000, 20: 600, 423: 6, 1000: 4}
"""Fewer than in table 1: the paper's decoder takes a hundred times as long as ours."""


def reproduce(quick: bool = False) -> None:
    rows, earlier = [], load_rows(NAME, quick)
    for method, models in MODELS.items():
        for way, name in models.items():
            rows.extend(measured(method, name, way, quick, earlier))
            save_rows(NAME, rows, quick, recipe_curve=CURVE, recipe_extrapolated=extrapolated(rows))
    if not quick:
        draw_recipe(rows)


def extrapolated(rows: list[Row]) -> dict[str, float] | None:
    """After how many images the recipe would be at the paper's 20-way one-shot accuracy, were it to go on as it did; test
    errors are taken to stay as many times the validation errors as they are at the end."""
    tested = [row for row in rows if row["method"] == RECIPE and row["shot"] == 1]
    if not tested:
        return None
    power, factor = power_law()
    on_test = 100 * (1 - tested[0]["accuracy"]) / (100 - CURVE[max(CURVE)][0])
    wanted = (100 - PAPER["APL (paper)"][20, 1]) / on_test
    return {"power": power, "test_over_validation_error": on_test, "images": (wanted / factor) ** (1 / power)}


def power_law() -> tuple[float, float]:
    """Validation error in percent ≈ factor · images ** power."""
    images, errors = zip(*((n, 100 - one) for n, (one, _) in CURVE.items() if n >= STEADY), strict=True)
    power, constant = np.polyfit(np.log(images), np.log(errors), 1)
    return float(power), float(np.exp(constant))


def draw_recipe(rows: list[Row]) -> None:
    reached = extrapolated(rows)
    if reached is None:
        return
    power, factor = power_law()
    ahead = np.geomspace(STEADY, reached["images"], 50)
    with figure(figure_path("fixed-labels-recipe", False), columns=1) as (axes,):
        axes.loglog(list(CURVE), [100 - one for one, _ in CURVE.values()], "o-", color=OURS, label="1 shot")
        axes.loglog(list(CURVE), [100 - five for _, five in CURVE.values()], "s-", color=OTHER, label="5 shots")
        axes.loglog(ahead, factor * ahead**power, "--", color=QUIET, label=f"images ** {power:.2f}")
        axes.set(xlabel="images seen", ylabel="20-way validation error, %", title="The paper's recipe, from scratch")
        axes.legend(frameon=False)


def measured(method: str, name: str, way: int, quick: bool, earlier: list[Row]) -> Iterator[Row]:
    trained_here = Path("runs") / name / "model"
    place = str(trained_here) if (trained_here / "model.json").is_file() else name
    if place == name and not is_named(name):
        yield from (row for row in earlier if (row["method"], row["way"]) == (method, way))
        return
    described = read_json(find_model(place) / "model.json")
    parts = ("trained_as", "steps", "seconds", "commit", "validation")
    trained = {part: described["provenance"].get(part) for part in parts}
    learner = with_first_labels(place, way)
    tested = Subject(method, learner.config.decoder.kind, "fixed", name, learner.on_embeddings())
    data = characters(way > 423, model=place, quick=quick)
    for shot in (1, 5):
        yield {**cell(tested, data, way, shot, quick, EPISODES[way]), "trained": trained}


def with_first_labels(model: str, way: int) -> Learner:
    """A saved learner of fixed labels that knows the first `way` of them alone."""
    whole = Learner.load(model)
    if whole.config.decoder.way == way:
        return whole
    decoder = replace(whole.config.decoder, way=way)
    learner = Learner(replace(whole.config, decoder=decoder), whole.controller)
    learner.encoder.load_state_dict(whole.encoder.state_dict())
    load_decoder(learner, model)
    return learner.eval()
