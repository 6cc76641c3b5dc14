"""`python -m experiments NAME [options]`: measure again what `results/NAME.json` holds."""

from __future__ import annotations

import sys

from apl.checkpoint import current_commit
from apl.cli import run_command
from experiments.paper.experiments import EXPERIMENTS

PAPER = {
    **{name: experiment.title for name, experiment in EXPERIMENTS.items()},
    "imagenet-plain": "ImageNet in the paper's form: 8 blocks × 1024, fixed labels (--train)",
    "report": "results/claims.json, docs/RESULTS.md and the tables of README.md, from the result files",
    "all": "every experiment above, then the report",
}
TRAINED_HERE = ("analogy", "imagenet-plain")
"""Experiments with options of their own."""
BENCHES = {
    "classifier-speed": "OnlineClassifier against the bare encoder and a numpy scan",
    "training-step": "a training step against the bare network",
    "features": "accuracy on vectors of frozen encoders, beside simple classifiers",
    "batch": "whole batches beside logistic regression, false alarms at an asked rate, drift",
    "loop": "what to label next, sets of labels, labels that look wrong, changes",
    "service": "the service under load, and killed under load",
    "soak": "the service under a mixed load for ten minutes: memory, files, threads",
    "storage": "a file after many examples, and forgetting one source of a million",
    "engine": "memories on PostgreSQL, searched in RAM and on the server",
}


def main(argv: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if argv is None else argv
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage())
        return 0
    name, *rest = arguments
    if name != "report" and not {"--quick", "-h", "--help"} & set(rest) and current_commit().endswith("-dirty"):
        print("experiments: commit first, results name the commit that they were measured at", file=sys.stderr)
        return 2
    if name in TRAINED_HERE:
        return run_command(f"python -m experiments {name}", f"experiments.paper.{name.replace('-', '_')}", rest)
    if name in PAPER:
        return run_command("python -m experiments", "experiments.paper.command", arguments)
    if name in BENCHES:
        return run_command(f"python -m experiments {name}", f"experiments.bench.{name.replace('-', '_')}", rest)
    names = ", ".join([*PAPER, *BENCHES])
    print(f"experiments: no experiment {name!r}; there are: {names}", file=sys.stderr)
    return 2


def usage() -> str:
    parts = {"The paper:": PAPER, "The classifier and its service:": BENCHES}
    width = max(len(name) for names in parts.values() for name in names)
    lines = ["usage: python -m experiments NAME [options]"]
    for part, names in parts.items():
        lines += ["", part, *(f"  {name:<{width}}  {what}" for name, what in names.items())]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
