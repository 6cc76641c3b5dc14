"""OnlineClassifier: what a practitioner uses every day. Any labels, any number of classes, a memory that lasts.

    clf = OnlineClassifier.from_pretrained("drawings", memory="letters.apl")
    clf.learn_one(image, "alpha")
    clf.predict_one(another)

Verbs that end in `_one` take one example and speak river's language; the others take a batch and speak
scikit-learn's. Examples are drawings (see `apl.pictures.drawings`), what a plugged-in encoder takes (see `apl.encoders`) or,
without either, vectors. An example is checked before anything changes, and a call that fails leaves the memory as it was.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np

from apl.classifier.answers import Explanation, Forgotten, Probabilities, Receipt
from apl.classifier.embedded import Embedded
from apl.classifier.encoded import EncodedExamples, many_encoded, one_encoded
from apl.classifier.estimator import Estimator, not_fitted
from apl.classifier.examples import (
    PICTURES_LOOKED_AT,
    Examples,
    Pictures,
    Vectors,
    joined,
    label_array,
    many_pictures,
    many_vectors,
    one_embedded,
    one_picture,
    one_vector,
    plain_labels,
    sorted_order,
    warn_of_photographs,
)
from apl.classifier.interleave import interleaved
from apl.classifier.open_world import OpenWorld
from apl.classifier.parameters import check_new_above
from apl.classifier.session import Session, UnknownWidth, WrittenWith, open_session, recorded_parameters
from apl.encoders import FrozenEncoder, open_encoder, plugged_encoder
from apl.encoders.trained import trained_encoder
from apl.learner import Learner
from apl.pictures.drawings import Ink, from_png
from apl.pictures.image_file import opened, opened_many
from apl.store import Label, NewRow, RowUpdate, Store, StoreError, find_memory
from apl.store.transfer import Copied, Exported, import_memory

_OPENING = threading.RLock()
"""Held while a classifier opens its memory: threads whose first examples come at once must find the same one."""


class OnlineClassifier(Estimator):
    """Learns one example at a time, writes what surprised it, and merges the rest into the rows that explain it.

    Parameters are only noted here; the model and the memory are opened when first needed. `from_pretrained`,
    `for_features` and `load` open them at once.

    model: a bundled model's name, a saved model's directory, or a `Learner`; None for vectors as inputs. The encoders that go
        by name ("photo", "text") may stand here too.
    encoder: what turns examples into vectors: "photo", "text", an ONNX file, or any callable (see `apl.encoders`).
    memory: where the rows live: None (in RAM), a path, or a URL (see `apl.store`). `name` is the memory's name there.
    max_rows, max_rows_per_class: the budget; when it is reached, the row that matters least goes (`apl.classifier.eviction`).
    consolidate: merge what does not surprise, and let several readers share the answer by how well each foresaw the
        lessons so far (`apl.reading.readers`). False is the paper's plain rule: what does not surprise is thrown away.
    sigma: the threshold of surprise in nats; None is σ = ratio · ln N, with a ratio chosen on validation data.
    k: neighbours recalled; None is the model's own.
    ink: "dark" or "light" drawings, or "auto" to find out for each picture.
    keep_images: keep a small picture with each row, for explanations and for `apl memory reembed`.
    width, decoder_of: for vectors: how many numbers they have (None: as many as the first one), and a model whose
        trained decoder reads them, if it knows that width.
    metric: for vectors: "cosine" compares their directions, as most embeddings want it, "euclidean" their positions, each
        column in its own unit (`apl.reading.column_units`). None: positions below 64 numbers, directions from there on.
    read_only: open the memory for predictions alone; somebody else may be writing it.
    recall: "ram" searches a copy of all rows here, "engine" leaves them on their server and fetches those that are recalled,
        so that several processes may learn at once; "approximate" does so through the server's index, which misses
        some. None: on the engine if the memory lives on one, else in RAM (docs/SCALE.md).
    """

    _current: Session | None = None
    _ended = False
    """It lived in RAM, held something, and was closed: going on would be with an empty one."""
    _loaded: Learner | None = None
    """The open model of a sibling."""
    _opened_encoder: tuple[FrozenEncoder | None] | None = None
    _pictures_to_look_at = PICTURES_LOOKED_AT

    def __init__(
        self,
        model: Any = None,
        *,
        memory: Any = None,
        name: str = "default",
        max_rows: int | None = None,
        max_rows_per_class: int | None = None,
        consolidate: bool = True,
        sigma: float | None = None,
        k: int | None = None,
        ink: Ink = "auto",
        keep_images: bool = True,
        width: int | None = None,
        decoder_of: str | None = None,
        read_only: bool = False,
        encoder: Any = None,
        recall: str | None = None,
        metric: str | None = None,
    ) -> None:
        self.model = model
        self.memory = memory
        self.name = name
        self.max_rows = max_rows
        self.max_rows_per_class = max_rows_per_class
        self.consolidate = consolidate
        self.sigma = sigma
        self.k = k
        self.ink = ink
        self.keep_images = keep_images
        self.width = width
        self.decoder_of = decoder_of
        self.read_only = read_only
        self.encoder = encoder
        self.recall = recall
        self.metric = metric

    @classmethod
    def from_pretrained(cls, model: str | Path | Learner, memory: Any = None, **parameters: Any) -> OnlineClassifier:
        """A trained model (or a named encoder) with a memory: an empty one in RAM, or the one at a path or URL."""
        return cls(model, memory=memory, **parameters).open()

    @classmethod
    def for_features(cls, width: int | None = None, memory: Any = None, **parameters: Any) -> OnlineClassifier:
        """For vectors of any embedding model. Without `width` the first example decides."""
        classifier = cls(None, memory=memory, width=width, **parameters)
        return classifier if width is None else classifier.open()

    @classmethod
    def load(cls, path: Any, model: Any = None, name: str = "default", **parameters: Any) -> OnlineClassifier:
        """Open a saved memory with the model recorded in it (or `model`). What is learnt from now on goes into it."""
        recorded = recorded_parameters(path, name, model, parameters.get("encoder"))
        return cls(**{**recorded, **parameters}, memory=path, name=name).open()

    def open(self) -> OnlineClassifier:
        """Open model and memory now, rather than at the first example. A memory in RAM that was closed is a new one."""
        self._ended = False
        self._session()
        return self

    def close(self) -> None:
        """Let go of the memory's home, so that others may write it. A memory in RAM ends here: `open` begins another."""
        if self._current is not None:
            self._ended = self._in_ram() and len(self) > 0
            self._current.store.close()
            self._current = None

    def __enter__(self) -> OnlineClassifier:
        with suppress(UnknownWidth):  # the first example opens it
            self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- one example at a time -----------------------------------------------------------------------------------

    def learn_one(self, x: Any, y: Any, *, source: str | None = None) -> Receipt:
        """Predict, be told, and remember the example if it was surprising. It lasts when this returns."""
        labels, example = plain_labels([y]), self._one(x)
        return self._session(example).learn(example, labels, [source], self.keep_images)[0]

    def predict_one(self, x: Any, *, new_above: float | None = None) -> Label | None:
        """The most probable known class. None if nothing is known, or if P(new class) exceeds `new_above`."""
        check_new_above(new_above)
        example = self._one(x)
        session = self._session(example)
        embedding = session.embed(example)
        with session.alone(asking=True) as world:
            if new_above is None:
                return world.ask_best(embedding[0])
            belief = world.ask(embedding)
            return None if float(belief.new[0]) > new_above else world.best(belief)

    def predict_proba_one(self, x: Any) -> Probabilities:
        """{label: probability}, and the probability of a new class apart in `.new_class`."""
        example = self._one(x)
        session = self._session(example)
        embedding = session.embed(example)
        with session.alone(asking=True) as world:
            return world.probabilities(world.ask(embedding))

    def explain(self, x: Any) -> Explanation:
        """The neighbours that made the answer, and what simpler readers of them would have said."""
        example = self._one(x)
        session = self._session(example)
        embedding = session.embed(example)
        with session.alone() as world:
            return world.explain(embedding[0])

    # --- many at a time ------------------------------------------------------------------------------------------

    def learn_many(
        self,
        X: Any,
        y: Iterable[Any],
        *,
        sources: Sequence[str | None] | None = None,
        settings: WrittenWith = None,
        receipts: WrittenWith = None,
    ) -> list[Receipt]:
        """Learn a batch in one transaction: all of it lasts, or nothing of it.

        Classes take turns (`apl.classifier.interleave`), so that a batch sorted by class is learnt as well as any other.
        Receipts come in the order of the examples.

        `settings` and `receipts` (values by key, or a function that makes them of the receipts of these examples) are written
        in the same transaction. A key of `receipts` can be written once: `AlreadyAnswered` says that it was, and nothing is
        learnt. `store.receipt(key)` reads its value.
        """
        labels, examples = plain_labels(y), self._many(X)
        sources = [None] * len(labels) if sources is None else list(sources)
        if not len(examples) == len(labels) == len(sources):
            told = "" if len(sources) == len(labels) else f" and {len(sources)} sources"
            raise ValueError(f"{len(examples)} examples, {len(labels)} labels{told}")
        order = interleaved(labels)
        return self._session(examples).learn(examples, labels, sources, self.keep_images, settings, receipts, order)

    def fit(self, X: Any, y: Any) -> OnlineClassifier:
        """Start over and learn these examples; classes take turns, as in `learn_many`. Refuses to erase a memory that lasts."""
        examples, labels = self._told(X, y, reset=True)
        if self._known() is not None:
            if len(self) and not self._in_ram():
                raise StoreError(
                    f"fit starts over and would erase {len(self)} rows that were meant to last: "
                    "use partial_fit, or forget them first"
                )
            self.close()
        self._ended = False
        sources = [None] * len(labels)
        self._session(examples).learn(examples, labels, sources, self.keep_images, order=interleaved(labels))
        return self

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> OnlineClassifier:
        """Learn these examples, in their order, on top of what is known. `classes` is not needed and not used."""
        examples, labels = self._told(X, y, reset=not hasattr(self, "n_features_in_"))
        self._session(examples).learn(examples, labels, [None] * len(labels), self.keep_images)
        return self

    def predict(self, X: Any) -> np.ndarray:
        """The most probable known class of each."""
        with self._asked(X) as (world, embeddings):
            return label_array(world.memory.classes)[world.first_best(embeddings)]

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities of the known classes, in the order of `classes_`; rows sum to 1."""
        with self._asked(X) as (world, embeddings):
            order = sorted_order(world.memory.classes)
            known = [belief.known[:, order] for belief in world.beliefs(embeddings)]
            return np.concatenate([np.zeros((0, len(order))), *known])

    def predict_proba_many(self, X: Any, *, top: int | None = None) -> list[Probabilities]:
        """`predict_proba_one` of each; only the `top` most probable classes if that is given. Works on an empty memory too."""
        embedded = self.embed(X)
        session = self._session(embedded)
        embeddings = session.embed(embedded)
        with session.alone(asking=True) as world:
            return [
                world.probabilities(belief, query, top)
                for belief in world.ask_many(embeddings)
                for query in range(len(belief.log_probs))
            ]

    def predict_new(self, X: Any) -> np.ndarray:
        """The probability of each to belong to no known class."""
        with self._asked(X) as (world, embeddings):
            return np.concatenate([np.zeros(0), *(belief.new for belief in world.beliefs(embeddings))])

    @property
    def classes_(self) -> np.ndarray:
        """The known labels, sorted (integers before text)."""
        session = self._known()
        if session is None or not len(self):
            raise AttributeError("no class is known yet: learn an example first")
        with session.alone() as world:
            classes = world.memory.classes
            return label_array([classes[i] for i in sorted_order(classes)])

    # --- looking after the memory --------------------------------------------------------------------------------

    def forget(self, *, label: Any = None, row: int | None = None, source: str | None = None) -> Forgotten:
        """Forget a class, a row, or what came from a source. Returns the ids of the rows that went.

        Nothing of a source is left: rows that others share with it are made anew from theirs alone (`.rebuilt`).
        """
        if sum(what is not None for what in (label, row, source)) != 1:
            raise ValueError("say what to forget: label=, row= or source=")
        if row is not None and (isinstance(row, bool) or not isinstance(row, Integral)):
            raise TypeError(f"a row is named by its number, got {row!r}")
        with self._session().alone() as world:
            if source is not None:
                return world.forget_source(source)
            ids = [int(row)] if row is not None else world.memory.ids_of(plain_labels([label])[0])
            return world.forget(ids)

    def rename(self, label: Any, to: Any) -> list[int]:
        """Give a class another name. If there is a class of that name, the two become one. Returns the rows of `label`."""
        label, to = plain_labels([label, to])
        with self._session().alone() as world:
            ids = world.memory.ids_of(label)
            if not ids:
                raise KeyError(f"there is no class {label!r}")
            self.store.replace((), (), update=[RowUpdate(id, label=to) for id in ids])
            world.reload()
        return ids

    def counts(self) -> dict[Label, int]:
        """Rows of each known class."""
        session = self._known()
        if session is None:
            return {}
        with session.alone() as world:
            return world.memory.counts()

    def __len__(self) -> int:
        """Rows in memory."""
        session = self._known()
        return 0 if session is None else len(session.world.memory)

    def __bool__(self) -> bool:
        return True

    @property
    def store(self) -> Store:
        """The home of the rows, with payloads and settings. Read it freely; write through the classifier."""
        return self._session().store

    def save(self, path: Any, name: str | None = None, overwrite: bool = False) -> None:
        """Copy the memory into a file of its own. An earlier copy of this very memory is replaced; any other file is
        refused, unless `overwrite` is given. Rows are numbered afresh there.

        This classifier stays with its own memory; one that lives in a file is saved at all times.
        """
        self._session().save(Path(path), self.name if name is None else name, overwrite)

    def adopt(self, rows: Sequence[NewRow], settings: dict[str, Any] | None = None) -> list[int]:
        """Take over rows whose keys this encoder made, as they are and without asking whether they surprise."""
        session = self._session()
        with session.alone() as world:
            ids = session.store.append(rows, settings=settings)
            world.reload()
        return ids

    def embed_payloads(self, payloads: Sequence[bytes]) -> np.ndarray:
        """The keys of rows whose pictures or texts were kept, made by this classifier's encoder."""
        if (encoder := self._encoder()) is not None:
            return encoder.embed([encoder.from_payload(payload) for payload in payloads])
        return self._session().embed(Pictures([from_png(payload) for payload in payloads]))

    def import_memory(self, exported: Exported) -> Copied:
        """Copy an exported memory (`apl.store.transfer.read_exported`) into this one. Rows it has already are left out."""
        session = self._session()
        with session.alone() as world:
            try:
                return import_memory(exported, session.store)
            finally:
                world.reload()

    def read(self, x: Any, *, ink: Ink | None = None) -> Examples:
        """One example, checked, as `embed` takes it. `ink` replaces the classifier's own for this drawing."""
        if (encoder := self._encoder()) is not None:
            return one_encoded(encoder, x)
        return one_vector(x) if self.model is None else one_picture(opened(x), ink or self.ink)

    def embed(self, X: Any) -> Embedded:
        """A batch of examples, or a list of what `read` returned, embedded once for any number of verbs."""
        are_read = isinstance(X, list) and X and all(isinstance(x, (Pictures, Vectors, EncodedExamples)) for x in X)
        examples = joined(X) if are_read else self._many(X)
        if isinstance(examples, Embedded):
            return examples
        session = self._session(examples)
        payloads = tuple(partial(examples.payload, number) for number in range(len(examples)))
        return Embedded(session.embed(examples), payloads, session.store.fingerprint)

    def sibling(self, **parameters: Any) -> OnlineClassifier:
        """A classifier of another memory (`memory=`, `name=`, …) that shares this one's open model."""
        other = type(self)(**{**self.get_params(deep=False), **parameters})
        other._opened_encoder = (self._encoder(),)
        other._loaded = self._session().learner
        return other

    def calibrate_sigma(self, X: Any, y: Iterable[Any], *, rows: int) -> float:
        """Set `sigma` so that a stream like this one leaves at most `rows` rows. The memory itself is not touched."""
        from apl.classifier.calibrate_sigma import sigma_for_budget

        labels, examples = plain_labels(y), self._many(X)
        if len(examples) != len(labels):
            raise ValueError(f"{len(examples)} examples and {len(labels)} labels")
        session = self._session(examples)
        self.sigma = sigma_for_budget(session, session.embed(examples), labels, rows)
        self._session()
        return self.sigma

    @property
    def input_kind(self) -> str:
        """What examples are: "drawing", "vector", or what the encoder that was plugged in takes ("photo", "text")."""
        if (encoder := self._encoder()) is not None:
            return encoder.kind
        return "vector" if self.model is None else "drawing"

    def check(self, x: Any) -> None:
        """Raise if this cannot be an example. Nothing is learnt."""
        self._one(x)

    # --- inside --------------------------------------------------------------------------------------------------

    def _encoder(self) -> FrozenEncoder | None:
        """The encoder that was plugged in, or that of a model that sees colours; opened when first needed."""
        if self._takes_vectors():
            return None
        if self._opened_encoder is None:
            asked = plugged_encoder(self.model, self.encoder)
            self._opened_encoder = (trained_encoder(self.model) if asked is None else open_encoder(asked),)
        return self._opened_encoder[0]

    def _takes_vectors(self) -> bool:
        return self.model is None and self.encoder is None

    def _in_ram(self) -> bool:
        return self.memory in (None, "ram:")

    def _known(self) -> Session | None:
        """What is open; a memory that lasts is opened where there is one, since what it holds is known. None is made."""
        if self._current is None and not self._in_ram() and find_memory(self.memory, self.name) is not None:
            self._session()
        return self._current

    def _session(self, examples: Examples | Embedded | None = None) -> Session:
        width = None if examples is None or isinstance(examples, Pictures) else examples.width
        session = self._current
        if session is None:
            if self._ended:
                raise StoreError("this memory lived in RAM and ended when it was closed: open() begins a new one")
            with _OPENING:
                opened = self._current or self._open(width)
                session = self._current = opened
        if width is not None and width != session.store.width:
            raise ValueError(f"expected vectors of {session.store.width} numbers, got {width}")
        session.adjust(max_rows=self.max_rows, max_rows_per_class=self.max_rows_per_class, sigma=self.sigma, k=self.k)
        return session

    def _open(self, width: int | None) -> Session:
        return open_session(self.get_params(deep=False), width, self._encoder(), self._loaded)

    def _one(self, x: Any) -> Examples | Embedded:
        if isinstance(x, Embedded):
            return one_embedded(x)
        if (encoder := self._encoder()) is not None:
            return one_encoded(encoder, x)
        if self.model is None:
            return one_vector(x)
        x = opened(x)
        picture = one_picture(x, self.ink)
        self._look_at([x])
        return picture

    def _many(self, x: Any) -> Examples | Embedded:
        if isinstance(x, Embedded):
            return x
        x = list(x) if isinstance(x, Iterator) else x
        if (encoder := self._encoder()) is not None:
            return many_encoded(encoder, x)
        if self.model is None:
            return many_vectors(x)
        x = opened_many(x)
        pictures = many_pictures(x, self.ink)
        self._look_at(x)
        return pictures

    def _look_at(self, pictures: Any) -> None:
        """A photograph among the first pictures for a model of drawings is worth a warning, once."""
        if self._pictures_to_look_at:
            some = pictures[: self._pictures_to_look_at]
            self._pictures_to_look_at = 0 if warn_of_photographs(some) else self._pictures_to_look_at - len(some)

    def _told(self, X: Any, y: Any, reset: bool) -> tuple[Examples | Embedded, list[Label]]:
        if y is None:
            raise ValueError("learning requires y to be passed, but the target y is None")
        if self._takes_vectors() and not isinstance(X, Embedded):
            X, y = self._checked_vectors(X, y, reset=reset)
        labels, examples = plain_labels(y), self._many(X)
        if len(examples) != len(labels):
            raise ValueError(f"{len(examples)} examples and {len(labels)} labels")
        return examples, labels

    @contextmanager
    def _asked(self, X: Any) -> Iterator[tuple[OpenWorld, np.ndarray]]:
        """The memory, and the vectors of what is asked. One look at the memory: with another thread learning, the classes may
        be others a moment later."""
        if not self.__sklearn_is_fitted__():
            raise not_fitted("nothing is known yet: learn an example before asking for predictions")
        if self._takes_vectors() and hasattr(self, "n_features_in_") and not isinstance(X, Embedded):
            X, _ = self._checked_vectors(X, reset=False)
        examples = self._many(X)
        session = self._session(examples)
        embeddings = session.embed(examples)
        with session.alone() as world:
            yield world, embeddings

    def __sklearn_is_fitted__(self) -> bool:
        return len(self) > 0

    def __getstate__(self) -> dict[str, Any]:
        """Copies and processes of joblib take a memory in RAM along; one that lasts is opened again where they wake."""
        state = dict(vars(self))
        session = state.pop("_current", None)
        state.pop("_opened_encoder", None)
        state.pop("_loaded", None)
        if session is not None and self._in_ram():
            rows = [vars(row) for row in session.store.new_rows()]
            state["_carried"] = (session.store.width, rows, session.store.settings())
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        carried = state.pop("_carried", None)
        vars(self).update(state)
        if carried is not None:
            width, rows, settings = carried
            self._current = self._open(width)
            self.adopt([NewRow(**row) for row in rows], settings)
