"""Training over episodes (paper, section 2.2): one optimiser step per batch on that batch's own loss.

No gradient flows through the memory or through time. Classes and labels are drawn anew for every episode,
and episodes get shorter as the learner gets better, so that it must read its memory instead of fitting the
labels of the moment into its weights.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol, cast, runtime_checkable

import torch
from torch import Tensor
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from apl.checkpoint import find_model, is_named, read_json
from apl.config import WITHOUT_WEIGHTS, LearnerConfig
from apl.data.source import DataSource, Mirrored
from apl.encoder import embed_all, scale_bytes
from apl.episode import Episodes, EpisodeSampler, Step, run_episode
from apl.evaluate import fixed_context
from apl.learner import Learner, Networks
from apl.networks import TorchNetworks
from apl.training.run import Run, RunOptions, plateau
from apl.training.saved_encoder import read_encoder
from apl.weights_file import below, load_weights, read_weights

VALIDATE_EVERY_SECONDS = 600
LABEL_WEIGHTS = ("labels.embedding.", "labels.logits.")
"""What a decoder of fixed labels has once for every class."""


@dataclass(frozen=True)
class TrainConfig:
    """How to train a learner on episodes."""

    learner: LearnerConfig = field(default_factory=LearnerConfig)
    data: DataSource = field(default_factory=DataSource)
    encoder_from: str | None = None
    """Directory of a trained encoder (`apl train …-encoder` makes one) or of a whole model to start from."""
    freeze_encoder: bool = False
    """Train the decoder alone, on embeddings computed once."""
    decoder_from: str | None = None
    """A saved learner whose decoder to start from; of fixed labels, it may have more or fewer."""
    mirrored: Mirrored = "none"
    """`for_decoder`: train on mirror images the encoder was not trained on, so that neighbourhoods are as mixed
    as those of new classes."""
    ways: tuple[int, ...] = (20,)
    """Numbers of classes; one is drawn for each round of episodes."""
    parallel: int = 8
    """Deviation: this many episodes run side by side; the paper's batch of 16 is of one episode."""
    batch: int = 16
    """Examples of each episode per step."""
    longest_episode: int = 40
    """Upper bound of an episode, in examples per class (at most what the data has). Within it episodes get shorter as the
    learner gets better. Release: the rule, three times the examples it took to get a batch fully right, else twice
    the last bound."""
    shrinking: bool = True
    """False: every episode has the upper bound's length (an ablation)."""
    steps: int = 6000
    learning_rate: float = 1e-4
    decay: float = 0.9
    """The learning rate is multiplied by this every 1000 steps ..."""
    lowest_learning_rate: float = 1e-5
    """... down to this."""
    clip: float = 1.0
    """Deviation: gradients are clipped by norm, at this value. Release: gradients are clipped by value at 1."""
    decay_share: float | None = None
    """Deviation: instead of `decay`, the rate stays and falls linearly to the lowest over this last share of the steps."""
    noise: float = 0.0
    """Release: standard deviation of the Gaussian noise on training images (trained end to end only)."""
    averaging: float | None = None
    """Deviation: keep a running mean of the weights with this decay; it is what is validated and saved."""
    seed: int = 0

    def rate(self, step: int) -> float:
        """The learning rate of a step."""
        if self.decay_share is not None:
            return max(self.lowest_learning_rate, plateau(step, self.steps, self.learning_rate, self.decay_share))
        decayed: float = self.learning_rate * self.decay ** (step / 1000)
        return max(self.lowest_learning_rate, decayed)

    def train(self, options: RunOptions) -> Learner:
        return train(self, options)


def train(config: TrainConfig, options: RunOptions, start: Callable[[Learner], None] | None = None) -> Learner:
    """Train, save the learner under `options.directory/model`, and return it. `start` may set the first weights."""
    torch.manual_seed(config.seed)
    learner = Learner(config.learner)
    if config.encoder_from is not None:
        read_encoder(config.encoder_from).load_into(learner.encoder)
    if start is not None:
        start(learner)
    if config.decoder_from is not None:
        load_decoder(learner, config.decoder_from)
    training = Training(config, options, learner.to(options.device))
    validated = time.monotonic()
    for _ in training.run.rounds(config.steps):
        training.round()
        if time.monotonic() - validated > VALIDATE_EVERY_SECONDS:
            training.run.log(**training.validate())
            training.trained.train()
            validated = time.monotonic()
    training.finish()
    return learner


class Training:
    """A run of episodes: the learner, what it is shown, and what it is validated on."""

    def __init__(self, config: TrainConfig, options: RunOptions, learner: Learner) -> None:
        kind = config.learner.decoder.kind
        if kind in WITHOUT_WEIGHTS:
            raise ValueError(f"there is nothing to train: the {kind} decoder has no weights")
        self.config, self.learner = config, learner
        size = getattr(config.learner.encoder, "image_size", None)
        if size is None:
            raise ValueError("training needs an encoder of images")
        shown, held_out = config.data.load_training(size, config.mirrored), config.data.load("validation", size)
        self.inputs, self.validation = shown.images, held_out.images
        self.validation_labels = held_out.labels
        self.trained = learner
        if config.freeze_encoder:
            self.inputs, self.validation = (embed_all(learner.encoder, x) for x in (self.inputs, self.validation))
            self.trained = learner.on_embeddings()
        self.networks = cast(TorchNetworks, self.trained.networks)
        optimiser = torch.optim.Adam(self.networks.parameters(), lr=config.learning_rate, fused=True)
        self.average = mean_of_weights(self.networks, config.averaging) if config.averaging else None
        self.run = Run(config, options, self.networks, optimiser, config.seed, self.average)
        self.run.state.setdefault("episode_cap", math.inf)
        before = curve_before(config)
        self.run.state.setdefault("curve", before)
        self.seen_before = before[-1]["images"] if before else 0
        self.sampler = EpisodeSampler(shown.labels, self.run.generator)
        self.trained.train()

    def round(self) -> None:
        """Some episodes side by side, one optimiser step per batch, until they end or are mastered for long enough."""
        config, run = self.config, self.run
        way = config.ways[int(torch.randint(len(config.ways), (1,), generator=run.generator))]
        length = way * config.longest_episode
        if config.shrinking and len(config.ways) == 1:
            length = min(length, run.state["episode_cap"])
        episodes = self.sampler.online(way, int(length), config.parallel)
        mastered_after = descend_through(
            run,
            self.trained,
            self.inputs,
            episodes,
            config,
            shrinking=config.shrinking,
            prepare=self.prepare,
            episode_cap=length,
            way=way,
        )
        run.state["episode_cap"] = next_episode_cap(run.state["episode_cap"], mastered_after, episodes.example.shape[1])

    def prepare(self, x: Tensor) -> Tensor:
        """A batch as the learner sees it in training: with noise, where asked."""
        if not self.config.noise:
            return x
        x = scale_bytes(x)
        return x + self.config.noise * torch.randn(x.shape, generator=self.run.generator).to(x.device)

    def validate(self) -> dict[str, float]:
        """Accuracy on the held-out classes, added to the curve; of the mean weights, where there are some."""
        judged, labels, decoder = self.trained, self.validation_labels, self.config.learner.decoder
        if self.average:
            judged = Learner(self.config.learner, judged.controller, cast(Networks, self.average.module))
        embeddings, judged = embed_all(judged.eval().encoder, self.validation), judged.on_embeddings()
        there, figures = int(labels.max()) + 1, {}
        for way in (decoder.way or 0,) if decoder.labels == "fixed" else (min(20, there), 200):
            count = 100 if way <= 20 else 4
            for shot in (1, 5) if way <= there else ():
                estimate = fixed_context(
                    judged, embeddings, labels, way=way, shot=shot, episodes=count, seed=0, queries=5
                )
                figures[f"val_{way}way_{shot}shot"] = estimate.mean
        seen = self.run.state["step"] * self.config.parallel * self.config.batch
        self.run.state["curve"].append({"images": self.seen_before + seen, **figures})
        return figures

    def finish(self) -> None:
        """Validate once more and save."""
        config, run = self.config, self.run
        if self.average:
            self.networks.load_state_dict(self.average.module.state_dict())
        self.learner.eval()
        encoder = {"encoder": read_encoder(config.encoder_from).provenance} if config.encoder_from else {}
        figures = {} if config.data.with_validation else self.validate()
        provenance = run.provenance("learner on episodes", config.data, figures, curve=run.state["curve"], **encoder)
        # An encoder that a bundled model holds is not saved again.
        shared = config.encoder_from if config.freeze_encoder and is_named(config.encoder_from) else None
        self.learner.save(run.options.directory / "model", provenance, encoder=shared)


@runtime_checkable
class Pace(Protocol):
    """What a training says of its steps."""

    @property
    def batch(self) -> int: ...

    @property
    def steps(self) -> int: ...

    @property
    def clip(self) -> float: ...

    def rate(self, step: int) -> float: ...


def descend_through(
    run: Run,
    learner: Learner,
    inputs: Tensor,
    episodes: Episodes,
    pace: Pace,
    shrinking: bool = False,
    prepare: Callable[[Tensor], Tensor] = lambda x: x,
    **about: float | int,
) -> int | None:
    """One optimiser step per batch of some episodes side by side, until they end, the steps are done or (`shrinking`) they have
    been mastered for long enough. Returns after how many examples a batch was first fully right. `about` is logged."""
    memory, mastered_after = learner.new_memory(len(episodes.label)), None
    for step in in_precision(run, run_episode(learner, memory, inputs, episodes, pace.batch, prepare)):
        loss = step.observation.surprise_nats.mean()
        run.descend(loss, pace.rate(run.state["step"]), pace.clip)
        right, seen = step.right, step.seen + pace.batch
        if right.all():
            mastered_after = mastered_after or seen
        run.record(
            right.numel(),
            accuracy=float(right.float().mean()),
            surprise_nats=loss,
            stored_per_class=float(memory.counts.mean()) / episodes.way,
            **about,
        )
        if (shrinking and mastered_after and seen >= 3 * mastered_after) or run.state["step"] >= pace.steps:
            break
    return mastered_after


def mean_of_weights(networks: TorchNetworks, decay: float) -> AveragedModel:
    """An exponential moving average of all weights and buffers; better on new classes than the weights of the last step."""
    average = AveragedModel(networks, multi_avg_fn=get_ema_multi_avg_fn(decay), use_buffers=True)
    return average.eval().requires_grad_(False)


def curve_before(config: TrainConfig) -> list[dict[str, int | float]]:
    """Validation figures against images seen of the run that this one goes on from, encoder and decoder both."""
    if config.decoder_from is None or config.decoder_from != config.encoder_from:
        return []
    return list(read_json(find_model(config.decoder_from) / "model.json")["provenance"].get("curve", []))


def load_decoder(learner: Learner, name_or_dir: str) -> None:
    """Take over the decoder of a saved learner; of its fixed labels the first, or none if it has too few."""
    directory = find_model(name_or_dir)
    tensors = below("decoder.", read_weights(directory))
    for name, wanted in learner.decoder.state_dict().items():
        if name.startswith(LABEL_WEIGHTS) and name in tensors:
            enough = len(tensors[name]) >= len(wanted)
            tensors[name] = tensors[name][: len(wanted)] if enough else wanted
    load_weights(learner.decoder, tensors, str(directory))


def in_precision(run: Run, steps: Iterator[Step]) -> Iterator[Step]:
    """Each step computed in the run's precision; what the caller does in between is not touched."""
    while True:
        with run.options.autocast():
            step = next(steps, None)
        if step is None:
            return
        yield step


def next_episode_cap(cap: float, mastered_after: int | None, shown: int) -> float:
    """Three times what it took to get a batch fully right; twice as long when that was not reached."""
    return 3.0 * mastered_after if mastered_after else 2.0 * min(cap, shown)


def with_encoder_of(config: TrainConfig, name_or_dir: str | Path) -> TrainConfig:
    """The same training, started from (and shaped like) a saved encoder."""
    encoder = read_encoder(name_or_dir).config
    if (encoder.channels == 3) != config.data.colour:
        seen = "colours" if encoder.channels == 3 else "grey"
        raise ValueError(
            f"the encoder {name_or_dir} sees {seen}: give --colour for one that sees colours, and only then"
        )
    return replace(config, learner=replace(config.learner, encoder=encoder), encoder_from=str(name_or_dir))
