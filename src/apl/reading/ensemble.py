"""Several readers of one memory, weighed by how well each predicted the examples so far; a trained decoder is one of them.

Deviation: in the paper the decoder answers alone. Here the answer is a logarithmic opinion pool of readers
without training (`apl.reading.readers`) and the decoder, and a rule of its own says how likely a class is new
(`apl.reading.ensemble_state`). What this has learnt about a memory is one value, `EnsembleState`, kept beside the rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from apl.config import WITHOUT_WEIGHTS, LearnerConfig
from apl.memory import COUNT, LABEL, ClassTotals, Memory, Neighbours
from apl.metric import measured
from apl.posterior import Array
from apl.reading.batch import WholeRegression, readings_without_itself, with_regression, without_itself
from apl.reading.decoder import DecoderReading
from apl.reading.ensemble_state import (
    FOR_DRAWINGS,
    FOR_VECTORS,
    READER_NAMES,
    EnsembleState,
)
from apl.reading.positions import MOST_COLUMNS, Sphere
from apl.reading.protocol import Networks, Prediction, Reading
from apl.reading.readers import READERS, ClassStatistics, ReaderInputs, Readings, read

MOST_JUDGED, JUDGED_AT_ONCE = 500, 64
"""Examples of a batch that are left out of the memory, each once, and how many are computed together."""
LEAST_EXAMPLES = 2
"""Examples of a class beside the one that counts for false alarms: a class that was shown once is far from most of its
examples."""
LEAST_PART = 1e-9
"""Of a row in the answer of its class: rows that the regression counts against it carry nothing."""


@dataclass(frozen=True)
class _Space:
    """The classes of a memory at one version of it, in the space in which keys are compared."""

    memory: Memory
    version: int
    state: EnsembleState
    classes: ClassStatistics
    sphere: Sphere | None

    @cached_property
    def regression(self) -> WholeRegression | None:
        """On all rows, if they were learnt as a whole batch."""
        memory = self.memory
        if not (memory.local and WholeRegression.is_affordable(len(memory), self.classes.examples.shape[1])):
            return None
        keys = measured(memory.column(memory.keys[0])[0], memory.metric)
        return WholeRegression.of(keys, memory.column(LABEL)[0], memory.column(COUNT)[0], self.classes)


class EnsemblePrediction(Prediction):
    """An answer shared by several readers. Each part is computed when first asked for.

    `log_none` is the log probability of a new class in a world where new and known are equally frequent. Classes that were
    announced and not seen yet share it, weighed by their number.
    """

    def __init__(
        self,
        reading: EnsembleReading,
        space: _Space,
        embedding: Array,
        neighbours: Neighbours,
        readings: Readings,
        regressed: Float[np.ndarray, "episode query way"] | None = None,
    ) -> None:
        self.reading, self.state = reading, space.state
        self.embedding, self.neighbours, self.way = embedding, neighbours, space.classes.examples.shape[1]
        self.without_decoder = readings
        if reading.decoder is None:
            self.readings = readings
        self._memory = space.memory
        self.regressed = regressed
        """Logits of the regression on all rows, in a memory that was learnt as a whole batch."""

    @cached_property
    def readings(self) -> Readings:
        """With a trained decoder, if there is one and it is worth asking."""
        decoder = self.reading.decoder
        if decoder is None or not self.state.pool.asks_decoder():
            return self.without_decoder
        said = decoder.read(self._memory, self.embedding, self.neighbours, self.way)
        return self.without_decoder.with_decoder(self.reading.networks.array(said.log_probs))

    @cached_property
    def pooled(self) -> Float[np.ndarray, "episode query way"]:
        """The readers' answer, given that the class is a known one; -inf for the others."""
        return self.state.pool.log_probs(self.readings)

    @cached_property
    def log_probs_of_known(self) -> Float[np.ndarray, "episode query way"]:
        """The answer, given that the class is a known one."""
        if self.regressed is None:
            return self.pooled
        return with_regression(self.pooled, self.regressed, self.without_decoder.classes.known[0])

    @cached_property
    def log_odds_of_new(self) -> Float[np.ndarray, "episode query"]:
        """Of "new" against "known"; infinite where nothing is known."""
        readings = self.without_decoder
        odds = self.state.novelty.log_odds(*readings.nearness)
        return np.where((readings.classes.number > 0)[:, None], odds, np.inf)

    @cached_property
    def log_parts(self) -> tuple[Float[np.ndarray, "episode query"], Float[np.ndarray, "episode query"]]:
        """Log probabilities of one class without examples, and of all others together."""
        number = self.without_decoder.classes.number
        # Where the number of classes is announced, "new" weighs by the share of those not seen yet.
        with np.errstate(divide="ignore"):
            odds = self.log_odds_of_new + (np.log(self.way - number) - np.log(number))[:, None]
        return -np.logaddexp(0, -odds) - np.log(np.maximum(self.way - number, 1))[:, None], -np.logaddexp(0, odds)

    @cached_property
    def log_probs(self) -> Array:
        """Of the readers alone: past examples were predicted so, and sets of labels are judged by them."""
        log_new, log_known = self.log_parts
        known = self.without_decoder.classes.known[:, None]
        log_probs = np.where(known, log_known[..., None] + self.pooled, log_new[..., None])
        return self.reading.networks.tensor(log_probs.astype(np.float32))

    def foreseen(self, query: int, truth: int) -> tuple[float, tuple[float, float] | None]:
        log_new, log_known = self.log_parts
        examples = self.without_decoder.classes.examples[0, truth]
        if not examples:
            return -float(log_new[0, query]), None
        score = -float(log_known[0, query] + self.pooled[0, query, truth])
        if examples < LEAST_EXAMPLES:
            return score, None
        cosine, share = self.without_decoder.nearness
        return score, (float(cosine[0, query]), float(share[0, query]))

    def surprise_left_out(self, truth: Int[np.ndarray, " query"]) -> Float[np.ndarray, " query"]:
        """-ln p(truth) of examples left out of their classes; of the only one of its class, which then is new, -ln p(new)."""
        classes, own = self.without_decoder.classes, np.arange(len(truth))
        number = float(classes.number[0])
        odds = self.log_odds_of_new[0] - np.log(number)
        nearness = self.without_decoder.nearness_without(truth[None])
        without = self.state.novelty.log_odds(*nearness)[0] - np.log(max(number - 1, 1))
        foreseen = np.logaddexp(0, odds) - self.pooled[0, own, truth]
        surprise: np.ndarray = np.where(classes.examples[0, truth] > 1, foreseen, np.logaddexp(0, -without))
        return surprise

    @property
    def log_none(self) -> Array:
        return self.reading.networks.tensor(-np.logaddexp(0, -self.log_odds_of_new).astype(np.float32))

    @property
    def weight(self) -> Array:
        """The rows of a class share its probability, by their part in the local regression."""
        part = np.where(self.neighbours.mask, np.maximum(self.without_decoder.regression.weights(), LEAST_PART), 0)
        label = self.neighbours.columns[LABEL]
        of_class = (part[..., None, :] * (label[..., :, None] == label[..., None, :])).sum(-1)
        probability = np.take_along_axis(np.exp(self.log_probs_of_known), label, -1)
        return np.where(self.neighbours.mask, probability * part / np.maximum(of_class, LEAST_PART), 0)

    def among(self, classes: Int[np.ndarray, " class"] | slice) -> Float[np.ndarray, "episode query class"]:
        # Single precision hides what rounding makes of equally probable classes.
        known: np.ndarray = self.log_probs_of_known.astype(np.float32)[..., classes]
        return known

    def best(self, among: Int[np.ndarray, " class"]) -> Int[np.ndarray, "episode query"]:
        pool, log_probs = self.state.pool, None
        if self.reading.decoder is not None and "readings" not in vars(self):
            # The decoder is not asked if it could not change the answer.
            without = pool.log_probs(self.without_decoder)
            log_probs = without[..., among] if pool.is_settled(without) else None
        best: np.ndarray = among[(self.among(among) if log_probs is None else log_probs).argmax(-1)]
        return best


class EnsembleReading(Reading):
    """Readers without training and, if its weights were trained, the decoder."""

    def __init__(self, config: LearnerConfig, networks: Networks) -> None:
        trained = config.decoder.kind not in WITHOUT_WEIGHTS
        self.networks = networks
        self.decoder = DecoderReading(config, networks) if trained else None
        self.readers = len(READERS) + trained
        self.metric = config.metric
        self.positions = config.metric == "euclidean" and not trained
        """True if key magnitude is informative. (Behind a trained decoder all embeddings have one length.)"""
        self.table = self.positions and networks.width <= MOST_COLUMNS
        """True if keys may be rows of a table of measurements, each column in its own unit."""
        self.regresses = not self.positions and not trained
        """True if a whole batch is read by a regression on all rows. (It does not help beside a trained decoder.)"""
        self.within = (FOR_DRAWINGS if trained else FOR_VECTORS).within
        self._latest: _Space | None = None

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
        space = self._space(memory, way)
        given = self._inputs(space, self.networks.array(embedding), neighbours)
        regressed = None
        if self.regresses and space.state.batch and space.regression is not None:
            regressed = space.regression.logits(given.query[0])[None]
        return EnsemblePrediction(self, space, embedding, neighbours, read(given), regressed)

    def learn(self, memory: Memory, prediction: EnsemblePrediction, truth: Int[np.ndarray, "episode query"]) -> None:
        state, readings = prediction.state, prediction.without_decoder
        units = state.units
        if units is not None:
            units = units.learnt(self.networks.array(prediction.embedding), truth, memory.class_totals(prediction.way))
        # Examples sorted by class would teach that what is near is wrong: in few dimensions classes lie close together.
        pool = state.pool.learnt(prediction.readings, prediction.pooled, truth)
        novelty = state.novelty.learnt(readings, truth)
        memory.state = EnsembleState(pool, novelty, units)

    def line_of_new(self, memory: Memory, near: Float[np.ndarray, "example 2"], false_alarms: float) -> float:
        log_odds = self._state(memory).novelty.log_odds(*near.astype(np.float64).T[:, None])[0]
        line = np.quantile(log_odds, 1 - false_alarms, method="weibull") if len(log_odds) else np.inf
        return float(np.exp(-np.logaddexp(0, -line)))

    def begin_batch(self, memory: Memory) -> None:
        # Surprise is measured by the readers alone: a regression on all rows would only name the answer in the receipts.
        memory.state = replace(self._state(memory), batch=False)

    def finish_batch(
        self,
        memory: Memory,
        embedding: Float[np.ndarray, "query embed"],
        truth: Int[np.ndarray, " query"],
        row: Int[np.ndarray, " query"],
        k: int,
    ) -> tuple[Float[np.ndarray, " judged"], Float[np.ndarray, "familiar 2"]] | None:
        memory.state = replace(self._state(memory), batch=True)
        if not memory.local or not len(truth):
            return None
        some = np.linspace(0, len(truth) - 1, min(len(truth), MOST_JUDGED)).round().astype(int)
        familiar, judged = [], []
        for part in np.array_split(some, -(-len(some) // JUDGED_AT_ONCE)):
            prediction = self._left_out(memory, embedding[part], truth[part], row[part], k)
            near = np.stack(prediction.without_decoder.nearness, 2)[0]
            examples = memory.class_totals().examples[0, truth[part]]
            familiar.append(near[examples > LEAST_EXAMPLES])
            judged.append(prediction.surprise_left_out(truth[part]))
        return np.concatenate(judged), np.concatenate(familiar)

    def _left_out(
        self,
        memory: Memory,
        embedding: Float[np.ndarray, "query embed"],
        truth: Int[np.ndarray, " query"],
        row: Int[np.ndarray, " query"],
        k: int,
    ) -> EnsemblePrediction:
        """Of examples that the memory has learnt, as if it had not."""
        asked = embedding[None]
        space = self._space(memory, memory.class_totals().examples.shape[1])
        found = without_itself(memory.nearest(memory.keys[0], asked, k + 1), asked, row)
        readings = readings_without_itself(self._inputs(space, asked, found), truth)
        return EnsemblePrediction(self, space, self.networks.tensor(asked), found, readings)

    def opinions(self, prediction: EnsemblePrediction, classes: int) -> list[tuple[str, float, int]]:
        if not classes:
            return []
        favourite = prediction.readings.scores[0, 0, :, :classes].argmax(1).tolist()
        weights = prediction.state.pool.weight[0].tolist()
        return list(zip(READER_NAMES, weights, favourite, strict=False))

    def _state(self, memory: Memory) -> EnsembleState:
        if not isinstance(memory.state, EnsembleState):
            memory.state = self.new_state(memory.episodes, self.networks.width)
        return memory.state

    def _inputs(self, space: _Space, embedding: np.ndarray, neighbours: Neighbours) -> ReaderInputs:
        scale, columns = space.memory.scale, neighbours.columns
        query = measured(embedding, self.metric, scale)
        rows = measured(columns["embedding"], self.metric, None if scale is None else scale[:, None])
        if space.sphere is not None:
            query, rows = space.sphere.place(query), space.sphere.place(rows)
        return ReaderInputs(query, rows, columns[LABEL], neighbours.mask, columns[COUNT], space.classes, self.within)

    def _space(self, memory: Memory, way: int) -> _Space:
        """Computed once per version of the memory and state of the readers."""
        latest, state = self._latest, memory.state
        if not isinstance(state, EnsembleState):
            state = self._state(memory)
        if (
            latest is not None
            and latest.memory is memory
            and latest.version == memory.version
            and latest.state is state
            and latest.classes.examples.shape[1] == way
        ):
            return latest
        totals, sphere, scale = memory.class_totals(way), None, memory.scale
        if self.positions:
            if scale is not None:
                everything = totals.everything * scale[:, 0]
                totals = ClassTotals(totals.total * scale, totals.examples, everything, totals.square)
            away = state.units.usual_away(scale) if state.units is not None else np.zeros(memory.episodes)
            sphere = Sphere.around(totals, self.within, away)
            totals = sphere.place_classes(totals)
        self._latest = _Space(memory, memory.version, state, ClassStatistics.of(totals), sphere)
        return self._latest
