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
classifier.learn_one([1.0, 2.0], "a")
classifier.lern_one([1.0, 2.0], "a")
"""


def test_the_package_says_that_it_is_typed() -> None:
    assert (Path(apl.__file__).parent / "py.typed").is_file()


def test_in_a_user_s_script_mypy_finds_the_misspelt_method_and_nothing_else(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "mypy", "--follow-imports=silent", "--cache-dir", str(tmp_path), str(script)]
    environment = os.environ | {"MYPYPATH": str(Path(apl.__file__).parents[1])}
    told = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert told.returncode == 1 and told.stdout.count("error:") == 1, told.stdout
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
