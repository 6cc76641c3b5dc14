"""Section 4.2: ImageNet with shuffled labels behind a frozen encoder, 20-, 100- and 1000-way.

An episode draws its classes, numbers them at random, and shows every validation photograph of theirs once: predict, score,
then learn. Memory and questions come from `val`, which the encoder was not trained on; decoders are trained on `train`.
Beside each accuracy stands the encoder's own on the same photographs: how often it names their true ImageNet class, with
the fixed labels it was trained on.

Deviation: the paper recalls by the activations before the classifier; so does the row "seen". The row "seen and named"
recalls by what the encoder would call a photograph as well. The paper counts from the 50th batch on, more photographs than 20
classes have here: accuracy is that of the last quarter of an episode.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from apl.classifier.online import OnlineClassifier
from apl.paper.photo_features import PhotoFeatures, photo_encoder, photo_features
from apl.paper.plot import OURS, QUIET, THIRD, figure
from apl.paper.results import figure_path, save_rows

SEED = 0
EPISODES = {20: 50, 100: 10, 1000: 5}
ENCODERS = {"lite0": "EfficientNet-Lite0", "lite2": "EfficientNet-Lite2"}
PAPER = {20: 0.867, 100: 0.729, 1000: 0.526}
PAPER_ENCODER = 0.804
NAMING = {"seen": 0.0, "seen and named": 1.0}


@dataclass(frozen=True)
class Stream:
    """One episode: which photographs, in which order, under which numbers."""

    photo: np.ndarray
    label: np.ndarray


@dataclass(frozen=True)
class Watched:
    """Episodes of one method, photograph by photograph (cut to the length of the shortest)."""

    correct: Bool[np.ndarray, "episode time"]
    written: Bool[np.ndarray, "episode time"]
    named: Bool[np.ndarray, "episode time"]
    """Whether the encoder itself named the true class."""


def streams(data: PhotoFeatures, way: int, episodes: int, seed: int) -> list[Stream]:
    chance = np.random.default_rng([seed, way])
    found = []
    for _ in range(episodes):
        classes = chance.permutation(int(data.labels.max()) + 1)[:way]
        number = np.full(int(data.labels.max()) + 1, -1)
        number[classes] = np.arange(way)
        shown = chance.permutation((number[data.labels] >= 0).nonzero()[0])
        found.append(Stream(shown, number[data.labels[shown]]))
    return found


def watch(keys: Float[np.ndarray, "photo embed"], data: PhotoFeatures, episodes: list[Stream]) -> Watched:
    """Our any-N classifier: told nothing of the classes or their number."""
    rows = []
    for stream in episodes:
        with OnlineClassifier.for_features(keys.shape[1], keep_images=False) as classifier:
            receipts = classifier.learn_many(keys[stream.photo], stream.label)
        correct = np.array([r.predicted == label for r, label in zip(receipts, stream.label.tolist(), strict=True)])
        named = data.named[stream.photo] == data.labels[stream.photo]
        rows.append((correct, np.array([r.written for r in receipts]), named))
    length = min(len(row[0]) for row in rows)
    return Watched(*(np.stack([row[part][:length] for row in rows]) for part in range(3)))


def last_quarter(right: Bool[np.ndarray, "episode time"]) -> tuple[float, float]:
    """Mean over episodes, and its 95 % interval."""
    each = right[:, -(right.shape[1] // 4) :].mean(1)
    spread = each.std(ddof=1) if len(each) > 1 else np.nan
    return float(each.mean()), float(1.96 * spread / np.sqrt(len(each)))


def row(
    method: str, encoder: str, data: PhotoFeatures, way: int, watched: Watched, **more: object
) -> dict[str, object]:
    (accuracy, ci95), (own, _) = last_quarter(watched.correct), last_quarter(watched.named)
    stored = float(watched.written.sum(1).mean())
    return {
        "method": method,
        "encoder": ENCODERS[encoder],
        "way": way,
        "episodes": len(watched.correct),
        "seed": SEED,
        "split": "imagenet val",
        "split_hash": data.identity,
        "accuracy": accuracy,
        "ci95": ci95,
        "encoder_top1": own,
        "share_of_encoder": accuracy / own,
        "stored": stored,
        "stored_per_class": stored / way,
        **more,
    }


def reproduce(quick: bool = False) -> None:
    rows = []
    with figure(figure_path("imagenet", quick), columns=3, width=3.6) as panels:
        for encoder in ("lite0",) if quick else ENCODERS:
            data = photo_features(encoder, "val")
            for name, naming in NAMING.items():
                keys = photo_encoder(encoder, naming).keys(data.features)
                keys = keys if naming else keys[:, : data.features.shape[1]]
                for axes, way in zip(panels, EPISODES, strict=True):
                    if quick and way == 1000:
                        continue
                    episodes = streams(data, way, 2 if quick else EPISODES[way], SEED)
                    watched = watch(keys, data, episodes)
                    rows.append(row(f"ours, any N, {name}", encoder, data, way, watched))
                    save_rows("imagenet", rows, quick)
                    if encoder == "lite0":
                        draw(axes, way, name, watched)
        for axes in panels:
            axes.set(xlabel="photographs seen", ylim=(0, 1.02))
        panels[0].set_ylabel("accuracy (running mean)")
        panels[0].legend(frameon=False, fontsize=7)


def draw(axes, way: int, name: str, watched: Watched) -> None:
    """Accuracy and items written over the first five episodes, as the paper's figure has them."""
    five = watched.correct[:5].mean(0)
    span = max(10, len(five) // 12)
    running = np.convolve(np.concatenate([np.zeros(span - 1), five]), np.ones(span) / span, "valid")
    colour = OURS if name == "seen and named" else THIRD
    axes.plot(running, color=colour, label=f"ours, {name}")
    axes.plot(watched.written[:5].cumsum(1).mean(0) / len(five), color=colour, ls=":", label="share written")
    if name == "seen":
        axes.axhline(last_quarter(watched.named)[0], color=QUIET, ls="--", label="encoder, fixed labels")
    axes.set_title(f"{way}-way")
