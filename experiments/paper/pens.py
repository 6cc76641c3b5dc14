"""Other pens: the bundled ensemble beside those that were taught to see through thick, coarse and cropped drawings.

`omniglot` was trained on Omniglot's training characters alone; `drawings`, one network for thin pens and one for all
others, has seen printed characters too, of scripts that none of these tests draws on. MNIST's test digits played no part in any choice; scikit-learn's 8×8 digits and the typed
signs were looked at, without labels of theirs being learnt, when it was chosen.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from apl.data.labelled import LabelledImages
from apl.data.mnist import load_mnist
from apl.encoder import embed_all
from apl.evaluate import fixed_context
from apl.learner import Learner
from apl.pictures.drawings import fit, read_images
from experiments.data.fonts import print_characters
from experiments.paper.results import Row, save_rows
from experiments.paper.subjects import Embedded, Subject, characters, encoder_of, image_size

MODELS = ("omniglot", "omniglot-one", "drawings")
SEED, QUERIES = 1, 5
TYPED = "abdefghijkmnpqrtuyABDEFGHJLMNQRTY&@#$%?+=*<!"
"""Letters whose capitals are other shapes, and signs."""
TYPED_IN = ("DejaVu*.ttf", "STIXGeneral*.ttf", "cmr10.ttf", "cmss10.ttf", "cmtt10.ttf", "cmb10.ttf")


def reproduce(quick: bool = False) -> None:
    rows: list[Row] = []
    for model in MODELS:
        tested = Subject(model, "relational", "neighbourhood", model, Learner.load(model).on_embeddings())
        for drawings, way, data in drawings_of(model, quick):
            for shot in (1, 5):
                episodes = (500 if way <= 20 else 20) // (10 if quick else 1)
                asked: dict[str, Any] = {"way": way, "shot": shot, "episodes": episodes, "seed": SEED}
                got = fixed_context(tested.learner, data.embeddings, data.labels, queries=QUERIES, **asked)
                rows.append(tested.row(data, drawings=drawings, **asked, accuracy=got.mean, ci95=got.ci95))
        save_rows("pens", rows, quick)


def drawings_of(model: str, quick: bool) -> Iterator[tuple[str, int, Embedded]]:
    encoder, size = encoder_of(model), image_size(Learner.load(model))
    mnist, chosen = load_mnist("test"), slice(0, 1000 if quick else None)
    small, small_labels = small_digits()
    larger = F.interpolate(small, size=(size, size), mode="bicubic", align_corners=False).clamp(0, 1)
    for name, split, images, as_they_are, labels in (
        ("MNIST", "mnist-test", mnist.images[chosen], load_mnist("test", size).images[chosen], mnist.labels[chosen]),
        ("8×8 digits", "scikit-learn digits", small, larger, small_labels),
    ):
        placed = torch.from_numpy(fit(read_images(images[:, 0].numpy(), "light"), size))
        yield name, 10, Embedded(embed_all(encoder, as_they_are), labels, split, "")
        yield f"{name} as the classifier places them", 10, Embedded(embed_all(encoder, placed), labels, split, "")
    signs = typed_signs(size)
    yield "typed signs", 20, Embedded(embed_all(encoder, signs.images), signs.labels, "signs in matplotlib's fonts", "")
    for way in (20,) if quick else (20, 423):
        yield "Omniglot", way, characters(False, model=model, quick=quick)


def small_digits() -> tuple[Tensor, Tensor]:
    """The first 1,500 of scikit-learn's 8×8 digits."""
    from sklearn.datasets import load_digits

    data = load_digits()
    images = torch.from_numpy(data.images).float()[:, None] / 16
    return images[:1500], torch.from_numpy(data.target).long()[:1500]


def typed_signs(size: int) -> LabelledImages:
    import matplotlib

    fonts = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    return print_characters(TYPED, sorted(path for name in TYPED_IN for path in fonts.glob(name)), size)
