"""Data sets, each as `LabelledImages`.

- `omniglot`: handwritten characters and the three ways of dividing them (`paper`, `vinyals`, `lake`)
- `glyphs`: characters of invented alphabets, which need no file and no torch
- `folder`: your own pictures
- `files`: where files are found, or how they are fetched, and `DataError` when neither succeeds
"""

from typing import Literal

Split = Literal["paper", "vinyals", "lake"]
"""`paper`: ten whole alphabets (423 characters) are the test. Which ten: `omniglot.PAPER_TEST`.

`vinyals`: the literature's 1028/172/423.
`lake`: train on the authors' background set, test on their evaluation set (659)."""

Part = Literal["train", "validation", "test"]
