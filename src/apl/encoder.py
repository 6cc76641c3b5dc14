"""Encoders (paper, appendix "Omniglot"): an input x becomes a representation e, the key of the memory.

`ConvEncoder` is the paper's network and its wider variants. `JointEncoder` projects the embeddings of several of them.
`IdentityEncoder` takes vectors as they are (features computed elsewhere, one-hot symbols, cached embeddings).
`PairEncoder` embeds a digit and a symbol side by side, each a key of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from apl.config import ConvConfig, EncoderConfig, IdentityConfig, ImageConfig, JointConfig, PairConfig


class Encoder(nn.Module):
    """What a learner needs of an encoder."""

    config: EncoderConfig
    width: int
    """Numbers in an embedding."""

    @property
    def key_widths(self) -> Mapping[str, int]:
        """The key columns of the memory: named slices of the embedding, usually one."""
        return {"embedding": self.width}


class ImageEncoder(Encoder):
    """An encoder of images of one size."""

    config: ImageConfig


class Block(nn.Module):
    """BatchNorm → ReLU → 3×3 convolution, with a skip connection (if configured) where shapes allow."""

    def __init__(self, channels_in: int, channels_out: int, stride: int, skip: bool) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(channels_in)
        self.conv = nn.Conv2d(channels_in, channels_out, 3, stride, padding=1, bias=False)
        self.skip = skip and stride == 1 and channels_in == channels_out

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv(F.relu(self.norm(x), inplace=True))
        return x + y if self.skip else y


class ConvEncoder(ImageEncoder):
    """Images to layer-normalised vectors.

    Deviation: the layer norm has no weights of its own, so every embedding has the same length and euclidean
    neighbours are cosine neighbours: the metric a classifier was trained with is the metric of recall.
    """

    config: ConvConfig

    def __init__(self, config: ConvConfig) -> None:
        super().__init__()
        self.config = config
        self.stem = nn.Conv2d(
            config.channels, config.stem_channels, config.stem_kernel, config.stem_stride, config.stem_kernel // 2
        )
        blocks, channels = [], config.stem_channels
        for group in config.groups:
            strided = 0 if config.stride_on == "first" else group.blocks - 1
            for i in range(group.blocks):
                blocks.append(Block(channels, group.channels, group.stride if i == strided else 1, config.skip))
                channels = group.channels
        self.blocks = nn.ModuleList(blocks)
        self.width = channels * self._final_side() ** 2
        # The stubs of torch lack this overload.
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def _final_side(self) -> int:
        side = math.ceil(self.config.image_size / self.config.stem_stride)
        for group in self.config.groups:
            side = math.ceil(side / group.stride)
        return side

    def forward(self, images: Float[Tensor, "image channel height width"]) -> Float[Tensor, "image embed"]:
        shape = (self.config.channels, self.config.image_size, self.config.image_size)
        if images.ndim != 4 or tuple(images.shape[1:]) != shape:
            raise ValueError(f"expected images of shape [any, {', '.join(map(str, shape))}], got {list(images.shape)}")
        h = self.stem(images.contiguous(memory_format=torch.channels_last))
        for block in self.blocks:
            h = block(h)
        h = h.flatten(1)
        return F.layer_norm(h, h.shape[1:])


class JointEncoder(ImageEncoder):
    """Encoders trained separately make different errors. Their concatenated embeddings are projected to `width` numbers by
    a linear map that keeps distances as well as possible (`apl.training.join`), then scaled to equal length."""

    config: JointConfig

    def __init__(self, config: JointConfig) -> None:
        super().__init__()
        if len({(part.image_size, part.channels) for part in config.parts}) != 1:
            raise ValueError("joined encoders must take images of the same size, all grey or all colour")
        self.config = config
        networks = [ConvEncoder(part) for part in config.parts]
        self.parts = nn.ModuleList(networks)
        self.project = nn.Linear(sum(part.width for part in networks), config.width, bias=False)
        self.width = config.width

    def forward(self, images: Float[Tensor, "image channel height width"]) -> Float[Tensor, "image embed"]:
        h = self.project(self.side_by_side(images))
        return F.normalize(h, dim=1).mul(self.width**0.5)

    def side_by_side(self, images: Float[Tensor, "image channel height width"]) -> Float[Tensor, "image all"]:
        return torch.cat([part(images) for part in self.parts], 1)


class IdentityEncoder(Encoder):
    """Vectors, unchanged or layer-normalised."""

    config: IdentityConfig

    def __init__(self, config: IdentityConfig, key_widths: Mapping[str, int] | None = None) -> None:
        """`key_widths`: the key columns, if the vectors hold several."""
        super().__init__()
        self.config = config
        self.width = config.width
        self._key_widths = key_widths or {"embedding": config.width}

    @property
    def key_widths(self) -> Mapping[str, int]:
        return self._key_widths

    def forward(self, vectors: Float[Tensor, "vector embed"]) -> Float[Tensor, "vector embed"]:
        if vectors.ndim != 2 or vectors.shape[1] != self.width:
            raise ValueError(f"expected vectors of shape [any, {self.width}], got {list(vectors.shape)}")
        return F.layer_norm(vectors, vectors.shape[1:]) if self.config.normalise else vectors


class PairEncoder(Encoder):
    """An image and a vector in one flat input, embedded separately; the embedding is their concatenation."""

    config: PairConfig

    def __init__(self, config: PairConfig) -> None:
        super().__init__()
        self.config = config
        self.digit, self.symbol = ConvEncoder(config.digit), IdentityEncoder(config.symbol)
        self.width = self.digit.width + self.symbol.width

    @property
    def key_widths(self) -> Mapping[str, int]:
        return {"digit": self.digit.width, "symbol": self.symbol.width}

    def forward(self, pairs: Float[Tensor, "pair input"]) -> Float[Tensor, "pair embed"]:
        image = (self.config.digit.channels, self.config.digit.image_size, self.config.digit.image_size)
        expected = math.prod(image) + self.symbol.width
        if pairs.ndim != 2 or pairs.shape[1] != expected:
            raise ValueError(f"expected pairs of shape [any, {expected}], got {list(pairs.shape)}")
        digits, symbols = pairs[:, : -self.symbol.width], pairs[:, -self.symbol.width :]
        return torch.cat([self.digit(digits.unflatten(1, image)), self.symbol(symbols)], 1)


def build_encoder(config: EncoderConfig) -> Encoder:
    match config:
        case PairConfig():
            return PairEncoder(config)
        case ConvConfig():
            return ConvEncoder(config)
        case JointConfig():
            return JointEncoder(config)
        case IdentityConfig():
            return IdentityEncoder(config)


@torch.no_grad()
def embed_all(encoder: Encoder, inputs: Tensor, batch: int = 256) -> Float[Tensor, "input embed"]:
    """Embeddings of many inputs, in evaluation mode, on the CPU, where memories are; byte images are scaled to 0..1."""
    was_training = encoder.training
    encoder.eval()
    where = next((tensor.device for tensor in encoder.parameters()), inputs.device)
    parts = [encoder(scale_bytes(part.to(where))).cpu() for part in inputs.split(batch)]
    encoder.train(was_training)
    return torch.cat(parts) if parts else torch.zeros(0, encoder.width)


def scale_bytes(inputs: Tensor) -> Tensor:
    """Byte images scaled to 0..1; anything else unchanged."""
    return inputs.float().div_(255) if inputs.dtype == torch.uint8 else inputs
