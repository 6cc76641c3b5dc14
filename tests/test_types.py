"""The types that users of the library see."""

import os
import subprocess
import sys
from pathlib import Path

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
