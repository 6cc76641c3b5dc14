"""The result files as Markdown: a few tables for the README and docs/CLASSIFIER.md, everything else in docs/RESULTS.md."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from experiments.paper.baselines_table import baselines_in_full, settings_tried
from experiments.paper.bench_tables import (
    calibration,
    eviction,
    features_in_full,
    new_or_known,
    order,
    peers_in_full,
    peers_in_short,
    speed,
)
from experiments.paper.claims import claims_table
from experiments.paper.experiments import EXPERIMENTS
from experiments.paper.markdown_table import percent, table
from experiments.paper.results import FIGURES, Row, load_rows
from experiments.paper.table1 import CELLS, PAPER
from experiments.paper.verdicts import FINDINGS

RESULTS_PAGE = Path("docs/RESULTS.md")


def table1_cells(rows: list[Row]) -> dict[str, dict[tuple[int, int], str]]:
    """Method → cell → "accuracy ± interval" in percent."""
    cells: dict[str, dict[tuple[int, int], str]] = {}
    for row in rows:
        name = "**ours, one model**" if row["method"] == "ours" else row["method"]
        cells.setdefault(name, {})[row["way"], row["shot"]] = percent(row)
    return cells


def table1() -> str:
    """Table 1 from results/table1.json and the published numbers."""
    published = {name: {cell: f"{value}" for cell, value in cells.items()} for name, cells in PAPER.items()}
    measured = table1_cells(load_rows("table1") + load_rows("fixed-labels"))
    lines = [[name, *(cells.get(cell, "–") for cell in CELLS)] for name, cells in {**published, **measured}.items()]
    return table(["Omniglot, split `paper`", *(f"{way}-way {shot}-shot" for way, shot in CELLS)], lines)


TABLES: dict[Path, dict[str, Callable[[], str]]] = {
    Path("README.md"): {
        "peers": peers_in_short,
        "experiments": claims_table,
    },
    Path("docs/CLASSIFIER.md"): {
        "calibration": calibration,
        "features": features_in_full,
        "new or known": new_or_known,
        "order": order,
        "eviction": eviction,
        "peers": peers_in_full,
        "speed": speed,
    },
}
"""What stands in a page between `<!-- NAME -->` and `<!-- /NAME -->`, written from the result files."""


def write_tables() -> None:
    for page, tables in TABLES.items():
        text = page.read_text()
        for name, made in tables.items():
            start, end = f"<!-- {name} -->", f"<!-- /{name} -->"
            if start not in text or end not in text:
                raise ValueError(f"{page} has no place for the table: {start} … {end}")
            before, rest = text.split(start, 1)
            text = f"{before}{start}\n{made()}\n{end}{rest.split(end, 1)[1]}"
        page.write_text(text)


def results_page() -> str:
    """Every claim with its verdict, the whole of table 1, and the figures."""
    parts = [
        "# Results",
        "Written by `python -m experiments report` from the files in `results/`; nothing here is typed by hand. Accuracy in percent "
        "with its 95 % interval over episodes. Each model was trained once.",
        "## The paper's claims, judged on the paper's form alone\n\n" + claims_table(),
        "## Our extension\n\n" + summary_table(),
        "## Table 1\n\n" + table1(),
    ]
    for name, experiment in EXPERIMENTS.items():
        if name == "table1" or not load_rows(name):
            continue
        pictures = [
            f"![{experiment.title}](figures/{picture.name})" for picture in sorted(FIGURES.glob(f"{name}*.png"))
        ]
        said = [f"- *{f.claim}*: {f.ours}. Reproduced: **{f.reproduced}**." for f in FINDINGS[name](load_rows(name))]
        more = [baselines_in_full(), settings_tried()] if name == "baselines" else []
        parts.append("\n\n".join([f"## {experiment.title} (`{name}`)", "\n".join(said), *more, *pictures]))
    return "\n\n".join(parts) + "\n"


def summary_table() -> str:
    found = [(e.title, f) for name, e in EXPERIMENTS.items() if (rows := load_rows(name)) for f in FINDINGS[name](rows)]
    return table(
        ["experiment", "claim", "ours", "reproduced"], [[title, f.claim, f.ours, f.reproduced] for title, f in found]
    )


def write_results_page(path: Path = RESULTS_PAGE) -> None:
    path.write_text(results_page())
