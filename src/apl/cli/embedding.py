"""Examples read and embedded in batches: in this process, in several, or on a Ray cluster.

Batches come back in their order wherever they were embedded, so one learner learns them as from one process.
"""

from __future__ import annotations

import logging
import socket
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

from apl.classifier.inputs import Examples
from apl.classifier.online import OnlineClassifier
from apl.cli.examples import FoundExample
from apl.cli.terminal import remark
from apl.cli.workers import processes
from apl.pictures.drawings import looks_like_a_photograph
from apl.progress import progress

AT_ONCE = 32
"""Examples in a batch."""
AHEAD = 2
"""Batches per worker that may be on their way: this bounds the memory in use."""
ENCODING = ("model", "encoder", "ink")
"""Parameters of a classifier that decide how an example is read and embedded."""
CONNECT_SECONDS = 5.0


@dataclass
class Batch:
    """Examples that could be read, embedded; and a line about each of the others."""

    examples: list[FoundExample] = field(default_factory=list)
    embedded: Examples | None = None
    failures: list[str] = field(default_factory=list)
    photographs: int = 0
    """How many look like photographs, where the model takes drawings."""


Submit = Callable[[Sequence[FoundExample]], Callable[[], Batch]]
"""Starts to embed some examples; what it returns waits for the result."""


def batches(
    classifier: OnlineClassifier,
    examples: Sequence[FoundExample],
    workers: int | None = None,
    ray: str | None = None,
    bar: bool = True,
) -> Iterator[Batch]:
    """All examples in their order. Those that cannot be read are named on stderr."""
    parts = [examples[start : start + AT_ONCE] for start in range(0, len(examples), AT_ONCE)]
    read = unreadable = photographs = 0
    with _workers(classifier, workers, ray) as (submit, ahead), progress("examples", len(examples), bar) as show:
        for batch in in_order(submit, parts, ahead):
            for failure in batch.failures:
                remark(failure)
            yield batch
            read += len(batch.examples)
            unreadable += len(batch.failures)
            photographs += batch.photographs
            show(read + unreadable)
    if photographs * 10 > read:
        advice = "and this model knows drawings: make the memory with --model photo"
        remark(f"{photographs} of {read} pictures look like photographs, {advice}")


def in_order(submit: Submit, parts: Sequence[Sequence[FoundExample]], ahead: int) -> Iterator[Batch]:
    """The results in the order of the parts, with at most `ahead` of them on their way."""
    pending: deque[Callable[[], Batch]] = deque()
    for part in parts:
        pending.append(submit(part))
        if len(pending) >= ahead:
            yield pending.popleft()()
    while pending:
        yield pending.popleft()()


def embed_batch(classifier: OnlineClassifier, examples: Sequence[FoundExample]) -> Batch:
    batch, read = Batch(), []
    for example in examples:
        try:
            content = example.open()
            read.append(classifier.read(content))
        except ValueError as error:
            batch.failures.append(f"{example.where}: {error}")
            continue
        batch.examples.append(example)
        if classifier.input_kind == "drawing":
            batch.photographs += looks_like_a_photograph(content)
    batch.embedded = classifier.embed(read) if read else None
    return batch


@contextmanager
def _workers(classifier: OnlineClassifier, workers: int | None, ray: str | None) -> Iterator[tuple[Submit, int]]:
    """What embeds, and how many batches it may have on their way."""
    parameters = tuple((name, value) for name, value in classifier.get_params(deep=False).items() if name in ENCODING)
    if ray is not None:
        with _ray_tasks(ray) as (remote, processors):
            yield lambda part: remote(parameters, part), workers or AHEAD * processors
    elif workers is not None and workers > 1:
        with processes(workers) as pool:
            yield lambda part: pool.submit(embed_elsewhere, parameters, part).result, AHEAD * workers
    else:
        yield lambda part: partial(embed_batch, classifier, part), 1


def embed_elsewhere(parameters: tuple[tuple[str, Any], ...], examples: Sequence[FoundExample]) -> Batch:
    """What a worker does."""
    return embed_batch(_worker_classifier(parameters), examples)


@cache
def _worker_classifier(parameters: tuple[tuple[str, Any], ...]) -> OnlineClassifier:
    return OnlineClassifier(**dict(parameters)).open()


@contextmanager
def _ray_tasks(address: str) -> Iterator[tuple[Callable[..., Callable[[], Batch]], int]]:
    """`embed_elsewhere` on a Ray cluster, and the number of its processors."""
    ray = _connected(address)
    task = ray.remote(num_cpus=1)(embed_elsewhere)
    try:
        yield lambda *given: partial(ray.get, task.remote(*given)), max(1, int(ray.cluster_resources().get("CPU", 1)))
    except ray.exceptions.RayError as error:
        raise RuntimeError(f"a worker of the Ray cluster failed: {str(error).strip().splitlines()[-1]}") from None
    finally:
        ray.shutdown()


def _connected(address: str) -> Any:
    try:
        import ray
    except ImportError:
        raise ImportError(
            "--ray needs the package ray, which is not installed: pip install 'apl-memory[ray]'"
        ) from None
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        if port.isdecimal():
            # Ray itself tries for a minute, and may end the process.
            socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
        ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
    except (OSError, RuntimeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise RuntimeError(f"no Ray cluster answers at {address}: {reason}") from None
    return ray
