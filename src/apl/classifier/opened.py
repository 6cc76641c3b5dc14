"""A classifier's model and memory once they are open: how they predict, learn and explain."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import exp
from operator import attrgetter
from typing import Any

import numpy as np
from jaxtyping import Float

from apl.classifier.answers import Explanation, LabelSet, Probabilities, ReaderOpinion, RecalledRow, Receipt, carried
from apl.classifier.configuration import ADJUSTABLE, SETTING, check_parameters
from apl.classifier.drift import CHECK_EVERY, checked
from apl.classifier.inputs import Examples
from apl.classifier.notebook import counted
from apl.controller import Action, ConsolidatingController, Controller, SurpriseController
from apl.learner import Learner, Prediction
from apl.memory import LABEL
from apl.memory.history import MOST_NATS
from apl.memory.remote import RemoteMemory
from apl.memory.staging import LOST, Details
from apl.memory.stored import StoredMemory
from apl.store import Label

log = logging.getLogger("apl")
EXAMPLES_AT_ONCE = 256
LEARNT_AT_ONCE = 16
"""Examples of a batch. More are no faster, and miss more of what the others taught."""
PROBABILITIES_AT_ONCE = 1 << 18
"""Computed together: with very many classes fewer queries at a time."""


class Opened:
    """A model, and a memory of its embeddings. Used by one thread at a time, under `lock`."""

    def __init__(self, learner: Learner, memory: StoredMemory | RemoteMemory) -> None:
        self.learner = learner
        """Without an encoder: a memory of a classifier is asked by embedding."""
        self.memory = memory
        self.store = memory.store
        self.lock = threading.RLock()
        self.adjusted: tuple[Any, ...] | None = None
        """The present values of the `ADJUSTABLE` parameters."""
        self._rule, self._k = learner.controller, learner.config.k
        self._ages = True
        self._latest: tuple[np.ndarray, int, Any, Prediction] | None = None

    def adjust(self, asked: tuple[Any, ...]) -> None:
        """Take the `ADJUSTABLE` parameters, which may change while open."""
        values = dict(zip(ADJUSTABLE, asked, strict=True))
        check_parameters(**values)
        if self.adjusted is not None and not self.store.read_only:
            kept = self.store.setting(SETTING) or {}
            self.store.update_settings({SETTING: kept | values})
        self.adjusted, self._latest = asked, None
        self._ages = values["ageing"]
        self.memory.max_rows = values["max_rows"]
        self.learner.controller = with_sigma(self._rule, values["sigma"])
        self.learner.config = replace(self.learner.config, k=values["k"] or self._k)

    @contextmanager
    def current(self) -> Iterator[StoredMemory | RemoteMemory]:
        """The memory as it is now, locked."""
        with self.lock:
            self.follow()
            yield self.memory

    def follow(self, asking: bool = False) -> None:
        """Bring the memory up to date, under `lock`. A question to a server returns the generation: it may skip the check."""
        memory = self.memory
        if memory.generation == LOST or (not (asking and not memory.local) and memory.is_stale()):
            memory.follow()

    def embed(self, examples: Examples, shown: bool = False) -> Float[np.ndarray, "example embed"]:
        """`shown`: with a bar."""
        vectors: np.ndarray = examples.embed(shown) if examples.vectors is None else examples.vectors
        if vectors.shape[1] != self.store.width:
            raise ValueError(f"expected vectors of {self.store.width} numbers, got {vectors.shape[1]}")
        return vectors

    def predict(self, embedding: Float[np.ndarray, "query embed"]) -> Prediction:
        """Among one class more than known: it stands for all that are not known yet, and takes their probability."""
        memory, latest = self.memory, self._latest
        if (
            latest is not None
            and latest[1] == memory.version
            and latest[2] is memory.state
            and np.array_equal(latest[0], embedding)
        ):
            # A stream predicts, then learns the same example.
            return latest[3]
        prediction = self.learner.answer(memory, embedding[None], max(2, len(memory.names.names) + 1))
        if memory.local:
            self._latest = embedding, memory.version, memory.state, prediction
        elif memory.was_stale():
            memory.follow()
            prediction = self.learner.answer(memory, embedding[None], max(2, len(memory.classes) + 1))
        return prediction

    def predictions(self, embeddings: Float[np.ndarray, "query embed"], shown: bool = False) -> Iterator[Prediction]:
        """Predictions for many, some at a time. `shown`: with a bar."""
        at_once = max(1, min(EXAMPLES_AT_ONCE, PROBABILITIES_AT_ONCE // (len(self.memory.classes) + 1)))
        for start in counted(range(0, len(embeddings), at_once), "predicting", shown, len(embeddings)):
            yield self.predict(embeddings[start : start + at_once])

    # --- answers --------------------------------------------------------------------------------------------------

    def probabilities_of_known(self, prediction: Prediction) -> Float[np.ndarray, "query known"]:
        """Given that the class is a known one, sorted by name; rows sum to 1."""
        log_probs = prediction.among(self.memory.names.order)[0].astype(np.float64)
        share = np.exp(log_probs - log_probs.max(1, keepdims=True, initial=-np.inf))
        probabilities: np.ndarray = share / share.sum(1, keepdims=True)
        return probabilities

    def probability_of_new(self, prediction: Prediction) -> Float[np.ndarray, " query"]:
        log_none = self.learner.networks.array(prediction.log_none)[0].astype(np.float64)
        return np.exp(log_none) if self.memory.classes else np.ones(len(log_none))

    def probabilities(self, prediction: Prediction, top: int | None = None) -> list[Probabilities]:
        """Of each query, the most probable class first; equally probable ones by name. `top`: that many alone."""
        names, new = self.memory.names, self.probability_of_new(prediction).tolist()
        known = self.probabilities_of_known(prediction)
        order = np.argsort(-known, axis=1, kind="stable")[:, :top]
        found = []
        for at, shares, new_class in zip(
            names.order[order].tolist(), np.take_along_axis(known, order, 1).tolist(), new, strict=True
        ):
            found.append(Probabilities({names.names[n]: p for n, p in zip(at, shares, strict=True)}, new_class))
        return found

    def label_set(self, prediction: Prediction, coverage: float) -> LabelSet:
        """The labels of a single query that contain the true one with this frequency, by the history of the memory."""
        history, names = self.memory.history, self.memory.names
        if not names.names:
            return LabelSet((), True, coverage, len(history))
        scores = -self.learner.networks.array(prediction.log_probs)[0, 0]
        # Compared as they were recorded.
        inside = np.minimum(scores, np.float32(MOST_NATS)) <= np.float32(history.threshold_nats(coverage))
        chosen = names.order[inside[names.order]]
        chosen = chosen[np.argsort(-prediction.among(chosen)[0, 0], kind="stable")]
        labels = tuple(names.names[number] for number in chosen.tolist())
        return LabelSet(labels, bool(inside[len(names)]), coverage, len(history))

    def learn(self, embeddings: Float[np.ndarray, "example embed"], examples: Sequence[Details]) -> list[Receipt]:
        """Predict, then learn the labels. `memory.commit` makes it last. Several examples, each of another known class, are
        predicted before any of them is learnt."""
        memory, learner = self.memory, self.learner
        prediction = self.predict(embeddings)
        names, known = memory.names, len(memory.names.names)
        numbers = list(map(names.number, map(attrgetter("label"), examples)))
        new_label = None in numbers
        # Surprise is measured among the known classes, this one included, and never among fewer than two.
        among, truth = max(2, known + new_label), np.array([[known] if new_label else numbers])
        best = prediction.best(names.order)[0].tolist() if known else []
        predicted: list[Label | None] = list(map(names.names.__getitem__, best)) or [None]
        log_new = learner.networks.array(prediction.log_none)[0].tolist() if known else []
        evicted = memory.staged.evicted
        gone = len(evicted)
        # The first example of a class is written whatever its surprise.
        required = np.ones((1, 1), bool) if new_label else None
        seen = learner.learn(memory, prediction, truth, among=among, required=required, details=examples)
        threshold = learner.controller.threshold_nats(among)
        receipts = []
        for query, example in enumerate(examples):
            number, surprise = int(truth[0, query]), float(seen.surprise_nats[0, query])
            row, merged_into = int(seen.row[0, query]), int(seen.merged_into[0, query])
            if known:
                score, near = prediction.foreseen(query, number)
                history = memory.history.after(score, surprise, example.label, near)
                if memory.local and self._ages:
                    if history.seen % CHECK_EVERY == 0:
                        history = checked(history, memory.newest)
                    if history.risen and best[query] != number:
                        memory.outdate(best[query], history.marks[0])
                memory.history = history
            receipts.append(
                Receipt(
                    label=example.label,
                    surprise_nats=surprise,
                    threshold_nats=threshold,
                    written=row >= 0,
                    row=row if row >= 0 else None,
                    merged_into=merged_into if merged_into >= 0 else None,
                    evicted=tuple(evicted[gone:]),
                    predicted=predicted[query],
                    probability=0.0 if new_label else exp(-surprise) if known > 1 else 1.0,
                    probability_new=exp(log_new[query]) if known else 1.0,
                    new_label=new_label,
                )
            )
            gone = len(evicted)
        return receipts

    def groups(self, labels: Sequence[Label], order: Sequence[int], shown: bool) -> Iterable[Sequence[int]]:
        """Examples of a batch that are learnt together: several of known classes, no two of the same, so that none could be
        merged into the row of another. One at a time where rows may have to make room."""
        numbers = counted(order, "learning", shown, len(labels))
        together = self.memory.local and self.memory.max_rows is None
        return self._groups(numbers, labels) if together else zip(numbers, strict=True)

    def _groups(self, numbers: Iterable[int], labels: Sequence[Label]) -> Iterator[list[int]]:
        group: dict[Label, int] = {}
        for number in numbers:
            label = labels[number]
            is_new = self.memory.names.number(label) is None
            if group and (is_new or label in group or len(group) == LEARNT_AT_ONCE):
                yield list(group.values())
                group = {}
            if is_new:
                yield [number]
            else:
                group[label] = number
        if group:
            yield list(group.values())

    def finish(
        self, embeddings: Float[np.ndarray, "example embed"], receipts: Sequence[Receipt], batch: bool
    ) -> list[Receipt]:
        """Called when several examples were learnt, before they are committed. Returns the receipts as they are then."""
        # A later example may have taken the place of a row again.
        staged, names = self.memory.staged.rows, self.memory.names
        told = [one if one.row is None or one.row in staged else replace(one, row=None) for one in receipts]
        if batch:
            rows = [one.merged_into if one.row is None else one.row for one in told]
            numbers = [names.number(one.label) for one in told]
            there = [i for i, at in enumerate(zip(rows, numbers, strict=True)) if None not in at]
            truth, row = (np.array([values[i] for i in there], np.int64) for values in (numbers, rows))
            memory, k = self.memory, self.learner.config.k
            left_out = self.learner.reading.finish_batch(memory, embeddings[there], truth, row, k)
            if left_out is not None:
                memory.history = memory.history.judged_anew(len(told), *left_out)
        log.debug("learnt %d examples: %d rows written", len(told), sum(one.written for one in told))
        return told

    def line_of_new(self, new_above: float | None, false_alarms: float | None) -> float | None:
        """The probability of "new" from which on an example is called new."""
        if false_alarms is None:
            return new_above
        return self.learner.reading.line_of_new(self.memory, self.memory.history.near, false_alarms)

    def explain(self, embedding: Float[np.ndarray, " embed"]) -> Explanation:
        memory, prediction = self.memory, self.predict(embedding[None])
        names, found = memory.classes, prediction.neighbours
        weight = self.learner.networks.array(prediction.weight)[0, 0].tolist()
        rows = {row.id: row for row in self.store.some_rows(found.row[found.mask].tolist())}
        sources = {id: row.source for id, row in rows.items()}
        recalled = [
            RecalledRow(
                row=int(found.row[0, 0, at]),
                label=names[int(found.columns[LABEL][0, 0, at])],
                distance=float(found.distance[0, 0, at]),
                weight=weight[at],
                source=sources.get(int(found.row[0, 0, at])),
                examples=int(found.examples[0, 0, at]),
            )
            for at in found.mask[0, 0].nonzero()[0].tolist()
        ]
        shown = {row.row for row in carried(recalled)} & rows.keys()
        recalled = [replace(row, payload=rows[row.row].payload) if row.row in shown else row for row in recalled]
        opinions = self.learner.reading.opinions(prediction, len(names))
        [probabilities] = self.probabilities(prediction)
        return Explanation(
            predicted=next(iter(probabilities), None),
            probabilities=probabilities,
            neighbours=tuple(recalled),
            readers=tuple(ReaderOpinion(reader, weight, names[number]) for reader, weight, number in opinions),
        )


def with_sigma(controller: Controller, sigma: float | None) -> Controller:
    """The controller's rule with a threshold in nats, if one is given."""
    if sigma is None:
        return controller
    merges = controller.decide(np.zeros((1, 1)), 2)[0, 0] == Action.MERGE
    return (ConsolidatingController if merges else SurpriseController)(sigma_nats=float(sigma))
