"""The paper's system alone: fixed labels, its decoders, its rule for writing, nothing merged, one trained model per N.

`python -m experiments paper-form` measures every figure of the paper that the models at hand allow, and keeps what was measured
of the same weights before. A decoder of N labels also answers for fewer classes: with the first of its labels alone, as
the paper does with MNIST. Intervals are Student's t over episodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from apl.checkpoint import find_model, is_named, read_description
from apl.learner import Learner
from apl.training.episodic import load_decoder
from experiments.paper import paper_measures as figures
from experiments.paper.paper_measures import EPISODES, SEED
from experiments.paper.results import Row, load_rows, save_rows
from experiments.paper.subjects import Embedded, characters
from experiments.presets_analogy import PAPER_DECODERS, dashed

NAME = "paper-form"
LABELS_200 = ("paper-recipe-200way-further", "paper-recipe-200way")
LABELS_1000 = ("paper-recipe-1000way",)
LABELS_20 = ("paper-recipe-20way", "paper-recipe")
"""Of each number of labels the first that there is. Models too large for the repository are made by `apl train NAME`."""


@dataclass(frozen=True)
class Measurement:
    """A figure of the paper: the function that measures it, its number of classes, and the models it may be measured on."""

    measure: str
    figure: Callable[[Learner, Embedded, int, int], Iterator[Row]]
    way: int
    models: tuple[str, ...]

    def rows_of(self, rows: list[Row]) -> list[Row]:
        key = (self.measure, self.way)
        return [row for row in rows if (row["measure"], row["way"]) == key and row["checkpoint"] in self.models]


PLAN = (
    Measurement("per-class", figures.per_class, 20, LABELS_20),
    Measurement("posterior", figures.posterior, 20, LABELS_20),
    Measurement("online", figures.saturation, 5, LABELS_20),
    Measurement("sigma-20way", figures.sigma, 20, LABELS_20),
    Measurement("table1-5way", figures.fixed, 5, LABELS_20),
    Measurement("table1-20way", figures.fixed, 20, LABELS_20),
    Measurement("mnist", figures.mnist, 10, LABELS_20),
    Measurement("continual", figures.continual, 10, LABELS_20),
    *(
        Measurement("decoders", figures.decoders, way, (f"paper-{dashed(kind)}-{way}way",))
        for way in (20, 423, 1000)
        for kind in PAPER_DECODERS
    ),
    Measurement("table1-423way", figures.fixed, 423, LABELS_1000),
    Measurement("table1-1000way", figures.fixed, 1000, LABELS_1000),
    Measurement("thousand-way", figures.many_way, 1000, LABELS_1000),
    Measurement("sigma", figures.sigma, 200, LABELS_200),
)


def reproduce(quick: bool = False) -> None:
    rows = load_rows(NAME, quick)
    for one in PLAN:
        model = next((name for name in one.models if place_of(name)), None)
        before = one.rows_of(rows)
        if model is None or (before and all(is_of(row, model) for row in before)):
            continue
        rows = [row for row in rows if row not in before] + list(measured(one, model, 4 if quick else EPISODES))
        save_rows(NAME, rows, quick)
    save_rows(NAME, rows, quick)


def measured(one: Measurement, model: str, episodes: int) -> Iterator[Row]:
    place = place_of(model) or model
    data = characters(one.way > 423, model=place)
    learner = with_first_labels(place, one.way).on_embeddings()
    for row in one.figure(learner, data, one.way, episodes):
        yield described(one.measure, model, learner, data, one.way, row)


def place_of(model: str) -> str | None:
    """Its name if it is in the repository, else its directory in runs/; None if it is in neither."""
    trained = Path("runs") / model / "model"
    return model if is_named(model) else str(trained) if (trained / "model.json").is_file() else None


def is_of(row: Row, model: str) -> bool:
    """Whether the row was measured on these very weights."""
    return row["checkpoint"] == model and row.get("trained") == origin(model).get("trained")


def origin(model: str) -> Row:
    """How weights that are not in the repository were made."""
    place = place_of(model)
    if place is None or is_named(model):
        return {}
    provenance = read_description(find_model(place))["provenance"]
    return {"trained": {name: provenance[name] for name in ("trained_as", "steps", "seconds", "commit", "validation")}}


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


def described(measure: str, model: str, learner: Learner, data: Embedded, way: int, measured: Row) -> Row:
    """A row with what was tested on what."""
    config = learner.config
    return {
        "measure": measure,
        "method": "the paper's form",
        "decoder": config.decoder.kind,
        "labels": "fixed",
        "rule": "plain",
        "checkpoint": model,
        "trained_seeds": 1,
        "split": data.split,
        "split_hash": data.split_hash,
        "k": config.k,
        "way": way,
        "seed": SEED,
        **origin(model),
        **measured,
    }
