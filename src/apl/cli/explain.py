"""`apl explain`: the rows an answer rests on, in words and as a picture."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from apl.cli.options import WithClassifier
from apl.cli.terminal import one_line, print_json, table, utf8

if TYPE_CHECKING:
    from PIL import Image

    from apl.classifier.answers import Explanation


@dataclass(kw_only=True)
class Command(WithClassifier):
    """Explain an answer: the stored examples it rests on, listed, and for pictures also shown in one picture."""

    image: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="IMAGE|TEXT")]
    """The picture, or the text, to ask about."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """The picture to write; by default IMAGE's name with .explained.png, in the current directory."""

    def run(self) -> None:
        from apl.cli.contact_sheet import draw, kept_picture
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
            return
        # Beside the image it would be in a folder of examples, where the next `apl learn` would find it.
        out = self.out or Path(Path(self.image).stem + ".explained.png")
        draw([self._as_seen(asked, kind), *(kept_picture(payload, kind) for payload in payloads)], out)
        sources = [row.source or "" for row in explanation.carried]
        self._tell(explanation, sources, {"image": utf8(self.image), "picture": utf8(str(out))})

    def _as_seen(self, picture: Image.Image, kind: str) -> Image.Image:
        """A picture as the model sees it: a photograph in colour, a drawing as dark ink on white."""
        from PIL import Image

        from apl.pictures.drawings import read_image

        return Image.fromarray(255 - read_image(picture, self.ink)) if kind == "drawing" else picture

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
        if "picture" in asked:
            print(one_line(f"{asked['picture']}: the question first, then these rows in order, from left to right"))
