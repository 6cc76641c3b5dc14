"""Clients that mean harm by size, slowness or silence: everybody else is answered all the same."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import numpy as np
import pytest
from pydantic import BaseModel
from serving import Process, lesson, question, running, save_small_model, settings, small_learner

from apl.learner import Learner
from apl.service import requests, routes
from apl.service.guard import Refused
from apl.service.served_model import ServedModel
from apl.service.settings import Limits
from apl.service.telemetry import FewAlike
from apl.store import NewRow, open_store

HOME = "/v1/memories/default"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_small_model(tmp_path_factory.mktemp("model"))


# --- bodies ---------------------------------------------------------------------------------------

FLOODS = {
    "one row of texts": b'{"pixels": [[' + b",".join([b'""'] * 300_000) + b"]]}",
    "rows of texts": b'{"pixels": [' + b",".join([b'[""]'] * 200_000) + b"]}",
    "unknown fields": b"{" + b",".join(b'"%d":0' % number for number in range(100_000)) + b"}",
    "pixels that are an object": b'{"pixels": {' + b",".join(b'"%d":0' % number for number in range(100_000)) + b"}}",
    "examples": b'{"examples": [' + b",".join([b"0"] * 300_000) + b"]}",
    "unknown fields of examples": b'{"examples": [{' + b",".join(b'"%d":0' % n for n in range(100_000)) + b"}]}",
}


@pytest.mark.parametrize("body", FLOODS.values(), ids=FLOODS.keys())
def test_a_body_made_of_errors_is_refused_at_the_first_one(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    errors: list[int] = []
    for kind in (requests.Question, requests.Questions):

        def counted(cls: type[BaseModel], value: object, kind: type[BaseModel] = kind) -> BaseModel:
            try:
                return BaseModel.model_validate.__func__(kind, value)
            except requests.ValidationError as error:
                errors.append(error.error_count())
                raise

        monkeypatch.setattr(kind, "model_validate", classmethod(counted))
    for kind in (requests.Question, requests.Questions):
        with pytest.raises(Refused) as refusal:
            requests.decode(requests.JsonBody(kind, body), ServedModel("small", small_learner()), Limits())
        assert refusal.value.status == 422 and len(refusal.value.message) < 500
    assert all(count <= 5 for count in errors)


def test_bodies_are_read_beside_the_event_loop(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []
    parse = requests.parse

    def watched(*arguments: object) -> object:
        threads.append(threading.current_thread().name)
        return parse(*arguments)

    monkeypatch.setattr(requests, "parse", watched)
    with running(settings(None, model)) as client:
        assert client.post(f"{HOME}/predict", json={"pixels": [["", ""]]}).status_code == 422
        assert client.post(f"{HOME}/learn", json=lesson(0)).status_code == 200
    assert len(threads) == 2 and all(name.startswith("pictures") for name in threads)


# --- heads and connections ------------------------------------------------------------------------


def connect(client: httpx.Client) -> socket.socket:
    return socket.create_connection((client.base_url.host, client.base_url.port), 10)


def test_a_head_without_end_is_cut_off(model: Path) -> None:
    with running(settings(None, model)) as client, connect(client) as raw:
        raw.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ")
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            for _ in range(4000):
                raw.sendall(b"x" * 10_000)
        assert client.get("/healthz").status_code == 200


def test_a_large_head_that_comes_at_once_is_refused_with_a_sentence(model: Path) -> None:
    with running(settings(None, model)) as client:
        answer = client.get("/healthz", headers={"x": "x" * 40_000})
        assert answer.status_code == 431 and "head" in answer.json()["error"]["message"]
        assert client.get("/healthz", headers={"x": "x" * 4_000}).status_code == 200


@pytest.mark.parametrize("sent", [b"", b"GET /healthz HT"])
def test_a_connection_that_stays_silent_is_ended(model: Path, sent: bytes) -> None:
    with running(settings(None, model, limits=Limits(head_seconds=0.2))) as client, connect(client) as raw:
        raw.sendall(sent)
        assert b"408" in raw.recv(1000)
        # The same after a request that was answered.
        with connect(client) as raw:
            raw.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            answer = b""
            while b"alive" not in answer:
                answer += raw.recv(1000)
            raw.sendall(b"GET")
            assert b"408" in raw.recv(1000)


def test_silent_connections_keep_nobody_out_and_fill_no_log(model: Path) -> None:
    server = Process("--model", str(model), "--memory", "ram:", files=256)
    silent = []
    try:
        for _ in range(300):
            silent.append(socket.create_connection((server.client.base_url.host, server.client.base_url.port), 10))
        for number in range(5):
            assert httpx.get(f"{server.url}/healthz", trust_env=False, timeout=20).status_code == 200, number
    finally:
        for one in silent:
            one.close()
        server.stop()
    assert sum(map(len, server.log)) < 50_000


def test_of_lines_alike_a_few_are_written_and_the_rest_are_counted() -> None:
    few = FewAlike(most=3, seconds=10.0)

    def line(created: float, status: int) -> logging.LogRecord:
        record = logging.LogRecord("apl.service", logging.INFO, "guard.py", 1, "request", None, None)
        record.created, record.fields = created, {"status": status}
        return record

    assert all(few.filter(line(0.1 * number, 200)) for number in range(50))
    assert sum(few.filter(line(100 + 0.1 * number, 429)) for number in range(50)) == 3
    later = line(111, 429)
    assert few.filter(later) and later.fields["left_out_before"] == 47


# --- answers --------------------------------------------------------------------------------------


def test_clients_that_do_not_read_do_not_block_the_episodes_of_others(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play = routes.play

    def long(learner: Learner, way: int, *more: int) -> Iterator[dict]:
        yield from (
            play(learner, way, *more) if way < 30 else ({"event": "step", "x": "x" * 1_000_000} for _ in range(99))
        )

    monkeypatch.setattr(routes, "play", long)
    limits = Limits(rate_per_second=0.0, episodes=2, unread_seconds=0.3)
    with running(settings(None, model, limits=limits)) as client, ExitStack() as stack:
        for _ in range(2):
            deaf = stack.enter_context(connect(client))
            deaf.sendall(b"GET /v1/episode?way=30&pause_ms=0 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert b"200" in deaf.recv(1000)
        for _ in range(400):
            answer = client.get("/v1/episode?way=2&drawings=2&pause_ms=0")
            if answer.status_code == 200:
                break
            time.sleep(0.05)
        assert "event: end" in answer.text


def test_an_answer_names_the_likeliest_of_many_classes_and_no_more(model: Path, tmp_path: Path) -> None:
    learner, classes = small_learner(), 3000
    keys = np.random.default_rng(0).normal(size=(classes, learner.encoder.width)).astype(np.float32)
    with open_store(tmp_path / "m.apl", fingerprint=learner.fingerprint(), width=learner.encoder.width) as store:
        store.append([NewRow(f"class {n}", key, 1.0, None, None, None) for n, key in enumerate(keys)])
    with running(settings(tmp_path / "m.apl", model)) as client:
        batch = client.post(f"{HOME}/predict/batch", json={"examples": [question(0)] * 64})
        assert batch.status_code == 200 and len(batch.content) < 500_000
        one = client.post(f"{HOME}/predict", json=question(0)).json()
        assert len(one["probabilities"]) == 20 and one["predicted"] == one["probabilities"][0]["label"]
        most = client.post(f"{HOME}/predict?top=200", json=question(0)).json()["probabilities"]
        assert len(most) == 200 and most[:20] == one["probabilities"]
        assert [p["probability"] for p in most] == sorted((p["probability"] for p in most), reverse=True)
        explained = client.post(f"{HOME}/explain?top=5", json=question(0)).json()
        assert len(explained["probabilities"]) == len(explained["kernel"]) == 5
        assert client.post(f"{HOME}/predict?top=100000", json=question(0)).status_code == 422
