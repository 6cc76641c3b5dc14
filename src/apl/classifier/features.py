"""Vectors computed elsewhere as inputs: networks whose encoder is the identity and whose kernel finds its own scale.

The numbers of a stranger's embedding may be of any size, so the kernel measures distance in a unit taken from the
memory itself: the usual distance of a row to its nearest row of the same class. The decision does not change when
all features are multiplied by a constant. (It does when a single one is, unless the memory consolidates: `apl.reading.column_units`.)
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from apl.classifier.eviction import distances
from apl.config import DecoderConfig, IdentityConfig, LearnerConfig, Metric
from apl.controller import ConsolidatingController, SurpriseController
from apl.exported import ExportedNetworks
from apl.learner import Learner
from apl.memory import Neighbours
from apl.posterior import IMPOSSIBLE, Posterior

FEATURE_NEIGHBOURS = 16
ROWS_READ = 32
"""Neighbours recalled where the memory consolidates: local regression (`apl.reading.readers`) gains up to here."""
CONSOLIDATING_RATIO = 0.1
"""Of σ to ln N for vectors, chosen on BANKING77's and ImageNet's training parts: sentences and photographs vary more within a
class than drawings do, and more of them are worth a row."""
NARROW = 63
"""Vectors of up to so many numbers are positions; longer ones, which are embeddings as a rule, are directions: encoders
give 64 numbers or more."""
ROWS_MEASURED = 512
"""The unit is the median over at most so many rows."""
ROWS_AT_ONCE = 64


class UnitKernelNetworks:
    """A Gaussian kernel of the distance in units; "none of these" weighs as much as a row `NONE_UNITS` away."""

    SHARPNESS = 2.0
    NONE_UNITS = 2.0

    def __init__(self, width: int) -> None:
        self.width = width
        self.key_widths: Mapping[str, int] = {"embedding": width}
        self.unit: float | None = None
        """None as long as there are no two rows to measure it on: then every distance is as good as zero."""

    def tensor(self, array: Any) -> np.ndarray:
        return np.asarray(array)

    def array(self, tensor: Any) -> np.ndarray:
        return np.asarray(tensor)

    def embed(self, x: Float[np.ndarray, "example embed"]) -> Float[np.ndarray, "example embed"]:
        if x.ndim != 2 or x.shape[1] != self.width:
            raise ValueError(f"expected vectors of shape [any, {self.width}], got {list(x.shape)}")
        return np.asarray(x, np.float32)

    def decode(
        self, query: Float[np.ndarray, "query embed"], neighbours: Neighbours, log_elsewhere: np.ndarray
    ) -> Posterior:
        units = neighbours.distance / np.float32(self.unit) if self.unit else np.zeros_like(neighbours.distance)
        return gaussian_vote(units, self.SHARPNESS, self.NONE_UNITS, neighbours, log_elsewhere)

    def fingerprint(self) -> str:
        return vectors_fingerprint(IdentityConfig(self.width))

    def on_embeddings(self) -> UnitKernelNetworks:
        twin = UnitKernelNetworks(self.width)
        twin.unit = self.unit
        return twin


class NormalisedVectorNetworks(ExportedNetworks):
    """A trained decoder behind vectors of the width it knows, layer-normalised as its own encoder's are."""

    def embed(self, x: Float[np.ndarray, "example embed"]) -> Float[np.ndarray, "example embed"]:
        x = np.asarray(x, np.float32)
        centred = x - x.mean(1, keepdims=True)
        return centred / np.sqrt(np.square(centred).mean(1, keepdims=True) + np.float32(1e-5))

    def fingerprint(self) -> str:
        return vectors_fingerprint(IdentityConfig(self.width, normalise=True))


def vectors_fingerprint(config: IdentityConfig) -> str:
    return hashlib.sha256(repr(config).encode()).hexdigest()[:16]


def gaussian_vote(
    distance: Float[np.ndarray, "*query neighbours"],
    sharpness: float,
    none_distance: float,
    neighbours: Neighbours,
    log_elsewhere: Float[np.ndarray, "*query"],
) -> Posterior:
    """The neighbours' shares by a Gaussian kernel, and those of their classes; axes before the last are merged."""
    logits = np.where(neighbours.mask, np.float32(-sharpness) * np.square(distance), np.float32(IMPOSSIBLE))
    none = (log_elsewhere - np.float32(sharpness * none_distance**2))[..., None]
    logits = np.concatenate([logits, none], -1).reshape(-1, neighbours.k + 1)
    logits -= logits.max(-1, keepdims=True)
    share = np.exp(logits)
    share /= share.sum(-1, keepdims=True)
    weight = share[:, :-1]
    of_class = np.einsum("qkj,qj->qk", neighbours.same.reshape(-1, neighbours.k, neighbours.k), weight)
    with np.errstate(divide="ignore"):
        return Posterior(np.log(share[:, -1]), weight, np.log(of_class).clip(IMPOSSIBLE))


def feature_learner(width: int, consolidate: bool = False, metric: Metric | None = None) -> Learner:
    """A learner for vectors of this width, without trained weights. One that consolidates compares directions, unless there
    are too few dimensions for them to say much."""
    if consolidate:
        metric = metric or ("euclidean" if width <= NARROW else "cosine")
        config = LearnerConfig(IdentityConfig(width), DecoderConfig(kind="kernel"), k=ROWS_READ, metric=metric)
        return Learner(config, ConsolidatingController(CONSOLIDATING_RATIO), UnitKernelNetworks(width))
    metric = metric or "euclidean"
    config = LearnerConfig(IdentityConfig(width), DecoderConfig(kind="kernel"), k=FEATURE_NEIGHBOURS, metric=metric)
    # A kernel's doubts are milder than a trained decoder's: what it does not hold more likely than not is written, and
    # among a few classes more than that.
    return Learner(config, SurpriseController(ratio=0.3, most_nats=math.log(2)), UnitKernelNetworks(width))


def trained_feature_learner(model: Learner, width: int) -> Learner:
    """A trained decoder behind vectors of the width it knows."""
    if width != model.networks.width:
        raise ValueError(f"the model's decoder reads embeddings of {model.networks.width} numbers, not of {width}")
    return Learner(model.config, model.controller, NormalisedVectorNetworks(model.networks.directory))


def measure_unit(keys: Float[np.ndarray, "row embed"], labels: Int[np.ndarray, " row"]) -> float | None:
    """The median distance to the nearest row of the same class; half of that to another class where there is none."""
    if len(keys) < 2:
        return None
    rows = np.linspace(0, len(keys) - 1, min(len(keys), ROWS_MEASURED)).round().astype(int)
    reach = np.empty(len(rows), np.float32)
    for start in range(0, len(rows), ROWS_AT_ONCE):
        part = rows[start : start + ROWS_AT_ONCE]
        distance = distances(keys[part], keys)
        distance[distance == 0] = np.inf
        same = labels[part][:, None] == labels
        within, between = np.where(same, distance, np.inf).min(1), np.where(same, np.inf, distance).min(1)
        reach[start : start + ROWS_AT_ONCE] = np.where(np.isfinite(within), within, between / 2)
    reach = np.sort(reach[np.isfinite(reach)])
    return float(reach[(len(reach) - 1) // 2]) if len(reach) else None
