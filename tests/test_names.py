"""One class, one name in the whole project: who searches for a class finds one."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import apl

SHARED = {"Command"}
"""Every module of the command line has one of this name: the command line is made from them."""


def test_no_two_classes_have_the_same_name() -> None:
    found = defaultdict(list)
    root = Path(apl.__file__).parent
    for path in sorted(root.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(str(path.relative_to(root)))
    assert len(found) > 100
    assert {name: places for name, places in found.items() if len(places) > 1 and name not in SHARED} == {}
