"""OnlineClassifier: what a practitioner uses every day. Any labels, any number of classes, a memory that lasts.

    clf = OnlineClassifier.from_pretrained("drawings", memory="letters.apl")
    clf.learn_one(image, "alpha")
    clf.predict_one(another)

Verbs that end in `_one` take one example, as river's do; the others take a batch, as scikit-learn's do. Examples are drawings
(see `apl.pictures.drawings`), what a plugged-in encoder takes (see `apl.encoders`) or, without either, vectors. An example is
checked before anything changes, and a call that fails leaves the memory as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np

from apl.classifier.answers import Explanation, LabelSet, Probabilities, Receipt
from apl.classifier.configuration import check_new_above, check_whole, not_fitted, recorded_parameters
from apl.classifier.inputs import Examples, interleaved, label_array, plain_labels
from apl.classifier.keeping import MemoryKeeping
from apl.classifier.notebook import counted, is_shown
from apl.classifier.opened import Opened
from apl.classifier.suggest import Suggestion, suggest
from apl.learner import Learner
from apl.memory.staging import Details
from apl.pictures.drawings import Ink
from apl.store import Label, StoreError

KEPT_AT_ONCE = 256
"""Examples of one transaction of `learn_many(keep=True)`."""
WrittenWith = Mapping[str, Any] | Callable[[list[Receipt]], Mapping[str, Any]] | None
"""What is written in the same transaction as the examples; a function makes it of their receipts."""


class OnlineClassifier(MemoryKeeping):
    """Learns one example at a time, writes what surprised it, and merges the rest into the rows that explain it.

    Parameters are only noted here; the model and the memory are opened when first needed. `from_pretrained`,
    `for_features` and `load` open them at once.

    Args:
        model: a bundled model's name, a saved model's directory, or a `Learner`; None for vectors as inputs. The encoders that
            go by name ("photo", "text") may stand here too.
        encoder: what turns examples into vectors: "photo", "text", an ONNX file, or any callable (see `apl.encoders`).
        memory: where the rows live: None (in RAM), a path, or a URL (see `apl.store`).
        name: the memory's name there.
        max_rows: the budget; when it is reached, the row that matters least goes (`apl.memory.eviction`).
        consolidate: merge what does not surprise, and let several readers share the answer by how well each predicted the
            examples so far (`apl.reading.ensemble`). False is the paper's rule: what does not surprise is ignored.
        sigma: the threshold of surprise in nats; None is σ = ratio · ln N, with a ratio chosen on validation data.
        k: neighbours recalled; None is the model's own.
        ageing: forget old rows of classes that are predicted wrongly when labels change their meaning (`apl.classifier.drift`);
            not where a server searches.
        ink: "dark" or "light" drawings, or "auto" to find out for each picture.
        keep_images: keep a small picture with each row, for explanations and for `apl memory reembed`.
        width: for vectors: how many numbers they have; None: as many as the first one.
        metric: for vectors: "cosine" compares their directions, as most embeddings want it, "euclidean" their positions, each
            column in its own unit (`apl.reading.positions`). None: positions below 64 numbers, directions from there on.
        read_only: open the memory for predictions alone; another process may be writing it.
        recall: "ram" searches a copy of all rows here, "engine" leaves them on their server and fetches those that are
            recalled, so that several processes may learn at once; "approximate" does so through the server's index, which
            misses some. None: on the server if the memory lives on one, else in RAM (docs/SCALE.md).
        index: URL of a vector engine (`milvus+http://host:19530`) that finds the nearest rows of a memory on PostgreSQL.
        keep_sources: False, given when a memory is made, stores nothing about sources; then they cannot be forgotten.

    Examples:
        >>> clf = OnlineClassifier()
        >>> clf.learn_many([[0, 0], [0, 1], [5, 5], [5, 6]], ["low", "low", "high", "high"])[0].new_label
        True
        >>> clf.predict_one([0.2, 0.4])
        'low'
    """

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
        return cls(**{**recorded, **parameters}).open()

    # --- one example at a time -----------------------------------------------------------------------------------

    def learn_one(self, x: Any, y: Any, *, source: str | None = None) -> Receipt:
        """Predict, then learn the label, and remember the example if it was surprising. It lasts when this returns."""
        labels, example = plain_labels([y]), (self._reader or self._inputs()).one(x, self.ink)
        return self._learn(example, labels, [source])[0]

    def predict_one(self, x: Any, *, new_above: float | None = None, false_alarms: float | None = None) -> Label | None:
        """The most probable known class. None if nothing is known, or if it is called new: see `predict`."""
        may_be_new = new_above is not None or false_alarms is not None
        if may_be_new:
            check_new_above(new_above, false_alarms)
        with self._asking(self._inputs().one(x, self.ink)) as (opened, embedding):
            prediction = opened.predict(embedding)
            line = opened.line_of_new(new_above, false_alarms) if may_be_new else None
            if line is not None and opened.probability_of_new(prediction)[0] > line:
                return None
            names = opened.memory.names
            return names.names[int(prediction.best(names.order)[0, 0])] if names.names else None

    def predict_proba_one(self, x: Any) -> Probabilities:
        """{label: probability}, and the probability of a new class apart in `.new_class`."""
        with self._asking(self._inputs().one(x, self.ink)) as (opened, embedding):
            return opened.probabilities(opened.predict(embedding))[0]

    def predict_set(self, x: Any, coverage: float = 0.9) -> LabelSet:
        """The labels that contain the true one with this frequency, judged by how past examples were predicted.

        Conformal and adaptive: the frequency holds in the long run, also when the stream changes. Before there are enough
        examples to tell, the set holds every label and `.new` is True.

        Examples:
            >>> clf = OnlineClassifier()
            >>> _ = clf.learn_many([[0, 0], [5, 5]], ["low", "high"])
            >>> clf.predict_set([0.2, 0.4])
            LabelSet(labels=('low', 'high'), new=True, coverage=0.9, examples=2)
        """
        if isinstance(coverage, bool) or not isinstance(coverage, Real) or not 0 < float(coverage) < 1:
            raise ValueError(f"coverage is a share between 0 and 1, both excluded, got {coverage!r}")
        with self._asking(self._inputs().one(x, self.ink)) as (opened, embedding):
            return opened.label_set(opened.predict(embedding), float(coverage))

    def explain(self, x: Any) -> Explanation:
        """The neighbours that made the answer, and the readers that share it."""
        with self._asking(self._inputs().one(x, self.ink), asking=False) as (opened, embedding):
            return opened.explain(embedding[0])

    # --- many at a time ------------------------------------------------------------------------------------------

    def learn_many(
        self,
        X: Any,
        y: Iterable[Any],
        *,
        sources: Sequence[str | None] | None = None,
        settings: WrittenWith = None,
        receipts: WrittenWith = None,
        keep: bool = False,
        progress: bool | None = None,
    ) -> list[Receipt]:
        """Learn a batch in one transaction: all of it lasts, or nothing of it.

        Classes take turns (`apl.classifier.inputs.interleaved`), so that a batch sorted by class is learnt as well as any other.
        Up to 16 examples, each of another known class, are predicted together before they are learnt; one by one with a budget,
        or where a server searches. Receipts come in the order of the examples.

        Args:
            sources: where each example comes from.
            settings: values by key, or a function that makes them of the receipts of these examples, written in the same
                transaction.
            receipts: likewise, but a key can be written once: `AlreadyAnswered` says that it was, and nothing is learnt.
                `store.receipt(key)` reads its value.
            keep: commit after every 256 examples. An interruption (Ctrl-C) then keeps what was committed.
            progress: show a bar. None: in notebooks.
        """
        labels, examples = plain_labels(y), self._many(X)
        sources = [None] * len(labels) if sources is None else list(sources)
        if not len(examples) == len(labels) == len(sources):
            given = "" if len(sources) == len(labels) else f" and {len(sources)} sources"
            raise ValueError(f"{len(examples)} examples, {len(labels)} labels{given}")
        order, shown = interleaved(labels), is_shown(progress)
        if not keep:
            return self._learn(examples, labels, sources, order, settings, receipts, shown)
        if settings is not None or receipts is not None:
            raise ValueError("settings= and receipts= are written with a whole batch, which keep=True divides")
        learnt: dict[int, Receipt] = {}
        for start in counted(range(0, len(order), KEPT_AT_ONCE), "learning", shown, len(order)):
            part = order[start : start + KEPT_AT_ONCE]
            told = [labels[i] for i in part], [sources[i] for i in part]
            learnt |= zip(part, self._learn(examples[part], *told, range(len(part))), strict=True)
        return [learnt[i] for i in range(len(labels))]

    def fit(self, X: Any, y: Any, *, progress: bool | None = None) -> OnlineClassifier:
        """Start over and learn these examples; classes take turns, as in `learn_many`. Refuses to erase a memory that lasts."""
        examples, labels = self._labelled(X, y, reset=True)
        if self._known() is not None:
            if len(self) and not self._in_ram():
                raise StoreError(
                    f"fit starts over and would erase {len(self)} rows that were meant to last: "
                    "use partial_fit, or forget them first"
                )
            self.close()
        self._ended = False
        self._learn(examples, labels, [None] * len(labels), interleaved(labels), shown=is_shown(progress))
        return self

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> OnlineClassifier:
        """Learn these examples, in their order, on top of what is known. `classes` is not needed and not used."""
        examples, labels = self._labelled(X, y, reset=not hasattr(self, "n_features_in_"))
        self._learn(examples, labels, [None] * len(labels))
        return self

    def predict(
        self,
        X: Any,
        *,
        new_above: float | None = None,
        false_alarms: float | None = None,
        progress: bool | None = None,
    ) -> np.ndarray:
        """The most probable known class of each; None for examples that are called new.

        Args:
            new_above: call an example new if P(new class) exceeds this.
            false_alarms: call this share of examples of known classes new, measured on examples of the memory itself, each left
                out of it or as it was before it was learnt. Reliable from about five examples per class and 1 / share in all.
            progress: show a bar. None: in notebooks.
        """
        check_new_above(new_above, false_alarms)
        shown = is_shown(progress)
        with self._asked(X, shown) as (opened, embeddings):
            names, line = opened.memory.names, opened.line_of_new(new_above, false_alarms)
            best, new = [np.zeros(0, np.int64)], [np.zeros(0, bool)]
            for prediction in opened.predictions(embeddings, shown):
                best.append(prediction.best(names.order)[0])
                if line is not None:
                    new.append(opened.probability_of_new(prediction) > line)
            labels: np.ndarray = label_array(names.names, self._truth_values)[np.concatenate(best)]
            if line is not None:
                labels = labels.astype(object)
                labels[np.concatenate(new)] = None
            return labels

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The share of examples whose most probable known class is the right one."""
        answers = zip(self.predict(X).tolist(), plain_labels(y), strict=True)
        return float(np.average([answer == truth for answer, truth in answers], weights=sample_weight))

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities of the known classes, in the order of `classes_`; rows sum to 1."""
        with self._asked(X) as (opened, embeddings):
            known = [opened.probabilities_of_known(prediction) for prediction in opened.predictions(embeddings)]
            return np.concatenate([np.zeros((0, len(opened.memory.classes))), *known])

    def predict_proba_many(self, X: Any, *, top: int | None = None) -> list[Probabilities]:
        """`predict_proba_one` of each; only the `top` most probable classes if that is given. Works on an empty memory too."""
        with self._asking(self._many(X)) as (opened, embeddings):
            parts = [opened.probabilities(prediction, top) for prediction in opened.predictions(embeddings)]
            return [one for part in parts for one in part]

    def new_threshold(self, false_alarms: float) -> float:
        """The probability of a new class that this share of known examples exceeds: see `predict`."""
        check_new_above(None, false_alarms)
        opened = self._open()
        with opened.current() as memory:
            return opened.learner.reading.line_of_new(memory, memory.history.near, false_alarms)

    def predict_new(self, X: Any) -> np.ndarray:
        """The probability of each to belong to no known class."""
        with self._asked(X) as (opened, embeddings):
            new = [opened.probability_of_new(prediction) for prediction in opened.predictions(embeddings)]
            return np.concatenate([np.zeros(0), *new])

    def suggest(self, pool: Any, n: int = 20) -> list[Suggestion]:
        """The examples of a pool that are most worth a label, best first, each with the reason. Nothing is learnt.

        Examples:
            >>> clf = OnlineClassifier()
            >>> _ = clf.learn_many([[0, 0], [0, 1], [5, 5], [5, 6]], ["low", "low", "high", "high"])
            >>> pool = [[0, 0.5], [0.1, 0.5], [50, -50], [5, 5.5]]
            >>> clf.suggest(pool, 1)[0].index
            2
        """
        check_whole("n", n)
        with suppress(TypeError):  # what has no length is read below, or refused
            if not len(pool):
                return []
        with self._asking(self._many(pool)) as (opened, embeddings):
            return suggest(opened, embeddings, n)

    @property
    def classes_(self) -> np.ndarray:
        """The known labels, sorted (integers before text)."""
        opened = self._known()
        if opened is None or not len(self):
            raise AttributeError("no class is known yet: learn an example first")
        with opened.current() as memory:
            known = [memory.classes[number] for number in memory.names.order.tolist()]
            return label_array(known, self._truth_values)

    # --- examples ------------------------------------------------------------------------------------------------

    def read(self, x: Any, *, ink: Ink | None = None) -> Examples:
        """One example, checked, as `embed` takes it. `ink` replaces the classifier's own for this drawing."""
        return self._inputs().one(x, ink or self.ink, warn=False)

    def embed(self, X: Any) -> Examples:
        """A batch of examples, or a list of what `read` returned, embedded once for any number of verbs."""
        examples = self._many(X)
        self._open(examples).embed(examples)
        return examples

    # --- inside --------------------------------------------------------------------------------------------------

    def _many(self, x: Any) -> Examples:
        return self._inputs().many(x, self.ink)

    @contextmanager
    def _asking(
        self, examples: Examples, asking: bool = True, shown: bool = False
    ) -> Iterator[tuple[Opened, np.ndarray]]:
        """What is open, locked, and the embeddings of these examples."""
        opened = self._open(examples)
        embeddings = opened.embed(examples, shown)
        with opened.lock:
            opened.follow(asking)
            yield opened, embeddings

    @contextmanager
    def _asked(self, X: Any, shown: bool = False) -> Iterator[tuple[Opened, np.ndarray]]:
        """The same of a batch that scikit-learn's verbs are given. The lock holds until the end: with another thread learning,
        the classes may be others a moment later."""
        if not self.__sklearn_is_fitted__():
            raise not_fitted("nothing is known yet: learn an example before asking for predictions")
        if self._takes_vectors() and hasattr(self, "n_features_in_") and not isinstance(X, Examples):
            X, _ = self._checked_vectors(X, reset=False)
        with self._asking(self._many(X), False, shown) as both:
            yield both

    def _learn(
        self,
        examples: Examples,
        labels: Sequence[Label],
        sources: Sequence[str | None],
        order: Sequence[int] | None = None,
        settings: WrittenWith = None,
        receipts: WrittenWith = None,
        shown: bool = False,
    ) -> list[Receipt]:
        """One after the other (in `order`, if given), made durable together. Receipts come in the order of the examples."""
        opened = self._open(examples)
        embeddings, memory = opened.embed(examples, shown), opened.memory
        payloads = self.keep_images and examples.encoder is not None
        with opened.lock:
            opened.follow(asking=True)
            if opened.store.read_only:
                raise StoreError(f"memory {opened.store.name!r} was opened for reading only")
            before = memory.state, memory.history, memory.kept
            try:
                learnt: dict[int, Receipt] = {}
                if order is not None and len(labels) > 1:
                    opened.learner.reading.begin_batch(memory)
                groups = zip(range(len(labels)), strict=True) if order is None else opened.groups(labels, order, shown)
                for group in groups:
                    told = []
                    for i in group:
                        payload = partial(examples.payload, i) if payloads else None
                        told.append(Details(labels[i], sources[i], payload))
                    learnt |= zip(group, opened.learn(embeddings[list(group)], told), strict=True)
                outcome = list(map(learnt.__getitem__, range(len(labels))))
                if len(outcome) > 1:
                    outcome = opened.finish(embeddings, outcome, batch=order is not None)
                memory.commit(
                    settings(outcome) if callable(settings) else settings,
                    receipts(outcome) if callable(receipts) else receipts,
                )
            except BaseException:
                memory.reload()
                if memory.local:
                    # What was learnt about the rows is written less often than the rows themselves.
                    memory.state, memory.history, memory.kept = before
                raise
        return outcome

    def _labelled(self, X: Any, y: Any, reset: bool) -> tuple[Examples, list[Label]]:
        if y is None:
            raise ValueError("learning requires y to be passed, but the target y is None")
        if self._takes_vectors() and not isinstance(X, Examples):
            X, y = self._checked_vectors(X, y, reset=reset)
        labels, examples = plain_labels(y), self._many(X)
        if len(examples) != len(labels):
            raise ValueError(f"{len(examples)} examples and {len(labels)} labels")
        self._truth_values = np.asarray(y).dtype == bool and (reset or self._truth_values)
        return examples, labels
