"""The learner (paper, section 2): embed the query, recall its neighbours, decode a posterior, measure
surprise, write what surprised. These five steps exist here and nowhere else.

Weights and memory are separate: one learner serves any number of memories, and the memory is passed in. Networks
compute with tensors (`apl.networks`) or in ONNX Runtime (`apl.exported`), memories with numpy; they meet in `recall`
and `write`, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float, Int

from apl.best_class import NOT_CLEAR, clear_best_class
from apl.class_shares import Elsewhere, place
from apl.config import WITHOUT_WEIGHTS, LearnerConfig
from apl.consolidation import ConsolidatingMemory
from apl.controller import Action, ConsolidatingController, Controller, SurpriseController
from apl.memory import COUNT, Column, Memory, Neighbours, RamMemory
from apl.posterior import Array, Posterior
from apl.reading.novelty import log_odds_of_share
from apl.reading.readers import DECODER, READERS, Readings, Scene, read


@runtime_checkable
class Networks(Protocol):
    """An encoder and a decoder, whatever computes them. `Array` is an array of their own kind."""

    width: int
    key_widths: Mapping[str, int]
    """The key columns of the memory: named slices of the embedding, usually the whole of it."""

    def tensor(self, array: Any) -> Array: ...
    def array(self, tensor: Array) -> np.ndarray: ...
    def embed(self, x: Array) -> Array: ...
    def decode(self, query: Array, neighbours: Neighbours, log_elsewhere: np.ndarray) -> Posterior: ...
    def fingerprint(self) -> str: ...
    def on_embeddings(self) -> Networks: ...


@dataclass(frozen=True)
class Prediction:
    """What the learner believes, and on what grounds. Arrays are the networks' own."""

    log_probs: Array
    """`[episode, query, way]`"""
    log_none: Array
    """`[episode, query]`: log of the mass on none of the recalled rows."""
    weight: Array
    """`[episode, query, neighbours]`: how much of the answer each neighbour carries."""
    neighbours: Neighbours
    embedding: Array
    """`[episode, query, embed]`"""
    readings: Readings | None = None
    """What each reader said, where the memory consolidates."""

    @cached_property
    def label(self) -> Array:
        return self.log_probs.argmax(-1)


@dataclass(frozen=True)
class Observation:
    """A prediction, the truth's surprise under it, and what was written."""

    prediction: Prediction
    surprise_nats: Array
    """`[episode, query]`: -ln p(y), which is also the loss; carries gradient in training."""
    row: Int[np.ndarray, "episode query"]
    """Where in the memory the example went; -1 if it was not written."""
    merged_into: Int[np.ndarray, "episode query"] | None = None
    """The row it was merged into; -1 if it was not. None if the memory does not consolidate."""

    @property
    def written(self) -> Bool[np.ndarray, "episode query"]:
        return self.row >= 0


class Learner:
    """Networks, and the rule for writing."""

    def __init__(
        self, config: LearnerConfig, controller: Controller | None = None, networks: Networks | None = None
    ) -> None:
        """Without `networks` new ones are made, which needs torch."""
        if config.k < 1:
            raise ValueError(f"k must be at least 1, got {config.k}")
        if config.hops < 1:
            raise ValueError(f"hops must be at least 1, got {config.hops}")
        if networks is None:
            from apl.networks import TorchNetworks

            networks = TorchNetworks.of(config)
        self.config = config
        self.networks = networks
        self.controller = controller or SurpriseController(config.sigma_ratio)

    @property
    def consolidates(self) -> bool:
        """Whether its memories merge what does not surprise."""
        return isinstance(self.controller, ConsolidatingController)

    @property
    def readers(self) -> tuple[str, ...]:
        """Those that share the answer of a memory that consolidates: a decoder that was trained is one of them."""
        if self.consolidates and self.controller.decoder_alone:
            return (DECODER,)
        return READERS if self.config.decoder.kind in WITHOUT_WEIGHTS else (*READERS, DECODER)

    @property
    def key_widths(self) -> Mapping[str, int]:
        return self.networks.key_widths

    def new_memory(self, episodes: int = 1, capacity: int | None = None) -> RamMemory:
        """An empty memory with the columns this learner reads and writes."""
        widths = self.networks.key_widths
        columns = {**{name: Column((width,)) for name, width in widths.items()}, "label": Column((), np.int64)}
        if self.consolidates:
            room: dict[str, Any] = {"episodes": episodes, "capacity": capacity, "metric": self.config.metric}
            return ConsolidatingMemory(columns, tuple(widths), self.readers, **room)
        return RamMemory(columns, tuple(widths), episodes=episodes, capacity=capacity, metric=self.config.metric)

    def embed(self, x: Any) -> Array:
        """Step 1. `x` is `[episode, query, *input]`; byte images are scaled to 0..1."""
        if x.ndim < 3:
            raise ValueError(f"expected inputs of shape [episode, query, ...], got {list(x.shape)}")
        embedding = self.networks.embed(x.reshape(-1, *x.shape[2:]))
        return embedding.reshape(*x.shape[:2], -1)

    def recall(self, memory: Memory, embedding: Array) -> Neighbours:
        """Step 2: k neighbours by each key column."""
        asked = self.networks.array(embedding)
        widths = self.networks.key_widths
        found = [memory.nearest(key, part, self.config.k) for key, part in self.key_columns(asked).items()]
        neighbours = Neighbours.join(found, list(widths.values()))
        if "embedding" not in neighbours.columns:
            whole = np.concatenate([neighbours.columns[key] for key in widths], -1)
            neighbours = replace(neighbours, columns={**neighbours.columns, "embedding": whole})
        if self.config.hops > 1 and len(memory):
            neighbours = self._recall_further(memory, asked, neighbours)
        return neighbours

    def key_columns(self, embedding: Float[np.ndarray, "episode query embed"]) -> dict[str, np.ndarray]:
        """An embedding cut into the key columns."""
        widths = self.networks.key_widths
        if len(widths) == 1:
            return dict.fromkeys(widths, embedding)
        return dict(zip(widths, np.split(embedding, np.cumsum(list(widths.values()))[:-1], axis=-1), strict=True))

    def _recall_further(
        self, memory: RamMemory, asked: Float[np.ndarray, "episode query embed"], first: Neighbours
    ) -> Neighbours:
        """All rows within `hops` steps from row to neighbouring row, each once, nearest (by all keys) first."""
        near = np.stack([memory.linked(key, self.config.k) for key in memory.keys]).any(0).astype(np.float32)
        reached = np.zeros((*first.row.shape[:2], len(memory) + 1), bool)
        np.put_along_axis(reached, np.where(first.mask, first.row, len(memory)), True, 2)
        reached = reached[..., :-1]
        for _ in range(self.config.hops - 1):
            reached = reached | (reached.astype(np.float32) @ near > 0)
        whole = np.concatenate([memory.column(key) for key in memory.keys], -1)
        distance = np.sqrt(np.square(asked[:, :, None] - whole[:, None]).sum(-1))
        distance[~reached] = np.inf
        row = distance.argsort(-1, kind="stable")[..., : int(reached.sum(-1).max())]
        distance = np.take_along_axis(distance, row, -1)
        mask = np.isfinite(distance)
        episode = np.arange(memory.episodes)[:, None, None]
        columns = {"embedding": whole, **{name: memory.column(name) for name in memory.spec}}
        columns = {name: column[episode, row] for name, column in columns.items()}
        for cells in columns.values():
            cells[~mask] = 0
        return Neighbours(columns, np.where(mask, distance, 0), mask, np.where(mask, row, -1))

    def decode(self, memory: Memory, embedding: Array, neighbours: Neighbours, way: int) -> Prediction:
        """Step 3: what the neighbours say, as probabilities of `way` classes."""
        highest = int(neighbours.columns["label"].max(initial=0))
        if highest >= way:
            raise ValueError(f"the memory holds label {highest}, but only {way} classes were announced")
        fixed_way = self.config.decoder.way if self.config.decoder.labels == "fixed" else None
        if fixed_way is not None and fixed_way != way:
            raise ValueError(f"this decoder was made for {fixed_way} classes and cannot answer for {way}")
        stored = memory.classes_stored(way)
        elsewhere = Elsewhere.of(neighbours, stored.sum(1), way)
        queries = embedding.reshape(-1, embedding.shape[-1])
        said = self.networks.decode(queries, neighbours, elsewhere.log_mass)

        def apart(array: Array) -> Array:
            return array.reshape(*embedding.shape[:2], *array.shape[1:])

        log_none, weight = apart(said.log_none), apart(said.weight)
        if said.log_probs is not None:
            return Prediction(apart(said.log_probs), log_none, weight, neighbours, embedding)
        part = np.where(stored[:, None], elsewhere.log_overlooked[..., None], elsewhere.log_new[..., None])
        log_probs = place(apart(said.log_class), log_none, self.networks.tensor(part), neighbours)
        return Prediction(log_probs, log_none, weight, neighbours, embedding)

    def predict(self, memory: Memory, x: Any, way: int) -> Prediction:
        """Steps 1 to 3. The memory is only read."""
        if way < 2:
            raise ValueError(f"way, the number of classes, must be at least 2, got {way}")
        embedding = self.embed(x)
        neighbours = self.recall(memory, embedding)
        if has_readers(memory):
            return self.consult(memory, embedding, neighbours, self._read(memory, embedding, neighbours, way))
        return self.decode(memory, embedding, neighbours, way)

    def log_probs_of_best(self, memory: Memory, x: Any, way: int) -> Float[np.ndarray, "episode query way"]:
        """Steps 1 to 3, for who wants to know the best of the classes that have rows, and nothing else: its logit is the largest.
        A trained decoder, which is dear to ask, is not asked where it could not change the answer."""
        embedding = self.embed(x)
        neighbours = self.recall(memory, embedding)
        if has_readers(memory):
            readings = self._read(memory, embedding, neighbours, way)
            if memory.pool.is_settled(readings):
                return memory.pool.log_probs(readings)
            said = self.consult(memory, embedding, neighbours, readings)
        else:
            said = self.decode(memory, embedding, neighbours, way)
        log_probs = self.networks.array(said.log_probs)
        return np.where(memory.classes_stored(way)[:, None], log_probs, -np.inf)

    def consult(
        self, memory: ConsolidatingMemory, embedding: Array, neighbours: Neighbours, readings: Readings
    ) -> Prediction:
        """Step 3 in a memory that consolidates: several readers share the answer by how well each foresaw the lessons.

        `log_none` is the log of the probability of a new class, in a world where new and known are equally frequent;
        classes that were announced and not seen yet share it, weighed by how many they are.
        """
        way, weight = readings.examples.shape[1], None
        if memory.pool.needs(DECODER):
            said = self.decode(memory, embedding, neighbours, way)
            readings, weight = readings.with_decoder(self.networks.array(said.log_probs)), said.weight
        among_known = memory.pool.log_probs(readings)
        logit = memory.novelty.logit(readings)
        odds = logit + log_odds_of_share(readings.number, way)[:, None]
        log_new, log_known = -np.logaddexp(0, -odds), -np.logaddexp(0, odds)
        unseen = np.maximum(way - readings.number, 1)[:, None]
        log_probs = np.where(
            readings.known[:, None], log_known[..., None] + among_known, (log_new - np.log(unseen))[..., None]
        )
        if weight is None:
            farther = neighbours.distance - neighbours.distance.min(-1, keepdims=True, initial=np.inf)
            unit = neighbours.distance.mean(-1, keepdims=True) if memory.of_positions else 1
            weight = np.where(neighbours.mask, np.exp(-farther / np.maximum(unit, 1e-12)), 0)
            weight = weight / np.maximum(weight.sum(-1, keepdims=True), 1e-9)
        tensor = self.networks.tensor
        return Prediction(
            tensor(log_probs.astype(np.float32)),
            tensor(-np.logaddexp(0, -logit).astype(np.float32)),
            weight,
            neighbours,
            embedding,
            readings,
        )

    def _read(self, memory: ConsolidatingMemory, embedding: Array, neighbours: Neighbours, way: int) -> Readings:
        return read(self._scene(memory, embedding, neighbours, way))

    def _scene(self, memory: ConsolidatingMemory, embedding: Array, neighbours: Neighbours, way: int) -> Scene:
        scene = Scene(
            memory.measured(self.networks.array(embedding)),
            memory.measured(neighbours.columns["embedding"]),
            neighbours.columns["label"],
            neighbours.mask,
            neighbours.examples,
            memory.statistics(way).scaled(memory.scale),
            memory.pool.prior.within,
        )
        return scene.of_positions(memory.spread.usual_away(memory.scale)) if memory.of_positions else scene

    def clear_best(self, memory: Memory, x: Any, way: int) -> Int[np.ndarray, " query"]:
        """Steps 1 to 3 in a single memory, for who wants the best of very many classes and no probabilities. `NOT_CLEAR` of
        what only `predict` can tell."""
        if not has_readers(memory) or memory.pool.needs(DECODER) or not memory.pool.lessons.all():
            return np.full(x.shape[1], NOT_CLEAR)
        embedding = self.embed(x)
        neighbours = self.recall(memory, embedding)
        return clear_best_class(self._scene(memory, embedding, neighbours, way), memory.pool)

    def observe(self, memory: Memory, x: Any, y: Any, way: int) -> Observation:
        """All five steps: predict, then learn the truth and write it down if it was surprising."""
        check_labels(y, x.shape[:2], way)
        return self.learn(memory, self.predict(memory, x, way), y)

    def learn(self, memory: Memory, prediction: Prediction, y: Any) -> Observation:
        """Steps 4 and 5 after a prediction from the same memory, which must not have changed since."""
        surprise = self.surprise(prediction, y)
        action = self.controller.decide(self.networks.array(surprise), prediction.log_probs.shape[-1])
        if not isinstance(memory, ConsolidatingMemory):
            return Observation(
                prediction, surprise, self.write(memory, prediction.embedding, y, action != Action.IGNORE)
            )
        truth, embedding = self.networks.array(y), self.networks.array(prediction.embedding)
        if prediction.readings is not None:
            memory.learn(prediction.readings, truth, embedding)
        explained = explaining_row(prediction.neighbours, truth)
        merged = np.where(action == Action.MERGE, explained, -1)
        row = self.write(memory, prediction.embedding, y, (action != Action.IGNORE) & (merged < 0))
        memory.merge(embedding, merged)
        return Observation(prediction, surprise, row, merged)

    def surprise(self, prediction: Prediction, y: Any) -> Array:
        """Step 4: -ln p(y) of the truth."""
        check_labels(y, prediction.log_probs.shape[:2], prediction.log_probs.shape[-1])
        episode, query = np.indices(y.shape)
        return -prediction.log_probs[episode, query, self.networks.tensor(y)]

    def write(self, memory: Memory, embedding: Array, y: Any, chosen: Any) -> Int[np.ndarray, "episode query"]:
        """Step 5: put these examples into the memory, without gradient."""
        rows = {**self.key_columns(self.networks.array(embedding)), "label": np.asarray(y)}
        if isinstance(memory, ConsolidatingMemory):
            rows[COUNT] = np.ones(rows["label"].shape, np.float32)
        return memory.write(rows, np.asarray(chosen))

    def fingerprint(self) -> str:
        return self.networks.fingerprint()

    def on_embeddings(self) -> Learner:
        """The same decoder and controller, for inputs that are already embedded."""
        return Learner(self.config, self.controller, self.networks.on_embeddings())

    # --- with torch --------------------------------------------------------------------------------

    @property
    def encoder(self) -> Any:
        return self.networks.encoder

    @property
    def decoder(self) -> Any:
        return self.networks.decoder

    def to(self, device: Any) -> Learner:
        self.networks.to(device)
        return self

    def train(self, mode: bool = True) -> Learner:
        self.networks.train(mode)
        return self

    def eval(self) -> Learner:
        return self.train(False)

    def save(
        self, directory: Path, provenance: Mapping[str, Any], half: bool = True, encoder: str | None = None
    ) -> None:
        """`encoder`: the bundled model whose encoder this is, so that it need not be saved again."""
        from apl.weights_file import save_model

        save_model(Path(directory), self.networks, self.config, provenance, half, encoder)

    @staticmethod
    def load(name_or_dir: str | Path, controller: Controller | None = None) -> Learner:
        """A bundled model by name, or any saved one by its directory, to train or to look into: in evaluation mode."""
        from apl.checkpoint import find_model, learner_config
        from apl.weights_file import load_weights, read_weights

        directory = find_model(name_or_dir)
        learner = Learner(learner_config(directory), controller)
        load_weights(learner.networks, read_weights(directory), str(directory))
        return learner.eval()


def has_readers(memory: Memory) -> bool:
    """Whether several share the answer, or the decoder gives it alone."""
    return isinstance(memory, ConsolidatingMemory) and memory.pool.readers != (DECODER,)


def explaining_row(neighbours: Neighbours, truth: Int[np.ndarray, "episode query"]) -> Int[np.ndarray, "episode query"]:
    """The nearest recalled row of the true class; -1 if none was recalled."""
    same = neighbours.mask & (neighbours.columns["label"] == truth[..., None])
    first = same.argmax(-1) + neighbours.k * np.arange(truth.size).reshape(truth.shape)
    return np.where(same.any(-1), neighbours.row.take(first), -1)


def check_labels(y: Any, shape: tuple[int, ...], way: int) -> None:
    if tuple(y.shape) != tuple(shape):
        raise ValueError(f"expected labels of shape {list(shape)}, got {list(y.shape)}")
    if 0 not in y.shape and not 0 <= int(y.min()) <= int(y.max()) < way:
        raise ValueError(f"labels must lie in 0..{way - 1}, found {int(y.min())}..{int(y.max())}")
