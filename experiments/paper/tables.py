"""Markdown tables: numbers in them, and what the benchmarks measured, for README.md, docs/CLASSIFIER.md and docs/SCALE.md."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from experiments.paper.results import Row, load_rows, result_path

OURS = "apl"
SETS = {"banking77": "BANKING77", "clinc150": "CLINC150", "photographs": "photographs"}


def table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(line) + " |" for line in (head, ["---"] * len(head), *lines))


def percent(row: Mapping[str, Any], name: str = "accuracy", digits: int = 1) -> str:
    """A share in percent with its interval, where it has one."""
    spread = row.get("ci95" if name == "accuracy" else f"{name}_ci95")
    interval = "" if spread is None else f" ± {100 * spread:.{digits}f}"
    return f"{100 * row[name]:.{digits}f}{interval}"


def peers_in_short() -> str:
    """Accuracy on classes seen before, and rows; in bold the best, if its lead excludes zero."""
    methods = [m for m in _methods(_streams().values()) if "plain" not in m]
    lines = []
    for stream, by in _streams().items():
        cells = {m: f"{percent(by[m], 'accuracy_seen')} / {by[m]['rows']:.0f}" for m in methods if m in by}
        marked = {m: f"**{cell}**" if m == _first(by) else cell for m, cell in cells.items()}
        lines.append([stream, *(marked.get(m, "–") for m in methods)])
    return table(["stream, test classes", *("ours" if m == OURS else m for m in methods)], lines)


def _first(by: dict[str, Row]) -> str | None:
    """The best method, if ours is behind it, or ahead of every other, by more than the paired interval."""
    best = max(by, key=lambda method: float(by[method]["accuracy_seen"]))
    compared = [row for method, row in by.items() if method != OURS] if best == OURS else [by[best]]
    leads = [abs(row["accuracy_seen_difference"]) > row["accuracy_seen_difference_ci95"] for row in compared]
    return best if all(leads) else None


def peers_in_full() -> str:
    """Accuracy on classes seen before, rows, and milliseconds per example."""
    methods = _methods(_streams().values())

    def cell(row: Row | None) -> str:
        if row is None:
            return "–"
        return f"{percent(row, 'accuracy_seen')} / {row['rows']:.0f} / {row['ms_per_example']:.1f}"

    lines = [
        [stream, *(cell(by.get(m)) for m in methods), f"{by[OURS]['ece']:.3f}"] for stream, by in _streams().items()
    ]
    return table(["stream", *methods, "ECE of apl"], lines)


def _methods(cells: Iterable[dict[str, Row]]) -> list[str]:
    """All that were measured in most cells, in the order of the file."""
    found = Counter(method for by in cells for method in by)
    return [method for method, count in found.items() if 2 * count >= max(found.values())]


def _streams() -> dict[str, dict[str, Row]]:
    streams: dict[str, dict[str, Row]] = {}
    for row in load_rows("peers"):
        streams.setdefault(row["stream"], {})[row["method"]] = row
    return streams


def batches() -> str:
    """`fit` on whole training sets beside logistic regression."""
    cells: dict[tuple[str, int], dict[str, Row]] = {}
    for row in load_rows("batch"):
        if row["table"] == "fit":
            cells.setdefault((row["set"], row["shot"]), {})[row["method"]] = row
    methods = list(next(iter(cells.values())))
    lines = [
        [SETS.get(name, name), str(shot), *(f"{percent(by[m])} / {100 * by[m]['kept']:.0f}" for m in methods)]
        for (name, shot), by in cells.items()
    ]
    mean = [f"{_mean([by[m]['accuracy'] for by in cells.values()]):.1f}" for m in methods]
    return table(["set", "per class", *methods], [*lines, ["mean", "", *mean]])


def false_alarms() -> str:
    """Known and new examples that are called new when this share of the known ones may be."""
    cells: dict[tuple[str, int], list[Row]] = {}
    for row in load_rows("batch"):
        if row["table"] == "false alarms":
            cells.setdefault((row["set"], row["shot"]), []).append(row)
    asked = [f"{100 * row['asked']:.0f} %" for row in next(iter(cells.values()))]
    lines = []
    for (name, shot), rows in cells.items():
        called = [
            f"{percent(row | {'accuracy': row['known_called_new']})} / {100 * row['new_called_new']:.0f}"
            for row in rows
        ]
        lines.append(
            [SETS.get(name, name), str(shot), *called, f"{rows[0]['auroc']:.3f} ± {rows[0]['auroc_ci95']:.3f}"]
        )
    return table(["set", "per class", *(f"asked {rate}: known / new called new" for rate in asked), "AUROC"], lines)


def speed() -> str:
    def against(row: Row) -> list[str]:
        return (
            ["", ""]
            if row["against"] is None
            else [f"{row['against']}, {row['against_ms']:.1f} ms", f"{row['ratio']:.2f}"]
        )

    lines = [[row["what"], f"{row['ms']:.1f}", *against(row)] for row in load_rows("bench_classifier")]
    return table(["", "ms", "against", "ratio"], lines)


def engine() -> str:
    measured = json.loads(result_path("bench_engine").read_text())
    head = ["rows of 256 numbers, k = 32", "PostgreSQL (pgvector)", "goal"]
    return table(head, _engine_lines(measured["postgresql"]))


def _engine_lines(server: dict[str, Any]) -> Iterator[list[str]]:
    for rows, found in server.get("sizes", {}).items():
        if not rows.isdecimal():
            continue  # how all sizes were measured
        name, question, opening = f"{int(rows):,} rows", found["question"], found["opening"]
        yield [
            f"{name}: a question / the bare query, ms; ratio",
            "{ours_ms} / {bare_ms}; **{ratio}**".format(**question),
            "≤ 1.3",
        ]
        yield [
            f"{name}: opening, s (of its own processor time); MB more, MB in all",
            "{seconds} ({processor_seconds}); {megabytes}, {process_megabytes}".format(**opening),
            "< 1 s, < 300 MB",
        ]
        write = f"{found['write_ms_per_row']}; {found['bytes_per_row']:,}"
        yield [f"{name}: writing, ms a row; bytes a row on disk", write, ""]
        share = str(found["share_of_the_true_16_found"])
        yield [f"{name}: share of the true 16 nearest that the exact search finds", share, "1"]
    if index := server.get("index", {}).get("drawings"):
        yield [
            "HNSW, drawings: rows; share of the true 16 found; ms, exact ms; building, s",
            "{rows:,}; **{recall_at_16}** ({0} to {1}); {approximate_ms}, {exact_ms}; {build_seconds}".format(
                *index["interval_95"], **index
            ),
            "beside it",
        ]
    if milvus := server.get("milvus"):
        name = f"{milvus['rows']:,} rows, Milvus as the index"
        yield [
            f"{name}: a question / its bare query + PostgreSQL's part, ms; ratio",
            "{ours_ms} / {bare_ms} + {tail_ms}; **{ratio}**".format(**milvus["question"]),
            "≤ 1.3",
        ]
        found = f"{milvus['share_of_the_true_16_found']}; {milvus['fill_ms_per_row']}"
        yield [f"{name}: share of the true 16 nearest that it finds; filling it, ms a row", found, "1"]
    if outage := server.get("outage"):
        kept = "{lessons_acknowledged}; {lost}, {twice}, {errors_other_than_503}".format(**outage)
        yield ["two services, kills and a restart: acknowledged; lost, twice, 5xx other than 503", kept, "0, 0, 0"]


def _mean(shares: list[float]) -> float:
    """In percent."""
    return 100 * sum(shares) / len(shares)
