"""Embeddings of frozen encoders on disk: they are most of an evaluation's work, and the same for every run of it.

A file is named after the encoder's weights and the images themselves, so it cannot be taken for another's.
"""

from __future__ import annotations

import hashlib
import os
import sys

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from apl.data import files
from apl.encoder import embed_all
from apl.learner import Learner


def embed_once(learner: Learner, images: UInt8[Tensor, "image 1 height width"]) -> Float[Tensor, "image embed"]:
    """As `embed_all` with the learner's encoder; worked out if that was not done before, and kept."""
    digest = hashlib.sha256(learner.fingerprint().encode())
    digest.update(images.contiguous().numpy())
    path = files.cache_directory() / "embeddings" / f"{digest.hexdigest()[:32]}.npy"
    if path.is_file():
        try:
            kept = np.load(path, allow_pickle=False)
            if kept.shape == (len(images), learner.encoder.width):
                return torch.from_numpy(kept)
        except (ValueError, OSError):
            print(f"{path} is damaged: its embeddings are worked out anew", file=sys.stderr)
    embeddings = embed_all(learner.encoder, images)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    with part.open("wb") as file:
        np.save(file, embeddings.numpy())
    part.replace(path)
    return embeddings
