"""Devices: what is asked for must be there; everything in training that makes tensors makes them where the images are."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses import FakeTensorMode

from apl.data.jitter import JitterConfig, jitter
from apl.data.pens import PenConfig, cropped, thickened, through_grid
from apl.device import find_device


def test_auto_is_a_device_that_is_there() -> None:
    assert torch.zeros(2, device=find_device("auto")).sum() == 0


def test_a_gpu_that_is_not_there_is_one_clear_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="there is no cuda device here that torch can use: choose --device auto or"):
        find_device("cuda")


def test_each_process_of_a_machine_takes_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert find_device("auto") == torch.device("cuda", 3)


def test_drawings_are_deformed_where_they_are() -> None:
    """Fake tensors on another device raise when they meet one of the CPU."""
    generator = torch.Generator().manual_seed(0)
    with FakeTensorMode():
        images = torch.empty(6, 1, 28, 28, device="meta")
        assert jitter(images, JitterConfig(), generator).device.type == "meta"
        lots = torch.empty(6, 4, device="meta")
        assert cropped(images, lots, lots[:, 0] < 0.5).device.type == "meta"
        assert thickened(images, lots[:, 0], PenConfig().thickest).device.type == "meta"
        assert through_grid(images, 9, "bicubic").device.type == "meta"
