"""Where ImageNet's photographs are found."""

import io
import zipfile

import numpy as np
import pytest
from PIL import Image

from apl.data.files import DataError
from experiments.data.imagenet import imagenet


def _photo(shade: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (4, 4), (shade,) * 3).save(file, "PNG")
    return file.getvalue()


def _wnids(count=1000):
    return [f"n{number:08d}" for number in range(count)]


def test_a_zip_and_a_folder_of_one_s_own_give_the_same_photographs(tmp_path, monkeypatch):
    zipped, folder = tmp_path / "a", tmp_path / "b"
    (zipped / "imagenet-mini-1000").mkdir(parents=True)
    with zipfile.ZipFile(zipped / "imagenet-mini-1000" / "val.zip", "w") as archive:
        for wnid in reversed(_wnids()):
            for number in (1, 0):
                archive.writestr(f"{wnid}/{number}.png", _photo(number))
                path = folder / "imagenet" / "val" / wnid / f"{number}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(_photo(number))
        archive.writestr("README.md", "not a photograph")
    monkeypatch.setenv("APL_DATA", str(zipped))
    one = imagenet("val")
    monkeypatch.setenv("APL_DATA", str(folder))
    other = imagenet("val")
    assert one.names == other.names and one.identity() == other.identity()
    np.testing.assert_array_equal(one.labels, np.repeat(np.arange(1000), 2))
    assert list(one.contents()) == list(other.contents()) == [_photo(0), _photo(1)] * 1000


def test_of_a_full_training_set_only_so_many_of_each_class_are_taken(tmp_path, monkeypatch):
    for wnid in _wnids():
        folder = tmp_path / "imagenet" / "train" / wnid
        folder.mkdir(parents=True)
        for number in range(21 if wnid == "n00000003" else 1):
            (folder / f"{number:02d}.png").touch()
    monkeypatch.setenv("APL_DATA", str(tmp_path))
    assert np.bincount(imagenet("train").labels)[:5].tolist() == [1, 1, 1, 20, 1]


def test_what_is_missing_is_said(tmp_path, monkeypatch):
    monkeypatch.delenv("APL_DATA", raising=False)
    with pytest.raises(DataError, match="set APL_DATA"):
        imagenet("val")
    monkeypatch.setenv("APL_DATA", str(tmp_path))
    with pytest.raises(DataError, match="neither"):
        imagenet("val")
    (tmp_path / "imagenet" / "val").mkdir(parents=True)
    (tmp_path / "imagenet" / "val" / "a.JPEG").touch()
    with pytest.raises(DataError, match="has 0 classes"):
        imagenet("val")


@pytest.mark.data
def test_the_small_set_has_all_classes(real_data):
    if not (real_data / "imagenet-mini-1000").is_dir():
        pytest.skip(f"no imagenet-mini-1000 in {real_data}")
    found = imagenet("val")
    assert len(found) == 8518 and len(set(found.labels.tolist())) == 1000
    assert found.class_names[0] == "n01440764"
