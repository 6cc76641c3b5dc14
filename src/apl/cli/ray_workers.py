"""Reading and embedding on a Ray cluster: like `workers`, with actors in place of processes."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from typing import Any

from apl.classifier.online import OnlineClassifier
from apl.cli.batches import Batch, split
from apl.cli.examples import FoundExample
from apl.cli.workers import AHEAD, Embedder, encoding_parameters, in_order

CONNECT_SECONDS = 5.0


def embed_with_ray(
    classifier: OnlineClassifier, examples: Sequence[FoundExample], address: str, workers: int | None
) -> Iterator[Batch]:
    """All examples in their order, embedded by actors: one for each processor of the cluster unless `workers` is given.

    The folder must lie at the same path on every node, and apl must be installed there.
    """
    ray = _connected(address)
    try:
        count = workers or max(1, int(ray.cluster_resources().get("CPU", 1)))
        parameters = encoding_parameters(classifier)
        actors = cycle([ray.remote(Embedder).options(num_cpus=1).remote(parameters) for _ in range(count)])
        here = [_absolute(example) for example in examples]
        yield from in_order(lambda part: _Pending(ray, next(actors).embed.remote(part)), split(here), AHEAD * count)
    except ray.exceptions.RayError as error:
        raise RuntimeError(f"a worker of the Ray cluster failed: {str(error).strip().splitlines()[-1]}") from None
    finally:
        ray.shutdown()


@dataclass(frozen=True)
class _Pending:
    ray: Any
    reference: Any

    def result(self) -> Batch:
        batch: Batch = self.ray.get(self.reference)
        return batch


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


def _absolute(example: FoundExample) -> FoundExample:
    if isinstance(example.content, Path):
        return replace(example, content=example.content.absolute())
    return example
