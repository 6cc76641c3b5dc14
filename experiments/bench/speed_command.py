"""How fast, as ratios to other ways of doing the same."""

from __future__ import annotations

import json as json_format
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from apl.cli.options import JsonOption, arg


@dataclass
class Command:
    """Time it against the bare network and against other libraries, all taking turns in one run.

    Limits: a training step at most 1.15 times the bare network; search and insert at most 1.10 times the
    better of FAISS and numpy.
    """

    rounds: Annotated[int, arg(metavar="TURNS")] = 60
    """Turns that each contender takes."""
    threads: Annotated[int, arg(metavar="N")] = 1
    """Threads of every contender."""
    output: Annotated[Path, arg(metavar="FILE")] = Path("results/bench.json")
    """Where the results are kept."""
    json: JsonOption = False

    def run(self) -> None:
        import torch

        try:
            import faiss
        except ImportError:
            raise RuntimeError("FAISS is not installed: pip install 'apl-memory[bench]'") from None
        from apl.checkpoint import current_commit, write_json
        from experiments.bench.growth import growth
        from experiments.bench.search import search
        from experiments.bench.timing import threads
        from experiments.bench.training_step import training_step

        if self.rounds < 1 or self.threads < 1:
            raise ValueError("rounds and threads must be at least 1")
        with threads(self.threads):
            result = {
                "training_step": training_step(self.rounds),
                "search_and_insert": search(self.rounds),
                "growth": growth(self.rounds),
                "rounds": self.rounds,
                "threads": self.threads,
                "versions": {"torch": torch.__version__, "faiss": faiss.__version__},
                "commit": current_commit(),
            }
        self.output.parent.mkdir(parents=True, exist_ok=True)
        write_json(self.output, result)
        print(json_format.dumps(result) if self.json else readable(result))


def readable(result: dict) -> str:
    step, grown = result["training_step"], result["growth"]
    lines = [
        f"training step     {step['whole_milliseconds']} ms, bare network {step['bare_milliseconds']} ms: "
        f"{step['ratio']} times (limit 1.15)",
        "search and insert, 32 queries and 32 new rows of 256 numbers, microseconds (limit 1.10)",
        "    rows    k   memory    faiss    numpy   to the better",
    ]
    lines += [
        f"  {r['rows']:6} {r['k']:4} {r['memory_microseconds']:8} {r['faiss_microseconds']:8} "
        f"{r['numpy_microseconds']:8}   {r['ratio_to_best']}"
        for r in result["search_and_insert"]
    ]
    lines += [
        f"growth            {s['rows']} rows: {s['step_microseconds']} µs per step"
        + (f", {s['ratio_to_a_tenth']} times a tenth of the rows" if s["ratio_to_a_tenth"] else "")
        for s in grown["steps"]
    ]
    lines.append(f"memory            {grown['peak_bytes_per_row']} bytes at the peak for a row of {grown['row_bytes']}")
    return "\n".join(lines)
