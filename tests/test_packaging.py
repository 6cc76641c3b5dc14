"""What publishes the package says the same as the package itself."""

import re
import tomllib
from pathlib import Path

import yaml

from apl.cli import main

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]


def _steps(workflow, job):
    return yaml.safe_load((ROOT / ".github" / "workflows" / workflow).read_text())["jobs"][job]["steps"]


def test_the_workflow_tests_the_versions_that_the_metadata_names():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text())
    tested = workflow["jobs"]["test"]["strategy"]["matrix"]["python"]
    named = [line.rpartition(" ")[2] for line in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", line)]
    assert tested == named and PROJECT["requires-python"] == f">={named[0]}"


def test_workflows_run_targets_of_the_makefile():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))
    jobs = [("test.yml", "test"), ("test.yml", "package"), ("release.yml", "build")]
    run = {name for job in jobs for step in _steps(*job) for name in re.findall(r"make (\w+)", step.get("run", ""))}
    assert run == {"test", "coverage", "package"} and run <= targets


def test_the_image_is_made_of_files_and_extras_that_exist():
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    copied = [name for line in lines if line.startswith("COPY") and "--from" not in line for name in line.split()[1:-1]]
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert all((ROOT / name).exists() and f"!{name}" in ignored for name in copied)
    (extras,) = re.findall(r"'\.\[([a-z,-]+)\]'", "\n".join(lines))
    needed = [requirement for extra in extras.split(",") for requirement in EXTRAS[extra]]
    assert needed and not any("torch" in requirement for requirement in needed + PROJECT["dependencies"])


def test_every_extra_that_a_sentence_tells_to_install_exists():
    pages = [*(ROOT / "src").rglob("*.py"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")]
    named = {e for page in pages for e in re.findall(r"apl-memory\[([a-z-]+)\]", page.read_text("utf-8"))}
    assert named and named <= EXTRAS.keys()


def test_options_in_the_image_and_in_compose_exist(capsys):
    compose = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]["apl"]["command"]
    options = set(re.findall(r"--[a-z-]+", " ".join(compose) + (ROOT / "Dockerfile").read_text().rpartition("CMD")[2]))
    try:
        main(["serve", "--help"])
    except SystemExit:
        pass
    told = capsys.readouterr().out
    assert options and all(option in told for option in options)
