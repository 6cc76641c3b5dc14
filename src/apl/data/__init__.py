"""Data sets, all of them in one form, `LabelledImages`.

- `omniglot`: handwritten characters and the three ways of dividing them (`paper`, `vinyals`, `lake`);
  `from apl.data.omniglot import omniglot` for one part of one split
- `mnist`: digits
- `glyphs`: characters of invented alphabets, which need no file (`strokes`: how a pen draws them)
- `files`: where files are found, or how they are fetched, and `DataError` when neither succeeds
"""

from __future__ import annotations

from apl.data.files import DataError
from apl.data.glyphs import draw_glyphs
from apl.data.labelled import LabelledImages
from apl.data.mnist import load_mnist
from apl.data.omniglot import Part, Split, SplitClasses, check_disjoint, load_omniglot, split_classes

__all__ = [
    "DataError",
    "LabelledImages",
    "Part",
    "Split",
    "SplitClasses",
    "check_disjoint",
    "draw_glyphs",
    "load_mnist",
    "load_omniglot",
    "split_classes",
]
