"""Several readers of one memory, weighed by how well each predicted the examples so far; a trained decoder is one of them.

Deviation: in the paper the decoder answers alone. Here the answer is a logarithmic opinion pool (`apl.reading.pool`) of readers
without training (`apl.reading.readers`) and the decoder, and a rule of its own says how likely a class is new
(`apl.reading.novelty`). What this has learnt about a memory is one value, `EnsembleState`, kept beside the rows.
"""

from __future__ import annotations

import math
import weakref
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from apl.config import WITHOUT_WEIGHTS, LearnerConfig
from apl.memory import COUNT, LABEL, ClassTotals, Memory, Neighbours
from apl.metric import measured
from apl.posterior import Array
from apl.reading.class_statistics import ClassStatistics, Sphere
from apl.reading.column_units import MOST_COLUMNS
from apl.reading.decoder import DecoderPrediction, DecoderReading
from apl.reading.ensemble_state import EnsembleState
from apl.reading.false_alarms import LEAST_EXAMPLES, MOST_KEPT, line, readings_without_itself, without_itself
from apl.reading.novelty import log_odds_of_share
from apl.reading.pool import prior_of
from apl.reading.protocol import Networks, Opinion, Outdated, Prediction, Reading
from apl.reading.readers import DECODER, READERS, ReaderInputs, Readings, read
from apl.reading.whole_regression import MOST_ROWS, WholeRegression, sharpened

LEAST_PART = 1e-9
"""Of a row in the answer of its class: rows that the regression counts against it carry nothing."""


class EnsemblePrediction(Prediction):
    """An answer shared by several readers. Each part is computed when first asked for.

    `log_none` is the log probability of a new class in a world where new and known are equally frequent. Classes that were
    announced and not seen yet share it, weighed by their number.
    """

    def __init__(
        self,
        reading: EnsembleReading,
        memory: Memory,
        state: EnsembleState,
        embedding: Array,
        neighbours: Neighbours,
        without_decoder: Readings,
        shares: Float[np.ndarray, "episode query way"] | None = None,
    ) -> None:
        self.reading = reading
        self.state = state
        self.embedding = embedding
        self.neighbours = neighbours
        self.without_decoder = without_decoder
        self.shares = shares
        """Of the regression on all rows, in a memory that was learnt as a whole batch."""
        self.way = int(without_decoder.scores.shape[-1])
        self._memory = memory

    @cached_property
    def decoded(self) -> DecoderPrediction | None:
        """The trained decoder's answer; None if there is no decoder or it is not worth asking."""
        if self.reading.decoder is None or not self.state.pool.needs(DECODER):
            return None
        return self.reading.decoder.read(self._memory, self.embedding, self.neighbours, self.way)

    @cached_property
    def readings(self) -> Readings:
        if self.decoded is None:
            return self.without_decoder
        return self.without_decoder.with_decoder(self.reading.networks.array(self.decoded.log_probs))

    @cached_property
    def pooled_without_decoder(self) -> Float[np.ndarray, "episode query way"]:
        return self.state.pool.log_probs(self.without_decoder)

    @cached_property
    def pooled(self) -> Float[np.ndarray, "episode query way"]:
        """The readers' shared answer, given that the class is a known one; -inf for the others."""
        return self.pooled_without_decoder if self.decoded is None else self.state.pool.log_probs(self.readings)

    @cached_property
    def log_probs_of_known(self) -> Float[np.ndarray, "episode query way"]:
        """The answer, given that the class is a known one; -inf for the others."""
        if self.shares is None:
            return self.pooled
        return sharpened(self.pooled, self.shares, self.without_decoder.classes.known[0])

    @cached_property
    def log_odds_of_new(self) -> Float[np.ndarray, "episode query"]:
        return self.state.novelty.logit(self.without_decoder)

    @cached_property
    def log_probs(self) -> Array:
        classes = self.without_decoder.classes
        odds = self.log_odds_of_new + log_odds_of_share(classes.number, self.way)[:, None]
        log_new, log_known = -np.logaddexp(0, -odds), -np.logaddexp(0, odds)
        unseen = np.maximum(self.way - classes.number, 1)[:, None]
        log_probs = np.where(
            classes.known[:, None],
            log_known[..., None] + self.log_probs_of_known,
            (log_new - np.log(unseen))[..., None],
        )
        return self.reading.networks.tensor(log_probs.astype(np.float32))

    @cached_property
    def log_none(self) -> Array:
        return self.reading.networks.tensor(-np.logaddexp(0, -self.log_odds_of_new).astype(np.float32))

    @cached_property
    def weight(self) -> Array:
        if self.decoded is not None:
            return self.decoded.weight
        # The rows of a class share its probability, by their part in the local regression.
        part = np.where(self.neighbours.mask, np.maximum(self.without_decoder.regression.weights(), LEAST_PART), 0)
        label = self.neighbours.columns[LABEL]
        of_class = (part[..., None, :] * (label[..., :, None] == label[..., None, :])).sum(-1)
        probability = np.take_along_axis(np.exp(self.log_probs_of_known), label, -1)
        return np.where(self.neighbours.mask, probability * part / np.maximum(of_class, LEAST_PART), 0)

    def best(self, among: Int[np.ndarray, " class"]) -> Int[np.ndarray, "episode query"]:
        log_probs = self.pooled_without_decoder if self.shares is None else self.log_probs_of_known
        if not self.state.pool.is_settled(log_probs):
            log_probs = self.reading.networks.array(self.log_probs)
        best: np.ndarray = among[log_probs[..., among].argmax(-1)]
        return best


@dataclass(frozen=True)
class _Space:
    """The classes of a memory as they are at one version of it, in the space in which keys are compared."""

    memory: weakref.ref[Any]
    version: int
    way: int
    state: EnsembleState
    classes: ClassStatistics
    sphere: Sphere | None

    def is_of(self, memory: Memory, way: int) -> bool:
        same = self.way == way and self.version == memory.version
        return same and self.state is memory.state and self.memory() is memory

    @cached_property
    def regression(self) -> WholeRegression | None:
        """On all rows, if they were learnt as a whole batch."""
        memory = self.memory()
        if memory is None or not memory.local or not 0 < len(memory) <= MOST_ROWS:
            return None
        keys = measured(memory.column(memory.keys[0])[0], memory.metric)
        return WholeRegression.of(keys, memory.column(LABEL)[0], memory.column(COUNT)[0], self.classes)


class EnsembleReading(Reading):
    """Readers without training and, if its weights were trained, the decoder."""

    def __init__(self, config: LearnerConfig, networks: Networks) -> None:
        trained = config.decoder.kind not in WITHOUT_WEIGHTS
        self.networks = networks
        self.decoder = DecoderReading(config, networks) if trained else None
        self.readers = (*READERS, DECODER) if trained else READERS
        self.metric = config.metric
        self.positions = config.metric == "euclidean" and not trained
        """True if key magnitude is informative. (Behind a trained decoder all embeddings have one length.)"""
        self.table = self.positions and networks.width <= MOST_COLUMNS
        """True if keys may be rows of a table of measurements, each column in its own unit."""
        self.regresses = not self.positions and not trained
        """True if a whole batch is read by a regression on all rows. (It does not help beside a trained decoder.)"""
        self.within = prior_of(self.readers).within
        self._space: _Space | None = None

    def new_state(self, episodes: int, width: int, kept: Any = None) -> EnsembleState:
        columns = width if self.positions else None
        if kept is None:
            return EnsembleState.new(self.readers, columns, episodes)
        return EnsembleState.from_dict(self.readers, columns, kept)

    def prepare(self, memory: Memory) -> None:
        """Compare columns in units that suit the rows there are now."""
        if not (self.table and memory.local):
            return
        state = self._state(memory)
        units = state.units
        if units is None:
            return
        totals = memory.class_totals()
        if units.is_due(totals.examples.sum(1)).any():
            units = units.taken(totals)
            memory.state = replace(state, units=units)
        if memory.scale is None or not np.array_equal(memory.scale[:, 0], units.scale):
            memory.rescale(units.scale[:, None])

    def read(self, memory: Memory, embedding: Array, neighbours: Neighbours, way: int) -> EnsemblePrediction:
        space = self._classes(memory, way)
        given = self._inputs(memory, space, self.networks.array(embedding), neighbours)
        shares = None
        if self.regresses and space.state.batch and (regression := space.regression) is not None:
            shares = regression.shares(given.query[0])[None]
        return EnsemblePrediction(self, memory, space.state, embedding, neighbours, read(given), shares)

    def _inputs(self, memory: Memory, space: _Space, embedding: np.ndarray, neighbours: Neighbours) -> ReaderInputs:
        scale = memory.scale
        query = measured(embedding, self.metric, scale)
        rows = measured(neighbours.columns["embedding"], self.metric, None if scale is None else scale[:, None])
        if space.sphere is not None:
            query, rows = space.sphere.place(query), space.sphere.place(rows)
        label, mask = neighbours.columns[LABEL], neighbours.mask
        return ReaderInputs(query, rows, label, mask, neighbours.columns[COUNT], space.classes, self.within)

    def learn(self, memory: Memory, prediction: EnsemblePrediction, truth: Int[np.ndarray, "episode query"]) -> None:
        state, readings = prediction.state, prediction.without_decoder
        units, known = state.units, state.known
        if units is not None:
            units = units.learnt(self.networks.array(prediction.embedding), truth, memory.class_totals(prediction.way))
        # Examples sorted by class would teach that what is near is wrong: in few dimensions classes lie close together.
        pool = state.pool.learnt(prediction.readings, prediction.pooled, truth, nonnegative=self.table)
        novelty = state.novelty.learnt(readings, truth)
        if memory.episodes == 1:
            counted = readings.classes.examples[0, truth[0]] >= LEAST_EXAMPLES
            known = np.concatenate([known, np.stack(readings.nearness, 2)[0, counted]])[-MOST_KEPT:]
        memory.state = EnsembleState(pool, novelty, units, state.drift, known)

    def outdated(
        self, memory: Memory, prediction: EnsemblePrediction, query: int, truth: int, newest: int, risen: bool
    ) -> Outdated | None:
        classes, log_probs = prediction.without_decoder.classes, prediction.log_probs_of_known[0, query]
        number = int(classes.number[0])
        if number < 2 or truth >= len(log_probs) or not classes.known[0, truth]:
            return None
        state = self._state(memory)
        contradicts = bool(log_probs[truth] < -math.log(number))
        drift = state.drift.learnt(contradicts, int(classes.examples[0, truth]), newest, risen)
        memory.state = replace(state, drift=drift)
        if not drift.began:
            return None
        predicted = int(log_probs.argmax())
        return None if predicted == truth else Outdated(predicted, drift.earlier)

    def line_of_new(self, memory: Memory, false_alarms: float) -> float:
        state = self._state(memory)
        log_odds = state.novelty.log_odds(*state.known.T[:, None])[0]
        return float(np.exp(-np.logaddexp(0, -line(log_odds, false_alarms))))

    def finish_batch(
        self,
        memory: Memory,
        embedding: Float[np.ndarray, "query embed"],
        truth: Int[np.ndarray, " query"],
        row: Int[np.ndarray, " query"],
        k: int,
    ) -> None:
        """Examples of the batch, each left out of the memory once, show how near classes come to known examples."""
        state = self._state(memory)
        known = state.known
        if memory.local:
            totals = memory.class_totals()
            counted = (totals.examples[0, truth] > LEAST_EXAMPLES).nonzero()[0]
            some = counted[np.linspace(0, len(counted) - 1, min(len(counted), MOST_KEPT)).round().astype(int)]
            known = np.zeros((0, 2))
            if len(some):
                asked, space = embedding[None, some], self._classes(memory, totals.examples.shape[1])
                found = without_itself(memory.nearest(memory.keys[0], asked, k + 1), asked, row[some])
                readings = readings_without_itself(self._inputs(memory, space, asked, found), truth[some])
                known = np.stack(readings.nearness, 2)[0]
        memory.state = replace(state, known=known, batch=True)

    def opinions(self, prediction: EnsemblePrediction, classes: int) -> list[Opinion]:
        if not classes:
            return []
        favourite = prediction.readings.scores[0, 0, :, :classes].argmax(1).tolist()
        weights = prediction.state.pool.weight[0].tolist()
        return [Opinion(*said) for said in zip(self.readers, weights, favourite, strict=False)]

    def _state(self, memory: Memory) -> EnsembleState:
        if not isinstance(memory.state, EnsembleState):
            memory.state = self.new_state(memory.episodes, self.networks.width)
        return memory.state

    def _classes(self, memory: Memory, way: int) -> _Space:
        """Computed once per version of the memory."""
        if self._space is not None and self._space.is_of(memory, way):
            return self._space
        state, totals, sphere, scale = self._state(memory), memory.class_totals(way), None, memory.scale
        if self.positions:
            if scale is not None:
                everything = totals.everything * scale[:, 0]
                totals = ClassTotals(totals.total * scale, totals.examples, everything, totals.square)
            away = state.units.usual_away(scale) if state.units is not None else np.zeros(memory.episodes)
            sphere = Sphere.around(totals, self.within, away)
            totals = sphere.place_classes(totals)
        classes = ClassStatistics.of(totals)
        self._space = _Space(weakref.ref(memory), memory.version, way, state, classes, sphere)
        return self._space
