"""Photographs, sentences and digits as frozen encoders see them."""

from __future__ import annotations

import gzip
import json
import os
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F

from apl.data.files import DataError, cache_directory
from apl.encoder import embed_all
from apl.encoders.text import TextEncoder
from apl.learner import Learner
from experiments.data.mnist import load_mnist
from experiments.paper.embedding_cache import kept
from experiments.paper.photo_features import photo_features
from experiments.paper.subjects import Embedded, image_size

Intents = Literal["banking77", "clinc150"]
AT_ONCE = 64
DIGITS = 2000
"""The first of MNIST's test set."""


@cache
def photographs() -> Embedded:
    """ImageNet-mini's `val` behind EfficientNet-Lite0, at unit length."""
    found = photo_features("lite0", "val")
    vectors = F.normalize(torch.from_numpy(found.features), dim=1)
    return Embedded(vectors, torch.from_numpy(found.labels).long(), "imagenet val", found.identity)


@cache
def digits(model: str) -> Embedded:
    """MNIST behind a bundled model's encoder."""
    learner = Learner.load(model)
    images = load_mnist("test", image_size(learner.config.encoder))
    return Embedded(embed_all(learner.encoder, images.images[:DIGITS]), images.labels[:DIGITS], "mnist test", "")


@cache
def intents(name: Intents) -> dict[str, Embedded]:
    """Requests with their intents, part by part, behind MiniLM at unit length. Out-of-scope parts have the label -1."""
    path = Path(os.environ.get("APL_DATA") or cache_directory()) / "intents" / f"{name}.json.gz"
    if not path.is_file():
        raise DataError(f"{path} is not there: set APL_DATA to the directory that contains intents/{name}.json.gz")
    parts = json.loads(gzip.decompress(path.read_bytes()))
    numbers = {label: number for number, label in enumerate(sorted({label for _, label in parts["test"]}))}
    encoder = TextEncoder()
    found = {}
    for part, examples in parts.items():
        texts = [text for text, _ in examples]

        def compute(texts: list[str] = texts) -> np.ndarray:
            return np.concatenate([encoder.embed(texts[at : at + AT_ONCE]) for at in range(0, len(texts), AT_ONCE)])

        vectors = torch.from_numpy(kept(f"{name}-{part}-{encoder.fingerprint}", compute))
        labels = torch.tensor([numbers.get(label, -1) for _, label in examples])
        found[part] = Embedded(F.normalize(vectors.float(), dim=1), labels, f"{name} {part}", "")
    return found
