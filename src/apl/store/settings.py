"""Checks of the settings that a memory carries, when it is opened for use, imported or verified: a file or an archive from
elsewhere may hold anything. Settings that are not named here hold any JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from apl.store.errors import StoreDamaged

DICTIONARIES = ("classifier", "readers", "merged memories")
AT_LEAST = {"sigma": 0, "max_rows": 1, "max_rows_per_class": 1, "k": 1, "width": 1}
"""Numbers among the parameters of a classifier; all but sigma are whole."""
TEXTS = ("model", "encoder", "metric", "ink")


def settings_problems(settings: Mapping[str, Any]) -> list[str]:
    """What could not be used, a sentence each."""
    found = [
        f"setting {name!r}: it must be a dictionary, it is {settings[name]!r:.40}"
        for name in DICTIONARIES
        if not isinstance(settings.get(name), (dict, type(None)))
    ]
    return found or [f"setting 'classifier': {problem}" for problem in _wrong(settings.get("classifier") or {})]


def require_usable(settings: Mapping[str, Any], where: str) -> None:
    if found := settings_problems(settings):
        raise StoreDamaged(f"{where} cannot be used ({found[0]}): see `apl memory verify`")


def _wrong(parameters: Mapping[str, Any]) -> Iterator[str]:
    for name, least in AT_LEAST.items():
        value = parameters.get(name)
        kinds = (int, float) if name == "sigma" else (int,)
        if value is not None and (isinstance(value, bool) or not isinstance(value, kinds) or not least <= value <= 1e9):
            yield f"{name} must be a {'number' if name == 'sigma' else 'whole number'} from {least} on, it is {value!r}"
    for name in TEXTS:
        if not isinstance(parameters.get(name), (str, type(None))):
            yield f"{name} must be text, it is {parameters[name]!r}"
