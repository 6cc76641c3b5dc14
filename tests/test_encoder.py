from __future__ import annotations

import pytest
import torch
from torch import nn

from apl.config import ConvConfig, Group, IdentityConfig
from apl.encoder import ConvEncoder, IdentityEncoder, build_encoder, embed_all, scale_bytes

SMALL = ConvConfig(image_size=12, stem_channels=4, groups=(Group(4, 2), Group(6, 2)), skip=True)


def strides(encoder: ConvEncoder) -> list[int]:
    return [block.conv.stride[0] for block in encoder.blocks]


def convolutions(encoder: nn.Module) -> list[nn.Conv2d]:
    return [m for m in encoder.modules() if isinstance(m, nn.Conv2d)]


def test_the_paper_s_encoder_has_twelve_blocks_of_64_channels_and_makes_256_numbers_of_28_by_28_pixels() -> None:
    encoder = ConvEncoder(ConvConfig())
    assert len(encoder.blocks) == 12
    assert [c.out_channels for c in convolutions(encoder)] == [64] * 13
    assert {c.kernel_size for c in convolutions(encoder)} == {(3, 3)}
    assert encoder.width == 256
    assert encoder(torch.rand(2, 1, 28, 28)).shape == (2, 256)


def test_the_stride_sits_on_the_first_or_the_last_block_of_each_group() -> None:
    assert strides(ConvEncoder(ConvConfig())) == [2, 1, 1] * 4
    last = ConvEncoder(ConvConfig(stride_on="last"))
    assert strides(last) == [1, 1, 2] * 4
    assert last(torch.rand(1, 1, 28, 28)).shape == (1, last.width) == (1, 256)


def test_skip_connections_join_the_blocks_that_keep_their_shape_and_can_be_switched_off() -> None:
    assert [block.skip for block in ConvEncoder(ConvConfig(skip=True)).blocks] == [False, True, True] * 4
    assert not any(block.skip for block in ConvEncoder(ConvConfig()).blocks)
    assert [block.skip for block in ConvEncoder(SMALL).blocks] == [False, True, False, True]


def test_a_block_with_a_skip_connection_and_no_weights_passes_its_input_on() -> None:
    block = ConvEncoder(SMALL).blocks[1].eval()
    nn.init.zeros_(block.conv.weight)
    x = torch.rand(2, 4, 5, 5)
    assert torch.equal(block(x), x)


@pytest.mark.parametrize("size", [11, 12, 28, 56])
@pytest.mark.parametrize("stem_stride", [1, 2, 4])
def test_the_announced_width_is_the_width_of_the_embedding(size: int, stem_stride: int) -> None:
    config = ConvConfig(size, 4, 5, stem_stride, (Group(4, 1, 1), Group(8, 2)))
    encoder = ConvEncoder(config)
    assert encoder(torch.rand(2, 1, size, size)).shape == (2, encoder.width)


def test_every_embedding_is_layer_normalised() -> None:
    embedding = ConvEncoder(SMALL)(torch.rand(5, 1, 12, 12))
    torch.testing.assert_close(embedding.mean(1), torch.zeros(5), atol=1e-5, rtol=0)
    torch.testing.assert_close(embedding.norm(dim=1), torch.full((5,), embedding.shape[1] ** 0.5), rtol=1e-2, atol=0)


@pytest.mark.parametrize("size", [(28, 27), (30, 30), (56, 56)])
def test_images_of_another_size_are_refused_with_the_size_expected(size: tuple[int, int]) -> None:
    encoder = ConvEncoder(ConvConfig(stem_channels=4, groups=(Group(4, 1),)))
    with pytest.raises(ValueError, match=r"expected images of shape \[any, 1, 28, 28\], got \[2, 1, "):
        encoder(torch.rand(2, 1, *size))


def test_vectors_pass_the_identity_encoder_unchanged_or_normalised() -> None:
    vectors = torch.randn(3, 7)
    assert torch.equal(IdentityEncoder(IdentityConfig(7))(vectors), vectors)
    normalised = build_encoder(IdentityConfig(7, normalise=True))(vectors)
    torch.testing.assert_close(normalised.mean(1), torch.zeros(3), atol=1e-6, rtol=0)
    with pytest.raises(ValueError, match=r"expected vectors of shape \[any, 7\], got \[3, 8\]"):
        IdentityEncoder(IdentityConfig(7))(torch.randn(3, 8))


def test_embedding_many_inputs_is_embedding_each_alone_and_leaves_the_encoder_as_it_was() -> None:
    torch.manual_seed(0)
    encoder = ConvEncoder(SMALL).train()
    encoder(torch.rand(30, 1, 12, 12))
    before = {name: t.clone() for name, t in encoder.state_dict().items()}
    images = torch.randint(0, 256, (7, 1, 12, 12), dtype=torch.uint8)
    together = embed_all(encoder, images, batch=3)
    assert encoder.training and not together.requires_grad
    assert all(torch.equal(t, before[name]) for name, t in encoder.state_dict().items()), "batch statistics moved"
    alone = torch.cat([embed_all(encoder, image[None]) for image in images])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-5)
    assert embed_all(encoder, images[:0]).shape == (0, encoder.width)


def test_bytes_are_scaled_to_the_unit_interval_and_other_inputs_left_alone() -> None:
    scaled = scale_bytes(torch.tensor([0, 51, 255], dtype=torch.uint8))
    torch.testing.assert_close(scaled, torch.tensor([0.0, 0.2, 1.0]))
    floats = torch.tensor([0.0, 300.0])
    assert scale_bytes(floats) is floats
