"""What all tests share: shapes checked at run time, and the way to the real data sets."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from jaxtyping import install_import_hook

# Before any test module imports apl, so that every public signature is checked.
install_import_hook(["apl", "experiments"], "beartype.beartype")


SERVER_TESTS = ("test_store_contract.py", "test_store_index.py", "test_store_postgres.py")
SLOWEST_FIRST = (
    *SERVER_TESTS,
    "test_service_crash.py",
    "test_service_browser.py",
    "test_service_fuzz.py",
    "test_client.py",
    "test_classifier_sklearn.py",
    "test_types.py",
    "test_classifier_batch.py",
    "test_cli_workers.py",
    "test_examples.py",
    "test_classifier_consolidation.py",
    "test_classifier_river.py",
    "test_cli_colour.py",
    "test_analogy.py",
    "test_bench_loop.py",
    "test_cli.py",
    "test_train.py",
)
"""The files that take longest: one of them at the end would keep the other workers waiting."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A file goes to one worker as a whole, the slowest first; those that start database servers go to one together.

    A Milvus server starves beside other tests: `make test` runs those marked `milvus` by themselves afterwards.
    """
    for item in items:
        group = "servers" if item.path.name in SERVER_TESTS else item.path.name
        item.add_marker(pytest.mark.xdist_group(group))
        if "milvus_server" in item.fixturenames:
            item.add_marker(pytest.mark.milvus)
    place = {name: number for number, name in enumerate(SLOWEST_FIRST)}
    items.sort(key=lambda item: place.get(item.path.name, len(place)))


@pytest.fixture
def real_data(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of the real data sets; tests that need it are skipped where there is none."""
    beside = Path(__file__).parents[2] / "shared" / "data"
    directory = Path(os.environ.get("APL_DATA") or beside)
    if not (directory / "omniglot").is_dir() or not (directory / "mnist").is_dir():
        pytest.skip(f"no real data in {directory}: set APL_DATA to a directory with omniglot/ and mnist/")
    monkeypatch.setenv("APL_DATA", str(directory))
    return directory


@pytest.fixture
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache for one test, and no `APL_DATA`."""
    cache = tmp_path / "cache"
    monkeypatch.setattr("apl.data.files.cache_directory", lambda: cache)
    monkeypatch.delenv("APL_DATA", raising=False)
    return cache
