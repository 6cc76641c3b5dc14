"""What the measurements of the classifier share: embedded characters, streams of them, and where results go."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from rich.console import Console
from rich.progress import track
from torch import Tensor

from apl.checkpoint import current_commit, write_json
from apl.classifier.durable_memory import DurableMemory
from apl.classifier.open_world import OpenWorld
from apl.classifier.session import consolidating
from apl.controller import Controller
from apl.data.omniglot import Part, omniglot
from apl.encoder import embed_all
from apl.learner import Learner
from apl.store import open_store

RESULTS = Path("results")


@dataclass(frozen=True)
class Characters:
    """Embedded drawings with their classes."""

    embeddings: Float[Tensor, "example embed"]
    labels: Int[Tensor, " example"]
    classes: int

    def of(self, classes: Iterable[int]) -> list[Tensor]:
        """The examples of each of these classes."""
        return [(self.labels == c).nonzero()[:, 0] for c in classes]


def embedded(learner: Learner, part: Part, rotations: bool = False) -> Characters:
    data = omniglot("paper", part, rotations, learner.config.encoder.image_size)
    return Characters(embed_all(learner.encoder, data.images), data.labels, len(data.class_names))


def new_world(
    learner: Learner,
    *,
    controller: Controller | None = None,
    max_rows: int | None = None,
    memory: type[DurableMemory] = DurableMemory,
    url: str | Path | None = None,
) -> OpenWorld:
    """An empty memory for embeddings of this learner, as a classifier would have it by default."""
    twin = consolidating(learner).on_embeddings()
    if controller is not None:
        twin.controller = controller
    store = open_store(url, fingerprint=learner.fingerprint(), width=learner.encoder.width)
    return OpenWorld(twin, memory(twin, store, max_rows))


def accuracy(world: OpenWorld, characters: Characters, examples: Int[Tensor, " example"]) -> float:
    return float((answers(world, characters, examples) == characters.labels[examples]).float().mean())


def answers(world: OpenWorld, characters: Characters, examples: Int[Tensor, " example"]) -> Int[Tensor, " example"]:
    """The most probable class of each example."""
    classes = torch.tensor(world.memory.classes)
    return classes[world.first_best(characters.embeddings[examples].numpy())]


def counted(what: str, steps: Sequence[Any]) -> Iterable[Any]:
    """The steps, with a bar on stderr (only on a terminal)."""
    console = Console(stderr=True)
    return track(steps, what, console=console, disable=not console.is_terminal)


def report(row: Mapping[str, Any]) -> None:
    """A line of progress."""
    print(dict(row), file=sys.stderr, flush=True)


def save_result(name: str, rows: Iterable[Mapping[str, Any]], **extra: Any) -> Path:
    """results/NAME.json, with the commit, the machine's kind and the versions."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    context = {
        "commit": current_commit(),
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    write_json(path, {"name": name, **context, **extra, "rows": list(rows)})
    return path
