"""ImageNet's photographs as a frozen encoder sees them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from jaxtyping import Float, Int

from apl.encoders.photo import PhotoEncoder
from apl.progress import progress_bar
from experiments.data.imagenet import ImagenetPart, Photographs, imagenet
from experiments.paper.embedding_cache import kept

READ_AT_ONCE = 64


@dataclass(frozen=True)
class PhotoFeatures:
    """The activations before the classifier, the true class of each photograph, and the one the encoder names."""

    features: Float[np.ndarray, "photo embed"]
    labels: Int[np.ndarray, " photo"]
    named: Int[np.ndarray, " photo"]
    identity: str


@cache
def photo_encoder(model: str) -> PhotoEncoder:
    """ "lite0" or "lite2"."""
    return PhotoEncoder(model, naming=1.0)


@cache
def photo_features(model: str, part: ImagenetPart) -> PhotoFeatures:
    encoder, photos = photo_encoder(model), imagenet(part)
    name = f"imagenet-{part}-{photos.identity()}-{encoder.fingerprint}"
    features = kept(name, lambda: _computed(encoder, photos))
    return PhotoFeatures(features, photos.labels, encoder.imagenet_class(features), photos.identity())


def _computed(encoder: PhotoEncoder, photos: Photographs) -> Float[np.ndarray, "photo embed"]:
    found, waiting = [], []
    with progress_bar(transient=True) as progress:
        task = progress.add_task("embedding photographs", total=len(photos))
        for content in photos.contents():
            waiting.append(encoder.read(content))
            if len(waiting) == READ_AT_ONCE:
                found.append(encoder.features(waiting))
                progress.advance(task, len(waiting))
                waiting = []
    return np.concatenate([*found, encoder.features(waiting)])
