"""The command line of the experiments, and the way to it from `apl`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from experiments.__main__ import main
from experiments.paper.tables import _engine_lines
from experiments.paper.titles import EXPERIMENTS


def test_the_makefile_has_a_target_for_every_experiment() -> None:
    text = (Path(__file__).parents[1] / "Makefile").read_text()
    (targets,) = re.findall(r"^EXPERIMENTS := ((?:.*\\\n)*.*)$", text, re.M)
    assert targets.replace("\\", "").split() == list(EXPERIMENTS)


def test_usage_names_every_experiment(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"  {name} " in out for name in EXPERIMENTS)


def test_an_unknown_experiment_is_an_error_that_lists_the_known_ones(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["table9"]) == 2
    said = capsys.readouterr()
    assert said.out == "" and "no experiment 'table9'" in said.err and all(name in said.err for name in EXPERIMENTS)


def test_nothing_is_measured_where_the_source_was_changed_since_the_commit(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("experiments.__main__.current_commit", lambda: "0123456789ab-dirty")
    assert main(["paper-form"]) == 2 and main(["engine", "sizes"]) == 2
    assert capsys.readouterr().err.count("commit first") == 2
    monkeypatch.setattr("experiments.__main__.run_command", lambda *_: 0)
    assert main(["paper-form", "--quick"]) == 0


def test_every_result_file_is_written_by_a_command_on_the_results_page() -> None:
    root = Path(__file__).parents[1]
    page = (root / "docs" / "RESULTS.md").read_text()
    assert all(f"`results/{path.name}` |" in page for path in (root / "results").glob("*.json"))


def test_sizes_of_engines_may_stand_beside_how_they_were_measured() -> None:
    assert list(_engine_lines({"sizes": {"data": "drawings.npz", "commit": "abc", "cores": 1}})) == []
