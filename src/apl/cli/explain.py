"""`apl explain`: the rows an answer rests on, in words and as a picture."""

from __future__ import annotations

import json as json_format
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

if TYPE_CHECKING:
    from apl.classifier.answers import Explanation


@dataclass
class Command:
    """Explain an answer: writes a picture of the query beside its neighbours."""

    image: Annotated[Path, tyro.conf.Positional]
    memory: str
    """Where the memory lives: a path such as letters.apl, or a URL."""
    out: Path | None = None
    """The picture to write; IMAGE.explained.png by default."""
    name: str = "default"
    model: str | None = None
    """By default the model the memory was made with."""
    ink: str = "auto"
    """dark, light or auto."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> None:
        from apl.classifier.images import read_image
        from apl.cli.learn import open_picture
        from apl.cli.memory_option import open_classifier

        picture = open_picture(self.image)
        out = self.out or self.image.with_name(self.image.stem + ".explained.png")
        with open_classifier(self.memory, self.name, self.model, ink=self.ink, read_only=True) as classifier:
            explanation = classifier.explain(picture)
            payloads = [classifier.store.payload(neighbour.row) for neighbour in explanation.neighbours]
        draw(read_image(picture, self.ink), explanation, payloads, out)
        if self.json:
            print(
                json_format.dumps(
                    {"image": str(self.image), "picture": str(out), **explanation.to_dict()}, ensure_ascii=False
                )
            )
            return
        kernel = next(iter(explanation.kernel), None)
        print(
            f"{explanation.predicted}  (kernel: {kernel}, nearest row: {explanation.nearest}, "
            f"new class: {explanation.probability_new:.3f})"
        )
        for neighbour in explanation.neighbours:
            print(
                f"  row {neighbour.row:<6} weight {neighbour.weight:.3f}  distance {neighbour.distance:7.3f}  "
                f"{neighbour.label}  {neighbour.source or ''}".rstrip()
            )
        print(out)


def draw(query: Any, explanation: Explanation, payloads: list[bytes | None], out: Path) -> None:
    """The query in the first place, then its neighbours, nearest first."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    from apl.classifier.images import from_png

    places = 1 + len(explanation.neighbours)
    columns = min(places, 6)
    lines = -(-places // columns)
    figure, axes = plt.subplots(lines, columns, figsize=(1.6 * columns, 2.0 * lines), squeeze=False)
    for axis in axes.flat:
        axis.set_axis_off()
    first, *others = axes.flat
    first.imshow(255 - query, cmap="gray", vmin=0, vmax=255)
    first.set_title(f"query\n→ {explanation.predicted}", fontsize=8, parse_math=False)
    for axis, neighbour, payload in zip(others, explanation.neighbours, payloads, strict=False):
        if payload is not None:
            axis.imshow(255 - from_png(payload), cmap="gray", vmin=0, vmax=255)
        title = f"{neighbour.label}\n{neighbour.weight:.2f}   d {neighbour.distance:.1f}"
        axis.set_title(title, fontsize=8, parse_math=False)
    figure.tight_layout()
    figure.savefig(out, dpi=110)
    plt.close(figure)
