"""One encoder made of several that were trained apart: they err in different places, and together less.

Nothing is trained here. The embeddings of some training drawings, side by side, tell which directions of that
wider space are in use; the joint embedding keeps as many of them as it has numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor, nn

from apl.checkpoint import current_commit, to_json
from apl.config import JointConfig
from apl.data.source import DataSource
from apl.encoder import ConvEncoder, JointEncoder, scale_bytes
from apl.training.pretrain import one_shot_accuracy
from apl.training.run import RunOptions
from apl.training.saved_encoder import SavedEncoder, read_encoder
from apl.weights_file import save_model

DRAWINGS_AT_ONCE = 256


@dataclass(frozen=True)
class JoinConfig:
    """Which encoders to join, and how wide the result is."""

    encoders_from: tuple[str, ...]
    """Bundled models' names, or directories of saved encoders or models."""
    width: int = 256
    data: DataSource = field(default_factory=DataSource)
    drawings: int = 10_000
    """Training drawings that are looked at."""
    seed: int = 0

    def train(self, options: RunOptions) -> JointEncoder:
        return join(self, options)


def join(config: JoinConfig, options: RunOptions) -> JointEncoder:
    """Make the encoder, save it under `options.directory/encoder`, and return it."""
    saved = [read_encoder(name) for name in config.encoders_from]
    networks, own_maps = zip(*(_networks(source) for source in saved), strict=True)
    parts, maps = [part for several in networks for part in several], torch.block_diag(*own_maps)
    encoder = JointEncoder(JointConfig(tuple(part.config for part in parts), config.width)).eval()
    encoder.parts = nn.ModuleList(parts)
    shown = config.data.load_training(encoder.config.image_size, "none").images
    chosen = torch.randperm(len(shown), generator=torch.Generator().manual_seed(config.seed))[: config.drawings]
    with torch.no_grad():
        seen = [encoder.side_by_side(scale_bytes(shown[some])) for some in chosen.split(DRAWINGS_AT_ONCE)]
        encoder.project.weight.copy_(main_directions(torch.cat(seen) @ maps.T, config.width) @ maps)
    held_out = config.data.load("validation", encoder.config.image_size)
    provenance = {
        "trained_as": "several encoders joined",
        "joining": to_json(config),
        "split": config.data.split_name(),
        "split_hash": config.data.split_hash(),
        "steps": 0,
        "seconds": 0,
        "commit": current_commit(),
        "validation": {} if config.data.with_validation else one_shot_accuracy(encoder, held_out),
        "parts": [source.provenance for source in saved],
    }
    save_model(options.directory / "encoder", encoder, encoder.config, provenance, half=False)
    return encoder


def main_directions(vectors: Float[Tensor, "vector all"], count: int) -> Float[Tensor, "count all"]:
    """The orthonormal directions that keep most of the vectors' lengths, and so of their scalar products."""
    vectors = vectors.double()
    if count > vectors.shape[1]:
        raise ValueError(f"vectors of {vectors.shape[1]} numbers have no {count} directions")
    _, directions = torch.linalg.eigh(vectors.T @ vectors)  # smallest first
    kept: Tensor = directions[:, -count:].flip(1).T.float()
    return kept


def _networks(saved: SavedEncoder) -> tuple[list[ConvEncoder], Float[Tensor, "embed all"]]:
    """The networks of an encoder, and how it brings them together; a single one takes its own numbers as they are."""
    match saved.build():
        case ConvEncoder() as alone:
            return [alone], torch.eye(alone.width)
        case JointEncoder() as joint:
            return [part for part in joint.parts if isinstance(part, ConvEncoder)], joint.project.weight.detach()
    raise ValueError(f"{saved.directory} holds no convolutional encoder: it cannot be joined")
