"""Section 4.2: ImageNet with shuffled labels behind a frozen encoder, 20-, 100- and 1000-way.

An episode draws its classes, numbers them at random, and shows every validation photograph of theirs once: predict, score,
then learn. Memory and questions come from `val`, which the encoder was not trained on; decoders are trained on `train`.
Beside each accuracy stands the encoder's own on the same photographs: how often it names their true ImageNet class, with
the fixed labels it was trained on.

The paper counts from the 50th batch on, more photographs than 20 classes have here: accuracy is that of the last quarter of
an episode.
Deviation: the paper recalls by the activations before the classifier. So do the rows "seen"; the rows "seen and named" recall
by what the encoder would call a photograph as well (`apl.encoders.photo`), which counts in full here, where the classes are
those it was taught; in everyday use it counts half.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass

import matplotlib.pyplot as plt
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from apl.config import DecoderConfig, IdentityConfig, LearnerConfig
from apl.controller import ConsolidatingController
from apl.encoders.photo import PhotoEncoder
from apl.episode import EpisodeSampler
from apl.evaluate import Estimate, OnlineResult, watch
from apl.learner import Learner
from apl.paper.imagenet_decoders import trained_decoders
from apl.paper.photo_features import PhotoFeatures, photo_encoder, photo_features
from apl.paper.plot import OTHER, OURS, QUIET, THIRD, figure, smooth
from apl.paper.results import figure_path, load_rows, save_rows

SEED = 0
EPISODES = {20: 25, 100: 5, 1000: 5}
BATCH = {20: 16, 100: 16, 1000: 64}
"""Photographs shown at a time; none of them helps to answer the others."""
ENCODERS = {"lite0": "EfficientNet-Lite0", "lite2": "EfficientNet-Lite2", "inception": "Inception-ResNet-v2"}


@dataclass(frozen=True)
class PhotoEpisodes:
    """Episodes of one method, and whether the encoder itself named each photograph rightly."""

    result: OnlineResult
    named: Bool[Tensor, "episode time"]


def any_n_learner(width: int) -> Learner:
    """One for every number of classes, nothing of it trained: a memory that consolidates, and its readers."""
    config = LearnerConfig(IdentityConfig(width), DecoderConfig(kind="kernel"), k=16, metric="cosine")
    return Learner(config, ConsolidatingController()).eval()


def watch_episodes(
    learner: Learner, keys: Float[Tensor, "photo embed"], data: PhotoFeatures, way: int, episodes: int
) -> PhotoEpisodes:
    """Every photograph of the drawn classes."""
    sampler = EpisodeSampler(torch.from_numpy(data.labels), torch.Generator().manual_seed(SEED))
    right = torch.from_numpy(data.named == data.labels)
    results, named = [], []
    for _ in range(episodes):
        drawn = sampler.online(way, None, 1)
        results.append(watch(learner, keys, drawn, BATCH.get(way, 16)))
        named.append(right[drawn.example])
    length = min(result.correct.shape[1] for result in results)
    cut = [
        OnlineResult(**{name: value[:, :length] for name, value in vars(result).items() if name != "way"}, way=way)
        for result in results
    ]
    return PhotoEpisodes(OnlineResult.join(cut), torch.cat([part[:, :length] for part in named]))


def row(method: str, encoder: str, data: PhotoFeatures, watched: PhotoEpisodes, **more: object) -> dict[str, object]:
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
    }


def reproduce(quick: bool = False) -> None:
    rows: list[dict[str, object]] = []
    with figure(figure_path("imagenet", quick), columns=3, width=3.6) as panels:
        for name, watched in measure("lite0", rows, quick):
            draw(panels[list(EPISODES).index(watched.result.way)], name, watched)
        for axes in panels:
            axes.set(xlabel="photographs seen", ylim=(0, 1.02))
        panels[0].set_ylabel("accuracy (running mean)")
        panels[0].legend(frameon=False, fontsize=7)
    for encoder in () if quick else ("lite2", "inception"):
        try:
            for _ in measure(encoder, rows, quick):
                pass
        except ImportError as error:
            print(f"{ENCODERS[encoder]} is left out: {error}", file=sys.stderr)


def measure(encoder: str, rows: list[dict[str, object]], quick: bool) -> Iterator[tuple[str, PhotoEpisodes]]:
    """Every way to recall at every number of classes; rows are added and saved as they come."""
    data, kept = photo_features(encoder, "val"), load_rows("imagenet", quick)
    keys = {"seen": torch.from_numpy(data.features)}
    if isinstance(maker := photo_encoder(encoder), PhotoEncoder):
        keys = {"seen and named": torch.from_numpy(maker.keys(data.features)), **keys}
    for name, key in keys.items():
        for way, episodes in EPISODES.items():
            count = max(1, episodes // 10) if quick else episodes
            watched = watch_episodes(any_n_learner(key.shape[1]), key, data, way, count)
            rows.append(row(f"ours, any N, {name}", encoder, data, watched))
            save_rows("imagenet", rows, quick)
            yield name, watched
    decoders = trained_decoders(encoder)
    if not decoders:  # too large to ship: what was measured where they were trained is kept
        rows.extend(r for r in kept if r["encoder"] == ENCODERS[encoder] and r["method"].startswith("fixed labels"))
        save_rows("imagenet", rows, quick)
    for way, kind, learner, provenance in decoders:
        watched = watch_episodes(learner, keys["seen"], data, way, 1 if quick else EPISODES[way])
        rows.append(row(f"fixed labels, {kind}", encoder, data, watched, trained=provenance))
        save_rows("imagenet", rows, quick)
        yield f"fixed labels, {kind}", watched


def draw(axes: plt.Axes, name: str, watched: PhotoEpisodes) -> None:
    """Accuracy and the share of photographs written, over five episodes as in the paper's figure."""
    correct, stored = watched.result.correct[:5].mean(0), watched.result.stored[:5].float().mean(0)
    colour = {"seen and named": OURS, "seen": THIRD}.get(name, OTHER)
    axes.plot(smooth(correct, max(10, len(correct) // 12)), color=colour, label=f"ours, {name}")
    axes.plot(stored / len(correct), color=colour, ls=":", label="written, of all shown")
    if name == "seen":
        axes.axhline(float(watched.named.float().mean()), color=QUIET, ls="--", label="encoder, fixed labels")
    axes.set_title(f"{watched.result.way}-way")
