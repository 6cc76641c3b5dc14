"""The paper's own form: fixed labels and a decoder of 8 blocks of 512.

*Paper's architecture*: its encoder of 12 blocks of 64 at 28×28, started as a classifier (`apl train paper-encoder`), and
a decoder of N fixed labels on it (`apl train fixed-1000way`, then `fixed-423way`, `fixed-20way`, `fixed-5way`). *Paper's
recipe*: everything from scratch through the decoder (`apl train paper-20way`). A decoder takes 22 MB and is not kept in
the repository: where it is neither there nor in runs/, what was measured before is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from apl.checkpoint import find_model, is_named, read_json
from apl.learner import Learner
from apl.paper.results import Row, load_rows, save_rows
from apl.paper.subjects import Subject, characters
from apl.paper.table1 import cell
from apl.training.episodic import load_decoder

NAME = "fixed-labels"
ARCHITECTURE, RECIPE = "paper's architecture", "paper's recipe"
WAYS = (5, 20, 423, 1000)
MODELS = {
    ARCHITECTURE: {way: f"fixed-{way}way" for way in WAYS},
    f"{ARCHITECTURE}, working memory": {way: f"fixed-{way}way-working-memory" for way in WAYS[1:]},
    f"{ARCHITECTURE}, LSTM": {way: f"fixed-{way}way-lstm" for way in WAYS[1:]},
    RECIPE: {20: "paper-20way"},
}
EPISODES = {5: 400, 20: 400, 423: 6, 1000: 4}
"""Fewer than in table 1: the paper's decoder takes a hundred times as long as ours."""


def reproduce(quick: bool = False) -> None:
    rows, earlier = [], load_rows(NAME, quick)
    for method, models in MODELS.items():
        for way, name in models.items():
            rows.extend(measured(method, name, way, quick, earlier))
            save_rows(NAME, rows, quick)


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
    data = characters(way > 423, model=described.get("encoder", place), quick=quick)
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
