"""Encoders of other libraries by name. Every model here is real and small, and none is downloaded."""

import json
import os
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from apl import OnlineClassifier
from apl.cli import main
from apl.encoders import EncoderError, FrozenEncoder, MissingExtraError, encoder_name, names, open_encoder
from apl.encoders.library import import_library
from apl.encoders.names import LIBRARIES, NAMED, is_encoder_name, open_named
from apl.store import StoreError

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "card", "weather", "my", "is", "where", "the"]
RED, BLUE = Image.new("RGB", (50, 40), "red"), Image.new("RGB", (40, 50), "blue")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    """The libraries retry for a minute before they give up."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    open_named.cache_clear()


@pytest.fixture(scope="module", autouse=True)
def torch_for_pictures():
    """torchvision of the registry expects GPU libraries; torch without them lacks two operators, which are not used here.

    timm, open_clip and transformers import torchvision where it is installed.
    """
    torch = pytest.importorskip("torch")
    try:
        import torchvision  # noqa: F401
    except ImportError:
        pass
    except RuntimeError:
        for operator in ("nms", "qnms"):
            signature = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            torch.library.define(f"torchvision::{operator}", signature)
    torch.manual_seed(0)
    return torch


@pytest.fixture(scope="module")
def timm_encoder():
    pytest.importorskip("timm")
    from apl.encoders.from_timm import TimmEncoder

    return TimmEncoder("test_resnet", pretrained=False)


@pytest.fixture(scope="module")
def open_clip_encoder(tmp_path_factory):
    open_clip = pytest.importorskip("open_clip")
    from apl.encoders.from_open_clip import OpenClipEncoder

    folder = tmp_path_factory.mktemp("clip")
    vision = '{"image_size": 32, "layers": 1, "width": 16, "head_width": 8, "patch_size": 16}'
    text = '{"context_length": 8, "vocab_size": 20, "width": 16, "heads": 2, "layers": 1}'
    (folder / "tiny.json").write_text(f'{{"embed_dim": 12, "vision_cfg": {vision}, "text_cfg": {text}}}')
    open_clip.add_model_config(folder)
    return OpenClipEncoder("tiny", pretrained=False)


@pytest.fixture(scope="module")
def sentence_folder(tmp_path_factory):
    """A sentence-transformers model of one layer, as its authors save theirs."""
    library, torch = pytest.importorskip("sentence_transformers"), pytest.importorskip("torch")
    from transformers import BertConfig, BertModel, BertTokenizerFast

    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("sentences")
    bert = BertConfig(vocab_size=len(WORDS), hidden_size=16, num_hidden_layers=1, num_attention_heads=2)
    BertModel(bert).save_pretrained(folder / "bert")
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    BertTokenizerFast(vocab={word: i for i, word in enumerate(WORDS)}).save_pretrained(folder / "bert")
    library.SentenceTransformer(str(folder / "bert")).save(str(folder / "model"))
    return folder / "model"


@pytest.fixture(scope="module")
def fastembed_encoder(tmp_path_factory):
    """A fastembed model whose vectors are rows of a table, one for each word."""
    fastembed, onnx = pytest.importorskip("fastembed"), pytest.importorskip("onnx")
    from fastembed.common.model_description import ModelSource, PoolingType
    from tokenizers import BertWordPieceTokenizer

    from apl.encoders.from_fastembed import FastembedEncoder

    folder = tmp_path_factory.mktemp("fastembed")
    tokenizer = BertWordPieceTokenizer({word: i for i, word in enumerate(WORDS)})
    tokenizer.save(str(folder / "tokenizer.json"))
    for name, content in (
        ("config", '{"pad_token_id": 0}'),
        ("tokenizer_config", '{"model_max_length": 16, "pad_token": "[PAD]"}'),
        ("special_tokens_map", '{"pad_token": "[PAD]", "unk_token": "[UNK]"}'),
    ):
        (folder / f"{name}.json").write_text(content)
    helper, numbers = onnx.helper, np.random.default_rng(0).normal(size=(len(WORDS), 6)).astype(np.float32)
    inputs = [helper.make_tensor_value_info(n, 7, ["text", "token"]) for n in ("input_ids", "attention_mask")]
    graph = helper.make_graph(
        [helper.make_node("Gather", ["table", "input_ids"], ["last_hidden_state"])],
        "tiny",
        inputs,
        [helper.make_tensor_value_info("last_hidden_state", 1, ["text", "token", 6])],
        [onnx.numpy_helper.from_array(numbers, "table")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, folder / "model.onnx")
    fastembed.TextEmbedding.add_custom_model(
        model="apl/tiny",
        pooling=PoolingType.MEAN,
        normalization=True,
        sources=ModelSource(hf="apl/tiny"),
        dim=6,
        model_file="model.onnx",
    )
    return FastembedEncoder("apl/tiny", folder=folder)


def test_timm_models_embed_photographs(timm_encoder):
    found = timm_encoder.embed([timm_encoder.read(photo) for photo in (RED, BLUE, RED)])
    assert found.shape == (3, timm_encoder.width) and found.dtype == np.float32
    np.testing.assert_allclose(found[0], found[2], atol=1e-5)
    assert not np.allclose(found[0], found[1])
    assert timm_encoder.embed([]).shape == (0, timm_encoder.width)


@pytest.mark.parametrize("name", ["test_vit", "test_efficientnet", "test_convnext"])
def test_timm_models_of_other_families_have_the_width_they_say(name):
    pytest.importorskip("timm")
    from apl.encoders.from_timm import TimmEncoder

    encoder = TimmEncoder(name, pretrained=False)
    assert encoder.embed([encoder.read(RED)]).shape == (1, encoder.width)


def test_a_fingerprint_names_the_weights(timm_encoder):
    from apl.encoders.from_timm import TimmEncoder

    other = TimmEncoder("test_resnet", pretrained=False)
    assert other.fingerprint.startswith("timm-test_resnet-") and other.fingerprint != timm_encoder.fingerprint
    other._model.load_state_dict(timm_encoder._model.state_dict())
    from apl.encoders.library import weights_digest

    assert timm_encoder.fingerprint.endswith(weights_digest(other._model.state_dict()))


def test_clip_models_embed_photographs_at_unit_length(open_clip_encoder):
    found = open_clip_encoder.embed([open_clip_encoder.read(photo) for photo in (RED, BLUE)])
    assert found.shape == (2, 12) and not np.allclose(found[0], found[1])
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)
    assert open_clip_encoder.embed([]).shape == (0, 12)


@pytest.mark.parametrize("library", ["timm_encoder", "open_clip_encoder", "fastembed_encoder"])
def test_an_encoder_of_a_library_fills_a_memory(request, library):
    encoder = request.getfixturevalue(library)
    assert isinstance(encoder, FrozenEncoder)
    examples = [RED, BLUE] if encoder.kind == "photo" else ["where is my card", "the weather"]
    with OnlineClassifier(encoder=encoder) as clf:
        clf.learn_many(examples, ["a", "b"])
        assert clf.predict(examples).tolist() == ["a", "b"]


def test_a_saved_sentence_model_is_found_again_by_the_memory(sentence_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(sentence_folder.parent)
    texts = ["where is my card", "the weather"]
    with OnlineClassifier(encoder="sentence-transformers:model", memory=tmp_path / "m.apl") as clf:
        clf.learn_many(texts, ["card", "weather"])
    monkeypatch.chdir(tmp_path)
    with OnlineClassifier.load(tmp_path / "m.apl") as clf:
        assert clf.predict(texts).tolist() == ["card", "weather"]
    assert encoder_name(f"sentence-transformers:{sentence_folder}") == f"sentence-transformers:{sentence_folder}"
    with pytest.raises(StoreError):
        OnlineClassifier.load(tmp_path / "m.apl", encoder=lambda words: np.ones((len(words), 16))).open()


@pytest.mark.parametrize(
    "name, why",
    [
        ("timm:resnet10t", "timm cannot load 'resnet10t'.*HF_HUB_OFFLINE"),
        ("timm:nosuch", "timm cannot load 'nosuch'.*Unknown model"),
        ("open_clip:ViT-B-32", "open_clip cannot load 'ViT-B-32'.*HF_HUB_OFFLINE"),
        ("open_clip:nosuch", "open_clip has no weights for 'nosuch'"),
        ("sentence-transformers:all-mpnet-base-v2", "cannot load 'all-mpnet-base-v2'"),
        ("fastembed:nosuch", "fastembed cannot load 'nosuch'.*not supported"),
    ],
)
def test_a_model_that_cannot_be_had_is_one_sentence(monkeypatch, name, why):
    pytest.importorskip(LIBRARIES[name.partition(":")[0]].package)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(EncoderError, match=why) as error:
        open_encoder(name)
    assert "\n" not in str(error.value) and len(str(error.value)) < 600


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_library_that_is_missing_names_its_extra(monkeypatch, name):
    monkeypatch.setitem(sys.modules, LIBRARIES[name].package, None)  # importing it fails
    with pytest.raises(MissingExtraError, match=rf"pip install 'apl-memory\[{LIBRARIES[name].extra}\]'"):
        open_encoder(f"{name}:anything")


def test_a_torchvision_of_another_build_is_one_sentence_that_says_what_to_install(monkeypatch):
    def fails(name):
        raise RuntimeError("operator torchvision::nms does not exist")

    monkeypatch.setattr("apl.encoders.library.importlib.import_module", fails)
    with pytest.raises(EncoderError, match="cannot be imported.*torch and torchvision must be builds of one kind"):
        import_library("timm", "timm")


@pytest.mark.parametrize("reachable", [True, False])
def test_where_the_hub_cannot_be_reached_its_library_does_not_try_for_a_minute(monkeypatch, reachable):
    def resolve(host, port):
        if not reachable:
            raise OSError("Name or service not known")

    for name in ("HF_HUB_OFFLINE", "HF_ENDPOINT", "HTTPS_PROXY", "https_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("socket.getaddrinfo", resolve)
    import_library("json", "fastembed")
    assert ("HF_HUB_OFFLINE" in os.environ) is not reachable


def test_other_packages_add_libraries_by_an_entry_point(monkeypatch):
    def lengths(model):
        if model == "broken":
            raise RuntimeError("no such\nmodel")
        return lambda words: [[len(word), 1] for word in words]

    monkeypatch.setattr(EntryPoint, "load", lambda point: lengths)
    points = [EntryPoint("lengths", "somewhere:lengths", names.GROUP), EntryPoint("timm", "evil:timm", names.GROUP)]
    monkeypatch.setattr(names, "entry_points", lambda group: points if group == names.GROUP else [])
    np.testing.assert_array_equal(open_encoder("lengths:any").embed(["abc"]), [[3, 1]])
    assert encoder_name("lengths:any") == "lengths:any" and names.plugins().keys() == {"lengths"}
    with pytest.raises(EncoderError, match="'lengths:broken' cannot be opened: RuntimeError: no such model"):
        open_encoder("lengths:broken")


@pytest.mark.parametrize("name", [*NAMED, "timm:resnet18", "fastembed:BAAI/bge-small-en-v1.5"])
def test_names_of_encoders_are_recognised(name):
    assert is_encoder_name(name)


@pytest.mark.parametrize("name", ["drawings", "timm", "timm:", "C:\\model", "https://example.org/m", "/a/b", None, 3])
def test_other_names_are_not_encoders(name):
    assert not is_encoder_name(name)


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(EncoderError, match="photo, photo-lite2, text, text-multilingual, timm:MODEL.*or a .onnx file"):
        open_encoder("smell")


def test_apl_models_lists_what_is_ready_and_what_each_needs(monkeypatch, capsys):
    ready = {"photo", "timm:MODEL"}
    packages = {NAMED["photo"].package, "timm"}
    monkeypatch.setattr(names, "find_spec", lambda package: object() if package in packages else None)
    assert main(["models", "--json"]) == 0
    listed = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert {"drawings", "text-multilingual", "fastembed:MODEL"} <= listed.keys()
    assert listed["drawings"]["needs"] is None and all(listed[name]["needs"] is None for name in ready)
    assert listed["open_clip:MODEL"]["needs"] == "pip install 'apl-memory[open-clip]'"
    assert main(["models"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("drawings") and line.endswith("ready") for line in lines)
    assert any(line.startswith("text ") and line.endswith("pip install 'apl-memory[text]'") for line in lines)


@pytest.mark.parametrize("extra", sorted({offer.extra for offer in (*NAMED.values(), *LIBRARIES.values())}))
def test_every_extra_that_is_named_exists(extra):
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert extra in project["optional-dependencies"]
