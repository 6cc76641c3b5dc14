"""Photographs and sentences as the frozen encoders see them, kept in the cache: embedding them takes minutes."""

from __future__ import annotations

import gzip
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import Float, Int

from apl.data.files import DataError, cache_directory
from apl.encoders.photo import PhotoEncoder
from apl.encoders.text import TextEncoder
from experiments.data.imagenet import imagenet

Intents = Literal["banking77", "clinc150"]
AT_ONCE = 64


@dataclass(frozen=True)
class LabelledVectors:
    """Vectors of unit length and their classes."""

    vectors: Float[np.ndarray, "example embed"]
    labels: Int[np.ndarray, " example"]

    def of(self, classes: np.ndarray) -> list[np.ndarray]:
        """The examples of each of these classes."""
        return [(self.labels == c).nonzero()[0] for c in classes]


def photographs() -> LabelledVectors:
    """ImageNet-mini's `val`, behind EfficientNet-Lite0."""
    photos, encoder = imagenet("val"), PhotoEncoder("lite0")

    def compute() -> np.ndarray:
        contents = list(photos.contents())
        parts = [contents[at : at + AT_ONCE] for at in range(0, len(contents), AT_ONCE)]
        return np.concatenate([encoder.features([encoder.read(photo) for photo in part]) for part in parts])

    return LabelledVectors(unit(_kept(f"photo-val-{encoder.fingerprint}", compute)), photos.labels)


def intents(name: Intents) -> dict[str, LabelledVectors]:
    """Requests with their intents, part by part, behind MiniLM. Out-of-scope parts have the label -1."""
    home = os.environ.get("APL_DATA")
    path = Path(home or cache_directory()) / "intents" / f"{name}.json.gz"
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

        labels = np.array([numbers.get(label, -1) for _, label in examples])
        vectors = _kept(f"{name}-{part}-{encoder.fingerprint}", compute)
        found[part] = LabelledVectors(unit(vectors), labels)
    return found


def unit(vectors: np.ndarray) -> np.ndarray:
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True).clip(1e-12)).astype(np.float32)


def _kept(name: str, compute) -> np.ndarray:
    path = cache_directory() / "features" / f"bench-{name}.npy"
    if path.is_file():
        return np.load(path, allow_pickle=False)
    vectors = compute()
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part.npy")
    np.save(part, vectors)
    part.replace(path)
    return vectors
