"""The result files as Markdown: a few tables for the README and docs/CLASSIFIER.md, everything else in docs/RESULTS.md."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from experiments.paper.baselines_table import baselines_in_full, baselines_in_short, settings_tried
from experiments.paper.bench_tables import (
    calibration,
    eviction,
    features_in_full,
    features_in_short,
    new_or_known,
    order,
    peers_in_full,
    peers_in_short,
    speed,
)
from experiments.paper.experiments import EXPERIMENTS
from experiments.paper.results import FIGURES, Row, load_rows
from experiments.paper.table1 import CELLS, PAPER
from experiments.paper.verdicts import FINDINGS

RESULTS_PAGE = Path("docs/RESULTS.md")
IN_README = (
    "APL (paper)",
    "**ours, one model**",
    "ours, one network",
    "ours, for all pens",
    "paper's architecture",
    "paper's recipe",
)


def table1_cells(rows: list[Row]) -> dict[str, dict[tuple[int, int], str]]:
    """Method → cell → "accuracy ± interval" in percent."""
    table: dict[str, dict[tuple[int, int], str]] = {}
    for row in rows:
        name = {"ours": "**ours, one model**"}.get(row["method"], row["method"])
        spread = "" if row["ci95"] is None else f" ± {100 * row['ci95']:.1f}"
        table.setdefault(name, {})[row["way"], row["shot"]] = f"{100 * row['accuracy']:.1f}{spread}"
    return table


def table1(only: tuple[str, ...] | None = None) -> str:
    """Table 1 from results/table1.json and the published numbers."""
    head = "| Omniglot, split `paper` | " + " | ".join(f"{way}-way {shot}-shot" for way, shot in CELLS) + " |"
    lines = [head, "|---|" + "---|" * len(CELLS)]
    published = {name: {cell: f"{value}" for cell, value in cells.items()} for name, cells in PAPER.items()}
    for name, cells in {**published, **table1_cells(load_rows("table1") + load_rows("fixed-labels"))}.items():
        if only is None or name in only:
            lines.append(f"| {name} | " + " | ".join(cells.get(cell, "–") for cell in CELLS) + " |")
    return "\n".join(lines)


def experiments_table() -> str:
    """One line for each experiment: its first claim, ours, and the verdict."""
    lines = ["| experiment | the paper | ours | reproduced |", "|---|---|---|---|"]
    for name, experiment in EXPERIMENTS.items():
        rows = load_rows(name)
        if rows and name not in ("table1", "paper-form"):
            first = FINDINGS[name](rows)[0]
            lines.append(f"| {experiment.title} (`{name}`) | {first.claim} | {first.ours} | {first.reproduced} |")
    return "\n".join(lines)


TABLES: dict[Path, dict[str, Callable[[], str]]] = {
    Path("README.md"): {
        "peers": peers_in_short,
        "features": features_in_short,
        "table1": lambda: table1(IN_README),
        "experiments": experiments_table,
        "baselines": baselines_in_short,
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
        "## Summary\n\n" + summary_table(),
        "## Table 1\n\n" + table1(),
    ]
    for name, experiment in EXPERIMENTS.items():
        if name == "table1" or not load_rows(name):
            continue
        pictures = [
            f"![{experiment.title}](../{picture.as_posix()})" for picture in sorted(FIGURES.glob(f"{name}*.png"))
        ]
        said = [f"- *{f.claim}*: {f.ours}. Reproduced: **{f.reproduced}**." for f in FINDINGS[name](load_rows(name))]
        table = [baselines_in_full(), settings_tried()] if name == "baselines" else []
        parts.append("\n\n".join([f"## {experiment.title} (`{name}`)", "\n".join(said), *table, *pictures]))
    return "\n\n".join(parts) + "\n"


def summary_table() -> str:
    lines = ["| experiment | claim | ours | reproduced |", "|---|---|---|---|"]
    for name, experiment in EXPERIMENTS.items():
        rows = load_rows(name)
        for finding in FINDINGS[name](rows) if rows else ():
            lines.append(f"| {experiment.title} | {finding.claim} | {finding.ours} | {finding.reproduced} |")
    return "\n".join(lines)


def write_results_page(path: Path = RESULTS_PAGE) -> None:
    path.write_text(results_page())
