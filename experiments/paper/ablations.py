"""What each choice of the paper's training is worth: one change at a time, from scratch, with equal numbers of images.

`python -m experiments ablations` trains what is not in runs/ablations yet (about a minute and a half of one core each, in half precision) and measures it on
test characters: 1 and 5 shots with a fixed context, and online. Unchanged it is trained with three seeds, whose curves are kept. The last rows keep a trained model and change what is written: by
surprise, at random, or the first examples, with equally many rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from apl.config import ConvConfig
from apl.controller import Action, Controller, WriteAll
from apl.data.source import DataSource
from apl.encoder import embed_all
from apl.episode import EpisodeSampler
from apl.evaluate import Estimate, fixed_context, online, watch
from apl.learner import Learner
from apl.training.episodic import TrainConfig, train
from apl.training.run import RunOptions
from experiments.data.embedded import Embedded, characters
from experiments.paper.plot import OTHER, OURS, figure
from experiments.paper.results import Cell, Row, figure_path, measure_missing
from experiments.presets import RECIPE

NAME = "ablations"
SEEDS, EPISODES, LAST = (13, 14, 15), 20, 100
SEED = SEEDS[0]
STEPS = {20: 300, 5: 300}
IMAGES_PER_STEP = 128
TRAINED = "paper-recipe-20way"
"""The model of the last rows."""
UNCHANGED = "as presented"
"""Trained with each of the seeds, the others with the first."""


@dataclass(frozen=True)
class WriteAtRandom:
    """Write this share of the examples, whatever they are."""

    share: float
    generator: np.random.Generator

    def threshold_nats(self, way: int) -> float:
        return 0.0

    def decide(self, surprise_nats: np.ndarray, way: int) -> np.ndarray:
        chosen = self.generator.random(surprise_nats.shape) < self.share
        return np.where(chosen, int(Action.WRITE), int(Action.IGNORE))


class WithoutQuery(nn.Module):
    """A decoder that sees the neighbours alone."""

    def __init__(self, decoder: nn.Module) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, query: Tensor, neighbours: Any) -> Any:
        return self.decoder(torch.zeros_like(query), neighbours)


def base(way: int, seed: int) -> TrainConfig:
    """The recipe in short: the rate falls linearly from 6e-4."""
    learner = replace(RECIPE.learner, decoder=replace(RECIPE.learner.decoder, way=way))
    return replace(
        RECIPE, learner=learner, ways=(way,), steps=STEPS[way], learning_rate=6e-4, decay_share=1.0, seed=seed
    )


def with_learner(config: TrainConfig, **changes: Any) -> TrainConfig:
    return replace(config, learner=replace(config.learner, **changes))


def everything(learner: Learner) -> None:
    learner.controller = WriteAll()


def at_random(learner: Learner) -> None:
    learner.controller = WriteAtRandom(0.15, np.random.default_rng(SEED))


def without_query(learner: Learner) -> None:
    learner.networks.decoder = WithoutQuery(learner.decoder)


Change = Callable[[TrainConfig], TrainConfig]
Start = Callable[[Learner], None]
VARIANTS: dict[str, tuple[Change, Start | None]] = {
    UNCHANGED: (lambda c: c, None),
    "distance without gradient": (lambda c: with_learner(c, distance_gradient=False), None),
    "episodes that do not shrink": (lambda c: replace(c, shrinking=False), None),
    "everything written in training": (lambda c: c, everything),
    "15 % written at random in training": (lambda c: c, at_random),
    "k = 1": (lambda c: with_learner(c, k=1), None),
    "k = 16": (lambda c: with_learner(c, k=16), None),
    "σ = 0.25 ln N": (lambda c: with_learner(c, sigma_ratio=0.25), None),
    "σ = ln N": (lambda c: with_learner(c, sigma_ratio=1.0), None),
    "decoder without the query": (lambda c: c, without_query),
    "no skip connections": (lambda c: with_learner(c, encoder=ConvConfig(skip=False)), None),
    "no rotated classes": (lambda c: replace(c, data=DataSource(rotations=False)), None),
    "gradients not clipped": (lambda c: replace(c, clip=1e9), None),
    "noise of 0.1 on images": (lambda c: replace(c, noise=0.1), None),
    "running mean of the weights": (lambda c: replace(c, averaging=0.99), None),
}


def reproduce(quick: bool = False) -> None:
    rows = measure_missing(NAME, cells(quick), quick)
    draw(rows, quick)
    draw_curves(rows, quick)


def cells(quick: bool) -> Iterator[Cell]:
    """Every training, then what is written with a trained model."""
    for way in STEPS:
        for variant, seed in [*((name, SEED) for name in VARIANTS), *((UNCHANGED, seed) for seed in SEEDS[1:])]:
            about: Row = {"variant": variant, "way": way, "seed": seed}
            yield Cell(about, partial(trained_rows, variant, way, seed, quick))
    yield Cell({"checkpoint": TRAINED}, lambda: memory_rows(20, quick))


def trained_rows(variant: str, way: int, seed: int, quick: bool) -> list[Row]:
    change, start = VARIANTS[variant]
    config = change(base(way, seed))
    if quick:
        config = replace(config, steps=2, parallel=2)
    directory = Path("runs") / NAME / f"{way}way-{'quick-' if quick else ''}{list(VARIANTS).index(variant)}-{seed}"
    resume = (directory / "state.json").exists()
    learner = train(config, RunOptions(directory, resume=resume, precision="bf16"), start)
    images = DataSource(rotations=False).load("test", 28)
    embeddings, twin = embed_all(learner.encoder, images.images), learner.on_embeddings()
    counts = (4, 2) if quick else (5 * EPISODES, EPISODES)
    cells = {
        shot: fixed_context(
            twin, embeddings, images.labels, way=way, seed=SEED, shot=shot, episodes=counts[0], queries=5
        )
        for shot in (1, 5)
    }
    streamed = online(twin, embeddings, images.labels, way=way, seed=SEED, episodes=counts[1])
    row = {
        "variant": variant,
        "way": way,
        "seed": seed,
        "method": "the paper's form",
        "split": "paper",
        "split_hash": DataSource().split_hash(),
        "training_images": config.steps * config.parallel * config.batch,
        "trained_seeds": 1,
        "episodes": counts[0],
        "accuracy": cells[1].mean,
        "ci95": cells[1].ci95,
        "five_shot": cells[5].mean,
        "five_shot_ci95": cells[5].ci95,
        "online": streamed.accuracy_last(LAST).mean,
        "online_ci95": streamed.accuracy_last(LAST).ci95,
        "stored": streamed.stored_at_end().mean,
        "training_curve": training_curve(directory / "log.jsonl", config.parallel * config.batch),
    }
    return [row]


def training_curve(log: Path, images_per_step: int) -> list[tuple[int, float]]:
    """Images shown and the accuracy on them, every few seconds of the training."""
    lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    return [(line["step"] * images_per_step, round(line["accuracy"], 3)) for line in lines if "accuracy" in line]


def memory_rows(way: int, quick: bool) -> list[Row]:
    """Which examples to write, with equally many rows: each rule sees the same episodes of a trained model."""
    data: Embedded = characters(False, model=TRAINED)
    learner = Learner.load(TRAINED).on_embeddings()
    count = 2 if quick else EPISODES
    drawn = EpisodeSampler(data.labels, torch.Generator().manual_seed(SEED)).online(way, None, count)
    by_surprise = watch(learner, data.embeddings, drawn)
    ours, stored = by_surprise.correct[:, -LAST:].mean(1), by_surprise.stored_at_end().mean
    rules: dict[str, Controller] = {
        "written by surprise": learner.controller,
        "written at random": WriteAtRandom(stored / drawn.label.shape[1], np.random.default_rng(SEED)),
        "written: the first ones": FirstOnes(round(stored)),
        "written: everything": WriteAll(),
    }
    rows = []
    for rule, controller in rules.items():
        learner.controller = controller
        result = watch(learner, data.embeddings, drawn)
        last = result.correct[:, -LAST:].mean(1)
        accuracy, above = Estimate.of(last), Estimate.of_difference(ours, last)
        rows.append(
            {
                "variant": rule,
                "way": way,
                "seed": SEED,
                "method": "the paper's form",
                "checkpoint": TRAINED,
                "split": data.split,
                "split_hash": data.split_hash,
                "episodes": count,
                "accuracy": accuracy.mean,
                "ci95": accuracy.ci95,
                "stored": result.stored_at_end().mean,
                "surprise_above": above.mean,
                "surprise_above_ci95": above.ci95,
            }
        )
    return rows


class FirstOnes:
    """Write until there are this many rows."""

    def __init__(self, most: int) -> None:
        self.most, self.seen = most, 0

    def threshold_nats(self, way: int) -> float:
        return 0.0

    def decide(self, surprise_nats: np.ndarray, way: int) -> np.ndarray:
        self.seen += surprise_nats.shape[1]
        action = Action.WRITE if self.seen <= self.most else Action.IGNORE
        return np.full(surprise_nats.shape, int(action))


def draw(rows: list[Row], quick: bool) -> None:
    with figure(figure_path(NAME, quick), columns=len(STEPS), width=5.5, height=4.2) as panels:
        for axes, way in zip(panels, STEPS, strict=True):
            shown = [row for row in rows if row["way"] == way and row["variant"] in VARIANTS][::-1]
            at = np.arange(len(shown))
            for name, error, colour, shift in (
                ("accuracy", "ci95", OURS, 0.15),
                ("online", "online_ci95", OTHER, -0.15),
            ):
                axes.errorbar(
                    [100 * row[name] for row in shown],
                    at + shift,
                    xerr=[100 * (row[error] or 0) for row in shown],
                    fmt="o",
                    color=colour,
                    label="1 shot" if name == "accuracy" else f"online, last {LAST}",
                )
            axes.set_yticks(at, [variant_name(row) for row in shown])
            axes.set(xlabel="accuracy, %", title=f"{way}-way, {STEPS[way] * IMAGES_PER_STEP:,} training images")
        panels[0].legend(frameon=False)


def variant_name(row: Row) -> str:
    return row["variant"] if row["seed"] == SEED else f"{row['variant']}, seed {row['seed']}"


def draw_curves(rows: list[Row], quick: bool) -> None:
    """Accuracy on the examples of the training itself, one line per seed."""
    with figure(figure_path(NAME, quick, "seeds"), columns=len(STEPS), width=4.5) as panels:
        for axes, way in zip(panels, STEPS, strict=True):
            for row in rows:
                if row["way"] == way and row["variant"] == UNCHANGED and row["training_curve"]:
                    images, accuracy = zip(*row["training_curve"], strict=True)
                    axes.plot(images, [100 * value for value in accuracy], label=f"seed {row['seed']}")
            axes.set(xlabel="training images", title=f"{way}-way")
        panels[0].set_ylabel("training accuracy, %")
        panels[0].legend(frameon=False)
