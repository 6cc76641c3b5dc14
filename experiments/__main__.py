"""`python -m experiments NAME [options]`: measure again what `results/NAME.json` holds."""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from typing import Annotated

import tyro

from apl.checkpoint import current_commit
from apl.cli import run_command
from experiments.paper.titles import TITLES

MEASURED = {
    "paper-form": "paper.paper_form:reproduce",
    "extended": "paper.paper_form:reproduce_extended",
    "ablations": "paper.ablations:reproduce",
    "lake": "paper.lake:reproduce",
    "imagenet": "paper.imagenet:reproduce",
    "baselines": "bench.baselines:reproduce",
    "peers": "bench.baselines:reproduce_peers",
}
"""The function below `experiments` that measures each of them, given `--quick` or not."""
COMMANDS = {
    "analogy": "paper.analogy",
    "imagenet-plain": "paper.imagenet",
    "classifier-speed": "bench.classifier_speed",
    "training-step": "bench.training_step",
    "features": "bench.features",
    "batch": "bench.batch",
    "loop": "bench.loop",
    "service": "bench.service",
    "storage": "bench.storage",
    "engine": "bench.engine",
}
"""Modules below `experiments` with options of their own."""
NAMES = (*MEASURED, *COMMANDS, "report")


@dataclass
class Command:
    """Measure one experiment, write results/NAME.json and its figure."""

    name: Annotated[str, tyro.conf.Positional]
    """Which table or figure."""
    quick: bool = False
    """A small honest version, in results/quick."""

    def run(self) -> None:
        module, function = MEASURED[self.name].split(":")
        getattr(importlib.import_module(f"experiments.{module}"), function)(self.quick)


def main(argv: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if argv is None else argv
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage())
        return 0
    name, *rest = arguments
    if name not in NAMES:
        print(f"experiments: no experiment {name!r}; there are: {', '.join(NAMES)}", file=sys.stderr)
        return 2
    if name == "report":
        from experiments.paper.report import write_report

        write_report()
        return 0
    if not {"--quick", "-h", "--help"} & set(rest) and current_commit().endswith("-dirty"):
        print("experiments: commit first, results name the commit that they were measured at", file=sys.stderr)
        return 2
    if name in COMMANDS:
        return run_command(f"python -m experiments {name}", f"experiments.{COMMANDS[name]}", rest)
    return run_command("python -m experiments", "experiments.__main__", arguments)


def usage() -> str:
    width = max(map(len, NAMES))
    lines = ["usage: python -m experiments NAME [options]", ""]
    return "\n".join([*lines, *(f"  {name:<{width}}  {TITLES[name]}" for name in NAMES)])


if __name__ == "__main__":
    sys.exit(main())
