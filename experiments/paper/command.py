"""A table or figure of the paper, from trained weights to result file and picture."""

from __future__ import annotations

import json as json_format
import sys
import time
from dataclasses import dataclass
from typing import Annotated

import tyro

from apl.cli.options import JsonOption, arg
from apl.config import DeviceName


@dataclass
class Command:
    """Measure one experiment of the paper (or `all`), write results/NAME.json and its figure.

    `report` makes results/claims.json, docs/RESULTS.md and the README's tables from the result files there are; `all` does both.
    """

    name: Annotated[str, tyro.conf.Positional]
    """Which table or figure."""
    quick: bool = False
    """A small honest version in under two minutes, in results/quick."""
    device: DeviceName = "auto"
    """Where to compute; auto takes the best there is."""
    threads: Annotated[int | None, arg(metavar="N")] = None
    """CPU threads."""
    json: JsonOption = False

    def run(self) -> None:
        import torch

        from apl.checkpoint import is_named
        from apl.data.files import DataError
        from apl.device import find_device
        from experiments.paper.claims import write_claims
        from experiments.paper.departures import write_departures
        from experiments.paper.experiments import EXPERIMENTS
        from experiments.paper.markdown import write_results_page, write_tables
        from experiments.paper.results import load_rows, result_path
        from experiments.paper.subjects import compute_on

        compute_on(find_device(self.device))
        if self.threads:
            torch.set_num_threads(self.threads)
        names = {"all": list(EXPERIMENTS), "report": []}.get(self.name, [self.name])
        for name in names:
            if self.name == "all" and not is_named(EXPERIMENTS[name].needs):
                print(
                    f"{name}: left out, it needs the model {EXPERIMENTS[name].needs!r} of a checkout", file=sys.stderr
                )
                continue
            started = time.monotonic()
            small = " (quick: a small version)" if self.quick else ""
            print(f"{name}: {EXPERIMENTS[name].title}{small} …", file=sys.stderr, flush=True)
            try:
                EXPERIMENTS[name].run(self.quick)
            except (DataError, ImportError) as error:
                if self.name != "all":
                    raise
                print(f"{name}: left out: {error}", file=sys.stderr)
                continue
            print(f"{name}: {result_path(name, self.quick)} in {time.monotonic() - started:.0f} s", file=sys.stderr)
        if self.name in ("all", "report") and not self.quick:
            write_claims()
            write_departures()
            write_tables()
            write_results_page()
        for name in names:
            rows = load_rows(name, self.quick)
            if self.json:
                print(json_format.dumps({"name": name, "rows": rows}))
                continue
            for row in rows:
                interval = "" if row.get("ci95") is None else f" ± {100 * row['ci95']:.2f}"
                what = ", ".join(f"{row[key]}-{key}" for key in ("way", "shot") if row.get(key))
                if "seen" in row and "level" in row:
                    what = f"{row['level']}, {row['decoder']}, k = {row['k']}, {row['seen']} seen"
                stored = f", {row['stored']:.1f} stored" if "stored" in row else ""
                method = row.get("method", "")
                if len({other.get("checkpoint") for other in rows if other.get("method") == method}) > 1:
                    method += f" ({row['checkpoint']})"
                print(f"{method}: {what}: {100 * row['accuracy']:.2f}{interval} %{stored}")
