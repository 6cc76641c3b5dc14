"""One HTML page: a summary on top, then every experiment with its figures; raw rows only when unfolded."""

from __future__ import annotations

import html
import os
from pathlib import Path

from experiments.paper.experiments import EXPERIMENTS
from experiments.paper.results import RESULTS, Row, figure_path, load_rows
from experiments.paper.verdicts import FINDINGS

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
h1, h2 { font-weight: 600 } h2 { margin-top: 2.5rem; border-top: 1px solid #ddd; padding-top: 1.5rem }
table { border-collapse: collapse; font-size: 13px } td, th { padding: .25rem .6rem; text-align: right; vertical-align: top }
.summary td, .summary th, td:first-child, th:first-child { text-align: left } tr + tr { border-top: 1px solid #eee }
img { max-width: 100% } .wide { overflow-x: auto } nav a { margin-right: 1em } summary { cursor: pointer; color: #555 }
.quick { background: #fff3cd; padding: .6rem 1rem } .yes { color: #0a6b2d } .partly { color: #8a5a00 } .no { color: #a40000 }
"""
SHOWN = (
    "method",
    "protocol",
    "level",
    "runs",
    "decoder",
    "labels",
    "k",
    "task",
    "drawings",
    "way",
    "shot",
    "seen",
    "views",
    "sigma_nats",
    "stored",
    "stored_per_class",
    "kept",
    "ms_per_example",
    "ap_known",
    "ap_new",
    "accuracy",
    "ci95",
    "episodes",
    "seed",
    "split",
    "checkpoint",
    "commit",
)


def write_report(quick: bool = False) -> Path:
    """results/report.html (results/quick/report.html), beside the figures it shows."""
    path = (RESULTS / "quick" if quick else RESULTS) / "report.html"
    measured = {name: rows for name in EXPERIMENTS if (rows := load_rows(name, quick))}
    title = "Adaptive Posterior Learning: the paper beside ours"
    parts = [
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title><style>{STYLE}</style><h1>{title}</h1>",
        "<p>Every number comes from a result file that <code>python -m experiments NAME</code> writes. Intervals are 95 %, over "
        "episodes; each model was trained once.</p>",
    ]
    if quick:
        parts.append(
            "<p class=quick><strong>Quick version:</strong> few episodes, wide intervals. Good to see that everything "
            "runs; not to be quoted.</p>"
        )
    parts.append(_summary(measured))
    links = (f"<a href='#{name}'>{html.escape(EXPERIMENTS[name].title)}</a>" for name in measured)
    parts.append("<nav><strong>Contents</strong><br>" + " ".join(links) + "</nav>")
    for name, rows in measured.items():
        title = html.escape(EXPERIMENTS[name].title)
        parts.append(f"<h2 id={name}>{title}</h2>")
        for finding in FINDINGS[name](rows):
            parts.append(
                f"<p>{html.escape(finding.claim)}<br><strong>{html.escape(finding.ours)}</strong> "
                f"<span class={finding.reproduced}>reproduced: {finding.reproduced}</span></p>"
            )
        for picture in sorted(figure_path(name, quick).parent.glob(f"{name}*.png")):
            where = Path(os.path.relpath(picture, path.parent)).as_posix()
            parts.append(f'<p><img loading=lazy alt="{title}" src="{where}"></p>')
        parts.append(f"<details><summary>{len(rows)} rows</summary>{_html_table(rows)}</details>")
    path.write_text("\n".join(parts) + "\n")
    return path


def _summary(measured: dict[str, list[Row]]) -> str:
    lines = ["<table class=summary><tr><th>experiment<th>claim<th>ours<th>reproduced</tr>"]
    for name, rows in measured.items():
        for finding in FINDINGS[name](rows):
            link = f"<a href='#{name}'>{html.escape(EXPERIMENTS[name].title)}</a>"
            verdict = f"<td class={finding.reproduced}>{finding.reproduced}"
            lines.append(f"<tr><td>{link}<td>{html.escape(finding.claim)}<td>{html.escape(finding.ours)}{verdict}</tr>")
    return "\n".join([*lines, "</table>"])


def _html_table(rows: list[Row]) -> str:
    columns = [name for name in SHOWN if any(name in row for row in rows)]
    head = "".join(f"<th>{name}</th>" for name in columns)
    body = "".join("<tr>" + "".join(f"<td>{_cell(row.get(name))}</td>" for name in columns) + "</tr>" for row in rows)
    return f"<div class=wide><table><tr>{head}</tr>{body}</table></div>"


def _cell(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.4f}" if isinstance(value, float) else html.escape(str(value))
