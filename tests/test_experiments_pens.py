"""Other pens: thicker is thicker, a crop fills the sheet, and nothing leaves 0..1."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from apl.data.glyphs import draw_glyphs
from experiments.data.pens import blurred, cropped, other_pen, thickened, thinned, through_grid

IMAGES = torch.from_numpy(draw_glyphs(12, 2, np.random.default_rng(0), 56).images).float() / 255


def test_values_stay_within_bounds_and_every_drawing_keeps_some_ink() -> None:
    seen = other_pen(IMAGES, torch.Generator().manual_seed(0))
    assert seen.shape == IMAGES.shape and 0 <= float(seen.min()) <= float(seen.max()) <= 1
    assert (seen.amax((1, 2, 3)) > 0.2).all()


def test_the_same_seed_gives_the_same_pens() -> None:
    one, two = (other_pen(IMAGES, torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(one, two)


def test_an_empty_batch_stays_empty() -> None:
    assert len(other_pen(IMAGES[:0], torch.Generator())) == 0


def test_strokes_grow_with_the_amount() -> None:
    point = torch.zeros(3, 1, 21, 21)
    point[:, :, 10, 10] = 1
    grown = thickened(point, torch.tensor([0.0, 1.0, 2.0]), 2).sum((1, 2, 3))
    assert float(grown[0]) == 1 and float(grown[1]) > 4 and float(grown[2]) > 2 * float(grown[1])


def test_thick_strokes_shrink_and_thin_ones_are_left_as_they_are() -> None:
    sheets = torch.zeros(2, 1, 30, 30)
    sheets[0, :, 10:20, 5:25] = 1
    sheets[1, :, 10:11, 5:25] = 1
    thin = thinned(sheets, torch.tensor([1.0, 1.0]), 2)
    assert float(thin[0].sum()) == 8 * 18 and torch.equal(thin[1], sheets[1])
    assert torch.equal(thinned(sheets, torch.tensor([0.0, -1.0]), 2), sheets)


@pytest.mark.parametrize("keep_aspect", [True, False])
def test_a_crop_without_margins_brings_the_ink_to_the_edges(keep_aspect: bool) -> None:
    small = torch.zeros(1, 1, 40, 40)
    small[:, :, 10:20, 5:25] = 1
    cut = cropped(small, torch.zeros(1, 4), torch.tensor([keep_aspect]))
    assert float(cut[0, 0, 20, 0]) > 0.7 and float(cut[0, 0, 20, -1]) > 0.7
    top = float(cut[0, 0, 2, 20])
    assert top < 0.1 if keep_aspect else top > 0.9


def test_a_blank_sheet_can_be_cropped() -> None:
    assert float(cropped(torch.zeros(1, 1, 20, 20), torch.zeros(1, 4), torch.tensor([True])).sum()) == 0


def test_a_coarse_grid_keeps_the_amount_of_ink_and_blur_does_too() -> None:
    ink = float(IMAGES.sum())
    assert float(through_grid(IMAGES, 14, "nearest").sum()) == pytest.approx(ink, rel=0.01)
    assert float(blurred(IMAGES, 1.0).sum()) == pytest.approx(ink, rel=0.05)
