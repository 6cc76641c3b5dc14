"""The learner (paper, section 2): embed the query, recall its neighbours, decode a posterior, measure
surprise, write what surprised. These five steps exist here and nowhere else.

Weights and memory are separate: one learner serves any number of memories, and the memory is passed in.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Num
from torch import Tensor, nn

from apl.checkpoint import find_model, from_json, load_weights, read_description, read_weights, save_model
from apl.controller import Controller, SurpriseController
from apl.decoder import DecoderConfig, build_decoder
from apl.decoder.inputs import with_class_distance
from apl.decoder.labels import spread_none
from apl.encoder import ConvConfig, EncoderConfig, IdentityConfig, IdentityEncoder, build_encoder, scale_bytes
from apl.memory import Column, Memory, Metric, Neighbours
from apl.one_image import for_one_image


@dataclass(frozen=True)
class LearnerConfig:
    """Everything that defines a learner but its weights."""

    encoder: EncoderConfig = field(default_factory=ConvConfig)
    decoder: DecoderConfig = field(default_factory=DecoderConfig)
    k: int = 5
    """Neighbours recalled by each key column. May be changed after training."""
    hops: int = 1
    """Deviation: from the second hop on, the rows already recalled recall their own neighbours: two facts may
    be joined by a third that shares nothing with the query. For memories of the size of an episode."""
    sigma_ratio: float = 0.75
    """The threshold of surprise is this share of ln N."""
    metric: Metric = "euclidean"
    distance_gradient: bool = True
    """Let the distance to the (constant) neighbours carry gradient into the (live) query embedding."""


@dataclass(frozen=True)
class Prediction:
    """What the learner believes, and on what grounds."""

    log_probs: Float[Tensor, "episode query way"]
    log_none: Float[Tensor, "episode query"]
    """Log of the mass on none of the recalled rows (-inf for fixed labels)."""
    weight: Float[Tensor, "episode query neighbours"]
    """How much of the answer each neighbour carries."""
    neighbours: Neighbours
    embedding: Float[Tensor, "episode query embed"]

    @property
    def label(self) -> Int[Tensor, "episode query"]:
        return self.log_probs.argmax(-1)

    def among(self, way: int) -> Prediction:
        """The same belief, given that the answer is one of the first `way` classes."""
        if way == self.log_probs.shape[-1]:
            return self
        return replace(self, log_probs=self.log_probs[..., :way].log_softmax(-1))


@dataclass(frozen=True)
class Judgement:
    """How much the truth surprised, and whether it is worth writing down."""

    surprise_nats: Float[Tensor, "episode query"]
    chosen: Bool[Tensor, "episode query"]


@dataclass(frozen=True)
class Observation:
    """A prediction, the truth's surprise under it, and what was written."""

    prediction: Prediction
    surprise_nats: Float[Tensor, "episode query"]
    """-ln p(y), which is also the loss; carries gradient in training."""
    row: Int[Tensor, "episode query"]
    """Where in the memory the example went; -1 if it was not written."""

    @property
    def written(self) -> Bool[Tensor, "episode query"]:
        return self.row >= 0


class Learner(nn.Module):
    """Encoder and decoder weights, and the rule for writing."""

    def __init__(self, config: LearnerConfig, controller: Controller | None = None) -> None:
        super().__init__()
        if config.k < 1:
            raise ValueError(f"k must be at least 1, got {config.k}")
        if config.hops < 1:
            raise ValueError(f"hops must be at least 1, got {config.hops}")
        self.config = config
        self.encoder = build_encoder(config.encoder)
        self.decoder = build_decoder(config.decoder, self.encoder.width, tuple(self.key_widths.values()))
        self.controller = controller or SurpriseController(config.sigma_ratio)

    @property
    def key_widths(self) -> Mapping[str, int]:
        """The key columns of the memory: named slices of the embedding, usually the whole of it."""
        return getattr(self.encoder, "key_widths", {"embedding": self.encoder.width})

    def new_memory(self, episodes: int = 1, capacity: int | None = None) -> Memory:
        """An empty memory with the columns this learner reads and writes."""
        columns = {name: Column((width,)) for name, width in self.key_widths.items()}
        columns["label"] = Column((), torch.int64)
        keys = tuple(self.key_widths)
        return Memory(columns, keys, episodes=episodes, capacity=capacity, metric=self.config.metric)

    def embed(self, x: Num[Tensor, "episode query *input"]) -> Float[Tensor, "episode query embed"]:
        """Step 1. Byte images are scaled to 0..1."""
        if x.ndim < 3:
            raise ValueError(f"expected inputs of shape [episode, query, ...], got {list(x.shape)}")
        if x.is_floating_point() and not bool(torch.isfinite(x).all()):
            raise ValueError("the input contains NaN or infinity")
        return self.encoder(scale_bytes(x.flatten(0, 1))).view(*x.shape[:2], -1)

    def recall(self, memory: Memory, embedding: Float[Tensor, "episode query embed"]) -> Neighbours:
        """Step 2: k neighbours by each key column."""
        live = embedding if self.config.distance_gradient else embedding.detach()
        slices = live.split(list(self.key_widths.values()), dim=-1)
        found = [memory.nearest(key, part, self.config.k) for key, part in zip(self.key_widths, slices, strict=True)]
        neighbours = Neighbours.join(found) if len(found) > 1 else found[0]
        if "embedding" not in neighbours.columns:
            whole = torch.cat([neighbours.columns[key] for key in self.key_widths], -1)
            neighbours = replace(neighbours, columns={**neighbours.columns, "embedding": whole})
        if self.config.hops > 1 and len(memory):
            neighbours = self._recall_further(memory, live, neighbours)
        return neighbours

    def _recall_further(
        self, memory: Memory, embedding: Float[Tensor, "episode query embed"], first: Neighbours
    ) -> Neighbours:
        """All rows within `hops` steps from row to neighbouring row, each once, nearest (by all keys) first."""
        rows = len(memory)
        near = torch.stack([memory.links(key, self.config.k) for key in self.key_widths]).any(0).float()
        reached = torch.zeros(*first.row.shape[:2], rows + 1, dtype=torch.bool)
        reached = reached.scatter_(2, first.row.masked_fill(~first.mask, rows), True)[..., :rows]
        for _ in range(self.config.hops - 1):
            reached = reached | (reached.float() @ near > 0)
        whole = torch.cat([memory.column(key) for key in self.key_widths], -1)
        distance = torch.cdist(embedding, whole).masked_fill(~reached, torch.inf)
        distance, row = distance.topk(int(reached.sum(-1).max()), largest=False)
        mask = distance.isfinite()
        columns = {"embedding": whole, **{name: memory.column(name) for name in memory.spec}}
        episode = torch.arange(memory.episodes)[:, None, None]
        columns = {name: column[episode, row] for name, column in columns.items()}
        for cells in columns.values():
            cells.masked_fill_(~mask.view(*mask.shape, *[1] * (cells.ndim - 3)), 0)
        return Neighbours(columns, distance.masked_fill(~mask, 0), mask, row.masked_fill(~mask, -1))

    def decode(self, embedding: Float[Tensor, "episode query embed"], neighbours: Neighbours, way: int) -> Prediction:
        """Step 3."""
        queries, recalled = embedding.flatten(0, 1), neighbours.flatten()
        if self.config.decoder.class_means:
            recalled = with_class_distance(queries, recalled)
        answer = self.decoder(queries, recalled, way)

        def apart(t: Tensor) -> Tensor:
            return t.view(*embedding.shape[:2], *t.shape[1:])

        return Prediction(apart(answer.log_probs), apart(answer.log_none), apart(answer.weight), neighbours, embedding)

    def predict(self, memory: Memory, x: Num[Tensor, "episode query *input"], way: int) -> Prediction:
        """Steps 1 to 3. The memory is only read."""
        if way < 2:
            raise ValueError(f"way, the number of classes, must be at least 2, got {way}")
        embedding = self.embed(x)
        prediction = self.decode(embedding, self.recall(memory, embedding), way)
        if self.config.decoder.labels == "fixed" or not len(memory):
            return prediction
        neighbours = prediction.neighbours
        recalled = classes_among(neighbours.columns["label"].numpy(), neighbours.mask.numpy(), way)
        stored = np.broadcast_to(classes_stored(memory, way)[:, None], recalled.shape)
        log_probs = spread_none(prediction.log_probs, prediction.log_none, recalled, stored)
        return replace(prediction, log_probs=log_probs)

    def observe(
        self, memory: Memory, x: Num[Tensor, "episode query *input"], y: Int[Tensor, "episode query"], way: int
    ) -> Observation:
        """All five steps: predict, then learn the truth and write it down if it was surprising."""
        check_labels(y, x.shape[:2], way)
        prediction = self.predict(memory, x, way)
        judgement = self.judge(prediction, y)
        row = self.write(memory, prediction.embedding, y, judgement.chosen)
        return Observation(prediction, judgement.surprise_nats, row)

    def judge(self, prediction: Prediction, y: Int[Tensor, "episode query"]) -> Judgement:
        """Step 4 alone: the surprise of the truth, and what the controller makes of it."""
        way = prediction.log_probs.shape[-1]
        check_labels(y, prediction.log_probs.shape[:2], way)
        surprise = -prediction.log_probs.gather(-1, y[..., None]).squeeze(-1)
        return Judgement(surprise, self.controller.choose(surprise.detach(), way))

    def write(
        self,
        memory: Memory,
        embedding: Float[Tensor, "episode query embed"],
        y: Int[Tensor, "episode query"],
        chosen: Bool[Tensor, "episode query"],
    ) -> Int[Tensor, "episode query"]:
        """Step 5 alone: put these examples into the memory, without gradient."""
        slices = embedding.detach().split(list(self.key_widths.values()), dim=-1)
        return memory.write({**dict(zip(self.key_widths, slices, strict=True)), "label": y}, chosen)

    def fingerprint(self) -> str:
        """Identifies the encoder whose embeddings a memory holds: keys of another one are meaningless."""
        digest = hashlib.sha256(repr(self.config.encoder).encode())
        for name, tensor in sorted(self.encoder.state_dict().items()):
            digest.update(name.encode())
            digest.update(tensor.detach().contiguous().half().cpu().numpy().tobytes())
        return digest.hexdigest()[:16]

    def on_embeddings(self) -> Learner:
        """The same decoder and controller, for inputs that are already embedded."""
        config = replace(self.config, encoder=IdentityConfig(self.encoder.width))
        encoder = IdentityEncoder(config.encoder)
        encoder.key_widths = self.key_widths
        return self._twin(config, encoder)

    def on_single_images(self) -> Learner:
        """The same learner, trained, for one image at a time: the encoder is laid out for that."""
        return self._twin(self.config, for_one_image(self.encoder))

    def _twin(self, config: LearnerConfig, encoder: nn.Module) -> Learner:
        twin = Learner.__new__(Learner)
        nn.Module.__init__(twin)
        twin.config, twin.controller, twin.decoder, twin.encoder = config, self.controller, self.decoder, encoder
        return twin.train(self.training)

    def save(
        self, directory: Path, provenance: Mapping[str, Any], half: bool = True, encoder: str | None = None
    ) -> None:
        """`encoder`: the bundled model whose encoder this is, so that it need not be saved again."""
        save_model(Path(directory), self, self.config, provenance, half, encoder)

    @staticmethod
    def load(name_or_dir: str | Path, controller: Controller | None = None) -> Learner:
        """A bundled model by name, or any saved one by its directory; in evaluation mode."""
        directory = find_model(name_or_dir)
        config = from_json(LearnerConfig, read_description(directory)["config"])
        learner = Learner(config, controller)
        load_weights(learner, read_weights(directory), str(directory))
        return learner.eval()


def classes_among(
    labels: Int[np.ndarray, "*many row"], present: Bool[np.ndarray, "*many row"], way: int
) -> Bool[np.ndarray, "*many way"]:
    """Which of the classes 0..way-1 the present rows are of."""
    found = np.zeros((*labels.shape[:-1], way + 1), bool)
    np.put_along_axis(found, np.where(present, labels, way), True, -1)
    return found[..., :way]


def classes_stored(memory: Memory, way: int) -> Bool[np.ndarray, "episode way"]:
    """Which of the classes 0..way-1 have rows in memory."""
    labels, found = memory.column("label").numpy(), np.zeros((memory.episodes, way), bool)
    for episode, rows in enumerate(memory.counts.tolist()):
        found[episode, labels[episode, :rows]] = True
    return found


def check_labels(y: Tensor, shape: torch.Size, way: int) -> None:
    if y.shape != shape:
        raise ValueError(f"expected labels of shape {list(shape)}, got {list(y.shape)}")
    if y.numel() and not 0 <= int(y.min()) <= int(y.max()) < way:
        raise ValueError(f"labels must lie in 0..{way - 1}, found {int(y.min())}..{int(y.max())}")
