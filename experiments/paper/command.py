"""A table or figure of the paper, from trained weights to result file and picture."""

from __future__ import annotations

import json as json_format
import sys
import time
from dataclasses import dataclass
from typing import Annotated

import tyro

from apl.cli.options import JsonOption, arg


@dataclass
class Command:
    """Measure one experiment of the paper (or `all`), write results/NAME.json and its figure.

    `report` makes results/claims.json, docs/RESULTS.md and the README's tables from the result files there are; `all` does both.
    """

    name: Annotated[str, tyro.conf.Positional]
    """Which table or figure."""
    quick: bool = False
    """A small honest version in under two minutes, in results/quick."""
    threads: Annotated[int | None, arg(metavar="N")] = None
    """CPU threads."""
    json: JsonOption = False

    def run(self) -> None:
        import torch

        from experiments.paper.experiments import EXPERIMENTS
        from experiments.paper.report import write_report
        from experiments.paper.results import load_rows

        if self.threads:
            torch.set_num_threads(self.threads)
        names = {"all": list(EXPERIMENTS), "report": []}.get(self.name, [self.name])
        for name in names:
            self._measure(name)
        if self.name in ("all", "report") and not self.quick:
            write_report()
        for name in names:
            rows = load_rows(name, self.quick)
            if self.json:
                print(json_format.dumps({"name": name, "rows": rows}))
            else:
                print("\n".join(line(row) for row in rows))

    def _measure(self, name: str) -> None:
        """With `all`, an experiment that lacks its model or data is left out."""
        from apl.checkpoint import is_named
        from apl.data.files import DataError
        from experiments.paper.experiments import EXPERIMENTS
        from experiments.paper.results import result_path

        needed = EXPERIMENTS[name].needs
        if self.name == "all" and not is_named(needed):
            print(f"{name}: left out, it needs the model {needed!r} of a checkout", file=sys.stderr)
            return
        started = time.monotonic()
        print(f"{name}: {EXPERIMENTS[name].title} …", file=sys.stderr, flush=True)
        try:
            EXPERIMENTS[name].run(self.quick)
        except (DataError, ImportError) as error:
            if self.name != "all":
                raise
            print(f"{name}: left out: {error}", file=sys.stderr)
            return
        print(f"{name}: {result_path(name, self.quick)} in {time.monotonic() - started:.0f} s", file=sys.stderr)


def line(row: dict) -> str:
    """What a row says, for the terminal."""
    interval = "" if row.get("ci95") is None else f" ± {100 * row['ci95']:.2f}"
    about = [str(row[key]) for key in ("measure", "method", "checkpoint", "level", "decoder") if row.get(key)]
    about += [f"{row[key]}-{key}" for key in ("way", "shot") if row.get(key)]
    stored = f", {row['stored']:.1f} stored" if "stored" in row else ""
    return f"{', '.join(about)}: {100 * row['accuracy']:.2f}{interval} %{stored}"
