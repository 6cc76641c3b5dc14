"""Published methods beside ours, on the same embeddings and the same episodes: `python -m experiments baselines`.

*Same encoder*: the bundled one, frozen. Every method trains only what it adds, on classes the encoder has not seen, for the
same processor time of one thread; three settings of each are tried on the validation characters, for the same time each, and
the best is trained for longer. What follows is fixed before anything is measured:

- The **mean** of a method is over fifteen cells of equal weight: eight of few-shot accuracy (5, 20, 423 and 1000 classes at
  1 and 5 shots), two online (20 and 423 classes, accuracy on examples whose class was shown before), three of roaming streams
  (accuracy on known, average precision of known, average precision of new), two of classes one after the other (20 and 423
  classes). The **mean without AP** leaves the two average precisions out. A method that cannot fill a cell has no mean, but
  ours over the cells that it fills stands beside it.
- A setting is judged on validation characters by the mean over few-shot tasks of 20 and of all 126 classes at 1 and 5 shots
  and over roaming streams (accuracy and both average precisions), where the method can do them.
- In streams the label of every example is given. Items kept are vectors as wide as an embedding.

- *Ours* is `OnlineClassifier` as it ships with the model `omniglot`: no setting is chosen, examples are learnt by `learn_many` and
  `learn_one`, and how new an example looks is its P(new). *Ours, the paper's rule* is the same with `consolidate=False`. Its decoder
  was trained before, on the same classes (docs/LOG.md); the others train what they add for a minute.
- Every method gets the same episodes, so differences to ours are paired. In the means, cells count as independent.

The file is written method by method. While methods are missing it also holds the values of every episode, and a run that was
stopped continues with the next method.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor

from apl.checkpoint import current_commit
from apl.data.source import DataSource
from apl.evaluate import Estimate
from apl.learner import Learner
from experiments.baselines.interface import EpisodicMethod, FewShotMethod
from experiments.baselines.meta_training import Effort, MetaTraining, meta_train
from experiments.baselines.protocols import Roaming, Watched, few_shot, one_after_another, online, roaming
from experiments.baselines.scikit import LogisticBaseline
from experiments.paper.baselines_entries import ENTRIES, Entry, Settings
from experiments.paper.baselines_table import OURS_NAME, means
from experiments.paper.embedding_cache import embed_once
from experiments.paper.results import Row, load_whole, save_rows
from experiments.paper.subjects import MODEL, Embedded, characters, image_size

NAME = "baselines"
SEED = 1
TRIAL_SECONDS, TRAINING_SECONDS = 5.0, 60.0
"""Of one thread's processor time: for each of the three settings, and for the best of them."""
DRAWINGS = 20
"""Of each training class."""
MANY = 423
"""From this number of classes on episodes are few and large."""
EPISODES = 400
"""Of 5 and of 20 classes."""
STREAMS = {20: 20, MANY: 5}
PER_CLASS = {20: 20, MANY: 6}
"""Examples of each class in an online stream."""
ROAMING_STREAMS, VALIDATION_STREAMS = 20, 4
SEQUENCES = {20: 20, MANY: 5}
SEQUENCE_SHOT = 5

Numbers = Mapping[str, Sequence[float] | Tensor]
"""Accuracy or average precision, and its value in every episode."""
Values = dict[str, dict[str, Numbers]]
"""Method → cell → numbers."""
Cell = tuple[str, tuple[Row, Numbers]]


@dataclass(frozen=True)
class Fitted:
    """A method ready to be tested, and how it came about."""

    method: FewShotMethod
    about: dict[str, Any] = field(default_factory=dict)


def reproduce(quick: bool = False) -> None:
    whole = load_whole(NAME, quick)
    if "values" not in whole:  # complete, or none
        whole = {"rows": [], "methods": {}, "values": {}}
    rows, about, values = (whole[part] for part in ("rows", "methods", "values"))
    for entry in reversed(ENTRIES):  # ours first: what the others are compared with
        if entry.name not in about:
            compete(entry, rows, about, values, quick)
            save(rows, about, values, quick)


def compete(entry: Entry, rows: list[Row], about: dict[str, Any], values: Values, quick: bool) -> None:
    """Add what one method makes of it."""
    started, wall = time.process_time(), time.monotonic()
    fitted = fit(entry, quick)
    found = dict(measure(fitted.method, quick))
    values[entry.name] = {cell: numbers for cell, (_, numbers) in found.items()}
    for cell, (described, numbers) in found.items():
        row = {"method": entry.name, **described, "commit": current_commit()}
        rows.append(row | summary(numbers, values[OURS_NAME][cell]))
    about[entry.name] = {
        "paper": entry.paper,
        **fitted.about,
        "processor_seconds": round(time.process_time() - started, 1),
        "wall_seconds": round(time.monotonic() - wall, 1),
    }
    print(f"{entry.name}: {about[entry.name]['processor_seconds']} s of processor time", file=sys.stderr, flush=True)


def summary(numbers: Numbers, ours: Numbers) -> Row:
    """Mean and interval of each number over the episodes, and the paired difference ours − this method's."""
    row: Row = {}
    for name, episodes in numbers.items():
        estimate, difference = Estimate.of(episodes), Estimate.of_difference(ours[name], episodes)
        row |= {name: estimate.mean, "ci95" if name == "accuracy" else f"{name}_ci95": estimate.ci95}
        row |= {f"{name}_difference": difference.mean, f"{name}_difference_ci95": difference.ci95}
    return row


def save(rows: list[Row], about: dict[str, Any], values: Values, quick: bool) -> None:
    missing = [entry.name for entry in ENTRIES if entry.name not in about]
    extra = {
        "encoder": f"the bundled one of {MODEL!r}, frozen",
        "trial_seconds": TRIAL_SECONDS,
        "training_seconds": TRAINING_SECONDS,
        "validation": "126 characters without rotations: few-shot 20- and 126-way, 1 and 5 shots; roaming streams",
        "training_classes": "mirror images of training characters that were kept from the encoder",
        "not_yet_measured": missing,
        "means": means(rows),
        "methods": about,
    }
    save_rows(NAME, rows, quick, **extra, **({"values": values} if missing else {}))


def fit(entry: Entry, quick: bool) -> Fitted:
    """Each setting for the same short time, judged on validation characters; then the best for longer."""
    training, validation = training_characters(8 if quick else DRAWINGS), characters(False, "validation")
    trial, full = (0.25, 0.5) if quick else (TRIAL_SECONDS, TRAINING_SECONDS)
    if not entry.grid[0]:
        return Fitted(_trained(entry, {}, training, full, quick)[0], {"grid": [], "chosen": {}})
    tried = []
    for settings in entry.grid[:1] if quick else entry.grid:
        method, _ = _trained(entry, settings, training, trial, quick)
        tried.append({**settings, "validation": round(_validation_score(method, validation, quick), 4)})
    best = max(range(len(tried)), key=lambda i: tried[i]["validation"])
    method, effort = _trained(entry, entry.grid[best], training, full, quick)
    about: dict[str, Any] = {"grid": tried, "chosen": entry.grid[best]}
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
        for way in ways
        for shot in (1, 5)
    ]
    watched = roaming(method, x, labels, streams=1 if quick else VALIDATION_STREAMS, seed=0)
    for number in (Watched.accuracy_on_known, Watched.average_precision_known, Watched.average_precision_new):
        cells.append(torch.tensor([number(w) for w in watched]).mean())
    return float(torch.stack(cells).mean())


@cache
def training_characters(drawings: int) -> Embedded:
    """What all methods train on, and what our decoder was trained on: classes that the encoder has never seen."""
    learner, source = Learner.load(MODEL), DataSource()
    images = source.load_training(image_size(learner.config.encoder), "for_decoder").first_of_each(drawings)
    return Embedded(embed_once(learner, images.images), images.labels, source.split_name(), source.split_hash())


def measure(method: FewShotMethod, quick: bool) -> Iterable[Cell]:
    """Every cell that the method can fill: where it stands in the table, its description, and numbers for each episode."""
    for protocol in (contexts, streams, roaming_streams, sequences):
        for described, numbers in protocol(method, quick):
            cell = f"{described['protocol']} {described['way']} {described['shot']}"
            yield cell, (described, {name: [float(v) for v in values] for name, values in numbers.items()})


def contexts(method: FewShotMethod, quick: bool) -> Iterable[tuple[Row, Numbers]]:
    for way in (5, 20, MANY, 1000):
        # Half of the drawings are enough for six of each class.
        data = characters(True, few=True) if way > MANY else characters(False)
        episodes, queries = (EPISODES, 5) if way < MANY else (20, 1)
        episodes = max(2, episodes // 50) if quick else episodes
        for shot in (1, 5):
            how = {"way": way, "shot": shot, "queries": queries, "episodes": episodes, "seed": SEED}
            values = few_shot(method, data.embeddings, data.labels, **how)
            yield _about("few-shot", method, data, way, shot, episodes), {"accuracy": values}


def streams(method: FewShotMethod, quick: bool) -> Iterable[tuple[Row, Numbers]]:
    data = characters(False)
    for way in STREAMS:
        count, per_class = (2, 2) if quick else (STREAMS[way], PER_CLASS[way])
        how = {"way": way, "per_class": per_class, "streams": count, "seed": SEED}
        watched = online(method, data.embeddings, data.labels, **how)
        about = _about("online", method, data, way, 0, count)
        yield about | _cost(watched), {"accuracy": [w.accuracy_on_known() for w in watched]}


def roaming_streams(method: FewShotMethod, quick: bool) -> Iterable[tuple[Row, Numbers]]:
    data, count = characters(False), 2 if quick else ROAMING_STREAMS
    watched = roaming(method, data.embeddings, data.labels, streams=count, seed=SEED)
    yield (
        _about("roaming", method, data, Roaming().classes, 0, count) | _cost(watched),
        {
            "accuracy": [w.accuracy_on_known() for w in watched],
            "ap_known": [w.average_precision_known() for w in watched],
            "ap_new": [w.average_precision_new() for w in watched],
        },
    )


def sequences(method: FewShotMethod, quick: bool) -> Iterable[tuple[Row, Numbers]]:
    data = characters(False)
    for way in SEQUENCES:
        episodes = 2 if quick else SEQUENCES[way]
        how = {"way": way, "shot": SEQUENCE_SHOT, "queries": 5, "episodes": episodes, "seed": SEED}
        values = one_after_another(method, data.embeddings, data.labels, **how)
        yield _about("one after another", method, data, way, SEQUENCE_SHOT, episodes), {"accuracy": values}


def _about(protocol: str, method: FewShotMethod, data: Embedded, way: int, shot: int, episodes: int) -> Row:
    return {
        "protocol": protocol,
        "way": way,
        "shot": shot,
        "decoder": type(method).__name__,
        "labels": "any",
        "checkpoint": MODEL,
        "split": data.split,
        "split_hash": data.split_hash,
        "episodes": episodes,
        "seed": SEED,
    }


def _cost(watched: list[Watched]) -> dict[str, float]:
    return {
        "kept": sum(w.kept for w in watched) / len(watched),
        "ms_per_example": 1000 * sum(w.seconds_per_example for w in watched) / len(watched),
    }
