"""Data-parallel training: what processes started by `torchrun` tell one another. One process alone tells itself nothing."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor

from apl.device import CPU


class Processes:
    """The group that a run belongs to; clocks, signals and chance differ between its members."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        self.world = dist.get_world_size() if dist.is_initialized() else 1

    def any(self, fact: bool) -> bool:
        """True if it holds in one of them, so that all take the same turn."""
        if self.world == 1:
            return fact
        decision = torch.tensor(int(fact), device=self.device)
        dist.all_reduce(decision, op=dist.ReduceOp.MAX)
        return bool(decision)

    def all(self, fact: bool) -> bool:
        return not self.any(not fact)

    def first(self, number: int) -> int:
        """The number of the first process, so that what one draws for all is the same for all."""
        if self.world == 1:
            return number
        decision = torch.tensor(number, device=self.device)
        dist.broadcast(decision, 0)
        return int(decision)

    def average_gradients(self, parameters: Iterable[Tensor]) -> None:
        """The mean of all processes' gradients, in one message."""
        if self.world == 1:
            return
        # A parameter without part in this batch's loss may have one in another process: the message holds all.
        trained = [p for p in parameters if p.requires_grad]
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in trained]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat)
        flat /= self.world
        for parameter, mean in zip(trained, flat.split([p.numel() for p in trained]), strict=True):
            parameter.grad = laid_out(mean.view_as(parameter), parameter)

    def gather(self, mine: Tensor) -> list[Tensor]:
        if self.world == 1:
            return [mine]
        mine = mine.to(self.device)
        states = [torch.empty_like(mine) for _ in range(self.world)]
        dist.all_gather(states, mine)
        return [state.cpu() for state in states]


def laid_out(value: Tensor, parameter: Tensor) -> Tensor:
    """The fused optimisers walk through memory: moments must lie there as their (channels-last) weights do."""
    return torch.empty_like(parameter).copy_(value) if value.shape == parameter.shape else value


@contextmanager
def process_group(device: torch.device = CPU) -> Iterator[None]:
    """Join the other processes when started by `torchrun`; otherwise do nothing."""
    if "RANK" not in os.environ or int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield
        # A process that exits while rank 0 still saves may count as failed, and torchrun would then end rank 0.
        dist.barrier()
    finally:
        dist.destroy_process_group()
