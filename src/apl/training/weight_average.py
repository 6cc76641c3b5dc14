"""A running mean of a network's weights, better on new classes than the weights of the last step."""

from __future__ import annotations

import copy
from typing import Generic, TypeVar

import torch
from torch import nn

Network = TypeVar("Network", bound=nn.Module)


class WeightAverage(Generic[Network]):
    """Exponential moving average of all floating-point weights and buffers."""

    def __init__(self, networks: Network, decay: float) -> None:
        if not 0 < decay < 1:
            raise ValueError(f"averaging must lie between 0 and 1, got {decay}")
        self.decay = decay
        self.module = copy.deepcopy(networks)
        self.module.eval()
        self.module.requires_grad_(False)

    @torch.no_grad()
    def update(self, networks: nn.Module) -> None:
        """Move the mean towards the current weights."""
        mean, now = self.module.state_dict(), networks.state_dict()
        for name, value in mean.items():
            if value.is_floating_point():
                value.lerp_(now[name], 1 - self.decay)
            else:
                value.copy_(now[name])
