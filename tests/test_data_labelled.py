from __future__ import annotations

import pytest
import torch

from apl.data.labelled import LabelledImages


def three_classes() -> LabelledImages:
    images = torch.arange(6, dtype=torch.uint8).view(6, 1, 1, 1).repeat(1, 1, 4, 4)
    return LabelledImages(images, torch.tensor([0, 0, 1, 1, 2, 2]), ("a", "b", "c"))


def test_only_keeps_the_named_classes_and_numbers_them_in_the_order_given() -> None:
    chosen = three_classes().only(("c", "a"))
    assert chosen.class_names == ("c", "a")
    assert chosen.images[:, 0, 0, 0].tolist() == [0, 1, 4, 5]
    assert chosen.labels.tolist() == [1, 1, 0, 0]


def test_only_names_the_class_it_does_not_know() -> None:
    with pytest.raises(ValueError, match="'z'"):
        three_classes().only(("a", "z"))


def test_rotations_are_new_classes_turned_counter_clockwise() -> None:
    image = torch.zeros(1, 1, 3, 3, dtype=torch.uint8)
    image[0, 0, 0, 2] = 255
    turned = LabelledImages(image, torch.tensor([0]), ("a",)).with_rotations()
    assert turned.class_names == ("a", "a@90", "a@180", "a@270")
    assert turned.labels.tolist() == [0, 1, 2, 3]
    corners = [tuple(where.tolist()) for where in (turned.images[:, 0] > 0).nonzero()[:, 1:]]
    assert corners == [(0, 2), (0, 0), (2, 0), (2, 2)]


def test_the_first_of_each_class_are_kept_and_the_classes_stay() -> None:
    labels = torch.tensor([1, 0, 1, 1, 0, 3])
    images = torch.arange(6, dtype=torch.uint8).view(6, 1, 1, 1)
    few = LabelledImages(images, labels, ("a", "b", "c", "d")).first_of_each(2)
    assert few.labels.tolist() == [0, 0, 1, 1, 3] and few.images.flatten().tolist() == [1, 4, 0, 2, 5]
    assert few.class_names == ("a", "b", "c", "d")
