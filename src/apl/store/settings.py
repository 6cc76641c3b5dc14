"""Checks of the settings that a memory carries: an archive or a file from elsewhere may hold anything.

The module that owns a setting registers a check for it. Settings without one hold any JSON.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from apl.store.errors import StoreDamaged

Check = Callable[[Any], None]
"""Raises ValueError, TypeError or KeyError, with a sentence, for a value that could not be used."""
_checks: dict[str, Check] = {}


def register_setting(name: str, check: Check) -> None:
    """Have a setting checked when a memory is opened for use, imported or verified."""
    _checks[name] = check


def settings_problems(settings: Mapping[str, Any]) -> list[str]:
    """What could not be used, a sentence each."""
    found = []
    for name, check in _checks.items():
        try:
            if settings.get(name) is not None:
                check(settings[name])
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            found.append(f"setting {name!r}: {error}")
    return found


def require_usable(settings: Mapping[str, Any], where: str) -> None:
    if found := settings_problems(settings):
        raise StoreDamaged(f"{where} cannot be used ({found[0]}): see `apl memory verify`")


def number(value: Any, what: str, least: float | int = -math.inf, most: float | int = 1e9) -> None:
    """Raise unless a value is a finite number within a range."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
        raise ValueError(f"{what} must be at least {least:g}, it is {value!r}")


def _check_classifier(value: Any) -> None:
    if not isinstance(value, dict):
        raise TypeError("it does not hold parameters")
    for name, least in {"sigma": 0, "max_rows": 1, "max_rows_per_class": 1, "k": 1, "width": 1}.items():
        if value.get(name) is not None:
            number(value[name], name, least)
            if name != "sigma" and not isinstance(value[name], int):
                raise ValueError(f"{name} must be a whole number, it is {value[name]!r}")
    for name in ("model", "encoder", "metric", "ink", "decoder_of"):
        if not isinstance(value.get(name), (str, type(None))):
            raise TypeError(f"{name} must be text, it is {value[name]!r}")


def _check_dictionary(value: Any) -> None:
    if not isinstance(value, dict):
        raise TypeError(f"it must be a dictionary, it is {value!r:.40}")


def _check_curve(value: Any) -> None:
    _check_dictionary(value)
    seen, outcomes, rows = value["seen"], value["outcomes"], value["rows"]
    number(seen, "seen", 0)
    if not isinstance(outcomes, str) or not set(outcomes) <= set("nrw"):
        raise ValueError("the outcomes are letters n, r and w")
    if not isinstance(rows, list) or len(rows) != len(outcomes):
        raise ValueError("there is one number of rows for each outcome")
    for kept in rows:
        number(kept, "rows", 0)


def _check_unit(value: Any) -> None:
    _check_dictionary(value)
    if value.get("unit") is not None:
        number(value["unit"], "unit", 0)
    number(value.get("rows", 0), "rows", 0)


for _name, _check in (
    ("classifier", _check_classifier),
    ("readers", _check_dictionary),
    ("service curve", _check_curve),
    ("distance unit", _check_unit),
    ("merged memories", _check_dictionary),
):
    register_setting(_name, _check)
