"""Finding a classifier's model, and opening its memory."""

from __future__ import annotations

import logging
import math
from typing import Any

from apl.classifier.configuration import SETTING, Configuration, UnknownWidth, check_whole
from apl.classifier.opened import Opened
from apl.config import WITHOUT_WEIGHTS, DecoderConfig, IdentityConfig, LearnerConfig, Metric
from apl.controller import ConsolidatingController, SurpriseController
from apl.encoders import FrozenEncoder
from apl.encoders.trained import TrainedEncoder
from apl.learner import Learner
from apl.memory.remote import RemoteMemory
from apl.memory.stored import StoredMemory
from apl.reading.ensemble import EnsembleReading
from apl.reading.kernel import KernelReading, VectorNetworks
from apl.store import StoreDamaged, StoreError, find_memory, is_on_server, open_store

log = logging.getLogger("apl")
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


def open_classifier(given: Configuration, width: int | None, encoder: FrozenEncoder | None) -> Opened:
    """Find the model, open the memory, and check that the two belong together. `width`: of the first example, if there is one."""
    own = encoder if isinstance(encoder, TrainedEncoder) else None
    given.check(encoder, of_vectors=own is None)
    if own is None:
        width = given.width or width or (encoder.width if encoder is not None else None)
        if width is None and (there := find_memory(given.memory or "ram:", given.name)):
            width = there.width
        if width is None:
            raise UnknownWidth("how wide are the vectors? Give width=, or learn an example first")
        check_whole("width", width)
        return _open_memory(given, vector_learner(width, given.consolidate, given.metric), encoder)
    learner = own.learner
    decoder = learner.config.decoder
    if decoder.labels == "fixed" and decoder.kind not in WITHOUT_WEIGHTS:
        raise ValueError("this model's decoder knows a fixed number of classes: take one with neighbourhood labels")
    if len(learner.key_widths) > 1:
        raise ValueError("this model recalls by several keys, which a classifier cannot")
    controller, reading = learner.controller, learner.make_reading
    # A learner with a rule of its own for writing keeps that rule, and its reading.
    if given.consolidate and controller == SurpriseController(learner.config.sigma_ratio):
        controller, reading = ConsolidatingController(), EnsembleReading
    return _open_memory(given, Learner(learner.config, controller, learner.networks, reading), encoder)


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


def _open_memory(given: Configuration, learner: Learner, encoder: FrozenEncoder | None) -> Opened:
    on_server = is_on_server(given.memory)
    recall = given.recall or ("engine" if on_server else "ram")
    if recall != "ram" and not on_server:
        raise ValueError(f"recall={recall!r} is for memories on a server; this one is searched in RAM")
    if recall == "ram" and given.index is not None:
        raise ValueError("index= is for memories on PostgreSQL that are searched there")
    if recall == "ram" and on_server and not given.read_only:
        raise ValueError("recall='ram' on a server is for reading alone: give read_only=True, or recall='engine'")
    width, metric = learner.networks.width, learner.config.metric
    store = open_store(
        given.memory,
        given.name,
        fingerprint=encoder.fingerprint if encoder else learner.fingerprint(),
        width=width,
        read_only=given.read_only,
        approximate=recall == "approximate",
        index=given.index,
        keep_sources=given.keep_sources,
        metric=metric,
    )

    def new_state(kept: Any) -> Any:
        try:
            return learner.reading.new_state(1, width, kept)
        except ValueError as error:
            raise StoreDamaged(f"memory {store.name!r}: {error}") from None

    log.info("opened memory %r in %s", store.name, given.memory or "RAM")
    try:
        if not store.read_only:
            # A memory that others share is not touched where nothing changes: each write makes them look again.
            recorded = given.recorded(width)
            if not (store.shared and store.setting(SETTING) == recorded):
                store.update_settings({SETTING: recorded})
        if recall != "ram":
            if store.metric != metric:
                raise StoreError(
                    f"memory {store.name!r} was made with the {store.metric} metric, which cannot change: make a new memory "
                    f"with metric={metric!r}, and import an archive of this one into it"
                )
            return Opened(learner, RemoteMemory(store, metric, new_state))
        lasts = given.memory not in (None, "ram:")
        return Opened(learner, StoredMemory(store, metric, new_state, lasts=lasts))
    except BaseException:
        store.close()
        raise
