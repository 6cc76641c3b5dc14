"""Data sets, each as `LabelledImages`.

- `omniglot`: handwritten characters and the three ways of dividing them (`paper`, `vinyals`, `lake`)
- `mnist`: digits
- `glyphs`: characters of invented alphabets, which need no file and no torch (`strokes`: how a pen draws them)
- `folder`: your own pictures
- `files`: where files are found, or how they are fetched, and `DataError` when neither succeeds
"""
