"""The paper's figures, measured in two forms on the same harness.

`python -m experiments paper-form`: the paper's system alone, with fixed labels, its decoders, its rule for writing, nothing merged, one
trained model per N. `python -m experiments extended`: the bundled model `omniglot`, one for every N, which merges what does not surprise.
Each measures what the models at hand allow, and keeps what was measured of the same weights before. A decoder of N fixed labels
also answers for fewer classes: with the first of its labels alone, as the paper does with MNIST. Intervals are Student's t over
episodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from apl.checkpoint import find_model, is_named, read_description
from apl.controller import ConsolidatingController
from apl.learner import Learner
from apl.reading.ensemble import EnsembleReading
from apl.training.episodic import load_decoder
from experiments.paper import paper_measures as figures
from experiments.paper.paper_figures import draw_online, draw_sigma
from experiments.paper.paper_measures import EPISODES, SEED
from experiments.paper.results import Row, figure_path, load_rows, save_rows
from experiments.paper.subjects import MODEL, Embedded, characters
from experiments.presets import PAPER_DECODERS, dashed

PAPER_FORM, EXTENDED = "paper-form", "extended"
LABELS_200 = ("paper-recipe-200way-third",)
LABELS_1000 = ("paper-recipe-1000way",)
LABELS_20 = ("paper-recipe-20way",)
"""Of each number of labels the first that there is. Models too large for the repository are made by `apl train NAME`."""


@dataclass(frozen=True)
class Measurement:
    """A figure of the paper: the function that measures it, its number of classes, and the models it may be measured on."""

    measure: str
    figure: Callable[[Learner, Embedded, int, int], Iterator[Row]]
    way: int
    models: tuple[str, ...]
    merging: bool = False

    def rows_of(self, rows: list[Row]) -> list[Row]:
        key = (self.measure, self.way)
        return [row for row in rows if (row["measure"], row["way"]) == key and row["checkpoint"] in self.models]

    def learner(self, place: str) -> Learner:
        if self.models == (MODEL,):
            learner = Learner.load(place)
            if self.merging:
                learner = Learner(learner.config, ConsolidatingController(), learner.networks, EnsembleReading)
            return learner.on_embeddings()
        return with_first_labels(place, self.way).on_embeddings()


def ours(measure: str, figure: Callable[[Learner, Embedded, int, int], Iterator[Row]], way: int) -> Measurement:
    """With a fixed context nothing is merged; online the bundled system is."""
    return Measurement(measure, figure, way, (MODEL,), merging=figure is not figures.fixed)


PLANS: dict[str, tuple[Measurement, ...]] = {
    PAPER_FORM: (
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
    ),
    EXTENDED: (
        *(ours(f"table1-{way}way", figures.fixed, way) for way in (5, 20, 423, 1000)),
        ours("online", figures.saturation, 5),
        ours("per-class", figures.per_class, 20),
        ours("posterior", figures.posterior, 20),
        ours("mnist", figures.mnist, 10),
        ours("continual", figures.continual, 10),
        ours("thousand-way", figures.many_way, 1000),
    ),
}


def reproduce(quick: bool = False, name: str = PAPER_FORM) -> None:
    rows = load_rows(name, quick)
    for one in PLANS[name]:
        model = next((name for name in one.models if place_of(name)), None)
        before = one.rows_of(rows)
        if model is None or (before and all(is_of(row, model) for row in before)):
            continue
        rows = [row for row in rows if row not in before] + list(measured(one, model, 4 if quick else EPISODES))
        save_rows(name, rows, quick)
    save_rows(name, rows, quick)
    if not quick and name == PAPER_FORM:
        draw_online(rows, figure_path(name, quick, "online"))
        draw_sigma(rows, figure_path(name, quick, "sigma"))


def reproduce_extended(quick: bool = False) -> None:
    reproduce(quick, EXTENDED)


def measured(one: Measurement, model: str, episodes: int) -> Iterator[Row]:
    place = place_of(model) or model
    data = characters(one.way > 423, model=place)
    learner = one.learner(place)
    for row in one.figure(learner, data, one.way, episodes):
        yield described(one, model, learner, data, row)


def place_of(model: str) -> str | None:
    """Its name if it is in the repository, else its directory in runs/; None if it is in neither."""
    trained = Path("runs") / model / "model"
    return model if is_named(model) else str(trained) if (trained / "model.json").is_file() else None


def is_of(row: Row, model: str) -> bool:
    """Whether the row was measured on these very weights."""
    return row["checkpoint"] == model and row.get("trained") == origin(model).get("trained")


def origin(model: str) -> Row:
    """How the weights were made."""
    place = place_of(model)
    if place is None:
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


def described(one: Measurement, model: str, learner: Learner, data: Embedded, row: Row) -> Row:
    """A row with what was tested on what."""
    decoder = learner.config.decoder
    return {
        "measure": one.measure,
        "method": "ours" if one.models == (MODEL,) else "the paper's form",
        "decoder": decoder.kind,
        "labels": decoder.labels,
        "rule": "merging" if one.merging else "plain",
        "checkpoint": model,
        "trained_seeds": 1,
        "split": data.split,
        "split_hash": data.split_hash,
        "k": learner.config.k,
        "way": one.way,
        "seed": SEED,
        **origin(model),
        **row,
    }
