"""Data sets, all of them in one form: `LabelledImages`."""

from __future__ import annotations

from apl.data.files import DataError
from apl.data.labelled import LabelledImages
from apl.data.omniglot import Split, SplitClasses, load_omniglot, omniglot, split_classes

__all__ = ["DataError", "LabelledImages", "Split", "SplitClasses", "load_omniglot", "omniglot", "split_classes"]
