"""Devices: what is asked for must be there; everything in training that makes tensors makes them where the images are."""

from __future__ import annotations

from typing import Any, get_args

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode

from apl.config import (
    WITHOUT_WEIGHTS,
    ConvConfig,
    DecoderConfig,
    DecoderKind,
    EncoderConfig,
    Group,
    IdentityConfig,
    JointConfig,
    LearnerConfig,
    PairConfig,
)
from apl.data.jitter import JitterConfig, jitter
from apl.decoder.inputs import Neighbourhood
from apl.networks import TorchNetworks, find_device
from experiments.data.pens import THICKEST, cropped, thickened, through_grid


def test_auto_is_a_device_that_is_there() -> None:
    assert torch.zeros(2, device=find_device("auto")).sum() == 0


def test_a_gpu_that_is_not_there_is_one_clear_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="there is no cuda device here that torch can use: choose --device auto or"):
        find_device("cuda")


def test_drawings_are_deformed_where_they_are() -> None:
    """Fake tensors on another device raise when they meet one of the CPU."""
    generator = torch.Generator().manual_seed(0)
    with FakeTensorMode():
        images = torch.empty(6, 1, 28, 28, device="meta")
        assert jitter(images, JitterConfig(), generator).device.type == "meta"
        lots = torch.empty(6, 4, device="meta")
        assert cropped(images, lots, lots[:, 0] < 0.5).device.type == "meta"
        assert thickened(images, lots[:, 0], THICKEST).device.type == "meta"
        assert through_grid(images, 9, "bicubic").device.type == "meta"


SMALL = ConvConfig(image_size=8, stem_channels=4, groups=(Group(4, 1), Group(4, 1)))
ENCODERS: dict[str, EncoderConfig] = {
    "convolutional": SMALL,
    "joint": JointConfig((SMALL, SMALL), 12),
    "vectors": IdentityConfig(16, normalise=True),
    "pairs": PairConfig(SMALL, IdentityConfig(5)),
}
INPUTS = {"convolutional": (1, 8, 8), "joint": (1, 8, 8), "vectors": (16,), "pairs": (64 + 5,)}
WAY, QUERIES, ROWS = 4, 6, 3


def elsewhere(module: nn.Module, mode: FakeTensorMode) -> None:
    """Every weight and buffer as a fake one on another device."""
    for part in module.modules():
        for tensors, kind in ((part._parameters, nn.Parameter), (part._buffers, lambda t: t)):
            for name, tensor in tensors.items():
                if tensor is not None:
                    with mode:
                        tensors[name] = kind(torch.empty(tensor.shape, dtype=tensor.dtype, device="meta"))


@pytest.mark.parametrize(
    "encoder,kind,labels",
    [
        *((encoder, "relational", "neighbourhood") for encoder in ENCODERS),
        *(("vectors", kind, "neighbourhood") for kind in get_args(DecoderKind)),
        *(("vectors", kind, "fixed") for kind in get_args(DecoderKind) if kind not in WITHOUT_WEIGHTS),
    ],
)
def test_forward_loss_and_backward_stay_on_the_networks_device(encoder: str, kind: DecoderKind, labels: Any) -> None:
    """Fake tensors raise when devices meet and when Python asks for a value: what passes runs on a GPU."""
    decoder = DecoderConfig(
        kind,
        labels,
        WAY if labels == "fixed" else None,
        hidden=8,
        blocks=2,
        heads=2,
        label_width=4,
        compare=True,
        class_means=labels == "neighbourhood",
    )
    networks = TorchNetworks(LearnerConfig(ENCODERS[encoder], decoder)).train()
    width, mode = networks.width, FakeTensorMode()
    elsewhere(networks, mode)
    with mode:

        def made(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.empty(*shape, dtype=dtype, device="meta")

        query = networks.encoder(made(QUERIES, *INPUTS[encoder]))
        rows = made(QUERIES, ROWS, width)
        distance = torch.linalg.vector_norm(query[:, None] - rows, dim=-1)
        recalled = Neighbourhood(
            rows,
            distance,
            made(QUERIES, ROWS, dtype=torch.bool),
            made(QUERIES, ROWS, ROWS, dtype=torch.bool),
            made(QUERIES),
            made(QUERIES, ROWS, dtype=torch.int64),
        )
        said = networks.decoder(query, recalled)
        loss = -(said.log_none.sum() if said.log_probs is None else 0) - said.weight.sum()
        if said.log_class is not None:
            loss = loss - said.log_class.sum()
        if said.log_probs is not None:
            loss = loss - said.log_probs.sum()
        assert loss.device.type == "meta"
        if loss.requires_grad:
            loss.backward()
            assert {p.grad.device.type for p in networks.parameters() if p.grad is not None} <= {"meta"}
