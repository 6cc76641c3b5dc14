"""What all benches share: contenders that take turns, and figures of quality."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from statistics import median

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

WARM_UP, BINS = 2, 15


def take_turns(
    contenders: Mapping[str, Callable[[], object]], rounds: int, clock: Callable[[], float] | None = None
) -> dict[str, list[float]]:
    """Seconds of every contender in every round, after two rounds that do not count.

    The order of turns rotates, so that none always follows the same other. With one thread the clock is that thread's own, which
    stands still while the machine serves others; another `clock` may be given.
    """
    clock = clock or (time.thread_time if torch.get_num_threads() == 1 else time.perf_counter)
    names = list(contenders)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(-WARM_UP, rounds):
        shift = turn % len(names)
        for name in names[shift:] + names[:shift]:
            started = clock()
            contenders[name]()
            if turn >= 0:
                seconds[name].append(clock() - started)
    return seconds


def ratio(ours: list[float], theirs: list[float]) -> float:
    """The median over rounds of how much longer ours took: both of a round met the same load."""
    return median(a / b for a, b in zip(ours, theirs, strict=True))


@contextmanager
def threads(count: int) -> Iterator[None]:
    """The same number of threads for torch and numpy's BLAS."""
    from threadpoolctl import threadpool_limits

    before = torch.get_num_threads()
    with threadpool_limits(count):
        torch.set_num_threads(count)
        try:
            yield
        finally:
            torch.set_num_threads(before)


def calibration_error(confidence: Float[Tensor, " query"], right: Bool[Tensor, " query"]) -> float:
    """Expected calibration error over bins of equal width."""
    p, hit = confidence.numpy(), right.numpy()
    bins = np.minimum((p * BINS).astype(int), BINS - 1)
    gaps = [abs(p[bins == b].mean() - hit[bins == b].mean()) * (bins == b).mean() for b in np.unique(bins)]
    return float(sum(gaps))
