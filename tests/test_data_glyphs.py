"""Invented characters: as many as asked, all different, and drawn as a hand would."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from apl.data.glyphs import Glyphs, draw_glyphs
from apl.data.omniglot import check_disjoint


def seeded(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.fixture(scope="module")
def glyphs() -> Glyphs:
    return draw_glyphs(40, 8, seeded(0))


def test_every_class_is_drawn_as_often_as_asked(glyphs: Glyphs) -> None:
    assert glyphs.images.shape == (320, 1, 28, 28)
    assert np.bincount(glyphs.labels).tolist() == [8] * 40
    assert len(set(glyphs.class_names)) == 40


def test_the_same_seed_gives_the_same_characters_and_another_seed_others(glyphs: Glyphs) -> None:
    again = draw_glyphs(40, 8, seeded(0))
    assert np.array_equal(again.images, glyphs.images) and again.class_names == glyphs.class_names
    other = draw_glyphs(40, 8, seeded(1))
    assert not np.array_equal(other.images, glyphs.images)
    check_disjoint(glyphs.class_names, other.class_names)


def test_the_global_random_state_is_neither_used_nor_moved() -> None:
    np.random.seed(3)
    before = np.random.get_state()[1].tolist()
    draw_glyphs(3, 2, seeded(0))
    assert np.random.get_state()[1].tolist() == before


def test_drawing_needs_no_torch() -> None:
    program = (
        "import sys, numpy; sys.modules['torch'] = None; from apl.data.glyphs import draw_glyphs; "
        "print(len(draw_glyphs(3, 2, numpy.random.default_rng(0))))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "6"


def test_strokes_are_thin_and_drawings_fill_about_as_much_of_the_sheet_as_omniglot(glyphs: Glyphs) -> None:
    ink = glyphs.images[:, 0] > 100
    assert 0.06 < ink.mean() < 0.11
    assert (glyphs.images.max((1, 2, 3)) > 200).mean() > 0.99
    heights, widths = ink.any(2).sum(1), ink.any(1).sum(1)
    assert np.maximum(heights, widths).min() >= 6
    assert np.maximum(heights, widths).mean() == pytest.approx(18, abs=2)


def test_no_drawing_repeats_another(glyphs: Glyphs) -> None:
    assert len(np.unique(glyphs.images.reshape(320, -1), axis=0)) == len(glyphs)


def halved(images: np.ndarray) -> np.ndarray:
    """Means of two by two pixels."""
    count, _, side, _ = images.shape
    return images.astype(float).reshape(count, side // 2, 2, side // 2, 2).mean((2, 4))


def unit_vectors(images: np.ndarray) -> np.ndarray:
    flat = images.reshape(len(images), -1).astype(float)
    return flat / np.linalg.norm(flat, axis=1, keepdims=True)


def test_a_class_can_be_told_by_its_other_drawings_but_not_by_every_pixel(glyphs: Glyphs) -> None:
    # 1-shot, 20 of the classes at a time, nearest neighbour on blurred pixels; Omniglot gives 0.39.
    vectors = unit_vectors(halved(glyphs.images)).reshape(40, 8, -1)
    shown, asked = vectors[:, 0], vectors[:, 1]
    right = []
    for start in range(0, 40, 20):
        similarity = asked[start : start + 20] @ shown[start : start + 20].T
        right.append(similarity.argmax(1) == np.arange(20))
    assert 0.25 < np.concatenate(right).mean() < 0.75


def test_other_sizes_show_the_same_characters_larger() -> None:
    small = draw_glyphs(4, 2, seeded(5)).images
    large = draw_glyphs(4, 2, seeded(5), size=56).images
    assert large.shape[-2:] == (56, 56)
    assert (unit_vectors(halved(large)) * unit_vectors(small)).sum(1).min() > 0.9


@pytest.mark.parametrize(("classes", "drawings", "size"), [(0, 5, 28), (5, 0, 28), (5, 5, 4)])
def test_impossible_requests_are_refused(classes: int, drawings: int, size: int) -> None:
    with pytest.raises(ValueError, match="at least"):
        draw_glyphs(classes, drawings, seeded(0), size)
