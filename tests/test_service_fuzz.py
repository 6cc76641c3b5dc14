"""The live service against its own description: schemathesis makes requests, good and bad, from OpenAPI."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator

import httpx
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from serving import lesson, running, save_small_model, settings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of libraries it brings along
    import schemathesis
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi.checks import (
        content_type_conformance,
        response_schema_conformance,
        status_code_conformance,
    )

EXAMPLES, SECONDS_PER_PATH = 10, 0.8
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
LIVE = {"/v1/episode"}
"""Streams, which end when the episode does; tested elsewhere."""


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
    """Requests as described and requests that are not, for a little over a second per path."""
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
    paths = ["learn", "learn/batch", "predict", "predict/batch", "explain", "forget", "restore", "import"]
    deadline = time.monotonic() + 5

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
