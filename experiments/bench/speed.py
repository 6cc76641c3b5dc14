"""How fast, as ratios to other ways of doing the same: a training step, search and insert."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from tyro.conf import arg


@dataclass
class Command:
    """Time it against the bare network and against other libraries, all taking turns in one run: results/bench.json.

    Limits: a training step at most 1.15 times the bare network; search and insert at most 1.10 times the better of FAISS
    and numpy.
    """

    rounds: Annotated[int, arg(metavar="TURNS")] = 60
    """Turns that each contender takes."""
    threads: Annotated[int, arg(metavar="N")] = 1
    """Threads of every contender."""

    def run(self) -> None:
        import torch

        try:
            import faiss
        except ImportError:
            raise RuntimeError("FAISS is not installed: pip install 'apl-memory[bench]'") from None
        from apl.checkpoint import current_commit, write_json
        from experiments.bench.search import search
        from experiments.bench.timing import threads
        from experiments.bench.training_step import training_step
        from experiments.paper.results import RESULTS

        if self.rounds < 1 or self.threads < 1:
            raise ValueError("rounds and threads must be at least 1")
        with threads(self.threads):
            result = {
                "training_step": training_step(self.rounds),
                "search_and_insert": search(self.rounds),
                "rounds": self.rounds,
                "threads": self.threads,
                "versions": {"torch": torch.__version__, "faiss": faiss.__version__},
                "commit": current_commit(),
            }
        write_json(RESULTS / "bench.json", result)
        for part in ("training_step", "search_and_insert"):
            print(part, result[part])
