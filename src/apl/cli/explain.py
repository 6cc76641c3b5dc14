"""`apl explain`: the rows an answer rests on, in words and as a picture."""

from __future__ import annotations

import json as json_format
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from apl.cli.options import InkOption, JsonOption, MemoryOption, ModelOption, NameOption

if TYPE_CHECKING:
    from PIL import Image

    from apl.classifier.answers import Explanation

TILE, GAP, LINE, COLUMNS = 150, 12, 18, 6
"""Pixels: the side of a picture, the space around it, the height of a line of text; and pictures beside each other."""


@dataclass
class Command:
    """Explain an answer: writes a picture of the query beside its neighbours."""

    image: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="IMAGE")]
    """The picture to ask about."""
    memory: MemoryOption
    out: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """The picture to write; by default IMAGE's name with .explained.png, in the current directory."""
    name: NameOption = "default"
    model: ModelOption = None
    ink: InkOption = "auto"
    json: JsonOption = False

    def run(self) -> None:
        from apl.classifier.images import read_image
        from apl.cli.memory_option import open_classifier
        from apl.cli.picture_folder import open_picture

        try:
            picture = open_picture(self.image)
            query = read_image(picture, self.ink)
        except ValueError as error:
            raise ValueError(f"{self.image}: {error}") from None
        # Beside the image it would be in a folder of examples, where the next `apl learn` would find it.
        out = self.out or Path(self.image.stem + ".explained.png")
        with open_classifier(self.memory, self.name, self.model, ink=self.ink, read_only=True) as classifier:
            explanation = classifier.explain(picture)
            payloads = [classifier.store.payload(neighbour.row) for neighbour in explanation.neighbours]
        draw(query, explanation, payloads, out)
        if self.json:
            told = {"image": str(self.image), "picture": str(out), **explanation.to_dict()}
            print(json_format.dumps(told, ensure_ascii=False))
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
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    from apl.classifier.images import from_png
    from apl.cli.picture_folder import EXPLANATION_MARK

    tiles = [(_tile(query), "query", f"→ {explanation.predicted}")]
    for neighbour, payload in zip(explanation.neighbours, payloads, strict=True):
        try:
            kept = None if payload is None else _tile(from_png(payload))
        except ValueError:  # a memory from a stranger may hold anything
            kept = None
        tiles.append((kept, str(neighbour.label), f"{neighbour.weight:.2f}   d {neighbour.distance:.1f}"))
    columns = min(len(tiles), COLUMNS)
    lines = -(-len(tiles) // columns)
    width, height = TILE + GAP, TILE + GAP + 2 * LINE
    sheet = Image.new("RGB", (GAP + columns * width, GAP + lines * height), "white")
    for number, (tile, *texts) in enumerate(tiles):
        left, top = GAP + number % columns * width, GAP + number // columns * height
        for line, text in enumerate(texts):
            write(sheet, text, left, top + line * LINE, TILE)
        if tile is not None:
            sheet.paste(tile, (left, top + 2 * LINE))
    marks = PngInfo()
    for name, text in EXPLANATION_MARK.items():
        marks.add_text(name, text)
    sheet.save(out, "PNG", pnginfo=marks)


def write(sheet: Image.Image, text: str, left: int, top: int, width: int) -> None:
    """One line of text, cut to fit."""
    from PIL import ImageDraw

    from apl.cli.lettering import lettered

    shown, font = lettered(text, 13)
    while font.getlength(shown) > width:
        shown = shown.removesuffix("…")[:-1] + "…"
    ImageDraw.Draw(sheet).text((left, top), shown, fill="black", font=font)


def _tile(sheet: Any) -> Image.Image:
    """Dark ink on white, fitted into a square."""
    from PIL import Image

    image = Image.fromarray(255 - sheet)
    scale = TILE / max(image.size)
    size = tuple(max(1, round(side * scale)) for side in image.size)
    square = Image.new("L", (TILE, TILE), 255)
    square.paste(image.resize(size, Image.Resampling.LANCZOS), tuple((TILE - side) // 2 for side in size))
    return square
