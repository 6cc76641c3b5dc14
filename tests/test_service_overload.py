"""Hostile clients, by size, slowness or silence: memory stays bounded, and everybody else is answered."""

from __future__ import annotations

import json
import logging
import select
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import numpy as np
import pytest
from serving import Process, lesson, question, running, save_small_model, settings, small_learner

from apl.service.server import most_connections
from apl.service.settings import Limits
from apl.store import NewRow, open_store

HOME = "/v1/memories/default"
HOST = b"Host: 127.0.0.1\r\n"
CHUNKED = HOST + b"Transfer-Encoding: chunked\r\n\r\n"
FLOOD_BYTES = 30_000_000
"""Sent by one connection, unless it is closed before."""
MOST_GROWTH_MB = 25


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_small_model(tmp_path_factory.mktemp("model"))


def connect(client: httpx.Client) -> socket.socket:
    return socket.create_connection((client.base_url.host, client.base_url.port), 30)


# --- heads, trailers, connections -------------------------------------------------------------------------------------

FLOODS = {
    "trailers": (b"POST /healthz HTTP/1.1\r\n" + CHUNKED + b"0\r\n", b"X-A: " + b"b" * 1000 + b"\r\n"),
    "trailers of a lesson": (
        f"POST {HOME}/learn HTTP/1.1\r\n".encode() + CHUNKED + b"0\r\n",
        b"X: " + b"b" * 997 + b"\r\n",
    ),
    "one trailer": (b"POST /healthz HTTP/1.1\r\n" + CHUNKED + b"0\r\nX-A: ", b"b" * 1000),
    "a chunk's extension": (b"POST /healthz HTTP/1.1\r\n" + CHUNKED + b"1;", b"b" * 1000),
    "headers": (b"GET /healthz HTTP/1.1\r\n" + HOST, b"X-A: " + b"b" * 1000 + b"\r\n"),
    "one header": (b"GET /healthz HTTP/1.1\r\n" + HOST + b"X-A: ", b"b" * 1000),
    "a request line": (b"GET /", b"b" * 1000),
    "pipelined requests": (b"", (b"GET /healthz HTTP/1.1\r\n" + HOST + b"\r\n") * 20),
    "a body for a path without one": (
        b"POST /healthz HTTP/1.1\r\n" + HOST + b"Content-Length: 9999999999\r\n\r\n",
        b"b" * 1000,
    ),
    "chunks for a path without a body": (b"GET / HTTP/1.1\r\n" + CHUNKED, b"3e8\r\n" + b"b" * 1000 + b"\r\n"),
}


@pytest.fixture(scope="module")
def process(model: Path) -> Iterator[Process]:
    server = Process("--model", str(model), "--memory", "ram:")
    try:
        server.client.post(f"{HOME}/learn", json=lesson(0)).raise_for_status()
        yield server
    finally:
        server.stop()


def resident_mb(server: Process) -> float:
    pages = int(Path(f"/proc/{server.process.pid}/statm").read_text().split()[1])
    return pages * 4096 / 1e6


@pytest.mark.parametrize(("head", "part"), FLOODS.values(), ids=FLOODS.keys())
def test_no_flood_fills_the_memory_of_the_process(process: Process, head: bytes, part: bytes) -> None:
    before, sent, part = resident_mb(process), 0, part * 20
    with connect(process.client) as raw:
        raw.settimeout(2)
        raw.sendall(head)
        try:
            while sent < FLOOD_BYTES:
                sent += raw.send(part)
        except OSError:
            pass  # closed, or no longer read: both are right
        assert resident_mb(process) - before < MOST_GROWTH_MB
        assert process.client.get("/healthz").status_code == 200
    assert sent < FLOOD_BYTES, "the connection must not take everything"


@pytest.mark.parametrize("sent", [b"", b"GET /healthz HT", b"GET /healthz HTTP/1.1\r\n" + HOST + b"\r\n"])
def test_a_silent_connection_is_closed(model: Path, sent: bytes) -> None:
    with running(settings(None, model, limits=Limits(head_seconds=0.3))) as client, connect(client) as raw:
        raw.sendall(sent)
        answer = b""
        while part := raw.recv(1000):
            answer += part
        assert (b"alive" in answer) == sent.endswith(b"\r\n\r\n")


def test_a_large_head_that_comes_at_once_is_refused(model: Path) -> None:
    with running(settings(None, model)) as client:
        assert client.get("/healthz", headers={"x": "x" * 400_000}).status_code == 431
        assert client.get("/healthz", headers={"x": "x" * 4_000}).status_code == 200


def test_silent_connections_keep_nobody_out_for_long(model: Path) -> None:
    limits = Limits(connections=32, head_seconds=0.5)
    with running(settings(None, model, limits=limits)) as client, ExitStack() as stack:
        for _ in range(100):
            stack.enter_context(connect(client))
        for number in range(5):
            assert httpx.get(f"{client.base_url}/healthz", trust_env=False, timeout=60).status_code == 200, number


def test_fewer_connections_are_taken_where_fewer_files_may_be_open(monkeypatch: pytest.MonkeyPatch) -> None:
    for files, connections in ((256, 128), (100_000, 1000), (-1, 1000), (50, 8)):
        monkeypatch.setattr("resource.getrlimit", lambda _, files=files: (files, files))
        assert most_connections(Limits()) == connections


# --- bodies -------------------------------------------------------------------------------------------------------

BODIES = {
    "empty lists": b"[" + b"[]," * 300_000 + b"[]]",
    "an escaped quote without an end": b'{"image": "' + b'\\"' * 1_500_000,
    "quotes": b'"' * 3_900_000,
    "a list of texts": b'{"image": [' + b",".join([b'""'] * 300_000) + b"]}",
    "rows of texts": b'{"image": [' + b",".join([b'[""]'] * 200_000) + b"]}",
    "unknown fields": b"{" + b",".join(b'"%d":0' % number for number in range(19_000)) + b"}",
    "an image that is an object": b'{"image": {' + b",".join(b'"%d":0' % number for number in range(19_000)) + b"}}",
    "examples": b'{"examples": [' + b",".join([b"0"] * 300_000) + b"]}",
    "unknown fields of examples": b'{"examples": [{' + b",".join(b'"%d":0' % n for n in range(19_000)) + b"}]}",
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
def test_a_body_made_of_errors_is_refused_with_a_short_sentence(process: Process, body: bytes) -> None:
    for verb in ("predict", "predict/batch", "learn"):
        headers = {"content-type": "application/json"}
        answer = process.client.post(f"{HOME}/{verb}", content=body, headers=headers)
        assert answer.status_code == 422 and len(answer.json()["error"]["message"]) < 500


def test_a_client_that_leaves_in_the_middle_of_its_body_is_noted_as_such(model: Path) -> None:
    server = Process("--model", str(model), "--memory", "ram:")
    try:
        with connect(server.client) as raw:
            head = f"POST {HOME}/learn HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            raw.sendall(head.encode() + b'Content-Length: 100\r\n\r\n{"la')
        deadline = time.monotonic() + 30
        while not any('"status": 499' in line for line in list(server.log)) and time.monotonic() < deadline:
            time.sleep(0.02)
    finally:
        server.stop()
    answered = [json.loads(line) for line in server.log if "/learn" in line]
    assert [line["status"] for line in answered] == [499]
    assert not any("Traceback" in line for line in server.log)


def test_bodies_that_are_being_received_are_bounded_together(model: Path) -> None:
    limits = Limits(body_bytes=400_000, bodies_bytes=1_000_000, body_seconds=30.0)
    head = f"POST {HOME}/learn HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 400000\r\n\r\n"
    with running(settings(None, model, limits=limits)) as client, ExitStack() as stack:
        half = [stack.enter_context(connect(client)) for _ in range(4)]
        for raw in half:
            raw.sendall(head.encode() + b" " * 300_000)
        ready, _, _ = select.select(half, [], [], 60)
        assert len(ready) == 1 and b"503" in ready[0].recv(20)
        assert client.post(f"{HOME}/learn", json=lesson(0)).status_code == 200
        for raw in half:
            raw.close()
        deadline = time.monotonic() + 30
        large = json.dumps(lesson(0)).encode() + b" " * 300_000
        headers = {"content-type": "application/json"}
        while client.post(f"{HOME}/learn", content=large, headers=headers).status_code != 200:
            assert time.monotonic() < deadline, "what was held is given back when clients leave"
            time.sleep(0.05)


# --- answers ------------------------------------------------------------------------------------------------------


def test_answers_that_nobody_reads_are_bounded_together_and_given_up(model: Path, tmp_path: Path) -> None:
    learner, chance = small_learner(), np.random.default_rng(0)
    keys = chance.normal(size=(400, learner.encoder.width)).astype(np.float32)
    with open_store(tmp_path / "m.apl", fingerprint=learner.fingerprint(), width=learner.encoder.width) as store:
        store.append([NewRow(f"class {n}", key, 1.0, None, None, chance.bytes(6000)) for n, key in enumerate(keys)])
    limits, path = Limits(bodies_bytes=4_500_000, body_seconds=5.0), f"{HOME}/rows?payloads=true&limit=500"
    with running(settings(tmp_path / "m.apl", model, limits=limits)) as client, socket.socket() as raw:
        assert len(client.get(path).content) > 3_000_000
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.connect((client.base_url.host, client.base_url.port))
        raw.sendall(f"GET {path} HTTP/1.1\r\n".encode() + HOST + b"\r\n")
        assert b"200" in raw.recv(20)
        statuses = [client.get(path).status_code]
        assert client.get("/healthz").status_code == 200
        while statuses[-1] != 200 and len(statuses) < 100:
            time.sleep(0.5)
            statuses.append(client.get(path).status_code)
        assert set(statuses) == {503, 200}
    with running(settings(tmp_path / "m.apl", model, limits=Limits(bodies_bytes=100_000))) as client:
        assert client.get(path).status_code == 503
        assert len(client.get(f"{HOME}/export").content) > 2_000_000, "sent from a file"


def test_of_refused_requests_a_few_lines_are_written(model: Path, caplog: pytest.LogCaptureFixture) -> None:
    with running(settings(None, model)) as client, caplog.at_level(logging.INFO, "apl.service"):
        for _ in range(100):
            assert client.get("/nothing").status_code == 404
        assert client.get("/healthz").status_code == 200
    statuses = [record.fields["status"] for record in caplog.records if record.message == "request"]
    assert statuses.count(200) == 1 and 1 <= statuses.count(404) < 100


def test_an_answer_names_the_most_probable_of_many_classes_and_no_more(model: Path, tmp_path: Path) -> None:
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
        assert len(client.post(f"{HOME}/explain?top=5", json=question(0)).json()["probabilities"]) == 5
        assert client.post(f"{HOME}/predict?top=100000", json=question(0)).status_code == 422


def test_event_streams_are_bounded_and_one_that_is_left_gives_its_place_back(model: Path) -> None:
    with running(settings(None, model, limits=Limits(streams=2))) as client, ExitStack() as stack:
        ask = f"GET {HOME}/events HTTP/1.1\r\n".encode() + HOST + b"\r\n"
        for _ in range(2):
            raw = stack.enter_context(connect(client))
            raw.sendall(ask)
            assert b"200" in raw.recv(20)
        assert client.get(f"{HOME}/events").status_code == 503
        raw.close()
        deadline, status = time.monotonic() + 60, b"503"
        while status == b"503" and time.monotonic() < deadline:
            with connect(client) as again:
                again.sendall(ask)
                status = again.recv(12)[-3:]
        assert status == b"200"
