from __future__ import annotations

import builtins
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import tyro
from letters import scribble

from apl.checkpoint import write_json
from apl.cli import COMMANDS, main
from apl.cli.memory import VERBS
from apl.config import ConvConfig, DecoderConfig, Group, LearnerConfig
from apl.data.source import DataSource
from apl.evaluate import Estimate, fixed_context
from apl.learner import Learner
from apl.training.presets import PRESETS

CONFIG = LearnerConfig(
    encoder=ConvConfig(image_size=14, stem_channels=8, stem_stride=2, groups=(Group(8, 1),)),
    decoder=DecoderConfig(hidden=16, blocks=1, heads=2, label_width=8),
    k=3,
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    directory = tmp_path_factory.mktemp("models") / "small"
    Learner(CONFIG).save(directory, {})
    return directory


@pytest.fixture(autouse=True)
def few_glyphs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The generator's characters, but few of them; and a working directory of one's own."""
    load = DataSource.load

    def load_few(source: DataSource, part: str, size: int) -> object:
        return load(replace(source, glyph_classes=25), part, size)

    monkeypatch.setattr(DataSource, "load", load_few)
    monkeypatch.chdir(tmp_path)


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(list(arguments))
    out, err = capsys.readouterr()
    return code, out, err


def evaluated(capsys: pytest.CaptureFixture[str], model: Path, *arguments: str) -> dict[str, object]:
    common = ("--model", str(model), "--data", "glyphs", "--episodes", "3", "--way", "5", "--json")
    code, out, err = said(capsys, "evaluate", *common, *arguments)
    assert code == 0, err
    assert len(out.splitlines()) == 1, "one JSON object and nothing else on stdout"
    return json.loads(out)


def test_a_fixed_context_is_measured_and_reported_as_one_json_object(
    capsys: pytest.CaptureFixture[str], model: Path
) -> None:
    result = evaluated(capsys, model, "--protocol", "fixed", "--shot", "2", "--seed", "7")
    assert {"accuracy", "ci95", "way", "shot", "episodes", "split", "split_hash", "seed", "protocol", "k"} <= set(
        result
    )
    assert (result["way"], result["shot"], result["episodes"], result["seed"]) == (5, 2, 3, 7)
    assert result["protocol"] == "fixed" and result["split"] == "glyphs" and result["k"] == 3
    assert 0 <= result["accuracy"] <= 1 and result["ci95"] >= 0
    assert evaluated(capsys, model, "--protocol", "fixed", "--shot", "2", "--seed", "7") == result
    assert evaluated(capsys, model, "--protocol", "fixed", "--shot", "2", "--seed", "8") != result


def test_an_online_episode_is_measured_with_what_it_stored(capsys: pytest.CaptureFixture[str], model: Path) -> None:
    result = evaluated(capsys, model, "--protocol", "online")
    assert {"accuracy", "ci95", "accuracy_last", "stored", "stored_per_class", "way", "episodes", "split"} <= set(
        result
    )
    assert result["stored"] == pytest.approx(5 * result["stored_per_class"])
    assert 5 <= result["stored"] <= result["examples"] == 100


def test_more_classes_than_characters_need_rotations(capsys: pytest.CaptureFixture[str], model: Path) -> None:
    assert evaluated(capsys, model, "--way", "60")["rotations"] is True


def test_results_are_readable_by_people_too(capsys: pytest.CaptureFixture[str], model: Path) -> None:
    code, out, _ = said(capsys, "evaluate", "--model", str(model), "--data", "glyphs", "--way", "5", "--episodes", "2")
    assert code == 0 and any(line.startswith("          accuracy  ") for line in out.splitlines())
    assert re.search(r"^class +asked +right$", out, re.MULTILINE) and "Commonest confusions:" in out


@pytest.mark.parametrize(
    "arguments,complaint",
    [
        (("--way", "1"), "way must lie between 2 and the 25 classes there are, got 1"),
        (("--way", "101"), "way must lie between 2 and the 100 classes there are, got 101"),
        (("--shot", "0"), "shot must be at least 1, got 0"),
        (("--shot", "20"), "20 shots leave nothing to ask about: a class has only 20 examples"),
        (("--episodes", "0"), "episodes must be at least 1, got 0"),
        (("--model", "nowhere"), "no model 'nowhere': give the name of a bundled one"),
        (("--model", "lake"), "is an encoder alone, without a decoder: `apl train omniglot --encoder"),
        (("--protocol", "online", "--shot", "2"), "--shot is valid with --protocol fixed only"),
        (("--split", "vinyals"), "--split is valid with --data omniglot only"),
    ],
)
def test_a_bad_request_is_one_sentence_and_a_failure(
    capsys: pytest.CaptureFixture[str], model: Path, arguments: tuple[str, ...], complaint: str
) -> None:
    given = ("--model", str(model)) if "--model" not in arguments else ()
    code, out, err = said(capsys, "evaluate", "--data", "glyphs", *given, *arguments, "--json")
    assert code != 0 and out == ""
    assert complaint in err and len(err.strip().splitlines()) == 1 and "Traceback" not in err


@pytest.mark.parametrize("damage", ["weights", "description", "architecture"])
def test_a_damaged_or_foreign_model_is_one_sentence_and_a_failure(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, damage: str
) -> None:
    directory = tmp_path / "model"
    Learner(CONFIG).save(directory, {})
    match damage:
        case "weights":
            (directory / "model.safetensors").write_bytes((directory / "model.safetensors").read_bytes()[:1000])
        case "description":
            (directory / "model.json").write_text('{"config": {')
        case "architecture":
            write_json(directory / "model.json", {"config": {"type": "LearnerConfig", "k": 3}})
    code, out, err = said(capsys, "evaluate", "--model", str(directory), "--data", "glyphs")
    assert code != 0 and out == "" and len(err.strip().splitlines()) == 1
    assert {"weights": "is damaged", "description": "not valid JSON", "architecture": "another architecture"}[
        damage
    ] in err


@pytest.mark.parametrize(
    "arguments,complaint",
    [
        (("omnigloot",), "no preset 'omnigloot'; there are: "),
        (("omniglot",), "name a trained encoder with --encoder"),
        (("glyphs-encoder", "--decoder", "lstm"), "--decoder is not valid with preset glyphs-encoder"),
        (("glyphs", "--encoder", "nowhere"), "no model 'nowhere'"),
        (("glyphs-encoder", "--resume"), "nothing to resume in runs/glyphs-encoder"),
        (("glyphs", "--resume"), "nothing to resume in runs/glyphs:"),
        (("glyphs-encoder", "--steps", "0"), "steps must be at least 1, got 0"),
        (("glyphs-encoder", "--minutes", "-1"), "minutes must not be negative, got -1.0"),
    ],
)
def test_training_that_cannot_start_is_one_sentence_and_leaves_nothing_behind(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: tuple[str, ...], complaint: str
) -> None:
    code, out, err = said(capsys, "train", *arguments)
    assert code != 0 and out == ""
    assert complaint in err and len(err.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_an_encoder_then_a_learner_are_trained_and_never_overwritten(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured_shortly(*given: Any, episodes: int, **options: Any) -> Estimate:
        return fixed_context(*given, episodes=2, **options)

    monkeypatch.setattr("apl.training.episodic.fixed_context", measured_shortly)
    code, out, err = said(capsys, "train", "glyphs-encoder", "--steps", "1", "--directory", "first", "--json")
    assert code == 0, err
    assert json.loads(out)["saved"] == "first/encoder" and json.loads(out)["steps"] == 1
    code, out, err = said(
        capsys, "train", "glyphs", "--steps", "2", "--directory", "second", "--encoder", "first/encoder", "--json"
    )
    assert code == 0, err
    assert json.loads(out)["saved"] == "second/model" and "validation" in json.loads(out)
    before = {p: p.read_bytes() for p in Path("second").rglob("*") if p.is_file()}
    code, _, err = said(
        capsys, "train", "glyphs", "--steps", "2", "--directory", "second", "--encoder", "first/encoder"
    )
    assert code != 0 and "already holds a run: use --resume" in err
    assert {p: p.read_bytes() for p in Path("second").rglob("*") if p.is_file()} == before
    assert Learner.load(Path("second/model")).config.decoder.kind == "relational"


def test_the_small_preset_makes_the_encoder_it_needs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured_shortly(*given: Any, episodes: int, **options: Any) -> Estimate:
        return fixed_context(*given, episodes=2, **options)

    monkeypatch.setattr("apl.training.episodic.fixed_context", measured_shortly)
    monkeypatch.setitem(PRESETS, "glyphs-encoder", replace(PRESETS["glyphs-encoder"], steps=1))
    code, out, err = said(capsys, "train", "glyphs", "--steps", "2", "--json")
    assert code == 0 and "first glyphs-encoder, into runs/glyphs-encoder" in err, err
    assert json.loads(out)["saved"] == "runs/glyphs/model"
    made = (Path("runs/glyphs-encoder/encoder") / "model.json").stat().st_mtime_ns
    code, out, err = said(capsys, "train", "glyphs", "--steps", "1", "--directory", "other", "--encoder", "runs/glyphs")
    assert "first" not in err and (Path("runs/glyphs-encoder/encoder") / "model.json").stat().st_mtime_ns == made


def test_an_encoder_and_a_decoder_are_trained_on_a_folder_of_ones_own(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in range(8):
        for number in range(6):
            scribble(tmp_path / "own" / f"class {name}" / f"{number}.png", 10 * name + number)
    monkeypatch.setitem(PRESETS, "glyphs-encoder", replace(PRESETS["glyphs-encoder"], steps=1))
    code, out, err = said(capsys, "train", "glyphs", "--data", "own", "--steps", "2", "--json")
    assert code == 0, err
    assert json.loads(out)["saved"] == "runs/glyphs/model" and json.loads(out)["split"] == "folder"
    assert set(json.loads(out)["validation"]) == {"val_2way_1shot", "val_2way_5shot"}, "as many classes as are held out"
    own = ("--model", "runs/glyphs/model", "--folder", "own", "--episodes", "1", "--json")
    measured = json.loads(said(capsys, "evaluate", *own)[1])
    assert (measured["way"], measured["split"]) == (2, "folder") and measured["ci95"] is None
    shutil.copytree(tmp_path / "own", tmp_path / "more")
    for other in (("--data", "more"), ("--data", "own", "--seed", "3"), ("--data", "own", "--colour")):
        code, out, err = said(capsys, "train", "glyphs", "--steps", "2", *other)
        assert code != 0 and "runs/glyphs-encoder holds an encoder of another training" in err, (other, err)
    (tmp_path / "own" / "class 3" / "0.png").unlink()
    code, out, err = said(capsys, "train", "glyphs-encoder", "--data", "own", "--directory", "again")
    assert code == 2 and "class 3 holds fewer than 6 pictures" in err and not Path("again").exists()
    for name in range(8):
        # Every class, so that each part of the data has some.
        (tmp_path / "own" / f"class {name}" / "0.png").write_bytes(b"")
        (tmp_path / "own" / f"class {name}" / "._1.png").write_bytes(b"what some systems leave beside every picture")
    code, out, err = said(capsys, "train", "glyphs-encoder", "--data", "own", "--directory", "again")
    assert code == 2 and err.count("0.png: not a picture") == 4 and "._1" not in err and not Path("again").exists()
    code, out, err = said(capsys, "train", "omniglot-encoder-joint", "--data", "own")
    assert code == 2 and "--data is not valid with preset omniglot-encoder-joint" in err


def helped(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: str) -> str:
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit) as ended:
        main([*words, "--help"])
    assert ended.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        *((name,) for name in COMMANDS),
        *(("memory", verb.__name__.rstrip("_")) for verb in VERBS),
    ],
    ids=str,
)
def test_help_says_what_is_meant_not_which_type(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    told = helped(capsys, monkeypatch, *words)
    assert not re.search(r"\b(STR|INT|FLOAT|PATH)\b", told)
    lines = [line.strip("│ ") for line in told.splitlines()]
    for line, following in pairwise(lines):
        if re.match(r"--\w", line):
            assert re.search(r"\S {2,}\S", line) or not following.startswith(("-", "╰")), f"{line} is not described"


def test_help_names_every_preset(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    train = re.sub(r"[\s│]", "", helped(capsys, monkeypatch, "train"))
    assert all(name in train for name in PRESETS)


def test_the_script_apl_finds_the_presets_of_a_checkout(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [place for place in sys.path if not (Path(place) / "experiments").is_dir()])
    for name in [name for name in sys.modules if name.partition(".")[0] == "experiments"]:
        monkeypatch.delitem(sys.modules, name)
    code, _, err = said(capsys, "train", "paper-recipe-200way", "--data", "nowhere")
    assert code == 2 and "no preset" not in err


def test_an_unknown_command_is_an_error_that_lists_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = said(capsys, "evalute")
    assert code == 2 and out == ""
    assert "no command 'evalute'" in err and all(name in err for name in COMMANDS)


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = said(capsys, "--help")
    assert code == 0 and all(f"\n  {name} " in out for name in COMMANDS)
    code, out, _ = said(capsys, "--version")
    assert code == 0 and out.startswith("apl ")


@pytest.mark.parametrize("arguments", ["[]", "['--help']", "['--version']"])
def test_help_waits_for_no_library(arguments: str) -> None:
    heavy = "{'numpy', 'tyro', 'rich', 'PIL', 'torch', 'onnxruntime'}"
    code = f"import sys; from apl.cli import main; main({arguments}); sys.exit(str({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr == "set()\n" and done.stdout


def test_a_shell_that_starts_does_not_wait_for_torch() -> None:
    """`source <(apl completion bash)` stands in ~/.bashrc."""
    heavy = "{'numpy', 'PIL', 'torch', 'onnxruntime'}"
    code = f"""import sys
from apl.cli import main
try: main(['completion', 'bash'])
except SystemExit: sys.exit(str({heavy} & set(sys.modules)))"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr == "set()\n" and "_tyro_apl" in done.stdout


def test_without_a_command_five_examples_are_shown_and_each_of_them_parses(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = said(capsys)
    examples = re.findall(r"^  apl (\w+) ?(.*)$", out, re.M)
    assert code == 0 and [name for name, _ in examples] == ["demo", "serve", "learn", "predict", "explain"]
    for name, options in examples:
        tyro.cli(importlib.import_module(f"apl.cli.{name}").Command, args=options.split())


@pytest.mark.parametrize(("words", "completed"), [("lea", "learn"), ("learn --mem", "--memory"), ("memory sh", "show")])
def test_the_shell_completes_commands_and_options(
    words: str, completed: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("bash is not installed")
    with pytest.raises(SystemExit) as ended:
        main(["completion", "bash"])
    assert not ended.value.code
    (tmp_path / "apl.bash").write_text(capsys.readouterr().out)
    asked = f"COMP_WORDS=(apl {words}); COMP_CWORD={len(words.split())}"
    script = f'source apl.bash; {asked}; $(complete -p apl | sed "s/.*-F //; s/ .*//"); echo "${{COMPREPLY[@]}}"'
    found = subprocess.run([bash, "-c", script], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert found.stdout.split() == [completed]


@pytest.mark.parametrize("option", ["--protocol=sideways", "--way=five", "--telepathy"])
def test_options_that_do_not_exist_are_refused(capsys: pytest.CaptureFixture[str], option: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["evaluate", option])
    assert ended.value.code != 0 and capsys.readouterr().out == ""


def test_a_developer_can_ask_for_the_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("APL_DEBUG", "1")
    with pytest.raises(ValueError, match="no preset"):
        main(["train", "nothing"])


def test_ctrl_c_while_modules_are_still_being_loaded_is_no_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    load = builtins.__import__

    def interrupted(name: str, *more: object) -> object:
        if name == "tyro":
            raise KeyboardInterrupt
        return load(name, *more)

    monkeypatch.setattr(builtins, "__import__", interrupted)
    assert main(["memory", "list", "x.apl"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_the_demonstration_tells_what_it_did(capsys: pytest.CaptureFixture[str], model: Path) -> None:
    small = ("--model", str(model), "--way", "4", "--drawings", "5")
    status, out, _ = said(capsys, "demo", *small)
    head, *lines = [line for line in out.splitlines() if line.startswith(("drawings", *"123456789"))][1:]
    assert status == 0 and head.split() == ["drawings", "named", "right", "kept", "in", "memory"] and len(lines) == 8
    assert "4 invented characters, 20 drawings" in out and lines[-1].startswith("18 to 20")
    for wrong in (("--way", "1"), ("--drawings", "1")):
        assert main(["demo", "--model", str(model), *wrong]) == 2


def test_a_reader_that_stops_reading_ends_it_without_a_traceback() -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([sys.executable, "-m", "apl", "--help"], stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert done.returncode == 1 and done.stderr == ""
