"""`python -m experiments NAME [options]`: measure again what `results/NAME.json` holds."""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from typing import Annotated

import tyro

from apl.checkpoint import current_commit
from apl.cli import run_command
from experiments.paper.titles import EXPERIMENTS


@dataclass
class Command:
    """Measure one experiment, write results/NAME.json and its figure."""

    name: Annotated[str, tyro.conf.Positional]
    """Which table or figure."""
    quick: bool = False
    """A small honest version, in results/quick."""

    def run(self) -> None:
        module, function = EXPERIMENTS[self.name].place.split(":")
        getattr(importlib.import_module(f"experiments.{module}"), function)(self.quick)


def main(argv: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if argv is None else argv
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage())
        return 0
    name, *rest = arguments
    if name not in EXPERIMENTS:
        print(f"experiments: no experiment {name!r}; there are: {', '.join(EXPERIMENTS)}", file=sys.stderr)
        return 2
    measures = name != "report" and not {"--quick", "-h", "--help"} & set(rest)
    if measures and current_commit().endswith("-dirty"):
        print("experiments: commit first, results name the commit that they were measured at", file=sys.stderr)
        return 2
    if ":" in EXPERIMENTS[name].place:
        return run_command("python -m experiments", "experiments.__main__", arguments)
    return run_command(f"python -m experiments {name}", f"experiments.{EXPERIMENTS[name].place}", rest)


def usage() -> str:
    width = max(map(len, EXPERIMENTS))
    lines = ["usage: python -m experiments NAME [options]", ""]
    return "\n".join([*lines, *(f"  {name:<{width}}  {one.title}" for name, one in EXPERIMENTS.items())])


if __name__ == "__main__":
    sys.exit(main())
