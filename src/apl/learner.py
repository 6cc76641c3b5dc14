"""The learner (paper, section 2): embed the query, recall its neighbours, decode a posterior, measure surprise, write what
surprised. These five steps exist here and nowhere else.

Weights and memory are separate: one learner serves any number of memories, and the memory is passed in. Networks compute with
tensors (`apl.networks`) or in ONNX Runtime (`apl.exported`), memories with numpy; they meet in `recall` and `write`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from apl.config import LearnerConfig
from apl.controller import Action, Controller, SurpriseController
from apl.memory import LABEL, Column, Memory, Neighbours, RamMemory
from apl.posterior import Array
from apl.reading.decoder import DecoderReading
from apl.reading.protocol import MakeReading, Networks, Prediction


@dataclass(frozen=True)
class Observation:
    """A prediction, the surprise of the truth under it, and what became of the example."""

    prediction: Prediction
    surprise_nats: Array
    """`[episode, query]`: -ln p(y), which is also the loss; carries gradient in training."""
    row: Int[np.ndarray, "episode query"]
    """The row that was written; -1 if none was."""
    merged_into: Int[np.ndarray, "episode query"]
    """The row that the example was merged into; -1 if it was not."""

    @property
    def written(self) -> Bool[np.ndarray, "episode query"]:
        written: np.ndarray = self.row >= 0
        return written


class Learner:
    """Networks, a way to read what is recalled, and the rule for writing.

    Parameters
    ----------
    config
        Which networks, how many neighbours, which metric.
    controller
        The rule for writing; by default the paper's (`SurpriseController`).
    networks
        By default new ones, which needs torch.
    reading
        How recalled rows become a posterior; by default the decoder alone answers, as in the paper.
    """

    def __init__(
        self,
        config: LearnerConfig,
        controller: Controller | None = None,
        networks: Networks | None = None,
        reading: MakeReading = DecoderReading,
    ) -> None:
        if config.k < 1:
            raise ValueError(f"k must be at least 1, got {config.k}")
        if networks is None:
            from apl.networks import TorchNetworks

            networks = TorchNetworks(config)
        self.config = config
        self.networks: Any = networks
        self.controller = controller or SurpriseController(config.sigma_ratio)
        self.make_reading = reading
        self.reading = reading(config, networks)

    @property
    def key_widths(self) -> Mapping[str, int]:
        widths: Mapping[str, int] = self.networks.key_widths
        return widths

    def new_memory(self, episodes: int = 1) -> RamMemory:
        """An empty memory with the columns this learner reads and writes."""
        widths = self.key_widths
        columns = {**{name: Column((width,)) for name, width in widths.items()}, LABEL: Column((), np.int64)}
        memory = RamMemory(columns, tuple(widths), episodes=episodes, metric=self.config.metric)
        memory.state = self.reading.new_state(episodes, self.networks.width)
        return memory

    # --- steps 1 to 3: predict --------------------------------------------------------------------

    def embed(self, x: Any) -> Array:
        """Step 1. `x` is `[episode, query, *input]`; byte images are scaled to 0..1."""
        if x.ndim < 3:
            raise ValueError(f"expected inputs of shape [episode, query, ...], got {list(x.shape)}")
        embedding = self.networks.embed(x.reshape(-1, *x.shape[2:]))
        return embedding.reshape(*x.shape[:2], -1)

    def recall(self, memory: Memory, embedding: Array) -> Neighbours:
        """Step 2: k neighbours by each key column."""
        asked, k = self.networks.array(embedding), self.config.k
        if memory.keys == ("embedding",):
            return memory.nearest("embedding", asked, k)
        widths = self.key_widths
        found = [memory.nearest(key, part, k) for key, part in self.key_columns(asked).items()]
        neighbours = Neighbours.join(found, list(widths.values()))
        whole = np.concatenate([neighbours.columns[key] for key in widths], -1)
        return replace(neighbours, columns={**neighbours.columns, "embedding": whole})

    def key_columns(self, embedding: Float[np.ndarray, "episode query embed"]) -> dict[str, np.ndarray]:
        """An embedding cut into the key columns."""
        widths = self.networks.key_widths
        if len(widths) == 1:
            return dict.fromkeys(widths, embedding)
        return dict(zip(widths, np.split(embedding, np.cumsum(list(widths.values()))[:-1], axis=-1), strict=True))

    def predict(self, memory: Memory, x: Any, way: int) -> Prediction:
        """Steps 1 to 3. The rows of the memory are only read."""
        if way < 2:
            raise ValueError(f"way, the number of classes, must be at least 2, got {way}")
        return self.answer(memory, self.embed(x), way)

    def answer(self, memory: Memory, embedding: Array, way: int) -> Prediction:
        """Steps 2 and 3, of `[episode, query, embed]`."""
        self.reading.prepare(memory)
        return self.reading.read(memory, embedding, self.recall(memory, embedding), way)

    # --- steps 4 and 5: learn ---------------------------------------------------------------------

    def surprise(self, prediction: Prediction, y: Any, among: int | None = None) -> Array:
        """Step 4: -ln p(y). With `among`: given that it is one of the first `among` classes, and without gradient."""
        episode, query = np.arange(y.shape[0])[:, None], np.arange(y.shape[1])
        if among is None:
            check_labels(y, prediction.embedding.shape[:2], prediction.way)
            return -prediction.log_probs[episode, query, self.networks.tensor(y)]
        whole = among == prediction.way
        log_probs = self.networks.array(prediction.log_probs) if whole else prediction.among(slice(among))
        log_probs = log_probs - log_probs.max(-1, keepdims=True).astype(np.float64)
        return np.log(np.exp(log_probs).sum(-1)) - log_probs[episode, query, self.networks.array(y)]

    def learn(
        self,
        memory: Memory,
        prediction: Prediction,
        y: Any,
        *,
        among: int | None = None,
        required: Bool[np.ndarray, "episode query"] | None = None,
        details: Sequence[Any] | None = None,
    ) -> Observation:
        """Steps 4 and 5 after a prediction from the same memory, which must not have changed since.

        Args:
            among: measure surprise among the first `among` classes (a classifier predicts one class more than it knows).
            required: examples to be written whatever their surprise.
            details: a value for each query that the memory keeps with its row. The learner does not look at it.
        """
        surprise = self.surprise(prediction, y, among)
        surprise_nats, truth = self.networks.array(surprise), self.networks.array(y)
        action = self.controller.decide(surprise_nats, among or prediction.way)
        if required is not None:
            action = np.where(required, int(Action.WRITE), action)
        self.reading.learn(memory, prediction, truth)
        row = merged = np.full(action.shape, -1)
        if not action.any():
            return Observation(prediction, surprise, row, merged)
        rows = self.key_columns(self.networks.array(prediction.embedding))
        merging = action == int(Action.MERGE)
        if merging.any():
            merged = np.where(merging, prediction.neighbours.nearest_of(truth), -1)
            memory.merge(rows, merged, details)
        chosen = (action != int(Action.IGNORE)) & (merged < 0)
        if chosen.any():
            row = memory.write({**rows, LABEL: truth}, chosen, details, surprise_nats)
        return Observation(prediction, surprise, row, merged)

    def observe(self, memory: Memory, x: Any, y: Any, way: int) -> Observation:
        """All five steps: predict, then learn the truth."""
        check_labels(y, x.shape[:2], way)
        return self.learn(memory, self.predict(memory, x, way), y)

    def write(self, memory: Memory, embedding: Array, y: Any, chosen: Any) -> Int[np.ndarray, "episode query"]:
        """Put these examples into the memory without asking whether they surprise."""
        rows = {**self.key_columns(self.networks.array(embedding)), LABEL: np.asarray(y)}
        return memory.write(rows, np.asarray(chosen))

    def fingerprint(self) -> str:
        return str(self.networks.fingerprint())

    def on_embeddings(self) -> Learner:
        """The same decoder and controller, for inputs that are already embedded."""
        return Learner(self.config, self.controller, self.networks.on_embeddings(), self.make_reading)

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
    def load(name_or_dir: str | Path) -> Learner:
        """A bundled model by name, or any saved one by its directory, to train or to look into: in evaluation mode."""
        from apl.checkpoint import find_model, learner_config
        from apl.weights_file import load_weights, read_weights

        directory = find_model(name_or_dir)
        learner = Learner(learner_config(directory))
        load_weights(learner.networks, read_weights(directory), str(directory))
        return learner.eval()


def check_labels(y: Any, shape: tuple[int, ...], way: int) -> None:
    if tuple(y.shape) != tuple(shape):
        raise ValueError(f"expected labels of shape {list(shape)}, got {list(y.shape)}")
    if 0 in y.shape:
        return
    lowest, highest = int(y.min()), int(y.max())
    if not 0 <= lowest <= highest < way:
        raise ValueError(f"labels must lie in 0..{way - 1}, found {lowest}..{highest}")
