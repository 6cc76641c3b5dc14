from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from apl.data import LabelledImages, check_disjoint, draw_glyphs
from apl.data.strokes import POINTS, STROKES, Programs, render


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def glyphs() -> LabelledImages:
    return draw_glyphs(60, 10, seeded(0))


def test_every_class_is_drawn_as_often_as_asked(glyphs: LabelledImages) -> None:
    assert glyphs.images.shape == (600, 1, 28, 28)
    assert glyphs.labels.bincount().tolist() == [10] * 60
    assert len(set(glyphs.class_names)) == 60


def test_the_same_seed_gives_the_same_characters_and_another_seed_others(glyphs: LabelledImages) -> None:
    again = draw_glyphs(60, 10, seeded(0))
    assert torch.equal(again.images, glyphs.images) and again.class_names == glyphs.class_names
    other = draw_glyphs(60, 10, seeded(1))
    assert not torch.equal(other.images, glyphs.images)
    check_disjoint(glyphs.class_names, other.class_names)


def test_the_global_random_state_is_neither_used_nor_moved() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    draw_glyphs(3, 2, seeded(0))
    assert torch.equal(torch.get_rng_state(), before)


def test_strokes_are_thin_and_drawings_fill_about_as_much_of_the_sheet_as_omniglot(
    glyphs: LabelledImages,
) -> None:
    ink = glyphs.images[:, 0] > 100
    assert 0.06 < ink.float().mean() < 0.11
    assert (glyphs.images.amax((1, 2, 3)) > 200).float().mean() > 0.99
    heights, widths = ink.any(2).sum(1), ink.any(1).sum(1)
    assert torch.maximum(heights, widths).min() >= 6
    assert torch.maximum(heights, widths).float().mean() == pytest.approx(18, abs=2)


def test_no_drawing_repeats_another(glyphs: LabelledImages) -> None:
    assert len(glyphs.images.flatten(1).unique(dim=0)) == len(glyphs)


def unit_vectors(images: Tensor) -> Tensor:
    blurred = functional.avg_pool2d(images.float(), 3, 2, 1).flatten(1)
    return functional.normalize(blurred, dim=1)


def test_a_class_can_be_told_by_its_other_drawings_but_not_by_every_pixel(glyphs: LabelledImages) -> None:
    # 1-shot, 20 of the classes at a time, nearest neighbour on blurred pixels; Omniglot gives 0.39.
    shown, asked = unit_vectors(glyphs.images).view(60, 10, -1)[:, :2].unbind(1)
    right = []
    for start in range(0, 60, 20):
        similarity = asked[start : start + 20] @ shown[start : start + 20].T
        right.append(similarity.argmax(1) == torch.arange(20))
    accuracy = torch.cat(right).float().mean()
    assert 0.25 < accuracy < 0.75


def test_other_sizes_show_the_same_characters_larger() -> None:
    small = draw_glyphs(4, 2, seeded(5)).images.float()
    large = draw_glyphs(4, 2, seeded(5), size=56).images.float()
    assert large.shape[-2:] == (56, 56)
    cosine = functional.cosine_similarity(functional.avg_pool2d(large, 2).flatten(1), small.flatten(1))
    assert cosine.min() > 0.9


def test_a_straight_stroke_leaves_ink_of_its_width_where_it_ran() -> None:
    control = torch.zeros(1, STROKES, POINTS, 2)
    control[0, 0, :, 0] = torch.linspace(-0.5, 0.5, POINTS)
    present = torch.tensor([[True, False, False, False]])
    # The middle of the sheet runs between rows 13 and 14; half a pixel lower it runs along row 14.
    control[..., 1] = 1 / 28
    image = render(Programs(control, torch.zeros_like(present), present), torch.tensor([1.0]), 28)[0, 0]
    assert image[14, 8:20].tolist() == pytest.approx([1.0] * 12)
    assert image[13, 8:20].tolist() == pytest.approx([0.5] * 12, abs=0.05)
    assert image[15, 8:20].tolist() == pytest.approx([0.5] * 12, abs=0.05)
    assert image[:12].sum() == 0 and image[:, :5].sum() == 0


def test_what_is_drawn_beyond_the_sheet_leaves_no_ink_at_its_edge() -> None:
    control = torch.zeros(1, STROKES, POINTS, 2)
    control[0, 0, :, 0] = 1.2
    control[0, 0, :, 1] = torch.linspace(-2, 2, POINTS)
    present = torch.tensor([[True, False, False, False]])
    image = render(Programs(control, torch.zeros_like(present), present), torch.tensor([1.0]), 28)
    assert image.sum() == 0


@pytest.mark.parametrize(("classes", "drawings", "size"), [(0, 5, 28), (5, 0, 28), (5, 5, 4)])
def test_impossible_requests_are_refused(classes: int, drawings: int, size: int) -> None:
    with pytest.raises(ValueError, match="at least"):
        draw_glyphs(classes, drawings, seeded(0), size)
