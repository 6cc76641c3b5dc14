"""The learners that experiments compare: a saved model, or its encoder with another decoder, k or threshold."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from apl.config import WITHOUT_WEIGHTS, DecoderKind
from apl.controller import ConsolidatingController, SurpriseController
from apl.decoder import build_decoder
from apl.learner import Learner


def variant(
    model: str | Path,
    *,
    k: int | None = None,
    decoder: DecoderKind | None = None,
    sigma_nats: float | None = None,
    consolidate: bool = False,
) -> Learner:
    """A saved learner, changed where asked. A decoder named here has no weights of its own. With `consolidate` what does
    not surprise is merged; without, it is thrown away, as in the paper."""
    learner = Learner.load(model)
    config = learner.config
    if decoder is not None:
        if decoder not in WITHOUT_WEIGHTS:
            raise ValueError(f"only {', '.join(WITHOUT_WEIGHTS)} need no weights; {decoder!r} must be trained")
        bare = replace(config.decoder, kind=decoder, labels="neighbourhood", class_means=decoder == "class_mean")
        config = replace(config, decoder=bare)
        learner.networks.decoder = build_decoder(config.decoder, learner.encoder.width)
    if k is not None:
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        config = replace(config, k=k)
    learner.config = config
    if consolidate:
        learner.controller = ConsolidatingController(sigma_nats=sigma_nats)
    elif sigma_nats is not None:
        learner.controller = SurpriseController(sigma_nats=sigma_nats)
    return learner
