"""Encoders of one's own: an ONNX file, a callable; what every encoder owes the rest."""

import json

import numpy as np
import pytest
from PIL import Image

from apl.encoders import EncoderError, FrozenEncoder, checked_vectors, encoder_name, open_encoder
from apl.encoders.onnx_file import OnnxFileEncoder
from apl.encoders.python_callable import CallableEncoder

RED = Image.new("RGB", (40, 30), (250, 100, 0))


def _mean_colour(path, *, layout="NCHW", channels=3, size=8, outputs=1, batch="photo"):
    """A graph whose vector is the mean of each channel: what it says shows what it was given."""
    onnx = pytest.importorskip("onnx")
    axes = [2, 3] if layout == "NCHW" else [1, 2]
    shape = [batch, channels, size, size] if layout == "NCHW" else [batch, size, size, channels]
    names = [f"vector{i}" for i in range(outputs)]
    nodes = [onnx.helper.make_node("ReduceMean", ["x"], [name], axes=axes, keepdims=0) for name in names]
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        nodes, "mean", [value("x", 1, shape)], [value(name, 1, [batch, channels]) for name in names]
    )
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def _told(path, **json_fields):
    path.with_suffix(".json").write_text(json.dumps(json_fields))
    return path


def test_the_json_says_how_pixels_enter(tmp_path):
    path = _mean_colour(tmp_path / "m.onnx")
    plain = open_encoder(_told(path, size=8))
    assert plain.width == 3 and isinstance(plain, FrozenEncoder)
    np.testing.assert_allclose(plain.embed([plain.read(RED)]), [[250 / 255, 100 / 255, 0]], atol=1e-5)
    turned = OnnxFileEncoder(_told(path, size=8, colour="BGR", mean=[1, 2, 3], scale=[1, 2, 4]))
    np.testing.assert_allclose(turned.embed([turned.read(RED)]), [[-1, 49, 247 / 4]], atol=1e-4)
    assert turned.fingerprint != plain.fingerprint


def test_layout_and_grey_are_obeyed(tmp_path):
    last = OnnxFileEncoder(_told(_mean_colour(tmp_path / "a.onnx", layout="NHWC"), size=8, layout="NHWC", scale=1))
    np.testing.assert_allclose(last.embed([last.read(RED)]), [[250, 100, 0]], atol=1e-3)
    grey = OnnxFileEncoder(_told(_mean_colour(tmp_path / "b.onnx", channels=1), size=8, colour="grey", scale=1))
    np.testing.assert_allclose(grey.embed([grey.read(RED)] * 11), [[0.299 * 250 + 0.587 * 100]] * 11, rtol=1e-4)


def test_a_graph_for_one_picture_at_a_time_takes_many(tmp_path):
    one = OnnxFileEncoder(_told(_mean_colour(tmp_path / "m.onnx", batch=1), size=8, scale=1))
    assert one.embed([one.read(RED)] * 10).shape == (10, 3)


def test_an_output_is_chosen_by_name(tmp_path):
    path = _mean_colour(tmp_path / "m.onnx", outputs=2)
    with pytest.raises(EncoderError, match="several outputs.*vector0, vector1"):
        OnnxFileEncoder(_told(path, size=8))
    with pytest.raises(EncoderError, match="no output 'vector7'.*vector0, vector1"):
        OnnxFileEncoder(_told(path, size=8, output="vector7"))
    assert OnnxFileEncoder(_told(path, size=8, output="vector1")).width == 3


@pytest.mark.parametrize(
    "told, why",
    [
        ({}, '"size"'),
        ({"size": 0}, "1 to 4096"),
        ({"size": "8"}, "1 to 4096"),
        ({"size": 8, "colour": "CMYK"}, "RGB"),
        ({"size": 8, "layout": "CHWN"}, "NCHW"),
        ({"size": 8, "mean": [1, 2]}, "mean is one number or 3"),
        ({"size": 8, "mean": "red"}, "mean is one number"),
        ({"size": 8, "scale": 0}, "divided"),
        ({"size": 8, "std": 1}, "says std, known are size"),
        ({"size": 9}, r"8, 8.*was given \[1, 3, 9, 9\]"),
        ({"size": 8, "layout": "NHWC"}, "as its JSON says"),
    ],
)
def test_a_json_that_does_not_fit_says_what_is_wrong(tmp_path, told, why):
    with pytest.raises(EncoderError, match=why):
        OnnxFileEncoder(_told(_mean_colour(tmp_path / "m.onnx"), **told))


def test_missing_or_foreign_files_are_named(tmp_path):
    with pytest.raises(EncoderError, match="no ONNX file .*none.onnx"):
        open_encoder(tmp_path / "none.onnx")
    (tmp_path / "m.onnx").write_bytes(b"not a graph")
    with pytest.raises(EncoderError, match="there is no .*m.json"):
        open_encoder(tmp_path / "m.onnx")
    (tmp_path / "m.json").write_text("{")
    with pytest.raises(EncoderError, match="no JSON"):
        open_encoder(tmp_path / "m.onnx")
    with pytest.raises(EncoderError, match="m.onnx cannot be used"):
        open_encoder(_told(tmp_path / "m.onnx", size=8))


def test_any_callable_from_a_list_to_vectors_is_an_encoder():
    encoder = open_encoder(lambda words: [[len(word), 1] for word in words])
    assert isinstance(encoder, FrozenEncoder) and encoder.width is None
    np.testing.assert_array_equal(encoder.embed(["a", "bcd"]), [[1, 1], [3, 1]])
    assert encoder.width == 2 and encoder.embed([]).shape == (0, 2)


def test_a_callable_s_vectors_may_be_bfloat16():
    torch = pytest.importorskip("torch")
    encoder = open_encoder(lambda words: torch.ones(len(words), 4, dtype=torch.bfloat16, requires_grad=True))
    found = encoder.embed(["a"])
    assert found.dtype == np.float32 and found.tolist() == [[1, 1, 1, 1]]


def test_a_callable_that_raises_is_named_with_what_it_said():
    def broken(words):
        raise RuntimeError("no network")

    with pytest.raises(EncoderError, match="broken raised RuntimeError: no network"):
        open_encoder(broken).embed(["a"])


def test_an_encoder_whose_width_changes_is_named():
    widths = iter((3, 4))
    encoder = open_encoder(lambda words: np.zeros((len(words), next(widths))))
    encoder.embed(["a"])
    with pytest.raises(EncoderError, match="vectors of 4 numbers, so far they had 3"):
        encoder.embed(["a"])


@pytest.mark.parametrize(
    "given, why",
    [
        (np.zeros(3), "1 × width"),
        (np.zeros((2, 3)), "1 × width"),
        (np.zeros((1, 0)), "1 × width"),
        ([["a"]], "no numbers"),
        ([[1.0, np.nan]], "NaN"),
        ([[1e300]], "infinity"),
        (None, "1 × width|no numbers"),
    ],
)
def test_what_is_no_vector_is_refused(given, why):
    with pytest.raises(EncoderError, match=why):
        checked_vectors(given, 1, None, "test")


def test_a_callable_s_fingerprint_is_its_name_or_what_one_says():
    class Model:
        fingerprint = "v7"

        def __call__(self, words):
            return np.zeros((len(words), 2))

    def embed(words):
        return np.zeros((len(words), 2))

    assert CallableEncoder(embed).fingerprint.endswith("embed")
    assert CallableEncoder(Model()).fingerprint == "callable-v7"
    assert CallableEncoder(embed, fingerprint="mine").fingerprint == "callable-mine"
    with pytest.raises(EncoderError, match="cannot be called"):
        open_encoder(3)


def test_a_callable_s_texts_and_pictures_are_kept_for_explanations():
    encoder = open_encoder(len)
    assert encoder.payload("naïve").decode() == "naïve"
    assert encoder.payload(RED).startswith(b"\xff\xd8")
    assert encoder.from_payload(encoder.payload(RED)).size == (40, 30)
    assert encoder.payload(np.zeros(3)) is None


def test_a_memory_finds_a_named_encoder_or_a_file_again(tmp_path):
    assert encoder_name("photo") == "photo"
    assert encoder_name(tmp_path / "m.onnx") == str(tmp_path / "m.onnx")
    assert encoder_name(len) == ""
