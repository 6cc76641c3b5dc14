"""Learners for vectors computed elsewhere: the encoder is the identity, and no weights are trained."""

from __future__ import annotations

import math

from apl.config import DecoderConfig, IdentityConfig, LearnerConfig, Metric
from apl.controller import ConsolidatingController, SurpriseController
from apl.learner import Learner
from apl.reading.ensemble import EnsembleReading
from apl.reading.kernel import KernelReading, VectorNetworks

VOTERS = 16
"""Neighbours recalled under the paper's plain rule."""
ROWS_READ = 32
"""Neighbours recalled for an ensemble: local regression (`apl.reading.readers`) gains up to here."""
CONSOLIDATING_RATIO = 0.1
"""Of σ to ln N for an ensemble, chosen on BANKING77's and ImageNet's training parts: sentences and photographs vary more within a
class than drawings do, and more of them are worth a row."""
NARROW = 63
"""Vectors of up to this width are positions; longer ones, which are usually embeddings, are directions: encoders give 64
numbers or more."""


def vector_learner(width: int, consolidate: bool = True, metric: str | None = None) -> Learner:
    """A learner for vectors of this width. An ensemble compares directions, unless there are too few dimensions for them to say
    much."""
    networks, kernel = VectorNetworks(width), DecoderConfig(kind="kernel")
    chosen: Metric = "cosine" if (metric or _usual_metric(width, consolidate)) == "cosine" else "euclidean"
    if consolidate:
        config = LearnerConfig(IdentityConfig(width), kernel, k=ROWS_READ, metric=chosen)
        return Learner(config, ConsolidatingController(CONSOLIDATING_RATIO), networks, EnsembleReading)
    config = LearnerConfig(IdentityConfig(width), kernel, k=VOTERS, metric=chosen)
    # A kernel's doubts are milder than a trained decoder's: what it does not hold more likely than not is written, and
    # among a few classes more than that.
    return Learner(config, SurpriseController(ratio=0.3, most_nats=math.log(2)), networks, KernelReading)


def _usual_metric(width: int, consolidate: bool) -> Metric:
    return "cosine" if consolidate and width > NARROW else "euclidean"
