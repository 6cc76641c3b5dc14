"""Section 4.2: ImageNet with shuffled labels behind a frozen encoder, 20-, 100- and 1000-way.

An episode draws its classes, numbers them at random, and shows every validation photograph of theirs once: predict, score,
then learn. Memory and questions come from `val`, which the encoder was not trained on. The paper's form is in `imagenet_plain.py`.
Beside each accuracy stands the encoder's own on the same photographs: how often it names their true ImageNet class, with
the fixed labels it was trained on.

Rows "activations" recall as the paper does, by the activations before the classifier. Rows "activations and named" recall
by what the encoder would call a photograph as well (`apl.encoders.photo`).

The paper counts from the 50th batch on, more photographs than 20 classes have here: accuracy is that of the last quarter of
an episode.
"""

from __future__ import annotations

from dataclasses import dataclass

import matplotlib.pyplot as plt
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from apl.config import DecoderConfig, IdentityConfig, LearnerConfig
from apl.controller import ConsolidatingController
from apl.episode import EpisodeSampler
from apl.evaluate import Estimate, OnlineResult, watch
from apl.learner import Learner
from apl.reading.ensemble import EnsembleReading
from experiments.paper.photo_features import PhotoFeatures, photo_encoder, photo_features
from experiments.paper.plot import OURS, QUIET, THIRD, figure, smooth
from experiments.paper.results import Row, figure_path, save_rows

SEED = 0
EPISODES = {20: 25, 100: 5, 1000: 5}
BATCH = {20: 16, 100: 16, 1000: 64}
"""Photographs shown at a time; none of them helps to answer the others."""
KEY_WEIGHT = 1.0
"""Of what the encoder would call a photograph, beside its activations at unit length: the best of 0 to 1 on `train`, 100-way. The
encoder has seen those photographs, so it names them better than new ones, and more than equal weight was not offered."""
CURVE_POINTS = 60
ACTIVATIONS, NAMED = "ours, any N, activations", "ours, any N, activations and named"
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
    rows: list[Row] = []
    for encoder in ("lite0",) if quick else ENCODERS:
        data, maker = photo_features(encoder, "val"), photo_encoder(encoder)
        for method, keys in ((NAMED, maker.keys(data.features, KEY_WEIGHT)), (ACTIVATIONS, data.features)):
            for way, count in EPISODES.items():
                given = torch.from_numpy(keys)
                watched = watch_episodes(any_n_learner(keys.shape[1]), given, data, way, 1 if quick else count)
                rows.append(row(method, encoder, data, watched))
                save_rows("imagenet", rows, quick, key_weight=KEY_WEIGHT)
    draw([row for row in rows if row["encoder"] == ENCODERS["lite0"]], quick)


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
