"""How well an encoder of characters does on what other pens left: to choose by, next to validation characters.

MNIST's training images and scikit-learn's 8×8 digits: other pens, other scanners. MNIST's test images stay unseen.
Latin letters and signs typed in the fonts of matplotlib, as they are and as another pen would have left them.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from apl.data.fonts import print_characters
from apl.data.labelled import LabelledImages
from apl.data.mnist import mnist_part
from apl.data.pens import PenConfig, other_pen
from apl.encoder import ImageEncoder, embed_all, scale_bytes

DRAWS = 200
PER_DIGIT = 150
TYPED = "abdefghijkmnpqrtuyABDEFGHJLMNQRTY&@#$%?+=*<!"
"""Letters whose capitals are other shapes, and signs."""
TYPED_IN = ("DejaVu*.ttf", "STIXGeneral*.ttf", "cmr10.ttf", "cmss10.ttf", "cmtt10.ttf", "cmb10.ttf")


def digit_accuracy(encoder: ImageEncoder, seed: int = 0) -> dict[str, float]:
    """Ten digits and the typed signs, nearest of 1 stored example each and nearest mean of 5, over many draws."""
    size = encoder.config.image_size
    digits = mnist_part("validation")
    few = torch.cat([(digits.labels == label).nonzero()[:PER_DIGIT, 0] for label in range(10)])
    typed = typed_signs(size)
    signs = scale_bytes(typed.images)
    figures = {}
    for name, (images, labels) in {
        "mnist": (digits.images[few].float() / 255, digits.labels[few]),
        "digits8": small_digits(),
        "typed": (signs, typed.labels),
        "typed_pens": (other_pen(signs, PenConfig(), torch.Generator().manual_seed(seed)), typed.labels),
    }.items():
        images = F.interpolate(images, size=(size, size), mode="bicubic", align_corners=False).clamp(0, 1)
        embeddings = F.normalize(embed_all(encoder, images), dim=1)
        for shot in (1, 5):
            figures[f"val_{name}_{shot}shot"] = mean_accuracy(embeddings, labels, shot, seed)
    return figures


def small_digits() -> tuple[Tensor, Tensor]:
    from sklearn.datasets import load_digits

    data = load_digits()
    images = torch.from_numpy(data.images).float()[:, None] / 16
    return images[: 10 * PER_DIGIT], torch.from_numpy(data.target).long()[: 10 * PER_DIGIT]


def typed_signs(size: int) -> LabelledImages:
    import matplotlib

    fonts = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    return print_characters(TYPED, sorted(path for name in TYPED_IN for path in fonts.glob(name)), size)


def mean_accuracy(embeddings: Tensor, labels: Tensor, shot: int, seed: int) -> float:
    generator = torch.Generator().manual_seed(seed)
    right = []
    for _ in range(DRAWS):
        order = torch.randperm(len(labels), generator=generator)
        stored = torch.stack([embeddings[order[labels[order] == c][:shot]].mean(0) for c in labels.unique()])
        guess = (embeddings @ F.normalize(stored, dim=1).T).argmax(1)
        right.append((guess == labels).float().mean())
    return float(torch.stack(right).mean())
