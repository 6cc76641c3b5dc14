"""The live service against its own description: schemathesis makes requests, good and bad, from OpenAPI."""

from __future__ import annotations

import io
import json
import re
import socket
import time
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import HealthCheck, example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from serving import lesson, question, running, save_small_model, settings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of libraries it brings along
    import schemathesis
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi.checks import (
        content_type_conformance,
        response_schema_conformance,
        status_code_conformance,
    )

EXAMPLES, SECONDS_PER_PATH = 10, 0.5
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
LIVE = {"/v1/memories/{name}/events"}
"""Streams, tested elsewhere."""


@schemathesis.serializer("application/zip")
def archive(context: object, value: object) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    model = save_small_model(tmp_path_factory.mktemp("model"))
    with running(settings(tmp_path_factory.mktemp("home") / "m.apl", model)) as client:
        client.put("/v1/memories/kept").raise_for_status()
        for sign in range(3):
            client.post("/v1/memories/kept/learn", json=lesson(sign)).raise_for_status()
        yield client


@pytest.mark.filterwarnings("ignore")
def test_every_path_keeps_to_its_description(service: httpx.Client) -> None:
    schema = schemathesis.openapi.from_dict(service.get("/openapi.json").json())
    schema.config.update(base_url=str(service.base_url).rstrip("/"))
    tried = 0
    for result in schema.get_all_operations():
        operation = result.ok()
        if operation.path not in LIVE:
            tried += 1
            _try(operation)
    assert tried > 15


def _try(operation: object) -> None:
    """Requests as described and requests that are not, for half a second per path."""
    modes = [schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE]
    strategy = st.one_of(*(operation.as_strategy(generation_mode=mode) for mode in modes))
    deadline = time.monotonic() + SECONDS_PER_PATH

    @given(case=strategy)
    @hypothesis_settings(
        max_examples=EXAMPLES, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
    )
    def send(case: schemathesis.Case) -> None:
        if time.monotonic() < deadline:
            case.call_and_validate(checks=CHECKS)

    send()


def test_random_bytes_never_make_it_fail(service: httpx.Client) -> None:
    before = service.get("/v1/memories/kept").json()
    kinds = ["application/json", "multipart/form-data; boundary=b", "application/zip", "text/plain", "", "\xff"]
    paths = [
        "learn",
        "learn/batch",
        "predict",
        "predict/batch",
        "explain",
        "forget",
        "rename",
        "relabel",
        "share",
        "import",
    ]
    deadline = time.monotonic() + 3

    @given(st.sampled_from(paths), st.sampled_from(kinds), st.binary(max_size=300), st.text(max_size=20))
    @hypothesis_settings(max_examples=120, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    def send(path: str, kind: str, body: bytes, key: str) -> None:
        if time.monotonic() < deadline:
            headers = {"content-type": kind.encode("latin-1"), "idempotency-key": key.encode()}
            try:
                answer = service.post(f"/v1/memories/kept/{path}", content=body, headers=headers)
            except (httpx.LocalProtocolError, httpx.RemoteProtocolError):
                return  # not HTTP any more
            assert 400 <= answer.status_code < 500, (path, kind, body, answer.status_code)

    send()
    assert service.get("/v1/memories/kept").json() == before


PIECES = st.sampled_from(
    [
        b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"POST /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST /v1/memories/kept/learn HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST /v1/memories/kept/share HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}",
        b"POST /v1/memories/kept/predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5\r\n\r\n",
        b"0\r\n",
        b"0\r\n\r\n",
        b"5\r\nhello\r\n",
        b"ffffffffffffffff\r\n",
        b"X-Trailer: " + b"t" * 5000 + b"\r\n",
        b"\r\n\r\n",
        b"Content-Length: 3\r\nContent-Length: 4\r\n",
        b"\x00\xff" * 100,
    ]
)


def test_pipelined_requests_trailers_and_broken_chunks_never_make_it_fail(service: httpx.Client) -> None:
    before = service.get("/v1/memories/kept").json()
    deadline = time.monotonic() + 4

    @given(st.lists(st.one_of(PIECES, st.binary(max_size=30)), max_size=12))
    @hypothesis_settings(max_examples=60, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    def send(pieces: list[bytes]) -> None:
        if time.monotonic() > deadline:
            return
        with socket.create_connection((service.base_url.host, service.base_url.port), 10) as raw:
            raw.settimeout(0.1)
            answer = b""
            with suppress(OSError):
                for piece in pieces:
                    raw.sendall(piece)
                while part := raw.recv(10_000):
                    answer += part
        statuses = re.findall(rb"HTTP/1.1 (\d{3}) ", answer)
        assert all(status[:1] in b"24" for status in statuses), statuses
        assert service.get("/healthz").status_code == 200

    send()
    assert service.get("/v1/memories/kept").json() == before


CELLS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=20),
    st.lists(st.integers(), max_size=3),
    st.just("x" * 9000),
)


SETTINGS = ["service curve", "classifier", "merged memories", "readers", "ensemble", "unknown"]
SETTING_CELLS = st.one_of(
    CELLS,
    st.just({}),
    st.just({"seen": -1, "outcomes": 5, "rows": None}),
    st.just({"weight": [1e308, None], "unit": -1.0}),
    st.lists(st.sampled_from([None, 1e308, -1.0, 0, "x"]), max_size=8),
)


@st.composite
def damaged(draw: st.DrawFn, archive: bytes) -> bytes:
    """An exported memory in which something is not as it was written."""
    with zipfile.ZipFile(io.BytesIO(archive)) as packed:
        description = json.loads(packed.read("memory.json"))
        arrays = safetensors.numpy.load(packed.read("rows.safetensors"))
    match draw(st.sampled_from(["field", "label", "source", "number", "shape", "deep", "bytes", "setting", "setting"])):
        case "field":
            description[draw(st.sampled_from(sorted(description)))] = draw(CELLS)
        case "label":
            description["labels"][draw(st.integers(0, 2))] = draw(CELLS)
        case "source":
            description["sources"][draw(st.integers(0, 2))] = draw(CELLS)
        case "number":
            array = arrays[draw(st.sampled_from(["key", "surprise_nats", "written_at"]))]
            value = draw(st.sampled_from([1e30, -1e30, np.inf, -np.inf, np.nan, -1.0, 3e38]))
            array.reshape(-1)[draw(st.integers(0, array.size - 1))] = value
        case "shape":
            name = draw(st.sampled_from(sorted(arrays)))
            arrays[name] = arrays[name].reshape(-1)[: draw(st.integers(0, 2))].astype(draw(st.sampled_from("fbd")))
        case "setting":
            name = draw(st.sampled_from([*sorted(description["settings"]), *SETTINGS]))
            found = description["settings"].get(name)
            inner = sorted(found) if isinstance(found, dict) and found else None
            if inner and draw(st.booleans()):
                found[draw(st.sampled_from(inner))] = draw(SETTING_CELLS)
            else:
                description["settings"][name] = draw(SETTING_CELLS)
        case "deep":
            description["settings"]["deep"] = json.loads("[" * 900 + "]" * 900)
        case "bytes":
            place, bit = draw(st.integers(0, len(archive) - 1)), draw(st.integers(0, 7))
            return archive[:place] + bytes([archive[place] ^ 1 << bit]) + archive[place + 1 :]
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as packed:
        packed.writestr("memory.json", json.dumps(description))
        packed.writestr("rows.safetensors", safetensors.numpy.save(arrays))
    return made.getvalue()


def test_no_archive_makes_an_import_fail_or_spoils_the_memory(tmp_path: Path) -> None:
    model = save_small_model(tmp_path / "model")
    zipped = {"content-type": "application/zip"}
    with running(settings(tmp_path / "m.apl", model)) as client:
        for sign in range(3):
            client.post("/v1/memories/default/learn", json=lesson(sign)).raise_for_status()
        archive = client.get("/v1/memories/default/export").content
        deadline = time.monotonic() + 5
        kept = []

        @example(archive)
        @given(damaged(archive))
        @hypothesis_settings(max_examples=80, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        def send(content: bytes) -> None:
            if time.monotonic() < deadline:
                home = f"/v1/memories/m{len(kept)}"  # an empty memory takes over the settings too
                client.put(home).raise_for_status()
                answer = client.post(f"{home}/import", content=content, headers=zipped)
                assert answer.status_code < 500, answer.text
                taken = answer.json()["written"] if answer.status_code == 200 else 0
                assert client.get(home).json()["rows"] == taken
                assert client.post(f"{home}/predict", json=question(0)).status_code == 200
                assert client.post(f"{home}/learn", json=lesson(4)).status_code == 200
                if taken:
                    kept.append(home)
                else:
                    client.delete(home).raise_for_status()

        send()
    # What was taken in can be opened again.
    with running(settings(tmp_path / "m.apl", model)) as client:
        assert client.get("/readyz").status_code == 200 and kept
        for home in kept:
            assert client.post(f"{home}/predict", json=question(0)).status_code == 200
