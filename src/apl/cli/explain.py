"""`apl explain`: the rows an answer rests on, in words and as a picture."""

from __future__ import annotations

import json as json_format
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from apl.cli.one_line import one_line, utf8
from apl.cli.options import InkOption, JsonOption, MemoryOption, ModelOption, NameOption

if TYPE_CHECKING:
    from PIL import Image

    from apl.classifier.answers import Explanation

TILE, GAP, LINE, COLUMNS = 150, 12, 18, 6
"""Pixels: the side of a picture, the space around it, the height of a line of text; and pictures beside each other."""


@dataclass
class Command:
    """Explain an answer: writes a picture of the query beside its neighbours."""

    image: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="IMAGE|TEXT")]
    """The picture, or the text, to ask about."""
    memory: MemoryOption
    out: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """The picture to write; by default IMAGE's name with .explained.png, in the current directory."""
    name: NameOption = "default"
    model: ModelOption = None
    ink: InkOption = "auto"
    json: JsonOption = False

    def run(self) -> int:
        from apl.cli.found_examples import open_picture
        from apl.cli.memory_option import open_classifier

        with open_classifier(self.memory, self.name, self.model, ink=self.ink, read_only=True) as classifier:
            kind = classifier.input_kind
            if kind == "text" and self.out is not None:
                raise ValueError("texts are explained in words: --out means nothing here")
            try:
                asked = self.image if kind == "text" else open_picture(Path(self.image))
                explanation = classifier.explain(asked)
            except ValueError as error:
                raise ValueError(f"{self.image}: {error}") from None
            payloads = [classifier.store.payload(neighbour.row) for neighbour in explanation.neighbours]
        texts = [p.decode(errors="replace") if kind == "text" and p is not None else "" for p in payloads]
        out, unwritten = None, ""
        if kind != "text":
            # Beside the image it would be in a folder of examples, where the next `apl learn` would find it.
            out = self.out or Path(Path(self.image).stem + ".explained.png")
            try:
                draw(pictured(asked, kind, self.ink), explanation, [kept(p, kind) for p in payloads], out)
            except OSError as error:
                unwritten = f"{out}: {error.strerror or error}; the picture was not written: say where with --out"
                print(one_line(f"apl explain: {unwritten}"), file=sys.stderr)
        if self.json:
            told = {"text" if kind == "text" else "image": utf8(self.image), **explanation.to_dict()}
            told |= {"texts": texts} if kind == "text" else {"picture": None if unwritten else utf8(str(out))}
            print(json_format.dumps(told, ensure_ascii=False))
            return 1 if unwritten else 0
        kernel = next(iter(explanation.kernel), None)
        print(
            f"{one_line(explanation.predicted)}  (kernel: {one_line(kernel)}, nearest row: "
            f"{one_line(explanation.nearest)}, new class: {explanation.probability_new:.3f})"
        )
        for neighbour, text in zip(explanation.neighbours, texts, strict=True):
            said = one_line(f"{neighbour.label}  {text or neighbour.source or ''}")
            print(
                f"  row {neighbour.row:<6} weight {neighbour.weight:.3f}  distance {neighbour.distance:7.3f}  {said}".rstrip()
            )
        if out is not None and not unwritten:
            print(one_line(out))
        return 1 if unwritten else 0


def pictured(picture: Image.Image, kind: str, ink: str) -> Image.Image:
    """What the model sees of a picture: a photograph as it is, a drawing as dark ink on white."""
    from PIL import Image

    from apl.pictures.drawings import read_image

    return Image.fromarray(255 - read_image(picture, ink)) if kind == "drawing" else picture.convert("RGB")


def kept(payload: bytes | None, kind: str) -> Image.Image | None:
    """The picture kept with a row, if there is one."""
    from PIL import ImageOps

    from apl.pictures.image_file import open_image

    if payload is None:
        return None
    try:
        image = open_image(payload)
    except ValueError:  # a memory from a stranger may hold anything
        return None
    return ImageOps.invert(image.convert("L")) if kind == "drawing" else image.convert("RGB")


def draw(query: Image.Image, explanation: Explanation, rows: list[Image.Image | None], out: Path) -> None:
    """The query in the first place, then its neighbours, nearest first."""
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    from apl.cli.found_examples import EXPLANATION_MARK

    tiles = [(_tile(query), "query", f"is {explanation.predicted}")]
    for neighbour, row in zip(explanation.neighbours, rows, strict=True):
        tile = None if row is None else _tile(row)
        tiles.append((tile, str(neighbour.label), f"{neighbour.weight:.2f}   d {neighbour.distance:.1f}"))
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


def _tile(image: Image.Image) -> Image.Image:
    """Fitted into a white square."""
    from PIL import Image

    scale = TILE / max(image.size)
    size = tuple(max(1, round(side * scale)) for side in image.size)
    square = Image.new("RGB", (TILE, TILE), "white")
    square.paste(image.resize(size, Image.Resampling.LANCZOS), tuple((TILE - side) // 2 for side in size))
    return square
