"""The types that users of the library see."""

import builtins
import dis
import importlib
import importlib.util
import os
import pkgutil
import subprocess
import sys
from pathlib import Path
from types import CodeType

import pytest

import apl

SCRIPT = """
import apl

classifier = apl.OnlineClassifier()
classifier.{method}([1.0, 2.0], "a")
"""


def check(script: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mypy", "--follow-imports=silent", "--cache-dir", str(script.parent), str(script)]
    environment = os.environ | {"MYPYPATH": str(Path(apl.__file__).parents[1])}
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=script.parent)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("user")


def test_the_package_says_that_it_is_typed() -> None:
    assert (Path(apl.__file__).parent / "py.typed").is_file()


def test_a_script_that_uses_the_classifier_passes_mypy(place: Path) -> None:
    script = place / "right.py"
    script.write_text(SCRIPT.format(method="learn_one"))
    told = check(script)
    assert told.returncode == 0, told.stdout


def test_a_misspelt_method_fails_under_mypy(place: Path) -> None:
    script = place / "wrong.py"
    script.write_text(SCRIPT.format(method="lern_one"))
    told = check(script)
    assert told.returncode == 1
    assert '"OnlineClassifier" has no attribute "lern_one"' in told.stdout


def loaded_globals(code: CodeType) -> set[str]:
    names = {one.argval for one in dis.get_instructions(code) if one.opname == "LOAD_GLOBAL"}
    return names.union(*(loaded_globals(inner) for inner in code.co_consts if isinstance(inner, CodeType)))


@pytest.mark.parametrize("package", ["apl", "experiments"])
def test_every_name_that_code_uses_is_defined(package: str) -> None:
    """Neither ruff nor mypy can tell: the axes of jaxtyping are strings that are no names."""
    undefined = []
    for found in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
        if found.name.endswith("__main__"):
            continue
        spec = importlib.util.find_spec(found.name)
        assert spec is not None and spec.origin is not None
        code = compile(Path(spec.origin).read_text(), spec.origin, "exec")
        defined = vars(importlib.import_module(found.name)).keys() | vars(builtins).keys()
        undefined += [f"{found.name}: {name}" for name in sorted(loaded_globals(code) - defined)]
    assert undefined == []
