"""A classifier's model and memory once they are open, and how a memory records which model it belongs to."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Float

from apl.checkpoint import BUNDLED
from apl.classifier.answers import Receipt
from apl.classifier.durable_memory import LOST, DurableMemory
from apl.classifier.embedded import Embedded
from apl.classifier.engine_memory import EngineMemory, engine_can_search
from apl.classifier.examples import Examples
from apl.classifier.features import feature_learner, trained_feature_learner
from apl.classifier.open_world import OpenWorld
from apl.classifier.parameters import check_parameters, check_whole
from apl.config import WITHOUT_WEIGHTS
from apl.controller import ConsolidatingController, SurpriseController
from apl.encoders import FrozenEncoder, encoder_name, plugged_encoder
from apl.encoders.trained import TrainedEncoder
from apl.exported import load_for_use
from apl.learner import Learner
from apl.store import Label, Store, StoreError, find_memory, is_on_server, open_store
from apl.store.transfer import save_copy

CLASSIFIER_SETTING = "classifier"
"""Under this name a memory keeps the parameters that `OnlineClassifier.load` needs."""
EXAMPLES_AT_ONCE = 256
Recall = Literal["ram", "engine", "approximate"]
"""Where a memory is searched: in a copy in RAM, or on the server it lives on, exactly or through an index that misses
some neighbours. By default where it lives."""
WrittenWith = Mapping[str, Any] | Callable[[list[Receipt]], Mapping[str, Any]] | None
"""What is written in the same transaction as the examples; a function makes it of their receipts."""
ADJUSTABLE = ("max_rows", "max_rows_per_class", "sigma", "k")
"""Parameters that may change while a memory is open."""


class UnknownWidth(ValueError):
    """A memory of vectors cannot be made before one of them was seen."""


class Session:
    """A learner, a store, and the open world between them. One thread at a time."""

    def __init__(self, learner: Learner, store: Store, recall: Recall = "ram") -> None:
        self.learner = learner
        self.store = store
        self._own_controller, self._own_k = learner.controller, learner.config.k
        self._adjusted: tuple | None = None
        twin = learner.on_embeddings()
        memory = DurableMemory(twin, store) if recall == "ram" else EngineMemory(twin, store)
        self.world = OpenWorld(twin, memory)
        self.lock = threading.RLock()

    def adjust(
        self, *, max_rows: int | None, max_rows_per_class: int | None, sigma: float | None, k: int | None
    ) -> None:
        """Parameters that may change while open."""
        asked = (max_rows, max_rows_per_class, sigma, k)
        if asked == self._adjusted:
            return
        check_parameters(max_rows=max_rows, max_rows_per_class=max_rows_per_class, sigma=sigma, k=k)
        twin, memory = self.world.learner, self.world.memory
        memory.max_rows, memory.max_rows_per_class = max_rows, max_rows_per_class
        kind = ConsolidatingController if self.learner.consolidates else SurpriseController
        twin.controller = self._own_controller if sigma is None else kind(sigma_nats=float(sigma))
        twin.config = replace(twin.config, k=self._own_k if k is None else k)
        if self._adjusted is not None and not self.store.read_only:
            kept = self.store.setting(CLASSIFIER_SETTING) or {}
            self.store.update_settings({CLASSIFIER_SETTING: kept | dict(zip(ADJUSTABLE, asked, strict=True))})
        self._adjusted = asked

    @contextmanager
    def alone(self, asking: bool = False) -> Iterator[OpenWorld]:
        """The world as it is now. Who only asks a question (`OpenWorld.ask`) need not look first, if the answer tells."""
        with self.lock:
            memory = self.world.memory
            looked_at_later = asking and self.store.returns_generation and isinstance(memory, EngineMemory)
            if memory.generation == LOST or (not looked_at_later and memory.is_stale()):
                self.world.follow()
            yield self.world

    def embed(self, examples: Examples | Embedded) -> Float[np.ndarray, "example embed"]:
        if isinstance(examples, Embedded):
            if examples.fingerprint != self.store.fingerprint:
                raise ValueError("these examples were embedded by another encoder than this memory's")
            return examples.vectors
        size, networks = getattr(self.learner.config.encoder, "image_size", 0), self.learner.networks
        parts = []
        for start in range(0, len(examples), EXAMPLES_AT_ONCE):
            x = np.asarray(examples.part(start, start + EXAMPLES_AT_ONCE).encoder_input(size))
            parts.append(networks.array(networks.embed(x)))
        if len(parts) == 1:
            return parts[0]
        return np.concatenate([np.zeros((0, networks.width), np.float32), *parts])

    def learn(
        self,
        examples: Examples | Embedded,
        labels: Sequence[Label],
        sources: Sequence[str | None],
        keep_images: bool,
        settings: WrittenWith = None,
        receipts: WrittenWith = None,
        order: Sequence[int] | None = None,
    ) -> list[Receipt]:
        """One after the other (in `order`, if given), made durable together. Receipts come in the order of the examples."""
        embeddings = self.embed(examples)
        with self.alone() as world:
            if self.store.read_only:
                raise StoreError(f"memory {self.store.name!r} was opened for reading only")
            try:
                learnt = {
                    i: world.learn(
                        embeddings[i], labels[i], sources[i], (lambda i=i: examples.payload(i)) if keep_images else None
                    )
                    for i in (range(len(labels)) if order is None else order)
                }
                outcome = [still_there(learnt[i], world.memory.staged) for i in range(len(labels))]
                world.commit(_made(settings, outcome), _made(receipts, outcome))
            except BaseException:
                world.reload()
                raise
        return outcome

    def save(self, path: Path, name: str, overwrite: bool = False) -> None:
        """Copy rows and settings into a file, which appears only when complete."""
        with self.lock:
            save_copy(self.store, path, name, overwrite)


def open_session(
    parameters: dict[str, Any], width: int | None, encoder: FrozenEncoder | None = None, loaded: Learner | None = None
) -> Session:
    """Find the model, open the memory, and see that the two belong together."""
    model = parameters["model"]
    check_parameters(**{name: parameters[name] for name in (*ADJUSTABLE, "metric", "ink")})
    own = isinstance(encoder, TrainedEncoder)
    for name in ("width", "metric", "decoder_of"):
        if parameters[name] is not None and model is not None and (own or encoder is None):
            raise ValueError(f"{name}= is for vectors: beside a model of pictures it means nothing")
    given = encoder.width if encoder is not None else None
    if given is not None and parameters["width"] not in (None, given):
        raise ValueError(f"the encoder gives vectors of {given} numbers, not of width={parameters['width']}")
    if parameters["decoder_of"] is not None and parameters["metric"] is not None:
        raise ValueError("decoder_of= measures distances its own way: metric= means nothing beside it")
    if model is None or (encoder is not None and not own):
        width = parameters["width"] or width or given
        if width is None and (there := find_memory(parameters["memory"] or "ram:", parameters["name"])):
            width = there.width
        if width is None:
            raise UnknownWidth("how wide are the vectors? Give width=, or learn an example first")
        check_whole("width", width)
        decoder_of = parameters["decoder_of"]
        if decoder_of is None:
            learner = feature_learner(width, parameters["consolidate"], parameters["metric"])
        else:
            learner = trained_feature_learner(_model(decoder_of), width)
    else:
        learner = encoder.learner if own else loaded or _model(model)
        if learner.config.decoder.labels == "fixed" and learner.config.decoder.kind not in WITHOUT_WEIGHTS:
            raise ValueError("this model's decoder knows a fixed number of classes: take one with neighbourhood labels")
        if own:
            learner = learner.on_embeddings()
    return open_memory(parameters, learner, encoder)


def open_memory(parameters: dict[str, Any], learner: Learner, encoder: FrozenEncoder | None = None) -> Session:
    """Open a memory for a learner that is ready, and note in it which one that is."""
    if parameters["consolidate"]:
        learner = consolidating(learner)
    place = parameters["memory"]
    recall = parameters.get("recall") or ("engine" if is_on_server(place) and engine_can_search(learner) else "ram")
    if recall not in ("ram", "engine", "approximate"):
        raise ValueError(f"recall is 'ram', 'engine' or 'approximate', got {recall!r}")
    if recall != "ram" and not is_on_server(place):
        raise ValueError(f"recall={recall!r} is for memories on a server; this one is searched in RAM")
    shared = recall != "ram" and not parameters["read_only"]
    store = open_store(
        place,
        parameters["name"],
        fingerprint=encoder.fingerprint if encoder else learner.fingerprint(),
        width=learner.networks.width,
        read_only=parameters["read_only"],
        shared=shared,
        approximate=recall == "approximate",
        metric=None if recall == "ram" else learner.config.metric,
    )
    try:
        if not store.read_only:
            # A memory that others share is not touched where nothing changes: each write makes them look again.
            kept = {CLASSIFIER_SETTING: recorded(parameters, learner)}
            if not (shared and store.setting(CLASSIFIER_SETTING) == kept[CLASSIFIER_SETTING]):
                store.update_settings(kept)
        session = Session(learner, store, recall)
        session.adjust(**{name: parameters[name] for name in ADJUSTABLE})
        return session
    except BaseException:
        store.close()
        raise


def consolidating(learner: Learner) -> Learner:
    """The same learner, merging what does not surprise it; one with a rule of its own for writing keeps that rule."""
    if type(learner.controller) is not SurpriseController or len(learner.key_widths) > 1:
        return learner
    return Learner(learner.config, ConsolidatingController(), learner.networks)


def _made(written_with: WrittenWith, learnt: list[Receipt]) -> dict[str, Any] | None:
    values = written_with(learnt) if callable(written_with) else written_with
    return None if values is None else dict(values)


def still_there(receipt: Receipt, staged: set[int]) -> Receipt:
    """A later example of the same batch may have taken the row's place again."""
    return receipt if receipt.row is None or receipt.row in staged else replace(receipt, row=None)


def _model(model: str | Path | Learner) -> Learner:
    if isinstance(model, Learner):
        return model
    return load_for_use(model)


def recorded(parameters: dict[str, Any], learner: Learner) -> dict[str, Any]:
    model, encoder = parameters["model"], plugged_encoder(parameters["model"], parameters.get("encoder"))
    if encoder is not None:
        model = None
    elif isinstance(model, Learner):
        model = ""
    elif model is not None:
        # A bundled model is found by name on any machine, another one only where it lies.
        model = str(model) if (BUNDLED / str(model)).is_dir() else str(Path(model).absolute())
    return {
        "model": model,
        "width": learner.networks.width,
        "decoder_of": parameters["decoder_of"],
        "metric": parameters.get("metric"),
        "encoder": None if encoder is None else encoder_name(encoder),
        **{name: parameters[name] for name in (*ADJUSTABLE, "consolidate", "ink")},
        "keep_images": parameters.get("keep_images", True),
    }


def recorded_parameters(location: Any, name: str, model: Any, encoder: Any = None) -> dict[str, Any]:
    """The parameters under which a memory was last open."""
    with open_store(location, name, read_only=True) as store:
        found = dict(store.setting(CLASSIFIER_SETTING) or {})
    if not found and model is None and encoder is None:
        raise StoreError(f"memory {name!r} in {location} does not say which model it belongs to: give model= (--model)")
    if model is None and found["model"] == "":
        raise StoreError(
            f"memory {name!r} in {location} was made with a learner that has no name: give model= (--model)"
        )
    if model is None and encoder is None and found.get("encoder") == "":
        raise StoreError(f"memory {name!r} in {location} was made with an encoder that has no name: give encoder=")
    if plugged_encoder(model, encoder) is not None:
        found |= {"model": None, "encoder": plugged_encoder(model, encoder)}
    elif model is not None:
        found |= {"model": model, "encoder": None}
    if found.get("model") is not None:
        found.pop("width", None)
    return found
