"""Models without torch: the same answers as with it, and one clear sentence where something is missing."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from absent_torch import APL, WITHOUT_TORCH, without_torch

from apl.checkpoint import CheckpointError, find_model
from apl.config import ConvConfig, DecoderConfig, Group, LearnerConfig
from apl.exported import load_exported
from apl.learner import Learner
from apl.training.export import export_model

TINY = LearnerConfig(
    encoder=ConvConfig(image_size=8, stem_channels=4, groups=(Group(4, 1), Group(4, 1))),
    decoder=DecoderConfig(hidden=16, blocks=1, heads=2, label_width=8, compare=True, class_means=True),
    k=4,
)


def stream(seed: int, shape: tuple[int, ...], classes: int, examples: int) -> tuple[np.ndarray, np.ndarray]:
    """Noisy copies of one prototype for each class."""
    chance = np.random.default_rng(seed)
    prototypes = chance.random((classes, *shape), np.float32)
    labels = chance.integers(classes, size=examples)
    return (prototypes[labels] + 0.1 * chance.random((examples, *shape), np.float32)).clip(0, 1), labels


def check_the_same_on_a_stream(trained: Learner, exported: Learner, x: np.ndarray, y: np.ndarray, way: int) -> None:
    memories = trained.new_memory(), exported.new_memory()
    for image, label in zip(x, y, strict=True):
        given, truth = image[None, None], np.array([[label]])
        with torch.no_grad():
            one = trained.observe(memories[0], torch.from_numpy(given), torch.from_numpy(truth), way)
        two = exported.observe(memories[1], given, truth, way)
        np.testing.assert_allclose(one.prediction.log_probs.exp(), np.exp(two.prediction.log_probs), atol=1e-4)
        assert np.array_equal(one.written, two.written) and one.prediction.label.item() == two.prediction.label.item()


def test_the_bundled_model_answers_alike_in_torch_and_in_onnx() -> None:
    x, y = stream(0, (1, 56, 56), 6, 40)
    check_the_same_on_a_stream(Learner.load("omniglot"), load_exported("omniglot"), x, y, 6)


def test_a_memory_belongs_to_a_model_whatever_computes_it() -> None:
    assert load_exported("omniglot").fingerprint() == Learner.load("omniglot").fingerprint()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    learner = Learner(TINY)
    with torch.no_grad():
        learner.train().encoder(torch.rand(32, 1, 8, 8))
        for parameter in learner.decoder.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    directory = tmp_path_factory.mktemp("models")
    learner.save(directory / "tiny", {"why": "test"})
    return export_model(directory / "tiny", directory / "exported")


def test_an_exported_model_holds_all_it_needs_and_answers_alike(tiny: Path) -> None:
    assert {p.name for p in tiny.iterdir()} == {"encoder.onnx", "decoder.onnx", "model.json", "model.safetensors"}
    x, y = stream(1, (1, 8, 8), 5, 60)
    check_the_same_on_a_stream(Learner.load(tiny), load_exported(tiny), x, y, 7)


def test_any_number_of_queries_and_neighbours_may_be_asked(tiny: Path) -> None:
    trained, exported = Learner.load(tiny), load_exported(tiny)
    x, y = stream(2, (1, 8, 8), 5, 30)
    for k in (1, 2, 9, 40):
        trained.config = exported.config = trained.config.__class__(**{**vars(trained.config), "k": k})
        memories = trained.new_memory(), exported.new_memory()
        with torch.no_grad():
            for learner, memory in zip((trained, exported), memories, strict=True):
                learner.write(memory, learner.embed(x[None]), y[None], np.ones((1, 30), bool))
            for queries in (1, 7):
                one = trained.predict(memories[0], x[None, :queries], 6).log_probs.exp()
                two = np.exp(exported.predict(memories[1], x[None, :queries], 6).log_probs)
                np.testing.assert_allclose(one, two, atol=1e-4)


def test_a_model_without_graphs_says_how_to_make_them(tmp_path: Path) -> None:
    Learner(TINY).save(tmp_path / "model", {})
    with pytest.raises(CheckpointError, match="has no ONNX graphs.*apl export"):
        load_exported(tmp_path / "model")


def test_graphs_of_another_model_are_refused(tiny: Path, tmp_path: Path) -> None:
    mixed = tmp_path / "mixed"
    shutil.copytree(tiny, mixed)
    shutil.copy(find_model("omniglot") / "decoder.onnx", mixed / "decoder.onnx")
    with pytest.raises(CheckpointError, match="another model.*apl export"):
        _ = load_exported(mixed).networks._decoder


@pytest.mark.parametrize("graph, ask", [("encoder.onnx", "_encoder"), ("decoder.onnx", "_decoder")])
def test_a_graph_of_another_model_is_refused_even_if_its_weights_would_fit(
    graph: str, ask: str, tmp_path: Path
) -> None:
    shutil.copytree(find_model("drawings"), tmp_path / "mixed")
    shutil.copy(find_model("omniglot") / graph, tmp_path / "mixed" / graph)
    with pytest.raises(CheckpointError, match=f"{graph} is of another model, or damaged: .*`apl export mixed`"):
        getattr(load_exported(tmp_path / "mixed").networks, ask)


def test_missing_weights_are_named(tiny: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny, tmp_path / "bare")
    (tmp_path / "bare" / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="model.safetensors is missing or damaged"):
        _ = load_exported(tmp_path / "bare").networks._decoder


def test_a_lesson_a_question_and_an_explanation_need_no_torch(tmp_path: Path) -> None:
    code = """
import sys, numpy as np, apl
from apl.data.glyphs import draw_glyphs
glyphs = draw_glyphs(4, 3, np.random.default_rng(0), 56)
with apl.OnlineClassifier.from_pretrained("omniglot", memory=sys.argv[1]) as clf:
    for image, label in zip(glyphs.images[:, 0], glyphs.labels):
        clf.learn_one(255 - image, f"sign {label}")
    print(clf.predict_one(255 - glyphs.images[0, 0]), clf.explain(255 - glyphs.images[0, 0]).predicted)
with apl.OnlineClassifier.load(sys.argv[1]) as clf:
    print(clf.forget(label="sign 0") != [], clf.predict_proba_one(255 - glyphs.images[4, 0]).new_class < 1)
clf = apl.OnlineClassifier.for_features(3)
clf.learn_one([1.0, 0, 0], "a"), clf.learn_one([0, 1.0, 0], "b")
print(clf.predict([[0.9, 0.1, 0]]))
"""
    said = without_torch(code, str(tmp_path / "signs.apl")).splitlines()
    assert said == ["sign 0 sign 0", "True True", "['a']"]


def test_the_demonstration_and_the_commands_need_no_torch(tmp_path: Path) -> None:
    code = APL
    assert "3 invented characters, 9 drawings" in without_torch(code, "demo", "--way", "3", "--drawings", "3")
    folder = tmp_path / "signs"
    draw = """
import numpy as np
from pathlib import Path
from PIL import Image
from apl.data.glyphs import draw_glyphs
glyphs = draw_glyphs(2, 2, np.random.default_rng(1), 56)
for n, (image, label) in enumerate(zip(glyphs.images[:, 0], glyphs.labels)):
    place = Path(sys.argv[1]) / str(label)
    place.mkdir(parents=True, exist_ok=True)
    Image.fromarray(255 - image).save(place / f"{n}.png")
"""
    without_torch(draw, str(folder))
    memory = str(tmp_path / "signs.apl")
    one = str(next((folder / "1").iterdir()))
    without_torch(code, "learn", str(folder), "--memory", memory)
    assert "1" in without_torch(code, "predict", one, "--memory", memory)
    without_torch(code, "explain", one, "--memory", memory, cwd=tmp_path)
    without_torch(code, "forget", "--label", "1", "--memory", memory)
    assert "default" in without_torch(code, "memory", "list", memory)


def test_the_service_needs_no_torch(tmp_path: Path) -> None:
    code = """
import base64, io
import numpy as np
from PIL import Image
from starlette.testclient import TestClient
from apl.service.app import create_app
from apl.service.settings import Settings
from pathlib import Path
with TestClient(create_app(Settings(memory=Path(sys.argv[1]))), base_url="http://127.0.0.1") as client:
    sign = np.full((28, 28), 255, np.uint8)
    sign[6:22, 14] = sign[14, 6:22] = 0
    file = io.BytesIO()
    Image.fromarray(sign).save(file, "PNG")
    sent = {"image": base64.b64encode(file.getvalue()).decode()}
    lesson = client.post("/v1/memories/default/learn", json={**sent, "label": "cross"})
    print(lesson.status_code, client.post("/v1/memories/default/predict", json=sent).json()["predicted"])
"""
    assert without_torch(code, str(tmp_path / "served.apl")).split() == ["200", "cross"]


@pytest.mark.parametrize("command", [["train", "glyphs"], ["evaluate"], ["export", "omniglot"]])
def test_what_needs_torch_says_so_in_one_sentence(command: list[str], tmp_path: Path) -> None:
    code = WITHOUT_TORCH + "from apl.cli import main; sys.exit(main())"
    said = subprocess.run([sys.executable, "-c", code, *command], capture_output=True, text=True, cwd=tmp_path)
    assert said.returncode == 2 and "pip install 'apl-memory[train]'" in said.stderr
    assert "Traceback" not in said.stderr
