"""Published methods end to end, `python -m experiments baselines-own`: each trains the paper's 28×28 encoder together with what it adds, on
the same number of training images as the others, so that their quoted numbers can be judged.

Ours trains the encoder through the memory's class-mean reader on the same tasks, and is then read by all readers, which have
nothing to learn. (As a classifier of the 4,300 training classes, our recipe for long runs, it reached 30 % at 20-way 1-shot on
24,000 images: six of each class.) How many images is stated in every row. The quoted numbers rest on millions: what can be judged
is the order of the methods, how far each still is from what its paper says, and how fast it gets there. The file is written method by
method; one that was left unfinished is gone on with.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import cast

import torch
from jaxtyping import Float, Num
from torch import Tensor, nn

from apl.config import ConvConfig
from apl.data.labelled import LabelledImages
from apl.data.source import DataSource
from apl.encoder import build_encoder, embed_all, scale_bytes
from apl.evaluate import Estimate
from experiments.baselines.interface import EpisodicMethod
from experiments.baselines.maml import Maml
from experiments.baselines.matching import MatchingNetwork
from experiments.baselines.meta_training import MetaTraining, meta_train
from experiments.baselines.protocols import few_shot
from experiments.baselines.prototypical import PrototypicalNetwork
from experiments.baselines.shipped import EncoderThroughMemory, Shipped
from experiments.paper.baselines_table import OURS_NAME
from experiments.paper.results import Row, load_whole, save_rows

NAME = "baselines-own"
IMAGES = 24_000
"""That each method is trained on, contexts and queries together: a minute of one core, four for MAML."""
WAY, QUERIES, TASKS, SEED = 20, 1, 2, 1
EPISODES = 1000
LEARNING_RATE = 2e-3
BATCH = 80
"""Images of a step, of every method."""


class DrawingEncoder(nn.Module):
    """Images as flat vectors, so that a method need not know whether it reads pixels or embeddings."""

    def __init__(self, config: ConvConfig) -> None:
        super().__init__()
        self.encoder, self.side = build_encoder(config), config.image_size
        self.width = cast(int, self.encoder.width)

    def forward(self, x: Float[Tensor, "*batch pixel"]) -> Float[Tensor, "*batch embed"]:
        embedded: Tensor = self.encoder(x.reshape(-1, 1, self.side, self.side))
        return embedded.view(*x.shape[:-1], self.width)


METHODS: dict[str, Callable[[DrawingEncoder], EpisodicMethod]] = {
    "Prototypical networks": lambda e: PrototypicalNetwork(e.width, embed=e),
    "Matching networks (FCE)": lambda e: MatchingNetwork(e.width, embed=e),
    OURS_NAME: lambda e: EncoderThroughMemory(e),
    "MAML": lambda e: Maml(e.width, embed=e, step_size=1.0, steps=1),
}
Accuracies = dict[tuple[int, int], Estimate]


def reproduce(quick: bool = False) -> None:
    config, source = ConvConfig(skip=True), DataSource()
    test = DataSource(rotations=False).load("test", config.image_size)
    images = 400 if quick else IMAGES
    whole = load_whole(NAME, quick)
    finished = {row["method"] for row in whole.get("rows", [])} == set(METHODS)
    rows: list[Row] = [] if finished or whole.get("images") != images else whole["rows"]
    for name in METHODS:
        if any(row["method"] == name for row in rows):
            continue
        started = time.process_time()
        episodes = 2 if quick else EPISODES
        method = trained_by(METHODS[name], config, source, images // BATCH)
        seconds = time.process_time() - started
        print(f"{name}: {images} images in {seconds:.0f} s of processor time", file=sys.stderr, flush=True)
        about = {
            "images": images // BATCH * BATCH,
            "training_seconds": round(seconds, 1),
            "split": source.split_name(),
            "split_hash": source.split_hash(),
        }
        for (way, shot), estimate in accuracies(method, test, episodes).items():
            figures = {"way": way, "shot": shot, "episodes": episodes, "seed": SEED}
            rows.append({"method": name, **about, **figures, "accuracy": estimate.mean, "ci95": estimate.ci95})
        save_rows(NAME, rows, quick, encoder="the paper's, 28×28, trained with the method", images=images)


def trained_by(
    build: Callable[[DrawingEncoder], EpisodicMethod], config: ConvConfig, source: DataSource, steps: int
) -> EpisodicMethod:
    """A method trained on tasks of one example and QUERIES questions for each of WAY classes, TASKS of them in a step."""
    torch.manual_seed(SEED)
    method, images = build(DrawingEncoder(config)), source.load("train", config.image_size)
    how = MetaTraining(
        LEARNING_RATE, steps=steps, widest=WAY, narrowest=WAY, shots=1, queries=QUERIES, classes_at_once=TASKS * WAY
    )
    meta_train(method, images.images.flatten(1), images.labels, how, SEED, prepare=scale_bytes)
    return method


def accuracies(trained: EpisodicMethod, test: LabelledImages, episodes: int) -> Accuracies:
    """Where the embedding does not change with the task, every image is embedded once."""
    if isinstance(trained, Maml):
        return _measured(trained, scale_bytes(test.images.flatten(1)), test.labels, episodes)
    kept = trained.embed
    assert isinstance(kept, DrawingEncoder)
    embeddings = embed_all(kept.encoder, test.images).detach()
    if isinstance(trained, EncoderThroughMemory):
        return _measured(Shipped(None, kept.width), embeddings, test.labels, episodes)
    trained.embed = nn.Identity()
    try:
        return _measured(trained, embeddings, test.labels, episodes)
    finally:
        trained.embed = kept


def _measured(
    method: EpisodicMethod | Shipped, x: Num[Tensor, "image input"], labels: Tensor, episodes: int
) -> Accuracies:
    return {
        (way, shot): Estimate.of(
            few_shot(method, x, labels, way=way, shot=shot, queries=5, episodes=episodes, seed=SEED)
        )
        for way in (5, 20)
        for shot in (1, 5)
    }
