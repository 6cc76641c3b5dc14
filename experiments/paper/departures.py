"""docs/explanation/departures.md: every departure from the paper, collected from the marks in the source.

A mark is `Deviation:` (an addition or change of this project) or `Release:` (the authors' code, where the paper is silent or
differs), in a docstring or comment, followed by the text up to the end of its paragraph or the next mark.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from apl.evaluate import Estimate
from experiments.paper.ablations import UNCHANGED
from experiments.paper.results import Row, load_rows
from experiments.paper.tables import percent, table

PAGE = Path("docs/explanation/departures.md")
SOURCES = (
    "src/apl",
    "experiments/paper",
    "experiments/presets.py",
    "experiments/training",
)
MARK = re.compile(r"(?<![`\w])(Deviation|Release): ")
INTRODUCTION = """# Where the code departs from the paper

Written by `python -m experiments report` from the marks in the source. `Deviation:` is a choice of this project, `Release:` one of the
authors' own code ([cogentlabs/apl](https://github.com/cogentlabs/apl), 2019) where the paper is silent or says something else.
The defaults of `DecoderConfig`, `ConvConfig` and `LearnerConfig` are the paper's form, except for the neighbourhood labels; an option
that departs from it is off unless a preset turns it on. Everything that is *ours* beyond the paper (merging, several readings, the
rule for new classes) is off in the paper's form, and the verdicts in `results/claims.json` rest on that form alone. What a departure
changes is measured by `python -m experiments ablations`, in short trainings from scratch."""


MEASURED = {
    "add the input of a block to its output": "no skip connections",
    "carries gradient into the (live) query": "distance without gradient",
    "clipped by norm": "gradients not clipped",
    "standard deviation of the Gaussian noise": "noise of 0.1 on images",
    "running mean of the weights": "running mean of the weights",
}
"""Words of a mark, and the variant of `experiments ablations` that does without it, or (noise, mean of weights) with it."""


@dataclass(frozen=True)
class Departure:
    kind: str
    module: str
    text: str


def marks(source: str) -> Iterator[tuple[str, str]]:
    """Each mark of a module with its text, on one line."""
    found = list(MARK.finditer(source))
    ends = [*(mark.start() for mark in found[1:]), len(source)]
    for mark, end in zip(found, ends, strict=False):
        line = source[source.rfind("\n", 0, mark.start()) + 1 : mark.start()]
        text = source[mark.end() : end]
        if "#" in line:
            text = re.split(r"\n(?!\s*#)", text)[0].replace("#", " ")
        text = re.split(r'"""|\n\s*\n', text)[0]
        yield mark[1], " ".join(text.split()).rstrip(".") + "."


def departures(root: Path) -> list[Departure]:
    found = []
    for place in SOURCES:
        start = root / place
        for path in sorted(start.rglob("*.py")) if start.is_dir() else [start] if start.is_file() else []:
            if path.name == Path(__file__).name:
                continue
            module = path.relative_to(root).as_posix().removeprefix("src/")
            found += [Departure(kind, module, text) for kind, text in marks(path.read_text())]
    return found


def cost(text: str, rows: list[Row]) -> str:
    """What a departure changes at 20-way, one shot, by the ablations; empty where none measures it."""
    variant = next((name for words, name in MEASURED.items() if words in text), None)
    at = [row for row in rows if row["way"] == 20 and row["variant"] == variant]
    usual = [row["accuracy"] for row in rows if row["way"] == 20 and row["variant"] == UNCHANGED]
    if not at or not usual:
        return ""
    seeds = Estimate.of(usual)
    presented = percent({"accuracy": seeds.mean, "ci95": seeds.ci95})
    return f"{variant}: {percent(at[0])} (as presented {presented} over {len(usual)} seeds)"


def departures_page(root: Path = Path()) -> str:
    rows = load_rows("ablations")
    lines = [[d.kind, d.text.replace("|", "\\|"), f"`{d.module}`", cost(d.text, rows)] for d in departures(root)]
    return f"{INTRODUCTION}\n\n{table(['kind', 'departure', 'where', '20-way, 1 shot'], lines)}\n"


def write_departures() -> None:
    PAGE.write_text(departures_page())
