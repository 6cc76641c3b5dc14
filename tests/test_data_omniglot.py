from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from apl.data.files import DataError, PublishedFile
from apl.data.omniglot import OmniglotZip, SplitClasses, check_disjoint, load_omniglot, omniglot, split_classes

DRAWINGS = 3


def archive(name: str, characters: int) -> OmniglotZip:
    return OmniglotZip(PublishedFile("omniglot", name, "", ()), characters, DRAWINGS)


ARCHIVES = (archive("one.zip", 3), archive("two.zip", 2))
BETA = ("Beta/character01", "Beta/character02")


def png(column: int) -> bytes:
    """A black vertical stroke, five pixels wide, on white paper."""
    paper = np.full((105, 105), 255, dtype=np.uint8)
    paper[10:95, column : column + 5] = 0
    file = io.BytesIO()
    Image.fromarray(paper).convert("1").save(file, "PNG")
    return file.getvalue()


def pack(path: Path, first_id: int, characters: list[str], drawings: int = DRAWINGS) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("images/", b"")
        # The last character first: the order of the archive must not matter.
        for number, name in reversed(list(enumerate(characters))):
            for drawer in range(1, drawings + 1):
                column = 20 * number + drawer
                file.writestr(f"images/{name}/{first_id + number:04d}_{drawer:02d}.png", png(column))
        file.writestr("__MACOSX/images/._rubbish.png", b"not a picture")


@pytest.fixture
def folder(own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two complete small archives, as supplied through `APL_DATA`."""
    folder = tmp_path / "data" / "omniglot"
    # The ids of the published files do not follow the alphabet either.
    pack(folder / "one.zip", 1, ["Zeta/character01", "Zeta/character02", "Alpha/character01"])
    pack(folder / "two.zip", 4, list(BETA))
    monkeypatch.setenv("APL_DATA", str(folder.parent))
    return folder


def test_characters_are_ordered_by_their_published_ids_and_ink_is_bright(folder: Path) -> None:
    data = load_omniglot(archives=ARCHIVES)
    assert data.class_names == (
        "Zeta/character01",
        "Zeta/character02",
        "Alpha/character01",
        *BETA,
    )
    assert data.labels.tolist() == [label for label in range(5) for _ in range(DRAWINGS)]
    assert data.images.shape == (15, 1, 28, 28)
    brightest = data.images[:, 0, 14].argmax(1)
    # Strokes stand 20 of 105 pixels apart from one character to the next.
    assert brightest[:9:3].tolist() == pytest.approx([(20 * i + 3.5) * 28 / 105 for i in range(3)], abs=1)
    assert (data.images[:, 0, 0] < 20).all() and (data.images.amax((1, 2, 3)) > 200).all()


def test_images_come_in_the_size_asked_for_and_each_size_has_its_own_cache(folder: Path) -> None:
    assert load_omniglot(28, archives=ARCHIVES).images.shape[-2:] == (28, 28)
    assert load_omniglot(20, archives=ARCHIVES).images.shape[-2:] == (20, 20)
    assert load_omniglot(28, archives=ARCHIVES).images.shape[-2:] == (28, 28)


def truncated(length: int) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(path.read_bytes()[:length])


def with_a_broken_picture(path: Path) -> None:
    content = bytearray(path.read_bytes())
    start = content.index(b"IDAT")
    content[start : start + 40] = bytes(40)
    path.write_bytes(content)


def without_pictures(path: Path) -> None:
    names = zipfile.ZipFile(path).namelist()
    with zipfile.ZipFile(path, "w") as file:
        for name in names:
            file.writestr(name, b"hello")


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        *((truncated(length), r"Delete it.*APL_DATA") for length in (0, 10, 500, -30)),
        (with_a_broken_picture, ""),
        (without_pictures, "not a picture"),
        (lambda path: pack(path, 4, ["Beta/character01"]), "holds 1 characters where 2 are expected"),
        (lambda path: pack(path, 4, list(BETA), drawings=2), "has 2 drawings where 3 are expected"),
    ],
)
def test_a_damaged_zip_is_named_with_the_way_out_and_leaves_no_cache(
    folder: Path, own_cache: Path, damage: Callable[[Path], object], said: str
) -> None:
    damage(folder / "two.zip")
    with pytest.raises(DataError, match=rf"two\.zip is damaged.*{said}"):
        load_omniglot(archives=ARCHIVES)
    assert not (own_cache / "parsed").exists()


NAMES = [f"{alphabet}/character01" for alphabet in ("Latin", "Hebrew", "Bengali", "Keble", "Tibetan")]


def test_each_split_puts_an_alphabet_on_its_own_side() -> None:
    latin, hebrew, bengali, keble, tibetan = NAMES
    assert split_classes(NAMES, "paper") == SplitClasses((keble, latin), (hebrew,), (bengali, tibetan))
    assert split_classes(NAMES, "vinyals") == SplitClasses((latin,), (bengali, hebrew), (keble, tibetan))
    assert split_classes(NAMES, "lake") == SplitClasses((bengali, latin), (hebrew,), (keble, tibetan))


def test_the_vinyals_split_cuts_through_gurmukhi() -> None:
    names = [f"Gurmukhi/character{number}" for number in (41, 42)]
    classes = split_classes(names, "vinyals")
    assert (classes.train, classes.test) == ((names[0],), (names[1],))


def test_the_hash_ignores_the_order_of_names_but_not_the_side_of_one() -> None:
    hashes = {split_classes(NAMES, split).hash for split in ("paper", "vinyals", "lake")}
    assert len(hashes) == 3
    assert split_classes(NAMES[::-1], "paper").hash == split_classes(NAMES, "paper").hash
    assert SplitClasses(("a",), ("b",), ()).hash != SplitClasses(("a",), (), ("b",)).hash


@pytest.mark.parametrize("on_the_other_side", ["A/character01", "A/character01@90", "A/character01|"])
def test_a_class_on_both_sides_is_refused_even_turned_or_mirrored(on_the_other_side: str) -> None:
    with pytest.raises(ValueError, match="'A/character01' is on two sides"):
        SplitClasses(("A/character01",), (), (on_the_other_side,))
    with pytest.raises(ValueError, match="'A/character01' is on two sides"):
        check_disjoint(["A/character01"], [on_the_other_side])


def test_rotations_of_a_class_may_share_its_own_side() -> None:
    check_disjoint(["A/character01", "A/character01@90"], ["A/character02"])


SIZES = {"paper": (1074, 126, 423), "vinyals": (1028, 172, 423), "lake": (838, 126, 659)}


@pytest.mark.data
def test_omniglot_is_complete_and_its_splits_are_the_published_ones(real_data: Path) -> None:
    data = load_omniglot()
    names = data.class_names
    assert len(names) == 1623 and data.labels.bincount().unique().tolist() == [20]
    # Ink covers about a twelfth of a drawing.
    assert 0.07 < (data.images > 127).float().mean() < 0.1
    shown = {(image.numpy().tobytes(), int(label)) for image, label in zip(data.images, data.labels, strict=True)}
    assert len(shown) == len({image for image, _ in shown}), "a drawing stands for two characters"
    for split, sizes in SIZES.items():
        classes = split_classes(names, split)
        assert (len(classes.train), len(classes.validation), len(classes.test)) == sizes
        assert sorted(classes.train + classes.validation + classes.test) == sorted(names)
    assert set(split_classes(names, "vinyals").test) == set(names[1200:])
    turned = omniglot("paper", "test", rotations=True)
    assert len(turned.class_names) == 4 * 423 and len(turned) == 4 * 423 * 20


@pytest.mark.data
def test_the_vinyals_rule_gives_the_list_that_the_literature_uses(real_data: Path) -> None:
    path = real_data / "omniglot" / "split_vinyals.json"
    if not path.is_file():
        pytest.skip(f"{path.name} is not in {path.parent} (found through APL_DATA)")
    published, classes = json.loads(path.read_text()), split_classes(load_omniglot().class_names, "vinyals")
    assert [set(published[part]) for part in ("train", "val", "test")] == [
        set(classes.train),
        set(classes.validation),
        set(classes.test),
    ]


def test_the_encoder_of_lakes_challenge_never_saw_a_test_character_of_the_literature(real_data: Path) -> None:
    names = load_omniglot().class_names
    shown, asked = split_classes(names, "lake"), split_classes(names, "vinyals")
    check_disjoint(shown.train + shown.validation, asked.test)
    with pytest.raises(ValueError, match="on two sides"):
        check_disjoint(shown.test, asked.test)
