"""What strangers may try: foreign hosts and sites, wrong tokens, bodies and pictures made to hurt.

Throughout: no answer is a 5xx, and the memory is afterwards what it was before.
"""

from __future__ import annotations

import base64
import io
import json
import socket
import struct
import zipfile
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
import numpy as np
import pytest
from PIL import Image, ImageDraw
from serving import Process, encoded, lesson, png, question, running, save_small_model, settings

from apl.cli import main
from apl.service.guard import RequestRate
from apl.service.settings import Limits, Settings
from apl.service.tokens import Tokens, add_to_file, make_token

HOME = "/v1/memories/default"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_small_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def service(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    home = tmp_path_factory.mktemp("memories") / "m.apl"
    limits = Limits(body_bytes=400_000, import_bytes=2_000_000, image_pixels=250_000, memories=3)
    with running(settings(home, model, limits=limits)) as client:
        client.post(f"{HOME}/learn", json=lesson(0)).raise_for_status()
        client.post(f"{HOME}/learn", json=lesson(1)).raise_for_status()
        yield client


@pytest.fixture
def unharmed(service: httpx.Client) -> Iterator[httpx.Client]:
    """The service, whose memory must not change."""

    def state() -> tuple:
        return service.get(HOME).json(), service.get(f"{HOME}/rows").json(), service.get("/v1/memories").json()

    before = state()
    yield service
    assert state() == before


def refused(response: httpx.Response, *statuses: int) -> None:
    assert response.status_code in statuses, (response.status_code, response.text[:300])
    error = response.json()["error"]
    assert error["code"] and error["message"]


# --- bodies ---------------------------------------------------------------------------------------


JSON = {"content-type": "application/json"}
BAD_BODIES = {
    "nothing": b"",
    "no json": b"{",
    "not utf-8": b'{"label": "\xff\xfe", "image": ""}',
    "a list": b"[]",
    "null": b"null",
    "empty label": json.dumps(lesson(2, label="")).encode(),
    "blank label": json.dumps(lesson(2, label="  ")).encode(),
    "long label": json.dumps(lesson(2, label="x" * 201)).encode(),
    "control character": json.dumps(lesson(2, label="a\x00b")).encode(),
    "lone surrogate": b'{"label": "\\ud800", "image": ""}',
    "label true": json.dumps(lesson(2, label=True)).encode(),
    "label 1.5": json.dumps(lesson(2, label=1.5)).encode(),
    "label of 65 bits": json.dumps(lesson(2, label=2**64)).encode(),
    "label object": json.dumps(lesson(2, label={"a": 1})).encode(),
    "no image": b'{"label": "a"}',
    "not base64": b'{"label": "a", "image": "***"}',
    "not a picture": json.dumps({"label": "a", "image": base64.b64encode(b"hello").decode()}).encode(),
    "half a picture": json.dumps({"label": "a", "image": base64.b64encode(png(2)[:60]).decode()}).encode(),
    "image and text": json.dumps(lesson(2, text="a")).encode(),
    "blank sheet": json.dumps(
        {"label": "a", "image": base64.b64encode(encoded(np.zeros((9, 9), np.uint8))).decode()}
    ).encode(),
    "unknown field": json.dumps(lesson(2, colour="red")).encode(),
    "unknown ink": json.dumps(lesson(2, ink="green")).encode(),
    "empty source": json.dumps(lesson(2, source="")).encode(),
    "source of 3,000 bytes": json.dumps(lesson(2, source="東" * 1000)).encode(),
    "deep nesting": b'{"label": ' + b"[" * 50_000 + b"]" * 50_000 + b"}",
    "duplicate keys": b'{"label": "a", "label": null, "image": ""}',
}


@pytest.mark.parametrize("body", BAD_BODIES.values(), ids=BAD_BODIES.keys())
def test_a_bad_lesson_is_refused_and_changes_nothing(unharmed: httpx.Client, body: bytes) -> None:
    refused(unharmed.post(f"{HOME}/learn", content=body, headers=JSON), 422)
    refused(unharmed.post(f"{HOME}/learn/batch", content=b'{"examples": [' + body + b"]}", headers=JSON), 422)
    refused(unharmed.post(f"{HOME}/predict", content=body, headers=JSON), 422)


def test_one_bad_example_spoils_its_whole_batch(unharmed: httpx.Client) -> None:
    batch = {"examples": [lesson(2), lesson(3), lesson(4, label="a", image="***")]}
    answer = unharmed.post(f"{HOME}/learn/batch", json=batch)
    refused(answer, 422)
    assert "examples.2" in answer.json()["error"]["message"]
    refused(unharmed.post(f"{HOME}/learn/batch", json={"examples": [lesson(2)] * 65}), 422)
    refused(unharmed.post(f"{HOME}/learn/batch", json={"examples": []}), 422)


@pytest.mark.parametrize("text", ["東" * 1000, "a\0b", "\ud800"], ids=["3,000 bytes", "zero", "surrogate"])
def test_what_no_memory_can_hold_cannot_be_forgotten(unharmed: httpx.Client, text: str) -> None:
    for what in ("label", "source"):
        refused(unharmed.post(f"{HOME}/forget", content=json.dumps({what: text}).encode(), headers=JSON), 422)


def test_only_json_is_taken(unharmed: httpx.Client) -> None:
    body = json.dumps(lesson(2)).encode()
    # Some of these a page of another site could send without asking first.
    for kind in (
        "text/plain",
        "",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "application/x-pickle",
        "application/x+json",
        "application/zip",
    ):
        answer = unharmed.post(f"{HOME}/learn", content=body, headers={"content-type": kind})
        refused(answer, 422)
        assert answer.json()["error"]["message"] == "the body must be sent as Content-Type: application/json"
    refused(unharmed.post(f"{HOME}/import", content=b"[]", headers={"content-type": "application/json"}), 422)


def test_long_texts_full_of_signs_are_no_attack(unharmed: httpx.Client) -> None:
    batch = {"examples": [{"text": "a: [1, 2], {b: 'c', \"d\"}" * 700, "label": "a"}] * 64}
    answer = unharmed.post("/v1/memories/default/learn/batch", json=batch)
    refused(answer, 413 if len(json.dumps(batch)) > 400_000 else 422)
    assert "parts" not in answer.json()["error"]["message"]
    batch["examples"] = batch["examples"][:20]
    assert (
        unharmed.post(f"{HOME}/learn/batch", json=batch).json()["error"]["message"].endswith("pictures are served here")
    )


@pytest.mark.parametrize("label", ["\u200b", "\ufeff \u200d", "a\u202eb", "a\u2066b"])
def test_a_label_that_cannot_be_read_on_a_page_is_refused_and_one_that_is_there_can_be_put_right(
    unharmed: httpx.Client, label: str
) -> None:
    refused(unharmed.post(f"{HOME}/learn", json=lesson(2, label=label)), 422)
    refused(unharmed.post(f"{HOME}/rename", json={"label": "sign 0", "to": label}), 422)
    assert unharmed.post(f"{HOME}/forget", json={"label": label}).json() == {"rows": [], "rebuilt": []}
    refused(unharmed.post(f"{HOME}/rename", json={"label": label, "to": "a"}), 404)


def test_a_body_too_large_is_refused_while_it_arrives(unharmed: httpx.Client) -> None:
    refused(unharmed.post(f"{HOME}/learn", json=lesson(2, label="x" * 10_000_000)), 413)

    def endless() -> Iterator[bytes]:
        for _ in range(100):
            yield b"x" * 10_000

    answer = unharmed.post(f"{HOME}/learn", content=endless(), headers={"content-type": "application/json"})
    refused(answer, 413)
    # An announced size is believed: nothing is read.
    with socket.create_connection((unharmed.base_url.host, unharmed.base_url.port), 10) as raw:
        head = f"POST {HOME}/learn HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9999999999\r\n\r\n"
        raw.sendall(head.encode())
        assert b"413" in raw.recv(200)


def test_a_body_that_never_ends_is_given_up(model: Path) -> None:
    with running(settings(None, model, limits=Limits(body_seconds=0.2))) as client:
        with socket.create_connection((client.base_url.host, client.base_url.port), 10) as raw:
            raw.sendall(f"POST {HOME}/learn HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\nabc".encode())
            assert b"408" in raw.recv(200)


# --- pictures -------------------------------------------------------------------------------------


def sent(picture: bytes) -> dict[str, str]:
    return {"image": base64.b64encode(picture).decode()}


def bomb(side: int) -> bytes:
    """A PNG of this many pixels squared, in a few hundred bytes."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    packer = zlib.compressobj(9)
    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    row = bytes(1 + side // 8)
    data = b"".join(packer.compress(row) for _ in range(min(side, 3000))) + packer.flush()
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


@pytest.mark.parametrize("side", [1000, 20_000, 60_000])
def test_a_decompression_bomb_is_known_by_its_header(unharmed: httpx.Client, side: int) -> None:
    refused(unharmed.post(f"{HOME}/predict", json=sent(bomb(side))), 422)


def test_a_jpeg_up_to_four_times_too_large_is_answered_and_a_larger_one_is_not(unharmed: httpx.Client) -> None:
    for side, status in ((900, 200), (1100, 422)):
        sheet = Image.new("L", (side, side), 255)
        ImageDraw.Draw(sheet).line((side // 4, side // 4, side // 2, side // 4 * 3), 0, side // 20)
        sheet.save(file := io.BytesIO(), "JPEG")
        assert unharmed.post(f"{HOME}/predict", json=sent(file.getvalue())).status_code == status


def test_formats_that_few_people_test_are_not_decoded(unharmed: httpx.Client) -> None:
    refused(unharmed.post(f"{HOME}/predict", json=sent(b"%!PS-Adobe-3.0 EPSF-3.0\n")), 422)
    refused(unharmed.post(f"{HOME}/predict", json=sent(b"P5 2 2 255 abcd")), 422)


# --- names, memories, archives --------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["..%2F..%2Fetc%2Fpasswd", "a%2Fb", "..", "%2e%2e", "a%00b", "a b", "ä", "x" * 65, "*", "a;b", "%0d%0aX:y"]
)
def test_names_with_tricks(unharmed: httpx.Client, name: str) -> None:
    for method in ("PUT", "GET", "DELETE"):
        refused(unharmed.request(method, f"/v1/memories/{name}"), 404, 405, 422)
    refused(unharmed.post(f"/v1/memories/{name}/learn", json=lesson(2)), 404, 405, 422)


def test_the_number_of_memories_is_limited(service: httpx.Client) -> None:
    assert service.put("/v1/memories/one").status_code == 201
    assert service.put("/v1/memories/two").status_code == 201
    refused(service.put("/v1/memories/three"), 409)
    for name in ("one", "two"):
        assert service.delete(f"/v1/memories/{name}").status_code == 204


def test_static_files_stay_inside_their_folder(unharmed: httpx.Client) -> None:
    for path in ("/../app.py", "/%2e%2e/app.py", "/..%2fapp.py", "/page/../../app.py", "//etc/passwd"):
        assert unharmed.get(path).status_code in (403, 404, 405)


def archive(**files: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as made:
        for name, data in files.items():
            made.writestr(name.replace("__", "../").replace("_", "."), data)
    return buffer.getvalue()


def test_archives_that_are_not_a_memory(unharmed: httpx.Client) -> None:
    good = unharmed.get(f"{HOME}/export").content
    with zipfile.ZipFile(io.BytesIO(good)) as made:
        description, rows = made.read("memory.json"), made.read("rows.safetensors")
    other = json.loads(description) | {"fingerprint": "0" * 16}
    bad = {
        "nothing": b"",
        "text": b"hello",
        "half": good[: len(good) // 2],
        "path": archive(__memory_json=description, rows_safetensors=rows),
        "extra": archive(memory_json=description, rows_safetensors=rows, evil_pkl=b"cos\nsystem\n"),
        "no rows": archive(memory_json=description, rows_safetensors=b""),
        "other rows": archive(memory_json=description, rows_safetensors=rows[:-40]),
        "no json": archive(memory_json=b"{}", rows_safetensors=rows),
        "labels": archive(memory_json=description.replace(b"sign 0", b"sign 0\\u0000"), rows_safetensors=rows),
        "bomb": archive(memory_json=b" " * 3_000_000, rows_safetensors=rows),
        "a bomb of lists": archive(memory_json=b"[" + b"[]," * 600_000 + b"[]]", rows_safetensors=rows),
        "other model": archive(memory_json=json.dumps(other).encode(), rows_safetensors=rows),
    }
    for name, content in bad.items():
        answer = unharmed.post(f"{HOME}/import", content=content, headers={"content-type": "application/zip"})
        assert answer.status_code in (409, 413, 422), (name, answer.text)
        assert "/tmp" not in answer.text


# --- hosts, sites, rates --------------------------------------------------------------------------


def test_only_names_of_the_loopback_interface_are_answered(unharmed: httpx.Client) -> None:
    for host in ("evil.example", "127.0.0.1.evil.example", "", "localhost.evil.example:80"):
        assert unharmed.get(HOME, headers={"host": host}).status_code in (400, 421)
    for host in ("localhost", "127.0.0.1:1", "[::1]:8000"):
        assert unharmed.get(HOME, headers={"host": host}).status_code == 200


def test_pages_of_other_sites_are_refused(unharmed: httpx.Client) -> None:
    for origin in ("https://evil.example", "null", "http://localhost:1", "http://127.0.0.1.evil.example"):
        answer = unharmed.post(f"{HOME}/learn", json=lesson(2), headers={"origin": origin})
        refused(answer, 403)
        assert "access-control-allow-origin" not in answer.headers
    refused(unharmed.get(f"{HOME}/export", headers={"sec-fetch-site": "cross-site"}), 403)
    own = str(unharmed.base_url).rstrip("/")
    assert unharmed.get(HOME, headers={"origin": own, "sec-fetch-site": "same-origin"}).status_code == 200


def test_every_answer_carries_the_headers_that_protect_the_page(unharmed: httpx.Client) -> None:
    for path in ("/", "/app.js", HOME, "/v1/memories/none", "/nothing"):
        headers = unharmed.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff" and headers["x-frame-options"] == "DENY"
    assert unharmed.get(HOME).headers["cache-control"] == "no-store"


def test_a_client_that_asks_too_often_is_told_to_wait(model: Path) -> None:
    with running(settings(None, model, rate=0.001)) as client:
        first, second = client.get("/v1/memories"), client.get("/v1/memories")
    assert first.status_code == 200
    refused(second, 429)
    assert int(second.headers["retry-after"]) >= 1


def test_on_this_machine_without_tokens_there_is_no_limit_of_requests_unless_one_is_set(tmp_path: Path) -> None:
    assert Settings().rate_per_second == 0 and Settings(rate=5.0).rate_per_second == 5
    assert Settings(tokens="tokens.json").rate_per_second == 100
    assert Settings(host="0.0.0.0", share=True).rate_per_second == 100
    assert Settings(host="0.0.0.0", share=True, rate=0.0).rate_per_second == 0
    for rate in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="rate"):
            Settings(rate=rate)


def test_buckets_of_clients_are_separate_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apl.service.guard.CLIENTS_REMEMBERED", 3)
    rate = RequestRate(0.001)
    assert rate.wait_seconds("a") == 0 and rate.wait_seconds("a") > 0 and rate.wait_seconds("b") == 0
    for number in range(10):
        rate.wait_seconds(str(number))
    assert len(rate._buckets) == 3


# --- tokens ---------------------------------------------------------------------------------------


def test_tokens_and_their_scopes(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    made = {}
    for name, grants in {"reader": ["default=read"], "teacher": ["default=learn"], "chief": ["*=admin"]}.items():
        made[name], entry = make_token(name, grants)
        add_to_file(file, entry)
        assert made[name] not in file.read_text()
    assert file.stat().st_mode & 0o077 == 0

    def bearer(name: str) -> dict[str, str]:
        return {"authorization": f"Bearer {made[name]}"}

    with running(settings(tmp_path / "m.apl", model, tokens=str(file))) as client:
        for headers in (
            {},
            {"authorization": "Bearer nonsense"},
            {"authorization": f"Basic {made['chief']}"},
            {"authorization": "Bearer"},
            {"authorization": "Bearer " + "x" * 5000},
        ):
            answer = client.get(HOME, headers=headers)
            refused(answer, 401)
            assert answer.headers["www-authenticate"] == "Bearer"
        refused(client.get("/metrics"), 401)
        assert [client.get(path).status_code for path in ("/healthz", "/readyz", "/")] == [200, 200, 200]
        assert client.put("/v1/memories/secret", headers=bearer("chief")).status_code == 201

        def tried(name: str, memory: str) -> list[int]:
            home, headers = f"/v1/memories/{memory}", bearer(name)
            return [
                client.post(f"{home}/predict", json=question(0), headers=headers).status_code,
                client.post(f"{home}/learn", json=lesson(0), headers=headers).status_code,
                client.put(home, headers=headers).status_code,
            ]

        assert tried("reader", "default") == [200, 403, 403]
        assert tried("teacher", "default") == [200, 200, 403]
        assert tried("chief", "secret") == [200, 200, 200]
        assert tried("teacher", "secret") == tried("reader", "secret") == [403, 403, 403]
        # Whether a memory exists is not told to those who may not read it.
        assert tried("reader", "none") == [403, 403, 403]
        visible = client.get("/v1/memories", headers=bearer("reader")).json()
        assert [m["name"] for m in visible] == ["default"]
        refused(client.get("/metrics", headers=bearer("reader")), 403)
        assert client.get("/metrics", headers=bearer("chief")).status_code == 200


def test_mistakes_in_a_token_file_are_named(tmp_path: Path) -> None:
    token, owner = make_token("me", ["letters=learn", "*=read"])
    add_to_file(file := tmp_path / "tokens.json", owner)
    client = Tokens.load(file).client(token)
    assert client is not None and client.may("learn", "letters") and client.may("read", "other")
    assert not client.may("learn", "other") and not client.may("admin", "letters")
    wrong, entry = tmp_path / "wrong.json", json.loads(owner.model_dump_json())
    damaged = [{**entry, "memories": m} for m in ({"a/b": ["read"]}, {"a": ["everything"]}, {"a": []})]
    damaged += [{**entry, "sha256": "x"}, {"name": "a"}]
    for text in ("{", "[]", *(json.dumps({"tokens": [one]}) for one in damaged)):
        wrong.write_text(text)
        with pytest.raises(ValueError, match="wrong.json"):
            Tokens.load(wrong)


def test_without_tokens_nobody_else_can_reach_it(capsys: pytest.CaptureFixture[str]) -> None:
    for host in ("0.0.0.0", "192.168.1.4", "::", "example.org"):
        with pytest.raises(ValueError, match="token"):
            Settings(host=host)
    for host in ("127.0.0.1", "localhost", "::1", "127.8.8.8"):
        Settings(host=host)
    assert main(["serve", "--host", "0.0.0.0"]) == 2
    assert "--make-token" in capsys.readouterr().err


def test_the_command_line_makes_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "tokens.json"
    assert main(["serve", "--make-token", "--tokens", str(file), "--grant", "letters=learn"]) == 0
    token = capsys.readouterr().out.strip()
    client = Tokens.load(file).client(token)
    assert client is not None and client.may("learn", "letters") and not client.may("read", "other")
    assert main(["serve", "--make-token", "--tokens", str(file), "--grant", "letters=everything"]) == 2
    assert main(["serve", "--make-token"]) == 2 and "--tokens FILE" in capsys.readouterr().err


# --- sharing --------------------------------------------------------------------------------------


def test_a_guest_of_one_memory_gets_a_token_for_that_memory_alone(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    chief, entry = make_token("chief", ["*=admin"])
    add_to_file(file, entry)
    changes = {"host": "0.0.0.0", "tokens": str(file), "share": True}
    with running(settings(tmp_path / "m.apl", model, **changes)) as client:
        own = {"authorization": f"Bearer {chief}"}
        client.put("/v1/memories/other", headers=own).raise_for_status()
        shared = client.post(f"{HOME}/share", json={"scope": "read"}, headers=own)
        assert shared.status_code == 200, shared.text
        link = urlsplit(shared.json()["link"])
        fragment = parse_qs(link.fragment)
        assert link.port == client.base_url.port and not link.query and fragment["memory"] == ["default"]
        guest = {"authorization": f"Bearer {fragment['token'][0]}"}
        assert client.get(HOME, headers=guest).status_code == 200
        refused(client.post(f"{HOME}/learn", json=lesson(0), headers=guest), 403)
        refused(client.get("/v1/memories/other", headers=guest), 403)
        refused(client.post(f"{HOME}/share", json={}, headers=guest), 403)
    # Tokens made later are in the file too, as hashes.
    assert Tokens.load(file).client(fragment["token"][0]) is not None
    assert fragment["token"][0] not in file.read_text()


def test_a_guest_is_not_let_into_a_memory_made_anew_under_the_same_name(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    chief, entry = make_token("chief", ["*=admin"])
    add_to_file(file, entry)
    options = settings(tmp_path / "m.apl", model, host="0.0.0.0", tokens=str(file), share=True)
    own, home = {"authorization": f"Bearer {chief}"}, "/v1/memories/shared"
    with running(options) as client:
        client.put(home, headers=own).raise_for_status()
        shared = client.post(f"{home}/share", json={}, headers=own).json()
        guest = {"authorization": "Bearer " + parse_qs(urlsplit(shared["link"]).fragment)["token"][0]}
        assert client.get(home, headers=guest).json()["scope"] == "learn"
    with running(options) as client:
        assert client.get(home, headers=guest).status_code == 200, "the token outlives a restart"
        client.delete(home, headers=own).raise_for_status()
        refused(client.get(home, headers=guest), 403)
        client.put(home, headers=own).raise_for_status()
        for _ in range(2):
            refused(client.get(home, headers=guest), 403)
            assert client.get("/v1/memories", headers=guest).json() == []
    with running(options) as client:
        refused(client.get(home, headers=guest), 403)


def test_simultaneous_shares_all_succeed_and_are_all_in_the_file(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    chief, entry = make_token("chief", ["*=admin"])
    add_to_file(file, entry)
    own = {"authorization": f"Bearer {chief}"}
    with running(settings(None, model, host="0.0.0.0", tokens=str(file), share=True)) as client:
        with ThreadPoolExecutor(16) as threads:
            sent = [threads.submit(client.post, f"{HOME}/share", json={}, headers=own) for _ in range(80)]
            made = [threads.submit(add_to_file, file, make_token("cli", ["*=read"])[1]) for _ in range(8)]
        assert [one.result().status_code for one in sent] == [200] * 80
        assert all(one.exception() is None for one in made)
    tokens = Tokens.load(file)
    for one in sent:
        assert tokens.client(parse_qs(urlsplit(one.result().json()["link"]).fragment)["token"][0]) is not None
    assert len(json.loads(file.read_text())["tokens"]) == 1 + 80 + 8
    assert file.stat().st_mode & 0o077 == 0 and not list(tmp_path.glob("*.part"))


def test_without_a_file_of_tokens_sharing_makes_one_token_for_whoever_started_it(model: Path) -> None:
    server = Process("--model", str(model), "--memory", "ram:", "--share")
    try:
        link = urlsplit(server.url)
        base = f"http://127.0.0.1:{link.port}"
        refused(httpx.get(f"{base}{HOME}", trust_env=False), 401)
        token = parse_qs(link.fragment)["token"][0]
        own = {"authorization": f"Bearer {token}"}
        assert httpx.get(f"{base}{HOME}", headers=own, trust_env=False).status_code == 200
    finally:
        server.stop()
    assert not any(token in line for line in server.log)


def test_what_listens_on_this_machine_only_cannot_be_shared(unharmed: httpx.Client) -> None:
    answer = unharmed.post(f"{HOME}/share", json={})
    refused(answer, 409)
    assert "--share" in answer.json()["error"]["message"]


def test_a_port_that_cannot_be_is_refused_in_one_sentence(capsys: pytest.CaptureFixture) -> None:
    assert main(["serve", "--memory", "ram:", "--port", "99999"]) == 2
    assert "cannot listen on 127.0.0.1:99999: a port is a number from 0 to 65535" in capsys.readouterr().err


def test_an_index_needs_memories_on_a_database(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    options = ["--model", str(model), "--memory", str(tmp_path / "m.apl"), "--index", "milvus+http://127.0.0.1:1"]
    assert main(["serve", "--port", "0", *options]) == 2
    assert "index" in capsys.readouterr().err
