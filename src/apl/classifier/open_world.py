"""The learner among classes that come and go: any labels, none announced, perhaps none of them the right one.

With N classes in memory the learner is asked as if there were N + 1. The one too many stands for whatever is not
known yet, and takes its part of the decoder's "none of these": from that follows the probability of a new class (see
`apl.classifier.new_class`). The posterior over known classes is the same answer given that it is one of the N.

Surprise is measured among the known classes, the one just told included, never fewer than two; a label never seen
before is always written, whatever its surprise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from apl.classifier.answers import Explanation, Probabilities, RecalledRow, Receipt
from apl.classifier.durable_memory import DurableMemory
from apl.classifier.features import UnitKernel, measure_unit
from apl.classifier.new_class import NewClassRule
from apl.controller import SurpriseController
from apl.decoder.kernel import KernelDecoder
from apl.learner import Learner, Prediction, classes_among
from apl.store import Label, NewRow

UNIT_SETTING = "distance unit"


@dataclass(frozen=True)
class Belief:
    """What is believed of each query. Worked out when asked for: who wants the best class needs no probabilities."""

    prediction: Prediction
    """As if there were one class more than known."""
    classes: int
    """How many are known."""
    rule: NewClassRule

    @cached_property
    def best(self) -> Int[Tensor, " query"]:
        """The most probable of the known classes, of which there must be one."""
        return self.prediction.log_probs[0, :, : self.classes].argmax(-1)

    @cached_property
    def known(self) -> Float[Tensor, "query known"]:
        """Probabilities of the known classes, in the order of `DurableMemory.classes`; rows sum to 1."""
        return self.prediction.log_probs[0, :, : self.classes].double().softmax(-1)

    @cached_property
    def new(self) -> Float[Tensor, " query"]:
        """The probability of a new class."""
        prediction, neighbours = self.prediction, self.prediction.neighbours
        if not self.classes:
            return torch.ones(prediction.log_probs.shape[1])
        labels, mask = neighbours.columns["label"][0].numpy(), neighbours.mask[0].numpy()
        not_recalled = self.classes - classes_among(labels, mask, self.classes).sum(1)
        return self.rule.probability(prediction.log_none[0], torch.from_numpy(not_recalled))


class OpenWorld:
    """A learner of embeddings with its lasting memory and its rule for new classes."""

    def __init__(self, learner: Learner, memory: DurableMemory, rule: NewClassRule) -> None:
        self.learner = learner
        self.memory = memory
        self.rule = rule
        self._rows_measured = self._rows_noted = 0
        self._recall_unit()

    def reload(self) -> None:
        """Go back to what the store holds."""
        self.memory.reload()
        self._recall_unit()

    @torch.inference_mode()
    def believe(self, embedding: Float[Tensor, "query embed"]) -> Belief:
        prediction = self.learner.predict(self.memory.tensors, embedding[None], self._way())
        return Belief(prediction, len(self.memory.classes), self.rule)

    def learn(
        self,
        embedding: Float[Tensor, " embed"],
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
        judgement = self.learner.judge(belief.prediction.among(way), torch.tensor([[number]]))
        provisional, evicted, best = None, [], self.best(belief)
        written = new_label or bool(judgement.chosen)
        surprise = float(judgement.surprise_nats)
        if written:
            told = NewRow(label, embedding.numpy(), surprise, None, source, payload() if payload else None)
            provisional, evicted = memory.stage(embedding, told)
            self._measure_unit()
        return Receipt(
            label=label,
            surprise_nats=surprise,
            threshold_nats=threshold_nats(self.learner, way),
            written=written,
            row=provisional,
            evicted=tuple(evicted),
            predicted=best,
            probability=0.0 if new_label else float(belief.known[0, number]),
            probability_new=float(belief.new),
            new_label=new_label,
        )

    def commit(self, settings: dict | None = None) -> dict[int, int]:
        """Make what was learnt last. Returns the final ids of the receipts' provisional ones."""
        decoder, values = self.learner.decoder, dict(settings or {})
        if isinstance(decoder, UnitKernel) and self._rows_measured != self._rows_noted:
            values[UNIT_SETTING] = {"unit": decoder.unit, "rows": self._rows_measured}
        try:
            final = self.memory.commit(values)
        except BaseException:
            self._recall_unit()
            raise
        self._rows_noted = self._rows_measured
        return final

    def forget(self, ids: Iterable[int]) -> list[int]:
        gone = self.memory.forget(ids)
        self._measure_unit()
        return gone

    def probabilities(self, belief: Belief, query: int = 0) -> Probabilities:
        best = belief.known[query].sort(descending=True, stable=True)
        classes = self.memory.classes
        known = {classes[i]: p for i, p in zip(best.indices.tolist(), best.values.tolist(), strict=True)}
        return Probabilities(known, float(belief.new[query]))

    def best(self, belief: Belief, query: int = 0) -> Label | None:
        """The most probable known class."""
        return self.memory.classes[int(belief.best[query])] if self.memory.classes else None

    @torch.inference_mode()
    def explain(self, embedding: Float[Tensor, " embed"]) -> Explanation:
        memory = self.memory
        belief = self.believe(embedding[None])
        neighbours = belief.prediction.neighbours
        simpler = self.learner.on_embeddings()
        if not isinstance(self.learner.decoder, UnitKernel):
            simpler.decoder = KernelDecoder()
        vote = Belief(
            simpler.decode(belief.prediction.embedding, neighbours, self._way()), belief.classes, NewClassRule()
        )
        recalled = []
        for place in neighbours.mask[0, 0].nonzero()[:, 0].tolist():
            row = int(neighbours.row[0, 0, place])
            recalled.append(
                RecalledRow(
                    row=memory.ids[row],
                    label=memory.classes[int(neighbours.columns["label"][0, 0, place])],
                    distance=float(neighbours.distance[0, 0, place]),
                    weight=float(belief.prediction.weight[0, 0, place]),
                    source=memory.sources[row],
                )
            )
        probabilities = self.probabilities(belief)
        return Explanation(
            predicted=next(iter(probabilities), None),
            probabilities=probabilities,
            neighbours=tuple(recalled),
            kernel=self.probabilities(vote),
            nearest=recalled[0].label if recalled else None,
        )

    def _way(self) -> int:
        return max(2, len(self.memory.classes) + 1)

    def _recall_unit(self) -> None:
        """The unit is kept in the store, so that a memory opened again answers as it did."""
        if isinstance(self.learner.decoder, UnitKernel):
            kept = self.memory.store.settings().get(UNIT_SETTING, {"unit": None, "rows": 0})
            self.learner.decoder.unit, self._rows_measured = kept["unit"], kept["rows"]
            self._rows_noted = self._rows_measured
            self._measure_unit()

    def _measure_unit(self) -> None:
        """The kernel's unit of distance is measured anew whenever the memory has grown or shrunk by a quarter."""
        rows, decoder = len(self.memory), self.learner.decoder
        if isinstance(decoder, UnitKernel) and not 0.75 * self._rows_measured <= rows <= 1.25 * self._rows_measured:
            decoder.unit, self._rows_measured = measure_unit(self.memory.keys(), self.memory.labels()), rows


def threshold_nats(learner: Learner, way: int) -> float:
    controller = learner.controller
    return controller.threshold_nats(way) if isinstance(controller, SurpriseController) else 0.0
