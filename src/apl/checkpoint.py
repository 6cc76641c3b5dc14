"""Models on disk: configuration and provenance as JSON, and where models are found.

A model is a directory with `model.safetensors` and `model.json`. Bundled models are in `apl/weights/NAME`, those that only
the experiments need in `models/NAME` of a checkout; both are loaded by name. A model whose model.json names
another one under "encoder" holds a decoder only, and shares that model's encoder.
"""

from __future__ import annotations

import dataclasses
import json
import math
import subprocess
import types
import typing
from contextlib import suppress
from pathlib import Path
from typing import Any

from apl.config import LearnerConfig
from apl.durable_file import replace_durably

BUNDLED = Path(__file__).parent / "weights"
FOR_DRAWINGS = "drawings"
"""The default model of the commands for pictures."""
IN_CHECKOUT = Path(__file__).parents[2] / "models"
"""Models that only the experiments need: not part of the wheel."""


class CheckpointError(RuntimeError):
    """A checkpoint is missing, damaged, or of another architecture."""


def write_json(path: Path, value: Any) -> None:
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(value, indent=1) + "\n")
    replace_durably(part, path)


def without_nan(value: Any) -> Any:
    """JSON has no NaN: the interval of a single episode is null."""
    match value:
        case float() if not math.isfinite(value):
            return None
        case dict():
            return {name: without_nan(v) for name, v in value.items()}
        case list() | tuple():
            return [without_nan(v) for v in value]
    return value


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        raise CheckpointError(f"{path} does not exist") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path} is not valid JSON ({error}); restore it or train again") from None


def to_json(config: Any) -> Any:
    """A frozen dataclass as JSON; nested dataclasses carry their type's name, so unions can be read back."""
    if dataclasses.is_dataclass(config):
        fields = {f.name: to_json(getattr(config, f.name)) for f in dataclasses.fields(config)}
        return {"type": type(config).__name__, **fields}
    if isinstance(config, tuple):
        return [to_json(value) for value in config]
    return config


def from_json(kind: Any, value: Any) -> Any:
    """The inverse of `to_json`, for the type expected there: a dataclass, a union, a tuple, a literal or a plain value."""
    origin, options = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        for option in options:
            with suppress(CheckpointError):
                return from_json(option, value)
    elif dataclasses.is_dataclass(kind) and isinstance(kind, type):
        if isinstance(value, dict) and value.get("type") == kind.__name__:
            return _fields_from_json(kind, {name: v for name, v in value.items() if name != "type"})
    elif origin is tuple and isinstance(value, list):
        return tuple(from_json(options[0], v) for v in value)
    elif (origin is typing.Literal and value in options) or type(value) is kind or (kind, type(value)) == (float, int):
        return value
    names = ", ".join(getattr(option, "__name__", str(option)) for option in options or (kind,))
    raise CheckpointError(f"expected {'one of ' if len(options) > 1 else ''}{names}, found {value!r}")


def _fields_from_json(kind: Any, value: dict[str, Any]) -> Any:
    hints = typing.get_type_hints(kind)
    if unknown := set(value) - set(hints):
        raise CheckpointError(f"{kind.__name__} has no field {min(unknown)!r}: the checkpoint is of another version")
    try:
        return kind(**{name: from_json(hints[name], v) for name, v in value.items()})
    except TypeError as error:
        raise CheckpointError(f"a field is missing ({error})") from None


def find_model(name_or_dir: str | Path) -> Path:
    """The directory of a model that comes with the project, by its name, or of any model by its path."""
    for candidate in (BUNDLED / str(name_or_dir), IN_CHECKOUT / str(name_or_dir), Path(name_or_dir)):
        if (candidate / "model.json").is_file():
            return candidate
    names = sorted(path.parent.name for path in BUNDLED.glob("*/model.json"))
    raise CheckpointError(
        f"no model {str(name_or_dir)!r}: give the name of a bundled one ({', '.join(names)}) or of an encoder "
        "(`apl models` lists them), or a directory with model.json and model.safetensors"
    )


def is_named(name_or_dir: str | Path | None) -> bool:
    """True for the name of a model that comes with the project, False for a path."""
    return any((place / str(name_or_dir) / "model.json").is_file() for place in (BUNDLED, IN_CHECKOUT)) and (
        Path(str(name_or_dir)).name == str(name_or_dir)
    )


def read_description(directory: Path) -> dict[str, Any]:
    """The content of model.json: the configuration under "config", the origin under "provenance"."""
    described = read_json(directory / "model.json")
    if not isinstance(described, dict) or not isinstance(described.get("config"), dict):
        raise CheckpointError(f'{directory / "model.json"} does not describe a model: it has no "config"')
    return {"provenance": {}, **described}


def learner_config(directory: Path) -> LearnerConfig:
    """The configuration of the learner saved in this directory."""
    described = read_description(directory)["config"]
    if described.get("type") != LearnerConfig.__name__ and str(described.get("type")).endswith("Config"):
        raise CheckpointError(
            f"{directory} is an encoder alone, without a decoder: `apl train omniglot --encoder {directory}` trains one"
        )
    config: LearnerConfig = from_json(LearnerConfig, described)
    return config


def current_commit() -> str:
    """The commit of the source tree, marked "-dirty" if the source differs from it (result files may differ: an experiment
    writes them); "unknown" outside a checkout."""
    here = Path(__file__).parents[2]

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=here, capture_output=True, text=True, check=True).stdout.strip()

    try:
        commit = git("rev-parse", "--short=12", "HEAD")
        return commit + (
            "-dirty" if git("status", "--porcelain", "--untracked-files=no", "--", "src", "experiments") else ""
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
