"""The table of docs/SCALE.md from results/bench_engine.json."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from experiments.paper.tables import table as markdown

HEAD = ["rows of 256 numbers, k = 32", "PostgreSQL (pgvector)", "goal"]


def table_on(page: str) -> str:
    """The table of results on a page."""
    lines = page[page.index("| " + " | ".join(HEAD) + " |") :].splitlines()
    return "\n".join(itertools.takewhile(lambda line: line.startswith("|"), lines))


def table(result: dict[str, Any]) -> str:
    """Everything measured so far."""
    return markdown(HEAD, lines(result.get("postgresql", {})))


def lines(server: dict[str, Any]) -> Iterator[list[str]]:
    for rows, found in server.get("sizes", {}).items():
        if not rows.isdigit():
            continue
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
    if outage := server.get("outage"):
        kept = "{lessons_acknowledged}; {lost}, {twice}, {errors_other_than_503}".format(**outage)
        yield ["two services, kills and a restart: acknowledged; lost, twice, 5xx other than 503", kept, "0, 0, 0"]
