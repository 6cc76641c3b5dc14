"""Section 4.2: ImageNet with shuffled labels behind a frozen encoder, 20-, 100- and 1000-way, in two forms.

An episode draws its classes, numbers them at random, and shows every validation photograph of theirs once: predict, score,
then learn. Memory and questions come from `val`, which the encoder was not trained on. Beside each accuracy stands the encoder's own
on the same photographs: how often it names their true ImageNet class, with the fixed labels it was trained on. The paper counts from
the 50th batch on, more photographs than 20 classes have here: accuracy is that of the last quarter of an episode.

`imagenet` is our extension, one learner for every N. Rows "activations" recall as the paper does, by the activations before the
classifier; rows "activations and named" recall by what the encoder would call a photograph as well (`apl.encoders.photo`).

`imagenet-plain` is the paper's form: relational decoders of 8 blocks, 1024 wide, with fixed labels, trained on the photographs of
`train`, one for each N: that of 20 labels from a random start, the others from its blocks, with label weights made anew. They are too
large for the repository. `--train` makes those that are missing under runs/ and goes on with a run that was stopped. As in the paper no class is held out of the test. The decoders of 20 and 100 labels are not shown the last
100 classes of `train`, on which they are validated; that of 1000 needs all.

Deviation: EfficientNet-Lite0 instead of Inception-ResNet-v2; a higher rate, for minutes of one core.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import matplotlib.pyplot as plt
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from tyro.conf import arg

from apl.checkpoint import read_description
from apl.config import DecoderConfig, IdentityConfig, LearnerConfig
from apl.controller import ConsolidatingController
from apl.episode import EpisodeSampler
from apl.evaluate import Estimate, OnlineResult, watch
from apl.learner import Learner
from apl.reading.ensemble import EnsembleReading
from apl.training.episodic import descend_through, load_decoder, next_episode_cap
from apl.training.run import Run, RunOptions, plateau
from experiments.data.embedded import PhotoFeatures, photo_encoder, photo_features
from experiments.data.imagenet import CLASSES
from experiments.paper.plot import OURS, QUIET, THIRD, figure, smooth
from experiments.paper.results import Cell, Row, figure_path, measure_all, measure_missing
from experiments.presets import SIGMA_RATIO

SEED = 0
EPISODES = {20: 25, 100: 5, 1000: 5}
BATCH = {20: 16, 100: 16, 1000: 64}
"""Photographs shown at a time; none of them helps to answer the others."""
KEY_WEIGHT = 1.0
"""Of what the encoder would call a photograph, beside its activations at unit length: the best of 0 to 1 on `train`, 100-way. The
encoder has seen those photographs, so it names them better than new ones, and more than equal weight was not offered."""
CURVE_POINTS = 60
ACTIVATIONS, NAMED = "ours, any N, activations", "ours, any N, activations and named"
PLAIN, PLAIN_ENCODER = "imagenet-plain", "lite0"
PAPER_FORM, NEAREST = "the paper's form", "nearest neighbour"
PLAIN_EPISODES = {20: 50, 100: 20, 1000: 5}
VALIDATION_CLASSES = 100
ENCODERS = {"lite0": "EfficientNet-Lite0", "lite2": "EfficientNet-Lite2"}


@dataclass(frozen=True)
class PhotoEpisodes:
    """Episodes of one method, and whether the encoder itself named each photograph rightly."""

    result: OnlineResult
    named: Bool[Tensor, "episode time"]


def any_n_learner(width: int) -> Learner:
    """One for every number of classes, nothing of it trained: a memory that consolidates, and its readers."""
    config = LearnerConfig(IdentityConfig(width), DecoderConfig(kind="kernel"), k=16, metric="cosine")
    return Learner(config, ConsolidatingController(), reading=EnsembleReading).eval()


def watch_episodes(
    learner: Learner,
    keys: Float[Tensor, "photo embed"],
    data: PhotoFeatures,
    way: int,
    episodes: int,
    length: int | None = None,
) -> PhotoEpisodes:
    """Every photograph of the drawn classes, or `length` of them."""
    sampler = EpisodeSampler(torch.from_numpy(data.labels), torch.Generator().manual_seed(SEED))
    right = torch.from_numpy(data.named == data.labels)
    results, named = [], []
    for _ in range(episodes):
        drawn = sampler.online(way, length, 1)
        results.append(watch(learner, keys, drawn, BATCH.get(way, 16)))
        named.append(right[drawn.example])
    length = min(result.correct.shape[1] for result in results)
    cut = [
        OnlineResult(**{name: value[:, :length] for name, value in vars(result).items() if name != "way"}, way=way)
        for result in results
    ]
    return PhotoEpisodes(OnlineResult.join(cut), torch.cat([part[:, :length] for part in named]))


def row(method: str, encoder: str, data: PhotoFeatures, watched: PhotoEpisodes, **more: object) -> Row:
    result, quarter = watched.result, watched.named.shape[1] // 4
    accuracy, own = result.accuracy_last(quarter), Estimate.of(watched.named[:, -quarter:].float().mean(1))
    return {
        "method": method,
        "encoder": ENCODERS[encoder],
        "way": result.way,
        "episodes": len(result.correct),
        "photographs": result.correct.shape[1],
        "batch": BATCH.get(result.way, 16),
        "seed": SEED,
        "split": "imagenet val",
        "split_hash": data.identity,
        "accuracy": accuracy.mean,
        "ci95": accuracy.ci95,
        "encoder_top1": own.mean,
        "share_of_encoder": accuracy.mean / own.mean,
        "stored": result.stored_at_end().mean,
        "stored_per_class": result.stored_at_end().mean / result.way,
        **more,
        "curve": curve(result),
    }


def curve(result: OnlineResult) -> dict[str, list[float]]:
    """Accuracy (running mean) and items written over the first five episodes, as in the paper's figure."""
    correct, stored = result.correct[:5].mean(0), result.stored[:5].float().mean(0)
    at = torch.linspace(0, len(correct) - 1, min(CURVE_POINTS, len(correct))).long()
    accuracy = smooth(correct, max(10, len(correct) // 12))
    values = {"photographs": at + 1, "accuracy": accuracy[at], "written": stored[at]}
    return {name: [round(float(number), 4) for number in numbers] for name, numbers in values.items()}


def reproduce(quick: bool = False) -> None:
    rows = measure_all("imagenet", extended_rows(quick), quick, key_weight=KEY_WEIGHT)
    draw([row for row in rows if row["encoder"] == ENCODERS["lite0"]], quick)


def extended_rows(quick: bool) -> Iterator[Row]:
    for encoder in ("lite0",) if quick else ENCODERS:
        data, maker = photo_features(encoder, "val"), photo_encoder(encoder)
        for method, keys in ((NAMED, maker.keys(data.features, KEY_WEIGHT)), (ACTIVATIONS, data.features)):
            for way, count in EPISODES.items():
                given = torch.from_numpy(keys)
                watched = watch_episodes(any_n_learner(keys.shape[1]), given, data, way, 1 if quick else count)
                yield row(method, encoder, data, watched)


def draw(rows: list[Row], quick: bool) -> None:
    """Accuracy, and the share of photographs written, over an episode."""
    with figure(figure_path("imagenet", quick), columns=3, width=3.6) as panels:
        for axes, way in zip(panels, EPISODES, strict=True):
            for found in (found for found in rows if found["way"] == way):
                draw_episode(axes, found)
            axes.set(xlabel="photographs seen", ylim=(0, 1.02), title=f"{way}-way")
        panels[0].set_ylabel("accuracy (running mean)")
        panels[0].plot([], color=QUIET, ls=":", label="written, of all shown")
        panels[0].legend(frameon=False, fontsize=7, loc=(0.27, 0.27))


def draw_episode(axes: plt.Axes, found: Row) -> None:
    colour, shown = {NAMED: OURS, ACTIVATIONS: THIRD}[found["method"]], found["curve"]
    axes.plot(shown["photographs"], shown["accuracy"], color=colour, label=found["method"])
    axes.plot(
        shown["photographs"], [stored / found["photographs"] for stored in shown["written"]], color=colour, ls=":"
    )
    if found["method"] == ACTIVATIONS:
        axes.axhline(found["encoder_top1"], color=QUIET, ls="--", label="encoder, fixed labels")


@dataclass(frozen=True)
class DecoderTraining:
    """How to train a decoder of fixed labels behind a frozen encoder."""

    way: int
    hidden: int = 1024
    blocks: int = 8
    parallel: int = 8
    """Episodes run side by side: the more, the less can be gained by fitting the labels of one into the weights."""
    batch: int = 8
    """Photographs of each episode per step; many where there are many classes, so that a training sees whole episodes."""
    longest_episode: int = 6
    """Photographs per class."""
    steps: int = 2000
    learning_rate: float = 3e-4
    lowest_learning_rate: float = 1e-5
    decay_share: float = 0.4
    clip: float = 1.0
    blocks_of: int | None = None
    """The number of labels of the trained decoder whose blocks to begin with."""
    seed: int = 0

    def rate(self, step: int) -> float:
        falling = plateau(step, self.steps, self.learning_rate, self.decay_share)
        return max(self.lowest_learning_rate, falling)

    @property
    def directory(self) -> Path:
        return Path("runs") / f"{PLAIN}-{self.way}way"

    @property
    def model(self) -> Path:
        return self.directory / "model"

    @property
    def trained(self) -> bool:
        return (self.model / "model.json").is_file()


TRAININGS = (
    DecoderTraining(20, batch=16, steps=1500),
    DecoderTraining(100, batch=32, steps=1000, blocks_of=20),
    DecoderTraining(1000, parallel=4, batch=64, longest_episode=4, steps=1000, blocks_of=20),
)


@dataclass
class Command:
    """Measure the decoders there are; writes results/imagenet-plain.json."""

    train: bool = False
    """First train those that are missing; a run that was stopped goes on."""
    minutes: Annotated[float | None, arg(metavar="MINUTES")] = None
    """With --train: stop each training after this much time, to go on later."""
    quick: bool = False
    """A tenth of the episodes, in results/quick."""

    def run(self) -> None:
        torch.set_num_threads(1)
        if self.train:
            for config in TRAININGS:
                if not config.trained:
                    data = photo_features(PLAIN_ENCODER, "train")
                    ended = train(config, torch.from_numpy(data.features), torch.from_numpy(data.labels), self.minutes)
                    print(f"{config.directory.name}: {'trained' if ended else 'stopped'}", flush=True)
                    if not ended:
                        break
        reproduce_plain(self.quick)


def train(
    config: DecoderTraining,
    keys: Float[Tensor, "photo embed"],
    labels: Int[Tensor, " photo"],
    minutes: float | None = None,
) -> bool:
    """One step of Adam per batch of an episode, labels drawn anew for each (paper, section 2.2). Whether it is complete."""
    torch.manual_seed(config.seed)
    learner = Learner(learner_config(config, keys.shape[1]))
    if config.blocks_of is not None:
        load_decoder(learner, str(DecoderTraining(config.blocks_of).model))
    optimiser = torch.optim.Adam(learner.networks.parameters(), lr=config.learning_rate, fused=True)
    begun = (config.directory / "state.json").exists()
    options = RunOptions(config.directory, resume=begun, minutes=minutes, precision="bf16")
    run = Run(config, options, learner.networks, optimiser, config.seed)
    run.state.setdefault("episode_cap", math.inf)
    shown = labels < shown_classes(config.way)
    keys_shown, sampler = keys[shown], EpisodeSampler(labels[shown], run.generator)
    learner.train()
    for _ in run.rounds(config.steps):
        length = min(config.way * config.longest_episode, run.state["episode_cap"])
        episodes = sampler.online(config.way, int(length), config.parallel)
        mastered = descend_through(run, learner, keys_shown, episodes, config, shrinking=True)
        run.state["episode_cap"] = next_episode_cap(run.state["episode_cap"], mastered, episodes.example.shape[1])
    if run.stopped_early:
        return False
    validation = validated(learner.eval(), keys[~shown], labels[~shown], config.way)
    provenance = run.provenance(
        "decoder of fixed labels",
        None,
        validation,
        photographs=int(shown.sum()),
    )
    learner.save(config.model, provenance)
    return True


def learner_config(config: DecoderTraining, width: int) -> LearnerConfig:
    decoder = DecoderConfig(labels="fixed", way=config.way, hidden=config.hidden, blocks=config.blocks)
    return LearnerConfig(IdentityConfig(width, normalise=True), decoder, sigma_ratio=SIGMA_RATIO)


def shown_classes(way: int) -> int:
    """Number of classes, from the first, that are trained on."""
    return CLASSES if way > CLASSES - VALIDATION_CLASSES else CLASSES - VALIDATION_CLASSES


def validated(learner: Learner, keys: Tensor, labels: Tensor, way: int) -> dict[str, float]:
    """Accuracy over the last quarter of episodes with classes it was not trained on; nothing where there are none."""
    if not len(labels):
        return {}
    numbers = (labels - labels.min()).numpy()
    data = PhotoFeatures(keys.numpy(), numbers, numbers, "validation")
    result = watch_episodes(learner, keys, data, way, 10).result
    return {"val_accuracy": result.accuracy_last(result.correct.shape[1] // 4).mean}


def reproduce_plain(quick: bool = False) -> None:
    """Measure what was trained, beside the nearest neighbour under the same rule."""
    data = photo_features(PLAIN_ENCODER, "val")
    measure_missing(PLAIN, (cell for one in TRAININGS if one.trained for cell in plain_cells(one, data, quick)), quick)


def plain_cells(config: DecoderTraining, data: PhotoFeatures, quick: bool) -> Iterator[Cell]:
    provenance = read_description(config.model)["provenance"]
    kept = ("steps", "seconds", "commit", "validation")
    trained = {"trained": {name: provenance[name] for name in kept}}
    about = {"decoder": "relational", "labels": "fixed", "checkpoint": config.directory.name, **trained}
    width, episodes = data.features.shape[1], PLAIN_EPISODES[config.way] // (10 if quick else 1) or 1

    def measured(method: str, learner: Learner, **about: object) -> list[Row]:
        watched = watch_episodes(learner.eval(), torch.from_numpy(data.features), data, config.way, episodes)
        return [row(method, PLAIN_ENCODER, data, watched, rule="plain", **about)]

    nearest = LearnerConfig(IdentityConfig(width, normalise=True), DecoderConfig(kind="nearest"))
    of_way = {"way": config.way}
    yield Cell(
        {**of_way, "method": PAPER_FORM}, lambda: measured(PAPER_FORM, Learner.load(config.model), **about), trained
    )
    yield Cell({**of_way, "method": NEAREST}, lambda: measured(NEAREST, Learner(nearest)))
