"""The learner among classes that come and go: any labels, none announced, perhaps none of them the right one.

A memory that consolidates (`apl.consolidation`) knows its classes and what is new by itself. In one that does not, with
N classes in memory, the learner is asked as if there were N + 1. The one too many stands for whatever is not
known yet, and takes its part of the decoder's "none of these": from that follows the probability of a new class (see
`apl.classifier.new_class`). The posterior over known classes is the same answer given that it is one of the N.

Surprise is measured among the known classes, the one just told included, never fewer than two; a label never seen
before is always written, whatever its surprise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
from jaxtyping import Float, Int

from apl.best_class import NOT_CLEAR
from apl.class_shares import place
from apl.classifier.answers import Explanation, Forgotten, Probabilities, ReaderOpinion, RecalledRow, Receipt
from apl.classifier.durable_memory import DurableMemory
from apl.classifier.engine_memory import EngineMemory
from apl.classifier.examples import sort_key
from apl.classifier.features import UnitKernelNetworks, gaussian_vote, measure_unit
from apl.controller import Action
from apl.learner import Learner, explaining_row
from apl.memory import Neighbours
from apl.reading.readers import Readings
from apl.store import Label, NewRow

Answer = TypeVar("Answer")
UNIT_SETTING = "distance unit"
QUERIES_AT_ONCE = 256
BELIEFS_AT_ONCE = 1 << 20
"""Probabilities worked out together: with very many classes fewer queries at a time."""
VERY_MANY_CLASSES = 500
"""From here on the best class is looked for before the probabilities of all of them."""
VOTE_SHARPNESS, VOTE_NONE_DISTANCE = 16.0, 1.1
"""Of the vote that explanations show beside the answer, as in `apl.decoder.kernel`."""


@dataclass(frozen=True)
class Belief:
    """What is believed of each query. Worked out when asked for: who wants the best class needs no probabilities."""

    log_probs: Float[np.ndarray, "query way"]
    """As if there were one class more than known."""
    log_none: Float[np.ndarray, " query"]
    weight: Float[np.ndarray, "query neighbours"]
    neighbours: Neighbours
    classes: int
    """How many are known."""
    readings: Readings | None = None
    """What each reader said, where the memory consolidates."""

    def best(self, names: Sequence[Label]) -> Int[np.ndarray, " query"]:
        """The most probable of the known classes, of which there must be one."""
        return first_best(self.log_probs[:, : self.classes], names)

    @cached_property
    def known(self) -> Float[np.ndarray, "query known"]:
        """Probabilities of the known classes, in the order of `DurableMemory.classes`; rows sum to 1."""
        return softmax(self.log_probs[:, : self.classes])

    @cached_property
    def new(self) -> Float[np.ndarray, " query"]:
        """The probability of a new class."""
        if not self.classes:
            return np.ones(len(self.log_probs))
        return np.exp(self.log_none.astype(np.float64))

    def surprise_nats(self, number: int, way: int) -> float:
        """-ln of what this class was given among the first `way`, by the belief about a single query."""
        among = self.log_probs[0, :way].astype(np.float64)
        among -= among.max()
        return float(np.log(np.exp(among).sum()) - among[number])


def first_best(log_probs: Float[np.ndarray, "query class"], names: Sequence[Label]) -> Int[np.ndarray, " query"]:
    """The most probable class; of several that are equally so, the first by its name."""
    found = log_probs.argmax(-1)
    best = log_probs[np.arange(len(found)), found]
    for query in (np.count_nonzero(log_probs == best[:, None], axis=1) > 1).nonzero()[0]:
        found[query] = min((log_probs[query] == best[query]).nonzero()[0], key=lambda i: sort_key(names[i]))
    return found


def softmax(logits: Float[np.ndarray, "query class"]) -> Float[np.ndarray, "query class"]:
    logits = logits.astype(np.float64)
    share = np.exp(logits - logits.max(1, keepdims=True, initial=-np.inf))
    return share / share.sum(1, keepdims=True)


class OpenWorld:
    """A learner of embeddings with its durable memory."""

    def __init__(self, learner: Learner, memory: DurableMemory | EngineMemory) -> None:
        self.learner = learner
        self.memory = memory
        self._rows_measured = self._rows_noted = 0
        self._recall_unit()

    def follow(self) -> None:
        """Take in what somebody else has written."""
        self.memory.follow()
        self._recall_unit()

    def reload(self) -> None:
        """Go back to what the store holds."""
        self.memory.reload()
        self._recall_unit()

    def believe(self, embedding: Float[np.ndarray, "query embed"]) -> Belief:
        array, classes = self.learner.networks.array, len(self.memory.classes)
        said = self.learner.predict(self.memory.ram, embedding[None], self._way())
        return Belief(
            array(said.log_probs)[0],
            array(said.log_none)[0],
            array(said.weight)[0],
            said.neighbours,
            classes,
            said.readings,
        )

    def beliefs(self, embeddings: Float[np.ndarray, "query embed"]) -> Iterator[Belief]:
        """`believe` of many: a few at a time where there are very many classes."""
        at_once = max(1, min(QUERIES_AT_ONCE, BELIEFS_AT_ONCE // self._way()))
        for start in range(0, len(embeddings), at_once):
            yield self.believe(embeddings[start : start + at_once])

    def first_best(self, embeddings: Float[np.ndarray, "query embed"]) -> Int[np.ndarray, " query"]:
        """The most probable known class of each, by its number; of several, the first by its name."""
        found, names = np.full(len(embeddings), NOT_CLEAR), self.memory.classes
        if len(names) >= VERY_MANY_CLASSES:
            for start in range(0, len(embeddings), QUERIES_AT_ONCE):
                part = slice(start, start + QUERIES_AT_ONCE)
                found[part] = self.learner.clear_best(self.memory.ram, embeddings[None, part], self._way())
        if (close := found == NOT_CLEAR).any():
            found[close] = np.concatenate([belief.best(names) for belief in self.beliefs(embeddings[close])])
        return found

    def ask(self, embedding: Float[np.ndarray, "query embed"]) -> Belief:
        """`believe`; anew, if it turns out that somebody else had written before."""
        return self._asked(lambda: self.believe(embedding))

    def ask_many(self, embeddings: Float[np.ndarray, "query embed"]) -> list[Belief]:
        """`ask` of many, all against the same memory."""
        return self._asked(lambda: list(self.beliefs(embeddings)))

    def ask_best(self, embedding: Float[np.ndarray, " embed"]) -> Label | None:
        """The most probable known class alone, which takes less; as `ask`, of what is written by then."""
        return self._asked(lambda: self.best_class(embedding))

    def best_class(self, embedding: Float[np.ndarray, " embed"]) -> Label | None:
        if not self.memory.classes:
            # Asked all the same: an engine's answer tells whether others have written.
            return self.best(self.believe(embedding[None]))
        names = self.memory.classes
        log_probs = self.learner.log_probs_of_best(self.memory.ram, embedding[None, None], self._way())[0]
        return names[int(first_best(log_probs[:, : len(names)], names)[0])]

    def _asked(self, question: Callable[[], Answer]) -> Answer:
        answer = question()
        if isinstance(self.memory, EngineMemory) and self.memory.was_stale():
            self.follow()
            answer = question()
        return answer

    def learn(
        self,
        embedding: Float[np.ndarray, " embed"],
        label: Label,
        source: str | None = None,
        payload: Callable[[], bytes | None] | None = None,
    ) -> Receipt:
        """Predict, be told, and stage the example if it surprised. `commit` makes it last."""
        memory = self.memory
        belief = self.believe(embedding[None])
        number = memory.number(label)
        new_label = number is None
        number = len(memory.classes) if new_label else number
        way = max(2, len(memory.classes) + new_label)
        surprise = belief.surprise_nats(number, way)
        row, merged_into, evicted, best = None, None, [], self.best(belief)
        probability = 0.0 if new_label else float(belief.known[0, number])
        action = int(self.learner.controller.decide(np.array([[surprise]]), way)[0, 0])
        if new_label:
            action = Action.WRITE
        explained = -1
        if belief.readings is not None:
            explained = self._teach(belief, number, embedding, action)
        if explained >= 0:
            merged_into = memory.merge(embedding, explained, source)
        elif action != Action.IGNORE:
            told = NewRow(label, embedding, surprise, None, source, payload() if payload else None)
            row, evicted = memory.stage(embedding, told)
            self._measure_unit()
        return Receipt(
            label=label,
            surprise_nats=surprise,
            threshold_nats=self.learner.controller.threshold_nats(way),
            written=row is not None,
            row=row,
            merged_into=merged_into,
            evicted=tuple(evicted),
            predicted=best,
            probability=probability,
            probability_new=float(belief.new[0]),
            new_label=new_label,
        )

    def _teach(self, belief: Belief, number: int, embedding: np.ndarray, action: int) -> int:
        """Weigh the readers by this lesson. Returns the row to merge the example into, -1 if it deserves its own."""
        truth = np.array([[number]])
        self.memory.ram.learn(belief.readings, truth, embedding[None, None])
        self.memory.taught()
        return int(explaining_row(belief.neighbours, truth)[0, 0]) if action == Action.MERGE else -1

    def commit(self, settings: dict | None = None, receipts: dict | None = None) -> None:
        """Make what was learnt last, and what is to be written with it."""
        networks, values = self.learner.networks, dict(settings or {})
        if isinstance(networks, UnitKernelNetworks) and self._rows_measured != self._rows_noted:
            values[UNIT_SETTING] = {"unit": networks.unit, "rows": self._rows_measured}
        try:
            self.memory.commit(values, receipts)
        except BaseException:
            self._recall_unit()
            raise
        self._rows_noted = self._rows_measured

    def forget(self, ids: Iterable[int]) -> Forgotten:
        gone = self.memory.forget(ids)
        self._measure_unit()
        return Forgotten(gone)

    def forget_source(self, source: str) -> Forgotten:
        gone = self.memory.forget_source(source)
        self._measure_unit()
        return gone

    def probabilities(self, belief: Belief, query: int = 0, top: int | None = None) -> Probabilities:
        return self._ordered(belief.known[query], float(belief.new[query]), top)

    def _ordered(self, known: Float[np.ndarray, " known"], new_class: float, top: int | None = None) -> Probabilities:
        names = self.memory.classes
        order = np.argsort(-known, kind="stable").tolist()
        if len(order) > 1 and known[order[0]] == known[order[1]]:
            order.remove(first := int(first_best(known[None], names)[0]))
            order.insert(0, first)
        return Probabilities({names[i]: float(known[i]) for i in order[:top]}, new_class)

    def best(self, belief: Belief, query: int = 0) -> Label | None:
        """The most probable known class."""
        names = self.memory.classes
        return names[int(belief.best(names)[query])] if names else None

    def explain(self, embedding: Float[np.ndarray, " embed"]) -> Explanation:
        memory = self.memory
        belief = self.believe(embedding[None])
        neighbours = belief.neighbours
        recalled = []
        for at, present in enumerate(neighbours.mask[0, 0]):
            if present:
                row = int(neighbours.row[0, 0, at])
                recalled.append(
                    RecalledRow(
                        row=memory.id_at(row),
                        label=memory.classes[int(neighbours.columns["label"][0, 0, at])],
                        distance=float(neighbours.distance[0, 0, at]),
                        weight=float(belief.weight[0, at]),
                        source=memory.sources[row],
                        examples=int(neighbours.examples[0, 0, at]),
                    )
                )
        probabilities = self.probabilities(belief)
        return Explanation(
            predicted=next(iter(probabilities), None),
            probabilities=probabilities,
            neighbours=tuple(recalled),
            kernel=self._vote(neighbours, embedding.shape[0]),
            nearest=recalled[0].label if recalled else None,
            readers=self._opinions(belief),
        )

    def _opinions(self, belief: Belief) -> tuple[ReaderOpinion, ...]:
        if belief.readings is None or not belief.classes:
            return ()
        pool, scores = self.memory.ram.pool, belief.readings.scores[0, 0, :, : belief.classes]
        favourite = scores.argmax(1).tolist()
        return tuple(
            ReaderOpinion(reader, float(weight), self.memory.classes[best])
            for reader, weight, best in zip(pool.readers, pool.weight[0], favourite, strict=False)
        )

    def _vote(self, neighbours: Neighbours, width: int) -> Probabilities:
        """What a distance-weighted vote of the same neighbours would say."""
        networks, unit = self.learner.networks, width**0.5
        sharpness, none_distance = VOTE_SHARPNESS, VOTE_NONE_DISTANCE
        if isinstance(networks, UnitKernelNetworks):
            unit, sharpness, none_distance = networks.unit or np.inf, networks.SHARPNESS, networks.NONE_UNITS
        nowhere = np.zeros((1, 1), np.float32)
        vote = gaussian_vote(neighbours.distance / np.float32(unit), sharpness, none_distance, neighbours, nowhere)
        way = len(self.memory.classes)
        part = np.full((1, 1, way), -np.log(max(1, way)))
        log_probs = place(vote.log_class[None], vote.log_none[None], part, neighbours)
        return self._ordered(softmax(log_probs[0])[0], float(np.exp(vote.log_none[0])))

    def _way(self) -> int:
        return max(2, len(self.memory.classes) + 1)

    def _recall_unit(self) -> None:
        """The unit is kept in the store, so that a memory opened again answers as it did."""
        if isinstance(self.learner.networks, UnitKernelNetworks):
            kept = self.memory.store.setting(UNIT_SETTING) or {"unit": None, "rows": 0}
            self.learner.networks.unit, self._rows_measured = kept["unit"], kept["rows"]
            self._rows_noted = self._rows_measured
            self._measure_unit()

    def _measure_unit(self) -> None:
        """The kernel's unit of distance is measured anew whenever the memory has grown or shrunk by a quarter."""
        rows, networks = len(self.memory), self.learner.networks
        if (
            isinstance(networks, UnitKernelNetworks)
            and not 0.75 * self._rows_measured <= rows <= 1.25 * self._rows_measured
        ):
            networks.unit, self._rows_measured = measure_unit(self.memory.compared(), self.memory.labels()), rows
