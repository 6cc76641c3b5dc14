"""Published methods end to end, `apl reproduce baselines-own`: each trains the paper's 28×28 encoder together with what it adds, on
the same number of training images as the others, so that their quoted numbers can be judged.

How many images is stated in every row; a GPU would see a hundred times as many in the same time.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import torch
from jaxtyping import Float, Int, Num
from torch import Tensor, nn

from apl.baselines.interface import EpisodicMethod
from apl.baselines.maml import Maml
from apl.baselines.matching import MatchingNetwork
from apl.baselines.meta_training import MetaTraining, meta_train
from apl.baselines.protocols import few_shot
from apl.baselines.prototypical import PrototypicalNetwork
from apl.config import ConvConfig
from apl.data.source import DataSource
from apl.encoder import build_encoder, scale_bytes
from apl.evaluate import Estimate
from apl.paper.results import Row, save_rows

NAME = "baselines-own"
IMAGES = 24_000
"""That each method is trained on, contexts and queries together."""
WAY, QUERIES, TASKS, SEED = 20, 1, 2, 1
LEARNING_RATE = 2e-3


class DrawingEncoder(nn.Module):
    """Images as flat vectors, so that a method need not know whether it reads pixels or embeddings."""

    def __init__(self, config: ConvConfig) -> None:
        super().__init__()
        self.encoder, self.side = build_encoder(config), config.image_size
        self.width = self.encoder.width

    def forward(self, x: Float[Tensor, "*batch pixel"]) -> Float[Tensor, "*batch embed"]:
        embedded = self.encoder(x.reshape(-1, 1, self.side, self.side))
        return embedded.view(*x.shape[:-1], self.width)


METHODS: dict[str, Callable[[DrawingEncoder], EpisodicMethod]] = {
    "Prototypical networks": lambda e: PrototypicalNetwork(e.width, embed=e),
    "Matching networks (FCE)": lambda e: MatchingNetwork(e.width, embed=e),
    "MAML": lambda e: Maml(e.width, embed=e, step_size=1.0, steps=1),
}


def flat(images: Num[Tensor, "image 1 height width"]) -> Num[Tensor, "image pixel"]:
    return images.flatten(1)


def reproduce(quick: bool = False) -> None:
    config, source = ConvConfig(), DataSource()
    training, test = (
        source.load("train", config.image_size),
        DataSource(rotations=False).load("test", config.image_size),
    )
    # Context and queries of a step: one of each class and QUERIES more, in TASKS tasks.
    images = 400 if quick else IMAGES
    steps = max(1, images // (TASKS * WAY * (1 + QUERIES)))
    how = MetaTraining(
        LEARNING_RATE, steps=steps, widest=WAY, narrowest=WAY, shots=1, queries=QUERIES, classes_at_once=TASKS * WAY
    )
    rows: list[Row] = []
    for name, build in METHODS.items():
        torch.manual_seed(SEED)
        method, started = build(DrawingEncoder(config)), time.process_time()
        effort = meta_train(method, flat(training.images), training.labels, how, SEED, prepare=scale_bytes)
        seconds = time.process_time() - started
        print(f"{name}: {effort.examples} images in {seconds:.0f} s of processor time", file=sys.stderr, flush=True)
        about = {
            "images": effort.examples,
            "training_seconds": round(seconds, 1),
            "split": source.split_name(),
            "split_hash": source.split_hash(),
        }
        episodes = 2 if quick else 100
        for (way, shot), estimate in measured(method, flat(test.images), test.labels, episodes).items():
            figures = {"way": way, "shot": shot, "episodes": episodes, "seed": SEED}
            rows.append({"method": name, **about, **figures, "accuracy": estimate.mean, "ci95": estimate.ci95})
        save_rows(NAME, rows, quick, encoder="the paper's, 28×28, trained with the method")


def measured(
    method: EpisodicMethod, images: Num[Tensor, "image pixel"], labels: Int[Tensor, " image"], episodes: int
) -> dict[tuple[int, int], Estimate]:
    """Where the embedding does not change with the task, every image is embedded once."""
    x, encoder = scale_bytes(images), method.embed
    if not isinstance(method, Maml):
        with torch.no_grad():
            x = torch.cat([encoder(part) for part in x.split(512)])
        method.embed = nn.Identity()
    try:
        return {
            (way, shot): Estimate.of(
                few_shot(method, x, labels, way=way, shot=shot, queries=5, episodes=episodes, seed=SEED)
            )
            for way in (5, 20)
            for shot in (1, 5)
        }
    finally:
        method.embed = encoder
