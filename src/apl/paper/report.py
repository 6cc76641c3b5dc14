"""One HTML page with every table and figure, the paper beside ours; and the README's table."""

from __future__ import annotations

import base64
import html
from pathlib import Path

from apl.paper.experiments import EXPERIMENTS
from apl.paper.results import RESULTS, Row, figure_path, load_rows
from apl.paper.table1 import CELLS, PAPER

TABLES = ("table1", "experiments")
"""What stands in the README between `<!-- NAME -->` and `<!-- /NAME -->`, written from the result files."""

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
h1, h2 { font-weight: 600 } h2 { margin-top: 2.5rem; border-top: 1px solid #ddd; padding-top: 1.5rem }
table { border-collapse: collapse; font-size: 13px } td, th { padding: .25rem .6rem; text-align: right }
td:first-child, th:first-child { text-align: left } tr + tr { border-top: 1px solid #eee }
img { max-width: 100% } .paper { color: #666 } .wide { overflow-x: auto }
"""
SHOWN = (
    "method",
    "level",
    "decoder",
    "labels",
    "k",
    "task",
    "way",
    "shot",
    "seen",
    "sigma_nats",
    "stored",
    "stored_per_class",
    "accuracy",
    "ci95",
    "episodes",
    "seed",
    "split",
    "checkpoint",
)


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


def experiments_table() -> str:
    """The other experiments in Markdown, a line each: the paper beside ours."""
    lines = ["| experiment | the paper | ours |", "|---|---|---|"]
    for name, experiment in EXPERIMENTS.items():
        rows = load_rows(name)
        if rows and name in OUTCOMES:
            lines.append(f"| {experiment.title} (`{name}`) | {experiment.paper} | {OUTCOMES[name](rows)} |")
    return "\n".join(lines)


def _percent(row: Row, accuracy: str = "accuracy", interval: str = "ci95") -> str:
    return f"{100 * row[accuracy]:.1f} ± {100 * row[interval]:.1f} %"


def _online(rows: list[Row]) -> str:
    last = next(key for key in rows[0] if key.startswith("accuracy_last_") and not key.endswith("ci95"))
    return (
        f"{rows[0]['stored']:.1f} stored ({rows[0]['stored_per_class']:.2f} per class), "
        f"{_percent(rows[0], last, last + '_ci95')} on the last {last.rsplit('_', 1)[1]}"
    )


def _posterior(rows: list[Row]) -> str:
    before = max(row["highest_at_start"] for row in rows)
    after = [row["probability_of_truth"][-1] for row in rows]
    return f"{before:.3f} for every class at first, {min(after):.2f} to {max(after):.2f} for the true one at the end"


def _thousand_way(rows: list[Row]) -> str:
    fixed, *online = rows
    ends = []
    for row in online:
        curve = zip(row["stored_curve"], row["accuracy_curve"], strict=True)
        passed = next((f", the fixed context passed with {s:.0f}" for s, a in curve if a >= fixed["accuracy"]), "")
        end = _percent(row, "accuracy_last_1000", "accuracy_last_1000_ci95")
        ends.append(f"{end} with {row['stored']:.0f} (σ = {row['sigma_nats']:.2g} nats{passed})")
    return f"fixed context of 5000 {_percent(fixed)}; online, at the end " + ", ".join(ends)


def _mnist(rows: list[Row]) -> str:
    one_shot = next(row for row in rows if row["decoder"] == "relational" and row["shot"] == 1)
    online = next(row for row in rows if row["shot"] == 0)
    return f"{_percent(one_shot)} at 1 shot; {_percent(online)} online with {online['stored_per_class']:.0f} stored per class"


def _decoders(rows: list[Row]) -> str:
    at = [row for row in rows if row["way"] == 423]
    return "423-way online: " + ", ".join(
        f"{row['decoder'].replace('_', ' ')} {100 * row['accuracy_last_1000']:.1f} %" for row in at
    )


def _sigma(rows: list[Row]) -> str:
    everything = rows[0]
    best = [row for row in rows if row["accuracy_last_100"] >= everything["accuracy_last_100"] - 0.02]
    least = min(best, key=lambda row: row["stored"])
    return (
        f"σ = 0: {100 * everything['accuracy_last_100']:.1f} % with {everything['stored']:.0f} stored; "
        f"σ = {least['sigma_nats']:.2f}: {100 * least['accuracy_last_100']:.1f} % with {least['stored']:.0f}"
    )


def _continual(rows: list[Row]) -> str:
    return "; ".join(f"{row['method']} {_percent(row)}" for row in rows if row["task"] == "mean")


def _analogy(rows: list[Row]) -> str:
    ours = [row for row in rows if row["method"] == "ours"]
    fixed = next(row for row in ours if row["level"] == "fixed")
    shuffled = [row for row in ours if row["level"] == "shuffled" and row["symbols"] == "one_hot"]
    # Single points are noisy: from where it first passes 95 %, all later ones are told, not the luckiest.
    first = next((i for i, row in enumerate(shuffled) if row["accuracy"] >= 0.95), len(shuffled) - 1)
    later = shuffled[first:]
    accuracies = [100 * row["accuracy"] for row in later]
    return (
        f"{_percent(fixed)} with one example per symbol; shuffled: {min(accuracies):.1f} to {max(accuracies):.1f} % from "
        f"{later[0]['seen']} seen on, {later[0]['stored']:.0f} to {later[-1]['stored']:.0f} stored"
    )


OUTCOMES = {
    "online": _online,
    "posterior": _posterior,
    "per-class": _online,
    "thousand-way": _thousand_way,
    "mnist": _mnist,
    "decoders": _decoders,
    "sigma": _sigma,
    "continual": _continual,
    "analogy": _analogy,
}


def readme_part(name: str) -> str:
    return {"table1": readme_table, "experiments": experiments_table}[name]()


def write_readme_tables(readme: Path = Path("README.md")) -> None:
    text = readme.read_text()
    for name in TABLES:
        start, end = f"<!-- {name} -->", f"<!-- /{name} -->"
        if start not in text or end not in text:
            raise ValueError(f"{readme} has no place for the table: {start} … {end}")
        before, rest = text.split(start, 1)
        text = f"{before}{start}\n{readme_part(name)}\n{end}{rest.split(end, 1)[1]}"
    readme.write_text(text)


def write_report(quick: bool = False) -> Path:
    """results/report.html, with all figures inside."""
    parts = [
        f"<!doctype html><meta charset=utf-8><title>apl: the paper beside ours</title><style>{STYLE}</style>",
        "<h1>Adaptive Posterior Learning: the paper beside ours</h1>",
        "<p>Every number comes from a result file that <code>apl reproduce NAME</code> writes. Accuracy as a "
        "fraction, with the half-width of its 95 % interval.</p>",
    ]
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
