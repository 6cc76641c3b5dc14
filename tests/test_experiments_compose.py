from __future__ import annotations

import numpy as np
import pytest
import torch

from apl.data.glyphs import draw_glyphs
from apl.data.labelled import LabelledImages
from experiments.data.compose import ComposedCharacters, compose


@pytest.fixture(scope="module")
def glyphs() -> LabelledImages:
    drawn = LabelledImages.of_glyphs(draw_glyphs(12, 5, np.random.default_rng(0), 28))
    mixed = torch.randperm(len(drawn), generator=torch.Generator().manual_seed(1))
    return LabelledImages(drawn.images[mixed], drawn.labels[mixed], drawn.class_names)


def composed(data: LabelledImages, seed: int = 0) -> LabelledImages:
    return compose(data, 30, torch.Generator().manual_seed(seed))


def test_as_many_new_classes_as_asked_none_of_them_an_old_one(glyphs: LabelledImages) -> None:
    new = composed(glyphs)
    assert len(new.class_names) == 30 and not set(new.class_names) & set(glyphs.class_names)
    assert new.labels.bincount().tolist() == [5] * 30
    assert new.images.shape[1:] == glyphs.images.shape[1:] and new.images.dtype == torch.uint8


def test_the_same_seed_composes_the_same_and_another_others(glyphs: LabelledImages) -> None:
    assert torch.equal(composed(glyphs).images, composed(glyphs).images)
    assert composed(glyphs).class_names != composed(glyphs, 1).class_names


def test_each_half_comes_from_the_class_that_the_name_says() -> None:
    # One class inks the whole sheet, the other nothing: where the two are put beside or above each other, the
    # halves of the sheet tell which is which.
    full = torch.full((3, 1, 28, 28), 255, dtype=torch.uint8)
    blank = torch.zeros_like(full)
    data = LabelledImages(torch.cat([blank, full]), torch.tensor([0, 0, 0, 1, 1, 1]), ("blank", "full"))
    new = compose(data, 4, torch.Generator().manual_seed(0))
    seen = set()
    for number, name in enumerate(new.class_names):
        ink = new.images[new.labels == number].float().mean((0, 1)) / 255
        halves = {"beside": (ink[:, :14], ink[:, 14:]), "above": (ink[:14], ink[14:])}
        first, layout, _ = name.split()
        if layout in halves:
            seen.add(layout)
            before, after = (float(half.mean()) for half in halves[layout])
            assert (before > after + 0.3) == (first == "full"), name
    assert seen


def test_drawings_of_one_class_differ_as_those_it_is_made_of_do(glyphs: LabelledImages) -> None:
    new = composed(glyphs)
    for number in range(30):
        assert len(new.images[new.labels == number].unique(dim=0)) == 5


def test_too_few_classes_are_an_error(glyphs: LabelledImages) -> None:
    with pytest.raises(ValueError, match="of 1 classes 0 others"):
        compose(glyphs.only(glyphs.class_names[:1]), 1, torch.Generator())
    with pytest.raises(ValueError, match="of 2 classes 6 others can be composed, not 7"):
        compose(glyphs.only(glyphs.class_names[:2]), 7, torch.Generator())


def test_composed_characters_are_training_classes_and_no_others() -> None:
    source = ComposedCharacters("glyphs", rotations=False, glyph_classes=6, composed=3)
    plain = source.load("train", 16)
    shown = source.load_training(16, "none")
    assert shown.class_names[:6] == plain.class_names and len(shown.class_names) == 9
    assert len(source.load("validation", 16).class_names) == 6
