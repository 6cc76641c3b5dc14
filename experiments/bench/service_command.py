"""The service under load, as ratios to the bare encoder in the same run."""

from __future__ import annotations

import json as json_format
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from apl.checkpoint import FOR_DRAWINGS
from apl.cli.options import JsonOption, TrainedModel, arg


@dataclass
class Command:
    """Requests per second and latencies with 1, 8 and 32 clients on this machine, then kill -9 under load.

    Limits: 32 clients get at least twice the throughput of one, the 99th percentile stays under ten times the
    median, no request fails, and no acknowledged lesson is ever lost.
    """

    model: TrainedModel = FOR_DRAWINGS
    seconds: Annotated[float, arg(metavar="SECONDS")] = 5.0
    """How long each measurement takes."""
    kills: Annotated[int, arg(metavar="TIMES")] = 20
    """How often the service is killed."""
    output: Annotated[Path, arg(metavar="FILE")] = Path("results/bench_service.json")
    """Where the results are kept."""
    json: JsonOption = False

    def run(self) -> int:
        import os

        import torch

        from apl.checkpoint import current_commit, write_json
        from experiments.bench.service import bench

        load = os.getloadavg()[0]
        result = {
            **bench(self.model, self.seconds, self.kills),
            "model": self.model,
            "seconds": self.seconds,
            "threads": torch.get_num_threads(),
            "cores": os.cpu_count(),
            "load_average_before": load,
            "versions": {"torch": torch.__version__},
            "commit": current_commit(),
        }
        self.output.parent.mkdir(parents=True, exist_ok=True)
        write_json(self.output, result)
        print(json_format.dumps(result) if self.json else readable(result))
        return 0 if all(result["holds"].values()) else 1


def readable(result: dict) -> str:
    lines = [f"bare encoder  {result['bare_encoder_ms']:.1f} ms a picture"]
    for kind in ("predict", "learn", "learn_new"):
        table = result[kind]
        for clients in ("1", "8", "32"):
            row = table[clients]
            lines.append(
                f"{kind:<10} {clients:>3} clients  {row['per_second']:7.1f}/s  p50 {row['p50_ms']:6.1f} ms "
                f"({row['p50_over_bare_encoder']:.1f}× bare)  p99 {row['p99_ms']:6.1f} ms  "
                f"CPU {row['server_cpu_ms']:.1f} ms  {row['errors']} errors"
            )
        lines.append(f"{kind:<10} 32 clients over 1: {table['speedup_32_over_1']:.2f}×")
    killed = result["kill_9"]
    lines.append(f"kill -9    {killed['kills']} times, {killed['acknowledged']} acknowledged, {killed['lost']} lost")
    for name, value in result["holds"].items():
        lines.append(f"{'holds' if value else 'FAILS'}      {name.replace('_', ' ')}")
    return "\n".join(lines)
