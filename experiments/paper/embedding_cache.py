"""Embeddings of frozen encoders on disk: they are most of an evaluation's work, and the same for every run of it."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from apl.data import files
from apl.encoder import embed_all
from apl.learner import Learner


def embed_once(learner: Learner, images: UInt8[Tensor, "image 1 height width"]) -> Float[Tensor, "image embed"]:
    """As `embed_all` with the learner's encoder. The file is named after the weights and the images themselves."""
    digest = hashlib.sha256(learner.fingerprint().encode())
    digest.update(images.contiguous().numpy().data)
    return torch.from_numpy(kept(digest.hexdigest()[:32], lambda: embed_all(learner.encoder, images).numpy()))


def kept(name: str, compute: Callable[[], np.ndarray]) -> np.ndarray:
    """What `compute` returns, from the cache if it was computed before. The name must tell encoder and inputs."""
    path = files.cache_directory() / "embeddings" / f"{name}.npy"
    if path.is_file():
        try:
            return np.load(path, allow_pickle=False)  # type: ignore[no-any-return]
        except (ValueError, OSError):
            print(f"{path} is damaged: its embeddings are computed again", file=sys.stderr)
    embeddings = compute()
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    with part.open("wb") as file:
        np.save(file, embeddings)
    part.replace(path)
    return embeddings
