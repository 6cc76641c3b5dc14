from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch

from apl.data.files import DataError, PublishedFile, find_file, parsed_once
from apl.data.labelled import LabelledImages

CONTENT = b"drawings" * 100_000


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a server that offers `drawings.zip`."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    directory = tmp_path / "mirror"
    directory.mkdir()
    (directory / "drawings.zip").write_bytes(CONTENT)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(directory))) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def published(*urls: str, md5: str = hashlib.md5(CONTENT).hexdigest()) -> PublishedFile:
    return PublishedFile("set", "drawings.zip", md5, urls)


def test_apl_data_comes_before_the_cache(own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for directory in (own_cache / "set", tmp_path / "supplied" / "set"):
        directory.mkdir(parents=True)
        (directory / "drawings.zip").write_bytes(b"")
    assert find_file(published()) == own_cache / "set" / "drawings.zip"
    monkeypatch.setenv("APL_DATA", str(tmp_path / "supplied"))
    assert find_file(published()) == tmp_path / "supplied" / "set" / "drawings.zip"


def test_an_apl_data_that_does_not_exist_is_an_error_and_no_reason_to_download(
    own_cache: Path, tmp_path: Path, mirror: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("APL_DATA", str(tmp_path / "mistyped"))
    with pytest.raises(DataError, match="mistyped, which is no directory"):
        find_file(published(f"{mirror}/drawings.zip"))
    assert not own_cache.exists()


def test_a_missing_file_is_downloaded_once_into_the_cache(own_cache: Path, mirror: str) -> None:
    path = find_file(published(f"{mirror}/drawings.zip"))
    assert path == own_cache / "set" / "drawings.zip"
    assert path.read_bytes() == CONTENT
    assert find_file(published("http://127.0.0.1:9/nothing-is-here")) == path


def test_a_mirror_that_fails_gives_way_to_the_next(own_cache: Path, mirror: str) -> None:
    path = find_file(published(f"{mirror}/elsewhere.zip", f"{mirror}/drawings.zip"))
    assert path.read_bytes() == CONTENT


def test_a_download_with_another_checksum_is_refused_and_nothing_is_left(own_cache: Path, mirror: str) -> None:
    with pytest.raises(DataError, match="checksum .* is published"):
        find_file(published(f"{mirror}/drawings.zip", md5="0" * 32))
    assert not [path for path in own_cache.rglob("*") if path.is_file()]


def test_a_file_that_is_nowhere_is_one_error_that_says_what_to_do(own_cache: Path, mirror: str) -> None:
    with pytest.raises(DataError) as caught:
        find_file(published(f"{mirror}/elsewhere.zip"))
    message = str(caught.value)
    for part in ("drawings.zip", str(own_cache / "set"), "404", "Set APL_DATA", "connect to the internet"):
        assert part in message


def counted(calls: list[int]) -> LabelledImages:
    calls.append(1)
    return LabelledImages(torch.full((2, 1, 4, 4), 7, dtype=torch.uint8), torch.tensor([0, 1]), ("é/a", "b"))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source.zip"
    path.write_bytes(b"first")
    return path


def test_parsing_happens_once_and_its_result_comes_back_unchanged(own_cache: Path, source: Path) -> None:
    calls: list[int] = []
    first, second = (parsed_once("set", [source], lambda: counted(calls)) for _ in range(2))
    assert len(calls) == 1
    assert torch.equal(first.images, second.images) and torch.equal(first.labels, second.labels)
    assert first.class_names == second.class_names


def test_a_changed_source_is_parsed_again(own_cache: Path, source: Path) -> None:
    calls: list[int] = []
    parsed_once("set", [source], lambda: counted(calls))
    source.write_bytes(b"second")
    parsed_once("set", [source], lambda: counted(calls))
    assert len(calls) == 2


@pytest.mark.parametrize("damage", ["truncated", "emptied"])
def test_a_damaged_cache_is_built_again(own_cache: Path, source: Path, damage: str) -> None:
    calls: list[int] = []
    parsed_once("set", [source], lambda: counted(calls))
    [cache] = (own_cache / "parsed").iterdir()
    content = cache.read_bytes()
    match damage:
        case "truncated":
            cache.write_bytes(content[:-5])
        case "emptied":
            cache.write_bytes(b"")
    again = parsed_once("set", [source], lambda: counted(calls))
    assert len(calls) == 2
    assert again.images.unique().tolist() == [7]
    parsed_once("set", [source], lambda: counted(calls))
    assert len(calls) == 2
    assert list((own_cache / "parsed").iterdir()) == [cache]


def test_a_cache_that_cannot_be_written_costs_no_result(own_cache: Path, source: Path) -> None:
    own_cache.write_text("a file where the directory should be")
    calls: list[int] = []
    assert len(parsed_once("set", [source], lambda: counted(calls))) == 2
