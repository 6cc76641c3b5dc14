"""One HTML page with every table and figure, the paper beside ours; and the README's table."""

from __future__ import annotations

import base64
import html
from pathlib import Path

from apl.paper.experiments import EXPERIMENTS
from apl.paper.results import RESULTS, Row, figure_path, load_rows
from apl.paper.table1 import CELLS, PAPER

TABLE_START, TABLE_END = "<!-- table1 -->", "<!-- /table1 -->"

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
h1, h2 { font-weight: 600 } h2 { margin-top: 2.5rem; border-top: 1px solid #ddd; padding-top: 1.5rem }
table { border-collapse: collapse; font-size: 13px } td, th { padding: .25rem .6rem; text-align: right }
td:first-child, th:first-child { text-align: left } tr + tr { border-top: 1px solid #eee }
img { max-width: 100% } .paper { color: #666 } .wide { overflow-x: auto }
"""
SHOWN = ("method", "level", "decoder", "labels", "k", "task", "way", "shot", "seen", "sigma_nats", "stored",
         "stored_per_class", "accuracy", "ci95", "episodes", "seed", "split", "checkpoint")  # fmt: skip


def table1_cells(rows: list[Row]) -> dict[str, dict[tuple[int, int], str]]:
    """Method → cell → "accuracy ± interval" in percent."""
    table: dict[str, dict[tuple[int, int], str]] = {}
    for row in rows:
        name = {"ours": "**ours, one model**"}.get(row["method"], row["method"])
        text = f"{100 * row['accuracy']:.1f} ± {100 * row['ci95']:.1f}"
        table.setdefault(name, {})[row["way"], row["shot"]] = text
    return table


def readme_table() -> str:
    """Table 1 in Markdown, from results/table1.json and the published numbers."""
    head = "| Omniglot, split `paper` | " + " | ".join(f"{way}-way {shot}-shot" for way, shot in CELLS) + " |"
    lines = [head, "|---|" + "---|" * len(CELLS)]
    published = {name: {cell: f"{value}" for cell, value in cells.items()} for name, cells in PAPER.items()}
    for name, cells in {**published, **table1_cells(load_rows("table1"))}.items():
        lines.append(f"| {name} | " + " | ".join(cells.get(cell, "–") for cell in CELLS) + " |")
    return "\n".join(lines)


def write_readme_table(readme: Path = Path("README.md")) -> None:
    text = readme.read_text()
    if TABLE_START not in text or TABLE_END not in text:
        raise ValueError(f"{readme} has no place for the table: {TABLE_START} … {TABLE_END}")
    before, rest = text.split(TABLE_START, 1)
    after = rest.split(TABLE_END, 1)[1]
    readme.write_text(f"{before}{TABLE_START}\n{readme_table()}\n{TABLE_END}{after}")


def write_report(quick: bool = False) -> Path:
    """results/report.html, with all figures inside."""
    parts = [f"<!doctype html><meta charset=utf-8><title>apl: the paper beside ours</title><style>{STYLE}</style>",
             "<h1>Adaptive Posterior Learning: the paper beside ours</h1>",
             "<p>Every number comes from a result file that <code>apl reproduce NAME</code> writes. Accuracy as a "
             "fraction, with the half-width of its 95 % interval.</p>"]  # fmt: skip
    for name, experiment in EXPERIMENTS.items():
        rows = load_rows(name, quick)
        if not rows:
            continue
        parts.append(f"<h2 id={name}>{html.escape(experiment.title)}</h2>")
        parts.append(f"<p class=paper>The paper: {html.escape(experiment.paper)}</p>")
        for picture in sorted(figure_path(name, quick).parent.glob(f"{name}*.png")):
            data = base64.b64encode(picture.read_bytes()).decode()
            parts.append(f'<p><img alt="{html.escape(experiment.title)}" src="data:image/png;base64,{data}"></p>')
        parts.append(_html_table(rows))
    path = (RESULTS / "quick" if quick else RESULTS) / "report.html"
    path.write_text("\n".join(parts))
    return path


def _html_table(rows: list[Row]) -> str:
    columns = [name for name in SHOWN if any(name in row for row in rows)]
    head = "".join(f"<th>{name}</th>" for name in columns)
    body = "".join("<tr>" + "".join(f"<td>{_cell(row.get(name))}</td>" for name in columns) + "</tr>" for row in rows)
    return f"<div class=wide><table><tr>{head}</tr>{body}</table></div>"


def _cell(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.4f}" if isinstance(value, float) else html.escape(str(value))
