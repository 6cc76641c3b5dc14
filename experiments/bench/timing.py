"""Timing contenders that take turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from statistics import median

import torch


@dataclass(frozen=True)
class Contender:
    """Something to be timed, and what puts it back to where it started (untimed)."""

    run: Callable[[], object]
    reset: Callable[[], object] = lambda: None


def take_turns(
    contenders: Mapping[str, Contender],
    rounds: int,
    in_a_row: int = 1,
    warm_up: int = 2,
    clock: Callable[[], float] | None = None,
) -> dict[str, list[float]]:
    """Seconds per run in every round, for every contender.

    The order of turns rotates, so that none always follows the same other. In its turn a contender runs
    several times in a row (reset in between, untimed), as it would where it alone is used. With one thread the
    clock is that thread's own, which stands still while the machine serves others; another `clock` may be given.
    """
    clock = clock or (time.thread_time if torch.get_num_threads() == 1 else time.perf_counter)
    names = list(contenders)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(-warm_up, rounds):
        shift = turn % len(names)
        for name in names[shift:] + names[:shift]:
            taken = 0.0
            for _ in range(in_a_row):
                started = clock()
                contenders[name].run()
                taken += clock() - started
                contenders[name].reset()
            if turn >= 0:
                seconds[name].append(taken / in_a_row)
    return seconds


def ratio(ours: list[float], theirs: list[float]) -> float:
    """The median over rounds of how much longer ours took: both of a round met the same load."""
    return median(a / b for a, b in zip(ours, theirs, strict=True))


@contextmanager
def threads(count: int) -> Iterator[None]:
    """The same number of threads for torch, numpy's BLAS and FAISS."""
    from threadpoolctl import threadpool_limits

    before = torch.get_num_threads()
    with ExitStack() as stack:
        stack.enter_context(threadpool_limits(count))
        torch.set_num_threads(count)
        try:
            yield
        finally:
            torch.set_num_threads(before)
