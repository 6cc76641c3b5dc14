"""Learning with several processes: the memory is the one that a single process makes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing import active_children
from pathlib import Path

import numpy as np
import pytest
from letters import call, model, said, scribble  # noqa: F401

from apl.classifier.online import OnlineClassifier
from apl.cli.embedding import Batch, batches, embed_batch, in_order
from apl.cli.examples import FoundExample
from apl.cli.workers import processes
from apl.store import open_store


class Deadly(FoundExample):
    """Ends the process that opens it."""

    def open(self) -> None:
        os._exit(1)


@pytest.fixture
def scribbles(tmp_path: Path) -> Path:
    for label in range(3):
        for number in range(3):
            scribble(tmp_path / "scribbles" / f"class {label}" / f"{number}.png", 10 * label + number // 2)
    (tmp_path / "scribbles" / "class 1" / "broken.png").write_text("not a picture")
    return tmp_path / "scribbles"


def rows(memory: Path) -> tuple[list[object], list[str | None], list[int], np.ndarray, list[bytes | None]]:
    with open_store(memory, read_only=True) as store:
        found = store.load()
        payloads = [store.payload(int(id)) for id in found.ids]
        return found.labels, found.sources, found.counts.tolist(), found.keys, payloads


def test_two_workers_make_the_memory_of_one_process_row_for_row(
    scribbles: Path, model: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apl.cli.embedding.AT_ONCE", 3)
    told = {}
    for workers in (1, 2):
        command = ("learn", scribbles, "--memory", tmp_path / f"{workers}.apl", "--model", model, "--workers", workers)
        status, told[workers], err = said(capsys, *command, "--json")
        assert status == 1 and "broken.png: not a picture" in err
    assert told[1] == told[2]
    one, two = rows(tmp_path / "1.apl"), rows(tmp_path / "2.apl")
    assert one[:3] == two[:3] and one[4] == two[4] and len(one[0]) > 3
    np.testing.assert_allclose(one[3], two[3], rtol=1e-5, atol=1e-6)
    assert said(capsys, "learn", scribbles, "--memory", tmp_path / "2.apl", "--workers", 0)[0] == 2


def test_an_interrupted_run_that_goes_on_makes_the_same_memory(
    scribbles: Path, model: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apl.cli.embedding.AT_ONCE", 3)
    command = ("learn", scribbles, "--model", model, "--memory")
    said(capsys, *command, tmp_path / "1.apl")
    embedded: list[Batch] = []

    def interrupted(classifier: OnlineClassifier, examples: list[FoundExample]) -> Batch:
        if len(embedded) == 1:
            raise KeyboardInterrupt
        embedded.append(embed_batch(classifier, examples))
        return embedded[-1]

    with monkeypatch.context() as patched:
        patched.setattr("apl.cli.embedding.embed_batch", interrupted)
        assert said(capsys, *command, tmp_path / "2.apl")[0] == 130
    assert len(rows(tmp_path / "2.apl")[0]) < len(rows(tmp_path / "1.apl")[0])
    said(capsys, *command, tmp_path / "2.apl")
    one, two = rows(tmp_path / "1.apl"), rows(tmp_path / "2.apl")
    assert one[:3] == two[:3] and one[4] == two[4]
    np.testing.assert_allclose(one[3], two[3], rtol=1e-5, atol=1e-6)


def test_a_worker_that_dies_is_one_sentence(scribbles: Path, model: str) -> None:
    picture = scribbles / "class 0" / "0.png"
    with OnlineClassifier.from_pretrained(model) as classifier:
        with pytest.raises(RuntimeError, match="a worker process ended unexpectedly.*goes on from there"):
            list(batches(classifier, [Deadly(str(picture), "x", "x", picture)], workers=2))


def test_an_interrupted_run_does_not_wait_for_its_workers() -> None:
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        with processes(1) as pool:
            busy = pool.submit(time.sleep, 100)
            while not busy.running():
                time.sleep(0.01)
            raise KeyboardInterrupt
    assert time.monotonic() - started < 50 and not active_children()


LEARNS_FOR_EVER = """
import os, time
from apl.cli.workers import processes
with processes(2) as pool:
    print(pool.submit(os.getpid).result(), flush=True)
    pool.submit(time.sleep, 1000)
    time.sleep(1000)
"""


def test_workers_end_with_a_learner_that_is_killed() -> None:
    command = [sys.executable, "-c", LEARNS_FOR_EVER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as learner:
        assert learner.stdout is not None and learner.stdout.readline()
        learner.kill()
        try:
            # The pipe ends when nobody holds it any more.
            learner.communicate(timeout=60)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(learner.pid, signal.SIGKILL)


def test_results_keep_their_order_and_few_are_on_their_way() -> None:
    waiting: set[str] = set()
    most = 0

    def submit(part: Sequence[FoundExample]) -> Callable[[], Batch]:
        nonlocal most
        waiting.add(part[0].where)
        most = max(most, len(waiting))

        def result() -> Batch:
            waiting.remove(part[0].where)
            return Batch(list(part))

        return result

    parts = [[FoundExample(str(number), "", None, "")] for number in range(10)]
    results = list(in_order(submit, parts, 3))
    assert [batch.examples for batch in results] == parts and most == 3


def apl(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "apl", *map(str, arguments)], capture_output=True, text=True)


def test_ray_makes_the_memory_of_one_process_row_for_row(
    scribbles: Path, model: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pytest.importorskip("ray")
    command = ("learn", scribbles, "--model", model, "--memory")
    said(capsys, *command, tmp_path / "1.apl")
    done = apl(*command, tmp_path / "2.apl", "--ray", "local", "--workers", 1)
    assert done.returncode == 1 and "broken.png: not a picture" in done.stderr, done.stderr
    one, two = rows(tmp_path / "1.apl"), rows(tmp_path / "2.apl")
    assert one[:3] == two[:3] and one[4] == two[4]
    np.testing.assert_allclose(one[3], two[3], rtol=1e-5, atol=1e-6)


def test_a_ray_address_that_does_not_answer_is_one_sentence(scribbles: Path, model: str, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    done = apl("learn", scribbles, "--model", model, "--memory", tmp_path / "new.apl", "--ray", "127.0.0.1:9")
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("apl learn: no Ray cluster answers at 127.0.0.1:9") and done.stderr.count("\n") == 1
