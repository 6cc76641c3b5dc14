"""The paper's own form: fixed labels, a decoder of 8 blocks of 512, and a model for each number of classes.

On the bundled encoder, kept as it is (`apl train fixed-1000way --encoder omniglot` and so on), and by the paper's recipe,
everything from scratch (`apl train paper-20way`). The decoders are too large to ship: where one is neither in the
checkout nor in runs/, what was measured before is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from apl.checkpoint import find_model, is_named, read_json
from apl.learner import Learner
from apl.paper.results import Row, load_rows, save_rows
from apl.paper.subjects import Subject, characters
from apl.paper.table1 import cell

NAME = "fixed-labels"
MODELS = {"paper's decoder and labels, our encoder": "fixed-{way}way", "paper's recipe": "paper-{way}way"}
WAYS = (5, 20, 423, 1000)


def reproduce(quick: bool = False) -> None:
    rows, earlier = [], load_rows(NAME, quick)
    for method, name in MODELS.items():
        for way in WAYS:
            rows.extend(measured(method, name.format(way=way), way, quick, earlier))
            save_rows(NAME, rows, quick)


def measured(method: str, name: str, way: int, quick: bool, earlier: list[Row]) -> Iterator[Row]:
    trained_here = Path("runs") / name / "model"
    place = trained_here if (trained_here / "model.json").is_file() else name
    if place == name and not is_named(name):
        yield from (row for row in earlier if (row["method"], row["way"]) == (method, way))
        return
    learner = Learner.load(place)
    described = read_json(find_model(place) / "model.json")
    provenance = described["provenance"]
    trained = {part: provenance.get(part) for part in ("trained_as", "steps", "seconds", "commit", "validation")}
    tested = Subject(method, learner.config.decoder.kind, "fixed", name, learner.on_embeddings())
    for shot in (1, 5):
        data = characters(way > 423, model=described.get("encoder", str(place)), quick=quick)
        yield {**cell(tested, data, way, shot, quick), "trained": trained}
