"""What the loop is measured on: four sets of vectors, and pools drawn from them.

Drawings are Omniglot's test characters behind the bundled encoder; photographs are of 200 classes of ImageNet-mini behind
EfficientNet-Lite0, pools from `train` (which the encoder was trained on) and questions from `val`; requests are those of BANKING77
and CLINC150 behind MiniLM, pools from the training part and questions from the test part. Numbers were chosen on validation
characters, other photographs, other draws and validation requests (`chosen_on`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
import torch.nn.functional as F

from apl.checkpoint import FOR_DRAWINGS
from apl.evaluate import Estimate
from experiments.data.embedded import Embedded, Intents, characters, intents, photographs
from experiments.paper.results import Row

Kind = Literal["even", "uneven", "near-duplicates"]
SETS = ("omniglot", "imagenet", "banking77", "clinc150")
KINDS: tuple[Kind, ...] = ("even", "uneven", "near-duplicates")
MOST_CLASSES, POOL, ASKED, POOLED_DRAWINGS = 100, 1000, 500, 15
PHOTO_CLASSES = {False: (500, 700), True: (0, 100)}
"""Reported on, and chosen on."""
REPEATED, COPIES, NOISE = 0.1, 10, 0.05
"""In a pool with near-duplicates: the share of examples that are repeated, how often, and how far away as a share of their
length."""


@dataclass(frozen=True)
class Pool:
    """Examples to choose from, and examples to be asked about."""

    x: np.ndarray
    y: np.ndarray
    asked: np.ndarray
    truth: np.ndarray
    split: str


@cache
def source(name: str, chosen_on: bool = False) -> Pool:
    """A whole set."""
    if name == "omniglot":
        part = "validation" if chosen_on else "test"
        found = characters(False, part, FOR_DRAWINGS)
        x, y = F.normalize(found.embeddings, dim=1).numpy(), found.labels.numpy()
        pooled = np.array([(y[:n] == label).sum() < POOLED_DRAWINGS for n, label in enumerate(y)])
        return Pool(x[pooled], y[pooled], x[~pooled], y[~pooled], f"{found.split}, {part}")
    if name == "imagenet":
        first, last = PHOTO_CLASSES[chosen_on]
        learnt, asked = (photographs(part) for part in ("train", "val"))
        x, y, asked_x, truth = *arrays(learnt), *arrays(asked)
        pooled, asked_of = ((first <= labels) & (labels < last) for labels in (y, truth))
        split = f"train and val, classes {first} to {last - 1}"
        return Pool(x[pooled], y[pooled], asked_x[asked_of], truth[asked_of], split)
    wanted: Intents = "banking77" if name == "banking77" else "clinc150"
    parts, part = intents(wanted), "valid" if chosen_on else "test"
    return Pool(*arrays(parts["train"]), *arrays(parts[part]), f"train and {part}")


def arrays(found: Embedded) -> tuple[np.ndarray, np.ndarray]:
    return found.embeddings.numpy(), found.labels.numpy()


def pool(name: str, kind: Kind, seed: int, chosen_on: bool = False, most: int = POOL) -> Pool:
    """About `most` examples: as many of each class; classes by Zipf's law, as far as there are examples; or half of them
    near-duplicates of a few. Questions are even in all cases."""
    found, chance = source(name, chosen_on), np.random.default_rng([seed, KINDS.index(kind), 29])
    labels = chance.permutation(np.unique(found.y))
    labels = labels[:MOST_CLASSES] if name in ("omniglot", "imagenet") else labels
    mine = [chance.permutation((found.y == label).nonzero()[0]) for label in labels]
    held = np.array([len(examples) for examples in mine])
    if kind == "uneven":
        number = _zipf(held, min(most, int(0.4 * held.sum())))
    else:
        distinct = most if kind == "even" else most / (1 + REPEATED * COPIES)
        number = np.minimum(held, max(1, round(distinct / len(labels))))
    chosen = np.concatenate([examples[:count] for examples, count in zip(mine, number, strict=True)])
    x, y = found.x[chosen], found.y[chosen]
    if kind == "near-duplicates":
        again = np.repeat(chance.permutation(len(y))[: round(REPEATED * len(y))], COPIES)
        noise = chance.normal(size=(len(again), x.shape[1]))
        noise *= NOISE * np.linalg.norm(x[again], axis=1, keepdims=True) / np.linalg.norm(noise, axis=1, keepdims=True)
        x, y = np.concatenate([x, x[again] + noise]), np.concatenate([y, y[again]])
    order = chance.permutation(len(y))
    asked = chance.permutation(np.isin(found.truth, labels).nonzero()[0])[:ASKED]
    return Pool(x[order].astype(np.float32), y[order], found.asked[asked], found.truth[asked], found.split)


def _zipf(held: np.ndarray, total: int) -> np.ndarray:
    """Examples of each class, by rank: c / rank, at least 1 and at most what there is, about `total` in all."""
    numbers = (np.clip(c // np.arange(1, len(held) + 1), 1, held) for c in range(total))
    return next(number for number in numbers if number.sum() >= total)


def estimates(found: Sequence[Mapping[str, float]]) -> Row:
    """Mean and 95 % interval of each figure over draws."""
    means = {figure: Estimate.of([one[figure] for one in found]) for figure in found[0]}
    return {
        **{name: one.mean for name, one in means.items()},
        **{f"{name}_ci95": one.ci95 for name, one in means.items()},
    }


def beside(found: Mapping[str, Sequence[Mapping[str, float]]], ours: str) -> Iterator[Row]:
    """Estimates of each method's figures, and of what ours has more than it on the same draws (`ours_more`)."""
    for method, figures in found.items():
        less = [
            {f"{name}_ours_more": mine[name] - theirs[name] for name in theirs}
            for mine, theirs in zip(found.get(ours, ()), figures, strict=False)
        ]
        yield {"method": method, **estimates(figures), **(estimates(less) if less and method != ours else {})}
