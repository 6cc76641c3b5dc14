"""`apl explain`: the rows an answer rests on, in words and as a picture."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from apl.cli.options import WithClassifier
from apl.cli.terminal import one_line, print_json, table, utf8

if TYPE_CHECKING:
    from PIL import Image

    from apl.classifier.answers import Explanation

TILE, GAP, COLUMNS = 150, 12, 6
"""Pixels of a tile's side and of the space around it; tiles in a row."""


@dataclass(kw_only=True)
class Command(WithClassifier):
    """Explain an answer: the stored examples it rests on, listed, and for pictures also shown in one picture."""

    image: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="IMAGE|TEXT")]
    """The picture, or the text, to ask about."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """The picture to write; by default IMAGE's name with .explained.png, in the current directory."""

    def run(self) -> int:
        from apl.cli.examples import open_picture

        with self.open(read_only=True) as classifier:
            kind = classifier.input_kind
            if kind == "text" and self.out is not None:
                raise ValueError("--out is not valid with a memory of texts: they are explained in words")
            try:
                asked: Any = self.image if kind == "text" else open_picture(Path(self.image))
                explanation = classifier.explain(asked)
            except ValueError as error:
                raise ValueError(f"{self.image}: {error}" if self.image else str(error)) from None
        payloads = [row.payload for row in explanation.carried]
        if kind == "text":
            texts = ["" if payload is None else payload.decode(errors="replace") for payload in payloads]
            self._tell(explanation, texts, {"text": utf8(self.image), "texts": texts})
            return 0
        out = self._drawn([shown(asked, kind, self.ink), *(kept(payload, kind) for payload in payloads)])
        sources = [row.source or "" for row in explanation.carried]
        picture = None if out is None else utf8(str(out))
        self._tell(explanation, sources, {"image": utf8(self.image), "picture": picture})
        return 1 if out is None else 0

    def _drawn(self, pictures: Sequence[Image.Image | None]) -> Path | None:
        """Where the picture was written; None if it could not be."""
        # Beside the image it would be in a folder of examples, where the next `apl learn` would find it.
        out = self.out or Path(Path(self.image).stem + ".explained.png")
        try:
            draw(pictures, out)
        except OSError as error:
            problem = f"{out}: {error.strerror or error}; the picture was not written: choose another place with --out"
            print(one_line(f"apl explain: {problem}"), file=sys.stderr)
            return None
        return out

    def _tell(self, explanation: Explanation, origins: list[str], asked: dict[str, Any]) -> None:
        if self.json:
            print_json({**asked, **explanation.to_dict()})
            return
        print(f"{one_line(explanation.predicted)}  (probability of a new class: {explanation.probability_new:.3f})")
        print(one_line(explanation.why))
        rows = [
            (number, row.label, row.weight, row.examples, row.distance, row.row, origin)
            for number, (row, origin) in enumerate(zip(explanation.carried, origins, strict=True), 1)
        ]
        print(table(("", "label", "weight", "examples", "distance", "row", "example"), rows))
        if asked.get("picture"):
            print(one_line(f"{asked['picture']}: the question first, then these rows in order, from left to right"))


def shown(picture: Image.Image, kind: str, ink: str) -> Image.Image:
    """A picture as the model sees it: a photograph in colour, a drawing as dark ink on white."""
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
    except ValueError:  # an imported memory may hold anything
        return None
    return ImageOps.invert(image.convert("L")) if kind == "drawing" else image.convert("RGB")


def draw(pictures: Sequence[Image.Image | None], out: Path) -> None:
    """A contact sheet of the pictures in order; None leaves its place empty."""
    from PIL import Image, ImageOps
    from PIL.PngImagePlugin import PngInfo

    from apl.cli.examples import EXPLANATION_MARK

    columns = min(len(pictures), COLUMNS)
    step = TILE + GAP
    canvas = Image.new("RGB", (GAP + columns * step, GAP + -(-len(pictures) // columns) * step), "white")
    for number, picture in enumerate(pictures):
        if picture is not None:
            tile = ImageOps.pad(picture.convert("RGB"), (TILE, TILE), Image.Resampling.LANCZOS, color="white")
            canvas.paste(tile, (GAP + number % columns * step, GAP + number // columns * step))
    marks = PngInfo()
    for name, text in EXPLANATION_MARK.items():
        marks.add_text(name, text)
    canvas.save(out, "PNG", pnginfo=marks)
