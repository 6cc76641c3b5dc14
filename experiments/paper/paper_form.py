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
from functools import partial
from pathlib import Path

from apl.checkpoint import find_model, is_named, read_description
from apl.config import DecoderKind
from apl.controller import ConsolidatingController
from apl.learner import Learner
from apl.reading.ensemble import EnsembleReading
from apl.training.episodic import load_decoder
from experiments.data.embedded import MODEL, Embedded, characters
from experiments.paper import paper_measures as figures
from experiments.paper.paper_figures import draw_online, draw_sigma
from experiments.paper.paper_measures import EPISODES, SEED
from experiments.paper.results import Cell, Row, figure_path, measure_missing
from experiments.presets import PAPER_DECODERS, dashed

PAPER_FORM, EXTENDED = "paper-form", "extended"
LABELS_20, LABELS_200, LABELS_1000 = "paper-recipe-20way", "paper-recipe-200way-frozen", "paper-recipe-1000way-frozen"
"""The model of each number of labels. Those too large for the repository are made by `apl train NAME`."""


@dataclass(frozen=True)
class Measurement:
    """A figure of the paper: the function that measures it, its number of classes, and the model it is measured on."""

    measure: str
    figure: Callable[[Learner, Embedded, int, int], Iterator[Row]]
    way: int
    model: str
    merging: bool = False
    decoder: DecoderKind | None = None
    """Where several are compared in one figure."""

    @property
    def where(self) -> Row:
        compared = {} if self.decoder is None else {"decoder": self.decoder}
        return {"measure": self.measure, "way": self.way, **compared}

    def learner(self, place: str) -> Learner:
        if self.model == MODEL:
            learner = Learner.load(place)
            if self.merging:
                learner = Learner(learner.config, ConsolidatingController(), learner.networks, EnsembleReading)
            return learner.on_embeddings()
        return with_first_labels(place, self.way).on_embeddings()


def ours(measure: str, figure: Callable[[Learner, Embedded, int, int], Iterator[Row]], way: int) -> Measurement:
    """With a fixed context nothing is merged; online the bundled system is."""
    return Measurement(measure, figure, way, MODEL, merging=figure is not figures.fixed)


PLANS: dict[str, tuple[Measurement, ...]] = {
    PAPER_FORM: (
        Measurement("per-class", figures.per_class, 20, LABELS_20),
        Measurement("posterior", figures.posterior, 20, LABELS_20),
        Measurement("online", figures.saturation, 5, LABELS_20),
        Measurement("table1-5way", figures.fixed, 5, LABELS_20),
        Measurement("table1-20way", figures.fixed, 20, LABELS_20),
        Measurement("mnist", figures.mnist, 10, LABELS_20),
        Measurement("continual", figures.continual, 10, LABELS_20),
        *(
            Measurement("decoders", figures.decoders, way, f"paper-{dashed(kind)}-{way}way", decoder=kind)
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
    rows = measure_missing(name, cells(name, 4 if quick else EPISODES), quick)
    if not quick and name == PAPER_FORM:
        draw_online(rows, figure_path(name, quick, "online"))
        draw_sigma(rows, figure_path(name, quick, "sigma"))


def cells(name: str, episodes: int) -> Iterator[Cell]:
    """What can be measured with the models at hand."""
    for one in PLANS[name]:
        if place := place_of(one.model):
            weights = {"checkpoint": one.model, **origin(place)}
            yield Cell(one.where, partial(measured, one, place, episodes), weights)


def reproduce_extended(quick: bool = False) -> None:
    reproduce(quick, EXTENDED)


def measured(one: Measurement, place: str, episodes: int) -> Iterator[Row]:
    data = characters(one.way > 423, model=place)
    learner = one.learner(place)
    for row in one.figure(learner, data, one.way, episodes):
        yield {**described(one, learner, data), **origin(place), **row}


def place_of(model: str) -> str | None:
    """Its name if it is in the repository, else its directory in runs/; None if it is in neither."""
    trained = Path("runs") / model / "model"
    return model if is_named(model) else str(trained) if (trained / "model.json").is_file() else None


def origin(place: str) -> Row:
    """How the weights were made."""
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


def described(one: Measurement, learner: Learner, data: Embedded) -> Row:
    """What was tested on what."""
    decoder = learner.config.decoder
    return {
        "measure": one.measure,
        "method": "ours" if one.model == MODEL else "the paper's form",
        "decoder": decoder.kind,
        "labels": decoder.labels,
        "rule": "merging" if one.merging else "plain",
        "checkpoint": one.model,
        "trained_seeds": 1,
        "split": data.split,
        "split_hash": data.split_hash,
        "k": learner.config.k,
        "way": one.way,
        "seed": SEED,
    }
