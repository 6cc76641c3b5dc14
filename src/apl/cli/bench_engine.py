"""`apl bench engine`: recall on a database server, against the server's own bare query."""

from __future__ import annotations

import json as json_format
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro


@dataclass
class Command:
    """Questions, opening and the index's recall on PostgreSQL or Milvus; a reader that follows a file.

    Limits: a question at most 1.3 times the bare query, opening under a second and 300 MB, an answer after a write at
    most 1.2 times an idle one.
    """

    urls: Annotated[list[str], tyro.conf.Positional, tyro.conf.arg(metavar="URL")]
    """Servers, such as postgresql://… and milvus+http://…; memories named bench-… are made there."""
    embeddings: Annotated[Path, tyro.conf.arg(metavar="FILE")]
    """Real embeddings: an .npz file with arrays x [rows, width] and y [rows]."""
    rows: Annotated[tuple[int, ...], tyro.conf.arg(metavar="N")] = (100_000,)
    """Sizes of the memories."""
    rounds: Annotated[int, tyro.conf.arg(metavar="N")] = 20
    """Turns that each contender takes."""
    output: Annotated[Path, tyro.conf.arg(metavar="FILE")] = Path("results/bench_engine.json")
    """Where the results are kept."""
    json: bool = False
    """Print the results as one JSON object."""

    def run(self) -> int:
        import numpy as np

        from apl.bench.engine import bench
        from apl.checkpoint import current_commit, write_json

        with np.load(self.embeddings, allow_pickle=False) as file:
            x, y = file["x"].astype(np.float32), file["y"].astype(np.int64)
        result = {
            **bench(list(self.urls), x, y, list(self.rows), self.rounds),
            "data": self.embeddings.name,
            "commit": current_commit(),
        }
        self.output.parent.mkdir(parents=True, exist_ok=True)
        write_json(self.output, result)
        print(json_format.dumps(result) if self.json else readable(result))
        return 0


def readable(result: dict) -> str:
    lines = []
    for name, engine in result["engines"].items():
        for size in engine["sizes"]:
            asked, opened = size["question"], size["opening"]
            lines.append(
                f"{name:12} {size['rows']:9,} rows: a question {asked['ours_ms']} ms, bare {asked['bare_ms']} ms "
                f"({asked['ratio']} times); opened in {opened['seconds']} s with {opened['megabytes']} MB"
            )
        index = engine["hnsw"]
        lines.append(f"{name:12} {index['rows']:9,} rows: HNSW finds {index['recall']} of the nearest {index['k']}")
    follower = result["follower"]
    lines.append(f"follower     {follower['rows']:9,} rows: {follower['ratio']} times an idle answer after a write")
    return "\n".join(lines)
