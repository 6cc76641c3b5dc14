"""`python -m experiments report`: results/claims.json, docs/RESULTS.md, the departures, and the tables of other pages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from experiments.paper import loop_tables
from experiments.paper.baselines_table import baselines, on_vinyals
from experiments.paper.claims import claims_table, extended_table, write_claims
from experiments.paper.departures import write_departures
from experiments.paper.lake import lake_finding
from experiments.paper.published import CELLS, PAPER
from experiments.paper.results import FIGURES, Row, load_rows
from experiments.paper.tables import (
    batches,
    engine,
    false_alarms,
    peers_in_full,
    peers_in_short,
    percent,
    speed,
    table,
)
from experiments.paper.titles import EXPERIMENTS


@dataclass
class Command:
    """Write what follows from the result files; nothing is measured."""

    def run(self) -> None:
        write_report()


RESULTS_PAGE = Path("docs/RESULTS.md")
TABLES: dict[Path, dict[str, Callable[[], str]]] = {
    Path("README.md"): {
        "peers": peers_in_short,
        "experiments": claims_table,
    },
    Path("docs/CLASSIFIER.md"): {
        "batch": batches,
        "false alarms": false_alarms,
        "peers": peers_in_full,
        "speed": speed,
    },
    Path("docs/SCALE.md"): {"engine": engine},
    Path("docs/loop.md"): {
        "labels": loop_tables.labels_needed,
        "coverage": loop_tables.coverage,
        "review": loop_tables.review,
        "drift": loop_tables.drift,
        "speed": loop_tables.speed,
    },
}
"""What stands in a page between `<!-- NAME -->` and `<!-- /NAME -->`, written from the result files."""


def write_report() -> None:
    write_claims()
    write_departures()
    for page, tables in TABLES.items():
        text = page.read_text()
        for name, made in tables.items():
            start, end = f"<!-- {name} -->", f"<!-- /{name} -->"
            if start not in text or end not in text:
                raise ValueError(f"{page} has no place for the table: {start} … {end}")
            before, rest = text.split(start, 1)
            text = f"{before}{start}\n{made()}\n{end}{rest.split(end, 1)[1]}"
        page.write_text(text)
    RESULTS_PAGE.write_text(results_page())


def results_page() -> str:
    """Every claim with its verdict, the whole of table 1, and the figures."""
    parts = [
        "# Results",
        "Written by `python -m experiments report` from the files in `results/`; nothing here is typed by hand. Accuracy in percent "
        "with its 95 % interval over episodes.",
        "## The paper's claims, judged on the paper's form alone\n\n" + claims_table(),
        "## Our extension\n\nThe bundled model `omniglot`, one for every number of classes, which merges what does not surprise; "
        "`OnlineClassifier` reads it.\n\n" + extended_table(),
        "## Table 1\n\n" + table1(),
    ]
    for name, (title, *_) in EXPERIMENTS.items():
        pictures = [f"![{title}](figures/{picture.name})" for picture in sorted(FIGURES.glob(f"{name}*.png"))]
        if said := [*SECTIONS.get(name, list)(), *pictures]:
            parts.append("\n\n".join([f"## {title} (`{name}`)", *said]))
    parts.append(
        "## Measuring again\n\nModels that are too large for the repository are made first: by `--train` of `analogy` and `imagenet-plain`, "
        "and by `apl train` with the presets that `results/claims.json` names.\n\n" + commands()
    )
    return "\n\n".join(parts) + "\n"


def commands() -> str:
    """The command that writes each result file."""
    lines = [
        [one.title, f"`python -m experiments {name}`", f"`results/{one.file or name}.json`"]
        for name, one in EXPERIMENTS.items()
    ]
    lines.append(["Lines of the library that the tests reach", "`make coverage`", "`results/coverage.json`"])
    return table(["what", "command", "file"], lines)


SECTIONS: dict[str, Callable[[], list[str]]] = {
    "lake": lambda: [lake_finding()],
    "baselines": baselines,
    "vinyals": on_vinyals,
}


def table1() -> str:
    """The published numbers, and both forms measured here."""
    lines = [[name, *(f"{cells[c]}" if c in cells else "–" for c in CELLS)] for name, cells in PAPER.items()]
    for file, name in (("paper-form", "the paper's form, trained here"), ("extended", "our extension, one model")):
        found = table1_cells(load_rows(file))
        lines.append([name, *(found.get(cell, "–") for cell in CELLS)])
    return table(["Omniglot, split `paper`", *(f"{way}-way {shot}-shot" for way, shot in CELLS)], lines)


def table1_cells(rows: list[Row]) -> dict[tuple[int, int], str]:
    """Cell → "accuracy ± interval" in percent."""
    return {(row["way"], row["shot"]): percent(row) for row in rows if row["measure"].startswith("table1")}
