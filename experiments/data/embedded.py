"""Data sets as frozen encoders see them. Embedding is most of the work of an evaluation: it is done once, and kept on disk."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from apl.config import ConvConfig, EncoderConfig, JointConfig
from apl.data import Part, files
from apl.data.source import DataSource
from apl.encoder import embed_all
from apl.encoders.photo import PhotoEncoder
from apl.encoders.text import TextEncoder
from apl.learner import Learner
from apl.progress import progress_bar
from apl.training.saved_encoder import read_encoder
from experiments.data.imagenet import ImagenetPart, Photographs, imagenet
from experiments.data.mnist import load_mnist

MODEL, LAKE = "omniglot", "lake"
FEW_DRAWINGS = 10
"""Drawings of each class (of 20) where rotations are classes and few are enough."""
DIGITS = 2000
"""The first of MNIST's test set."""
AT_ONCE = 64
Intents = Literal["banking77", "clinc150"]


@dataclass(frozen=True)
class Embedded:
    """A data set as one encoder sees it."""

    embeddings: Float[Tensor, "example embed"]
    labels: Int[Tensor, " example"]
    split: str
    split_hash: str
    model: str = ""
    """The name or directory of the encoder's model, where it is one of ours."""


@dataclass(frozen=True)
class PhotoFeatures:
    """The activations before the classifier, the true class of each photograph, and the one the encoder names."""

    features: Float[np.ndarray, "photo embed"]
    labels: Int[np.ndarray, " photo"]
    named: Int[np.ndarray, " photo"]
    identity: str


def image_size(config: EncoderConfig) -> int:
    if not isinstance(config, (ConvConfig, JointConfig)):
        raise ValueError("this model does not take pictures alone")
    return config.image_size


def kept(name: str, compute: Callable[[], np.ndarray]) -> np.ndarray:
    """What `compute` returns, from the cache if it was computed before. The name must tell encoder and inputs."""
    path = files.cache_directory() / "embeddings" / f"{name}.npy"
    if path.is_file():
        try:
            found: np.ndarray = np.load(path, allow_pickle=False)
            return found
        except (ValueError, OSError):
            print(f"{path} is damaged: its embeddings are computed again", file=sys.stderr)
    embeddings = compute()
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    with part.open("wb") as file:
        np.save(file, embeddings)
    part.replace(path)
    return embeddings


def embed_once(learner: Learner, images: UInt8[Tensor, "image 1 height width"]) -> Float[Tensor, "image embed"]:
    """As `embed_all` with the learner's encoder. The file is named after the weights and the images themselves."""
    digest = hashlib.sha256(learner.fingerprint().encode())
    digest.update(images.contiguous().numpy().data)
    return torch.from_numpy(kept(digest.hexdigest()[:32], lambda: embed_all(learner.encoder, images).numpy()))


@cache
def characters(rotations: bool, part: Part = "test", model: str = MODEL, few: bool = False) -> Embedded:
    """Omniglot characters of the paper's split, embedded by a bundled model's encoder."""
    learner, source = Learner.load(model), DataSource(rotations=rotations)
    images = source.load(part, image_size(learner.config.encoder))
    if few and rotations:
        images = images.first_of_each(FEW_DRAWINGS)
    embeddings = embed_once(learner, images.images)
    return Embedded(embeddings, images.labels, source.split_name(), source.split_hash(), model)


@cache
def vinyals() -> Embedded:
    """The test characters of the literature's split behind the encoder `lake`."""
    encoder, source = read_encoder(LAKE).build(), DataSource(split="vinyals", rotations=False)
    images = source.load("test", image_size(encoder.config))
    return Embedded(embed_all(encoder, images.images), images.labels, source.split_name(), source.split_hash())


@cache
def digits(model: str) -> Embedded:
    """MNIST behind a bundled model's encoder."""
    learner = Learner.load(model)
    images = load_mnist("test", image_size(learner.config.encoder))
    return Embedded(embed_all(learner.encoder, images.images[:DIGITS]), images.labels[:DIGITS], "mnist test", "")


@cache
def photo_encoder(model: str) -> PhotoEncoder:
    """ "lite0" or "lite2"."""
    return PhotoEncoder(model)


@cache
def photo_features(model: str, part: ImagenetPart) -> PhotoFeatures:
    encoder, photos = photo_encoder(model), imagenet(part)
    name = f"imagenet-{part}-{photos.identity()}-{encoder.fingerprint}"
    features = kept(name, lambda: _embedded_photographs(encoder, photos))
    return PhotoFeatures(features, photos.labels, encoder.imagenet_class(features), photos.identity())


def _embedded_photographs(encoder: PhotoEncoder, photos: Photographs) -> Float[np.ndarray, "photo embed"]:
    found, waiting = [], []
    with progress_bar(transient=True) as bar:
        for content in bar.track(photos.contents(), total=len(photos), description="embedding photographs"):
            waiting.append(encoder.read(content))
            if len(waiting) == AT_ONCE:
                found.append(encoder.features(waiting))
                waiting = []
    return np.concatenate([*found, encoder.features(waiting)])


@cache
def photographs(part: ImagenetPart = "val") -> Embedded:
    """ImageNet-mini behind EfficientNet-Lite0, at unit length."""
    found = photo_features("lite0", part)
    vectors = F.normalize(torch.from_numpy(found.features), dim=1)
    return Embedded(vectors, torch.from_numpy(found.labels).long(), f"imagenet {part}", found.identity)


@cache
def intents(name: Intents) -> dict[str, Embedded]:
    """Requests with their intents, part by part, behind MiniLM at unit length. Out-of-scope parts have the label -1."""
    path = Path(os.environ.get("APL_DATA") or files.cache_directory()) / "intents" / f"{name}.json.gz"
    if not path.is_file():
        raise files.DataError(
            f"{path} is not there: set APL_DATA to the directory that contains intents/{name}.json.gz"
        )
    parts = json.loads(gzip.decompress(path.read_bytes()))
    numbers = {label: number for number, label in enumerate(sorted({label for _, label in parts["test"]}))}
    encoder, found = TextEncoder(), {}
    for part, examples in parts.items():
        texts = [text for text, _ in examples]

        def compute() -> np.ndarray:
            return np.concatenate([encoder.embed(texts[at : at + AT_ONCE]) for at in range(0, len(texts), AT_ONCE)])

        vectors = torch.from_numpy(kept(f"{name}-{part}-{encoder.fingerprint}", compute))
        labels = torch.tensor([numbers.get(label, -1) for _, label in examples])
        found[part] = Embedded(F.normalize(vectors.float(), dim=1), labels, f"{name} {part}", "")
    return found
