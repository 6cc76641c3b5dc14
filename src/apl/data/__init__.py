"""Data sets, all of them in one form, `LabelledImages`; each name is imported when first asked for.

- `omniglot`: handwritten characters and the three ways of dividing them (`paper`, `vinyals`, `lake`);
  `from apl.data.omniglot import omniglot` for one part of one split
- `mnist`: digits
- `glyphs`: characters of invented alphabets, which need no file and no torch (`strokes`: how a pen draws them)
- `files`: where files are found, or how they are fetched, and `DataError` when neither succeeds
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from apl.data.files import DataError
    from apl.data.glyphs import draw_glyphs
    from apl.data.labelled import LabelledImages
    from apl.data.mnist import load_mnist
    from apl.data.omniglot import Part, Split, SplitClasses, check_disjoint, load_omniglot, split_classes

_HOME = {
    "DataError": "files",
    "LabelledImages": "labelled",
    "Part": "omniglot",
    "Split": "omniglot",
    "SplitClasses": "omniglot",
    "check_disjoint": "omniglot",
    "draw_glyphs": "glyphs",
    "load_mnist": "mnist",
    "load_omniglot": "omniglot",
    "split_classes": "omniglot",
}

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


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"apl.data.{_HOME[name]}"), name)
    raise AttributeError(f"module 'apl.data' has no attribute {name!r}")
