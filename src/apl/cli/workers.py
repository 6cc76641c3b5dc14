"""Reading and embedding in several processes. Batches come back in their order, so one learner learns them as from one process."""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import Any, Protocol

from apl.classifier.online import OnlineClassifier
from apl.cli.batches import Batch, embed_batch, split
from apl.cli.examples import FoundExample

AHEAD = 2
"""Batches per worker that may be on their way: this bounds the memory in use."""
ENCODING = ("model", "encoder", "ink", "keep_images")
"""Parameters of a classifier that decide how an example is read and embedded."""


class Embedder:
    """Reads and embeds batches: what runs in each worker."""

    def __init__(self, parameters: dict[str, Any]) -> None:
        self._classifier = OnlineClassifier(**parameters).open()

    def embed(self, examples: Sequence[FoundExample]) -> Batch:
        return embed_batch(self._classifier, examples)


def embed_in_processes(classifier: OnlineClassifier, examples: Sequence[FoundExample], workers: int) -> Iterator[Batch]:
    """All examples in their order, embedded by `workers` processes."""
    parameters = encoding_parameters(classifier)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # workers inherit it: one core for each, numpy's products included
    with ProcessPoolExecutor(workers, get_context("spawn"), _start, (parameters,)) as pool:
        try:
            yield from in_order(lambda part: pool.submit(_embed, part), split(examples), AHEAD * workers)
        except BrokenProcessPool:
            raise RuntimeError(
                "a worker process ended unexpectedly, perhaps for lack of memory: what was learnt so far stays, "
                "and the same command goes on from there"
            ) from None
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def encoding_parameters(classifier: OnlineClassifier) -> dict[str, Any]:
    parameters = classifier.get_params(deep=False)
    return {name: parameters[name] for name in ENCODING}


class Pending(Protocol):
    """A result that is on its way."""

    def result(self) -> Batch: ...


def in_order(
    submit: Callable[[Sequence[FoundExample]], Pending], parts: Iterator[Sequence[FoundExample]], ahead: int
) -> Iterator[Batch]:
    """The results in the order of the parts, with at most `ahead` of them on their way."""
    pending: deque[Pending] = deque()
    for part in parts:
        pending.append(submit(part))
        if len(pending) >= ahead:
            yield pending.popleft().result()
    while pending:
        yield pending.popleft().result()


_embedder: Embedder


def _start(parameters: dict[str, Any]) -> None:
    global _embedder
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that learns
    _embedder = Embedder(parameters)


def _embed(examples: Sequence[FoundExample]) -> Batch:
    return _embedder.embed(examples)
