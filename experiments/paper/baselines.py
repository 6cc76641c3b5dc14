"""Published methods beside ours, on the same embeddings and the same episodes: `python -m experiments baselines`.

*Same encoder*: the bundled one, frozen. Every method trains only what it adds, on classes the encoder has not seen, for the
same processor time of one thread; three settings of each are tried on the validation characters, for the same time each, and
the best goes on. What follows is fixed before anything is measured:

- The **mean** of a method is over fifteen cells of equal weight: eight of few-shot accuracy (5, 20, 423 and 1000 classes at
  1 and 5 shots), two online (20 and 423 classes, accuracy on examples whose class was shown before), three of roaming streams
  (accuracy on known, average precision of known, average precision of new), two of classes one after the other (20 and 423
  classes). The **mean without AP** leaves the two average precisions out. A method that cannot fill a cell has no mean, but
  ours over the cells that it fills stands beside it.
- A setting is judged on validation characters by the mean over few-shot tasks of 20 and of all 126 classes at 1 and 5 shots
  and over roaming streams (accuracy and both average precisions), where the method can do them.
- Streams are told the label of every example. Items kept are vectors as wide as an embedding.

The file is written method by method; one that was left unfinished is gone on with.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch

from apl.checkpoint import current_commit
from apl.controller import ConsolidatingController
from apl.data.source import DataSource
from apl.evaluate import Estimate
from apl.exported import load_for_use
from apl.learner import Learner
from experiments.baselines.cnp import ConditionalNeuralProcess
from experiments.baselines.gemcl import GenerativeMetaContinual
from experiments.baselines.infinite_mixture import InfiniteMixturePrototypes
from experiments.baselines.interface import EpisodicMethod, FewShotMethod
from experiments.baselines.maml import Maml
from experiments.baselines.mann import MemoryAugmentedNetwork
from experiments.baselines.matching import MatchingNetwork
from experiments.baselines.meta_training import Effort, MetaTraining, meta_train
from experiments.baselines.ours import AdaptivePosterior
from experiments.baselines.protocols import Roaming, Watched, few_shot, one_after_another, online, roaming
from experiments.baselines.prototypical import PrototypicalNetwork
from experiments.baselines.relation import RelationNetwork
from experiments.baselines.scikit import LogisticBaseline, NeighbourBaseline
from experiments.baselines.snail import Snail
from experiments.baselines.streaming_lda import StreamingLDA
from experiments.paper.baselines_table import OURS_NAME, draw_figure, means
from experiments.paper.embedding_cache import embed_once
from experiments.paper.results import Row, figure_path, load_whole, save_rows
from experiments.paper.subjects import MODEL, Embedded, characters

NAME = "baselines"
SEED = 1
TRIAL_SECONDS, TRAINING_SECONDS = 5.0, 60.0
"""Of one thread's processor time: for each of the three settings, and for the best of them."""
DRAWINGS = 20
"""Of each training class."""
MANY = 423
"""From so many classes on episodes are few and large."""
STREAMS = {20: 10, MANY: 3}
PER_CLASS = {20: 20, MANY: 6}
"""Examples of each class in an online stream."""
ROAMING_STREAMS, VALIDATION_STREAMS = 20, 4
SEQUENCES = {20: 20, MANY: 3}
SEQUENCE_SHOT = 5

Settings = dict[str, Any]


@dataclass(frozen=True)
class Entry:
    """A method in the table: how it is built from a setting, and the settings that are tried."""

    name: str
    paper: str
    build: Callable[[Settings, Embedded | None], FewShotMethod]
    grid: tuple[Settings, ...]
    cannot: str = ""
    """Why some cells stay empty."""


@dataclass(frozen=True)
class Fitted:
    """A method ready to be tested, and how it came about."""

    method: FewShotMethod
    about: dict[str, Any] = field(default_factory=dict)


def _width(data: Embedded) -> int:
    return data.embeddings.shape[1]


PLACES = (
    "their weights hold a place for each of 20 classes, as in their papers, whose largest tasks have 15 to 20; more classes "
    "would be another network and another training, of sequences too long for a minute"
)
RATES = tuple({"learning_rate": rate} for rate in (0.0, 1e-4, 1e-3))
"""For methods that begin at the frozen embedding; 0 leaves it as it is."""
HIGHER_RATES = tuple({"learning_rate": rate} for rate in (1e-3, 2e-3, 4e-3))
"""For methods that begin with a network that knows nothing."""


def _inner(*sizes: float) -> tuple[Settings, ...]:
    return tuple({"learning_rate": 3e-4, "step_size": size} for size in sizes)


ENTRIES = (
    Entry("Prototypical networks", "Snell et al. 2017", lambda s, data: PrototypicalNetwork(_width(data)), RATES),
    Entry("Matching networks (FCE)", "Vinyals et al. 2016", lambda s, data: MatchingNetwork(_width(data)), RATES),
    Entry("Relation network", "Sung et al. 2018", lambda s, data: RelationNetwork(_width(data)), HIGHER_RATES),
    Entry("CNP", "Garnelo et al. 2018", lambda s, data: ConditionalNeuralProcess(_width(data)), HIGHER_RATES),
    Entry("MANN", "Santoro et al. 2016", lambda s, data: MemoryAugmentedNetwork(_width(data)), HIGHER_RATES, PLACES),
    Entry("SNAIL", "Mishra et al. 2018", lambda s, data: Snail(_width(data)), HIGHER_RATES, PLACES),
    Entry(
        "MAML", "Finn et al. 2017", lambda s, data: Maml(_width(data), step_size=s["step_size"]), _inner(0.5, 1.0, 2.0)
    ),
    Entry(
        "ANIL",
        "Raghu et al. 2020",
        lambda s, data: Maml(_width(data), step_size=s["step_size"], output_only=True),
        _inner(2.0, 4.0, 8.0),
    ),
    Entry(
        "Infinite mixture prototypes",
        "Allen et al. 2019",
        lambda s, data: InfiniteMixturePrototypes(_width(data), within=s["within"]),
        tuple({"learning_rate": 3e-4, "within": within} for within in (0.2, 0.8, 2.0)),
    ),
    Entry("GeMCL", "Banayeeanzade et al. 2021", lambda s, data: GenerativeMetaContinual(_width(data)), RATES),
    Entry(
        "Streaming LDA",
        "Hayes and Kanan 2020",
        lambda s, data: StreamingLDA(data.embeddings, data.labels, s["shrinkage"]),
        tuple({"shrinkage": shrinkage} for shrinkage in (0.1, 0.5, 0.8)),
    ),
    Entry(
        "Logistic regression",
        "scikit-learn",
        lambda s, data: LogisticBaseline(s["c"]),
        tuple({"c": c} for c in (10.0, 100.0, 1000.0)),
    ),
    Entry(
        "Nearest neighbour",
        "scikit-learn",
        lambda s, data: NeighbourBaseline(s["neighbours"]),
        tuple({"neighbours": k} for k in (1, 3, 5)),
    ),
    Entry(
        OURS_NAME,
        "Ramalho and Garnelo 2019, with a memory that consolidates",
        lambda s, data: AdaptivePosterior(load_for_use(MODEL, ConsolidatingController(s["sigma_ratio"]))),
        # Its decoder was trained before, on the same classes (docs/LOG.md).
        tuple({"sigma_ratio": ratio} for ratio in (0.4, 0.75, 0.9)),
    ),
)


def reproduce(quick: bool = False) -> None:
    """Method by method; those that an unfinished file already holds are not measured again."""
    whole = load_whole(NAME, quick)
    finished = all(entry.name in whole.get("methods", {}) for entry in ENTRIES)
    if finished or whole.get("training_seconds") != TRAINING_SECONDS:
        whole = {}
    rows, about = whole.get("rows", []), whole.get("methods", {})
    for entry in reversed(ENTRIES):  # ours first: in an unfinished file it is what the others are compared with
        if entry.name not in about:
            compete(entry, rows, about, quick)
            save(rows, about, quick)
    draw_figure(rows, figure_path(NAME, quick))


def compete(entry: Entry, rows: list[Row], about: dict[str, Any], quick: bool) -> None:
    """Add what one method makes of it."""
    started, wall = time.process_time(), time.monotonic()
    fitted = fit(entry, quick)
    rows += [{**row, "commit": current_commit()} for row in measure(entry, fitted.method, quick)]
    about[entry.name] = {
        "paper": entry.paper,
        **fitted.about,
        **({"cannot": entry.cannot} if entry.cannot else {}),
        "processor_seconds": round(time.process_time() - started, 1),
        "wall_seconds": round(time.monotonic() - wall, 1),
    }
    print(f"{entry.name}: {about[entry.name]['processor_seconds']} s of processor time", file=sys.stderr, flush=True)


def save(rows: list[Row], about: dict[str, Any], quick: bool) -> None:
    extra = {
        "encoder": f"the bundled one of {MODEL!r}, frozen",
        "trial_seconds": TRIAL_SECONDS,
        "training_seconds": TRAINING_SECONDS,
        "validation": "126 characters without rotations: few-shot 20- and 126-way, 1 and 5 shots; roaming streams",
        "training_classes": "mirror images of training characters that were kept from the encoder",
        "not_yet_measured": [entry.name for entry in ENTRIES if entry.name not in about],
        "means": means(rows),
        "methods": about,
    }
    save_rows(NAME, rows, quick, **extra)


def fit(entry: Entry, quick: bool) -> Fitted:
    """Each setting for the same short time, judged on validation characters; then the best for longer."""
    training, validation = training_characters(8 if quick else DRAWINGS), characters(False, "validation")
    trial, full = (0.25, 0.5) if quick else (TRIAL_SECONDS, TRAINING_SECONDS)
    tried = []
    for settings in entry.grid[:1] if quick else entry.grid:
        method, _ = _trained(entry, settings, training, trial, quick)
        tried.append({**settings, "validation": round(_validation_score(method, validation, quick), 4)})
    best = max(range(len(tried)), key=lambda i: tried[i]["validation"])
    method, effort = _trained(entry, entry.grid[best], training, full, quick)
    about = {"grid": tried, "chosen": entry.grid[best]}
    if isinstance(method, EpisodicMethod):
        about |= {"steps": effort.steps, "examples": effort.examples}
        about["weights"] = sum(p.numel() for p in method.parameters())
    return Fitted(method, about)


def _trained(
    entry: Entry, settings: Settings, training: Embedded, seconds: float, quick: bool
) -> tuple[FewShotMethod, Effort]:
    torch.manual_seed(SEED)  # the weights that training starts from
    method = entry.build(settings, training)
    if quick and isinstance(method, LogisticBaseline):
        method.fitted_each_time = 10
    if not isinstance(method, EpisodicMethod):
        return method, Effort(0, 0)
    if not settings["learning_rate"]:
        return method.eval(), Effort(0, 0)
    how = MetaTraining(settings["learning_rate"], seconds)
    return method, meta_train(method, training.embeddings, training.labels, how, SEED)


def _validation_score(method: FewShotMethod, data: Embedded, quick: bool) -> float:
    """As said at the top."""
    x, labels = data.embeddings, data.labels
    ways = {20: 20, 126: 3}
    cells = [
        few_shot(method, x, labels, way=way, shot=shot, queries=5, episodes=1 if quick else ways[way], seed=0).mean()
        for way in _possible(method, ways)
        for shot in (1, 5)
    ]
    if _possible(method, (Roaming().classes,)):
        watched = roaming(method, x, labels, streams=1 if quick else VALIDATION_STREAMS, seed=0)
        for number in (Watched.accuracy_on_known, Watched.average_precision_known, Watched.average_precision_new):
            cells.append(torch.tensor([number(w) for w in watched]).mean())
    return float(torch.stack(cells).mean())


@cache
def training_characters(drawings: int) -> Embedded:
    """What everybody trains on, as the trained decoder of ours was: classes that the encoder has never seen."""
    learner, source = Learner.load(MODEL), DataSource()
    images = source.load_training(learner.config.encoder.image_size, "for_decoder").first_of_each(drawings)
    return Embedded(embed_once(learner, images.images), images.labels, source.split_name(), source.split_hash())


def measure(entry: Entry, method: FewShotMethod, quick: bool) -> Iterable[Row]:
    """A row for each cell that the method can fill."""
    for protocol in (contexts, streams, roaming_streams, sequences):
        for row in protocol(method, quick):
            yield {"method": entry.name, **row}


def contexts(method: FewShotMethod, quick: bool) -> Iterable[Row]:
    for way in _possible(method, (5, 20, MANY, 1000)):
        # Half of the drawings are enough for six of each class.
        data = characters(True, quick=True) if way > MANY else characters(False)
        episodes, queries = (1000, 5) if way < MANY else (20, 1)
        episodes = max(1, episodes // 50) if quick else episodes
        for shot in (1, 5):
            how = {"way": way, "shot": shot, "queries": queries, "episodes": episodes, "seed": SEED}
            values = few_shot(method, data.embeddings, data.labels, **how)
            yield _row("few-shot", method, data, way, shot, Estimate.of(values), episodes)


def streams(method: FewShotMethod, quick: bool) -> Iterable[Row]:
    data = characters(False)
    for way in _possible(method, STREAMS):
        count, per_class = (1, 2) if quick else (STREAMS[way], PER_CLASS[way])
        how = {"way": way, "per_class": per_class, "streams": count, "seed": SEED}
        watched = online(method, data.embeddings, data.labels, **how)
        yield _row("online", method, data, way, 0, _known(watched), count, **_cost(watched))


def roaming_streams(method: FewShotMethod, quick: bool) -> Iterable[Row]:
    data, count = characters(False), 2 if quick else ROAMING_STREAMS
    for way in _possible(method, (Roaming().classes,)):
        watched = roaming(method, data.embeddings, data.labels, streams=count, seed=SEED)
        known = Estimate.of(torch.tensor([w.average_precision_known() for w in watched]))
        new = Estimate.of(torch.tensor([w.average_precision_new() for w in watched]))
        precision = {"ap_known": known.mean, "ap_known_ci95": known.ci95, "ap_new": new.mean, "ap_new_ci95": new.ci95}
        yield _row("roaming", method, data, way, 0, _known(watched), count, **precision, **_cost(watched))


def sequences(method: FewShotMethod, quick: bool) -> Iterable[Row]:
    data = characters(False)
    for way in _possible(method, SEQUENCES):
        episodes = 1 if quick else SEQUENCES[way]
        how = {"way": way, "shot": SEQUENCE_SHOT, "queries": 5, "episodes": episodes, "seed": SEED}
        values = one_after_another(method, data.embeddings, data.labels, **how)
        yield _row("one after another", method, data, way, SEQUENCE_SHOT, Estimate.of(values), episodes)


def _possible(method: FewShotMethod, ways: Iterable[int]) -> list[int]:
    return [way for way in ways if method.most_classes is None or way <= method.most_classes]


def _row(
    protocol: str,
    method: FewShotMethod,
    data: Embedded,
    way: int,
    shot: int,
    accuracy: Estimate,
    episodes: int,
    **figures: float,
) -> Row:
    return {
        "protocol": protocol,
        "way": way,
        "shot": shot,
        "decoder": type(method).__name__,
        "labels": "fixed" if method.most_classes else "any",
        "checkpoint": MODEL,
        "split": data.split,
        "split_hash": data.split_hash,
        "episodes": episodes,
        "seed": SEED,
        "accuracy": accuracy.mean,
        "ci95": accuracy.ci95,
        **figures,
    }


def _known(watched: list[Watched]) -> Estimate:
    return Estimate.of(torch.tensor([w.accuracy_on_known() for w in watched]))


def _cost(watched: list[Watched]) -> dict[str, float]:
    return {
        "kept": sum(w.kept for w in watched) / len(watched),
        "ms_per_example": 1000 * sum(w.seconds_per_example for w in watched) / len(watched),
    }
