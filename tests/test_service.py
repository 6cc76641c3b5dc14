"""The service from a client's point of view, over real sockets."""

from __future__ import annotations

import base64
import concurrent.futures
import io
import json
import time
import uuid
import zipfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from serving import alike, drawing, encoded, lesson, question, running, save_small_model, settings, small_learner

import apl.service
from apl.classifier.online import OnlineClassifier
from apl.cli import main
from apl.service.refusal import storage
from apl.service.served_memory import ServedMemory
from apl.service.settings import Limits
from apl.store import NewRow, RowChanged, StoreError, StoreUnavailable, open_store
from apl.store.sqlite import SqliteStore

HOME = "/v1/memories/default"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_small_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def service(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with running(settings(tmp_path_factory.mktemp("home") / "memories.apl", model)) as client:
        yield client


@pytest.fixture
def home(service: httpx.Client) -> str:
    """A memory of its own for each test."""
    path = f"/v1/memories/{uuid.uuid4().hex}"
    assert service.put(path).status_code == 201
    return path


def teach(client: httpx.Client, sign: int, number: int = 0, home: str = HOME) -> dict:
    response = client.post(f"{home}/learn", json=lesson(sign, number))
    assert response.status_code == 200, response.text
    return response.json()


def test_a_lesson_is_answered_with_python_s_receipt_and_a_question_with_its_explanation(
    service: httpx.Client, home: str, model: Path
) -> None:
    with OnlineClassifier.from_pretrained(model) as local:
        for sign in (0, 1, 0):
            expected = json.loads(json.dumps(local.learn_one(drawing(sign), f"sign {sign}").to_dict()))
            assert alike(teach(service, sign, home=home), expected)
        expected = json.loads(json.dumps(local.explain(drawing(1, 1)).to_dict()))
    explained = service.post(f"{home}/explain", json=question(1, 1)).json()
    kept = [neighbour.pop("payload") for neighbour in explained["neighbours"]]
    assert alike(explained, {key: expected.get(key) for key in explained}) and len(kept) == 2 and any(kept)
    answer = service.post(f"{home}/predict", json=question(1, 1)).json()
    assert alike(answer, {key: expected[key] for key in answer})
    assert {"predicted", "probabilities", "probability_new"} == set(answer)


def test_ink_may_be_dark_or_light_and_a_picture_a_data_url(service: httpx.Client, home: str) -> None:
    teach(service, 0, home=home), teach(service, 1, home=home)
    light = {"image": base64.b64encode(encoded(255 - drawing(1, 3))).decode(), "ink": "light"}
    url = {"image": "data:image/png;base64," + question(1, 3)["image"]}
    answers = [service.post(f"{home}/predict", json=body) for body in (question(1, 3), light, url)]
    assert [r.status_code for r in answers] == [200] * 3, [r.text for r in answers]
    assert all(alike(r.json(), answers[0].json(), 1e-3) for r in answers)


def test_what_is_probably_new_is_answered_with_null_where_asked(service: httpx.Client, home: str) -> None:
    teach(service, 0, home=home), teach(service, 1, home=home)
    for path, sent in (("predict", question(2)), ("predict/batch", {"examples": [question(2)]})):
        plain, careful = (
            service.post(f"{home}/{path}", params=asked, json=sent).json() for asked in ({}, {"new_above": 0.0})
        )
        plain, careful = (found[0] if isinstance(found, list) else found for found in (plain, careful))
        assert plain["predicted"] in ("sign 0", "sign 1") and plain["probability_new"] > 0
        assert careful == {**plain, "predicted": None}
    for wrong in ("new_above=2", "false_alarms=0", "new_above=0.5&false_alarms=0.1"):
        assert service.post(f"{home}/predict?{wrong}", json=question(2)).status_code == 422


def test_batches_keep_their_order(service: httpx.Client, home: str) -> None:
    taught = service.post(f"{home}/learn/batch", json={"examples": [lesson(s) for s in (2, 0, 1)]}).json()
    assert [r["label"] for r in taught] == ["sign 2", "sign 0", "sign 1"] and [r["row"] for r in taught] == [1, 2, 3]
    asked = service.post(f"{home}/predict/batch", json={"examples": [question(s) for s in (0, 1, 2)]}).json()
    assert [a["predicted"] for a in asked] == ["sign 0", "sign 1", "sign 2"]


@pytest.mark.parametrize("label", [None, 1.5, 2**63])
def test_a_label_that_is_not_valid_is_answered_with_what_is(service: httpx.Client, home: str, label: object) -> None:
    answer = service.post(f"{home}/learn", json={**lesson(0), "label": label})
    told = "label: it must be text of 1 to 200 characters, or an integer of 64 bits"
    assert answer.status_code == 422 and answer.json()["error"]["message"] == told


def test_labels_may_be_integers_and_seven_is_not_the_text_seven(service: httpx.Client, home: str) -> None:
    assert service.post(f"{home}/learn", json=lesson(0, label=7)).json()["new_label"]
    assert service.post(f"{home}/learn", json=lesson(1, label="7")).json()["new_label"]
    labels = [c["label"] for c in service.get(home).json()["classes"]]
    assert labels == [7, "7"]
    assert service.post(f"{home}/forget", json={"label": 7}).json()["rows"] == [1]


def test_forgetting_a_class_a_row_and_a_source(service: httpx.Client, home: str) -> None:
    for sign in range(3):
        assert service.post(f"{home}/learn", json=lesson(sign, source=f"file {sign}")).status_code == 200
    assert service.post(f"{home}/forget", json={"label": "sign 0"}).json()["rows"] == [1]
    assert service.post(f"{home}/forget", json={"row": 2}).json()["rows"] == [2]
    assert service.post(f"{home}/forget", json={"source": "file 2"}).json()["rows"] == [3]
    assert service.get(home).json()["classes"] == []
    assert service.post(f"{home}/forget", json={"row": 2}).json() == {"rows": [], "rebuilt": []}


def test_a_lesson_that_was_merged_is_forgotten_by_its_source(service: httpx.Client, home: str) -> None:
    first = service.post(f"{home}/learn", json=lesson(0, source="one")).json()
    second = service.post(f"{home}/learn", json=lesson(0, source="two")).json()
    assert second["merged_into"] == first["row"]
    assert service.post(f"{home}/forget", json={"source": "two"}).json() == {"rows": [], "rebuilt": [first["row"]]}
    [row] = service.get(f"{home}/rows").json()["rows"]
    assert row["examples"] == 1 and row["source"] == "one"


def test_rows_come_in_pages_with_their_pictures(service: httpx.Client, home: str) -> None:
    for sign in range(5):
        teach(service, sign, home=home)
    first = service.get(f"{home}/rows", params={"limit": 3, "payloads": True}).json()
    assert [r["row"] for r in first["rows"]] == [1, 2, 3] and first["next"] == 3
    assert base64.urlsafe_b64decode(first["rows"][0]["payload"]).startswith(b"\x89PNG")
    rest = service.get(f"{home}/rows", params={"after": 3}).json()
    assert [r["row"] for r in rest["rows"]] == [4, 5] and rest["next"] is None and rest["rows"][0]["payload"] is None
    explained = service.post(f"{home}/explain", json=question(0)).json()
    assert explained["neighbours"][0]["payload"] == first["rows"][0]["payload"], "of the rows that carried the answer"


def test_a_misspelt_query_parameter_is_refused(service: httpx.Client, home: str) -> None:
    answer = service.get(f"{home}/rows", params={"limt": 1})
    assert answer.status_code == 422 and answer.json()["error"]["message"].startswith("limt: no such query parameter")


def test_a_memory_goes_out_and_into_another_one(service: httpx.Client, home: str) -> None:
    for sign in range(4):
        teach(service, sign, home=home)
    archive = service.get(f"{home}/export").content
    assert set(zipfile.ZipFile(io.BytesIO(archive)).namelist()) == {"memory.json", "rows.safetensors"}
    assert service.put("/v1/memories/copy").status_code == 201
    assert service.put("/v1/memories/copy").status_code == 200
    copy = "/v1/memories/copy"
    zipped = {"content-type": "application/zip"}
    assert service.post(f"{copy}/import", content=archive, headers=zipped).json() == {
        "written": 4,
        "already_there": 0,
        "left_out": [],
    }
    assert service.post(f"{copy}/import", content=archive, headers=zipped).json() == {
        "written": 0,
        "already_there": 4,
        "left_out": [],
    }
    ask = [service.post(f"{home}/predict", json=question(3, 2)).json() for home in (home, copy)]
    assert alike(ask[0], ask[1])
    assert service.delete(copy).status_code == 204
    assert service.get(copy).status_code == 404
    assert "copy" not in [m["name"] for m in service.get("/v1/memories").json()]


def test_memories_and_what_went_on_in_them_outlive_the_service(model: Path, tmp_path: Path) -> None:
    with running(settings(tmp_path / "m.apl", model)) as client:
        client.put("/v1/memories/other")
        for sign in range(3):
            teach(client, sign), teach(client, sign, home="/v1/memories/other")
        teach(client, 0)
        before = client.get(HOME).json()
    with running(settings(tmp_path / "m.apl", model)) as client:
        assert client.get(HOME).json() == before
        assert before["curve"]["outcomes"] == "nnnr" and before["curve"]["rows"] == [1, 2, 3, 3]
        assert [m["rows"] for m in client.get("/v1/memories").json()] == [3, 3]
        assert client.post("/v1/memories/other/predict", json=question(2)).json()["predicted"] == "sign 2"
    # The file is an ordinary memory, which records its model.
    with OnlineClassifier.load(tmp_path / "m.apl", name="other") as classifier:
        assert classifier.predict_one(drawing(1)) == "sign 1"


def test_the_same_key_writes_once_even_over_a_restart(model: Path, tmp_path: Path) -> None:
    key = {"Idempotency-Key": "one"}
    with running(settings(tmp_path / "m.apl", model)) as client:
        first = client.post(f"{HOME}/learn", json=lesson(0), headers=key)
        again = client.post(f"{HOME}/learn", json=lesson(0), headers=key)
        assert first.json()["row"] == 1 and again.json() == first.json()
        other = client.post(f"{HOME}/learn", json=lesson(1), headers=key)
        assert other.status_code == 422 and other.json()["error"]["code"] == "key_reused"
        # Receipts go with the name of a class, not with a row.
        assert client.post(f"{HOME}/learn", json=lesson(1, label="sign 0")).json()["row"] == 2
        client.post(f"{HOME}/forget", json={"row": 1})
        assert client.post(f"{HOME}/learn", json=lesson(0), headers=key).json() == first.json()
        assert client.get(HOME).json()["rows"] == 1
    with running(settings(tmp_path / "m.apl", model)) as client:
        assert client.post(f"{HOME}/learn", json=lesson(0), headers=key).json() == first.json()
        assert client.get(HOME).json()["rows"] == 1
        client.post(f"{HOME}/forget", json={"label": "sign 0"})
        late = client.post(f"{HOME}/learn", json=lesson(0), headers=key)
        assert late.status_code == 410 and late.json()["error"]["code"] == "forgotten"
        assert client.get(HOME).json()["rows"] == 0


def test_many_clients_with_one_key_write_one_row(service: httpx.Client, home: str) -> None:
    def send(_: int) -> dict:
        return service.post(f"{home}/learn", json=lesson(0), headers={"Idempotency-Key": "k"}).json()

    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(send, range(16)))
    assert all(answer == answers[0] for answer in answers)
    assert service.get(home).json()["rows"] == 1


def test_requests_that_arrive_together_are_embedded_together(
    service: httpx.Client, home: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    teach(service, 0, home=home), teach(service, 1, home=home)
    alone = [service.post(f"{home}/predict", json=question(s, n)).json() for s in (0, 1) for n in range(8)]
    sizes = wait_for_others(monkeypatch)
    with concurrent.futures.ThreadPoolExecutor(16) as threads:
        sent = [threads.submit(service.post, f"{home}/predict", json=question(s, n)) for s in (0, 1) for n in range(8)]
    assert alike([s.result().json() for s in sent], alone)
    assert sum(sizes) == 16 and len(sizes) < 16


def wait_for_others(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let the first group of requests take until three more wait. Returns the sizes of all groups."""
    sizes, serve = [], ServedMemory._serve

    def counted(self: ServedMemory, group: list) -> bool:
        deadline = time.monotonic() + 60
        while not sizes and len(self._queue) < 3 and time.monotonic() < deadline:
            time.sleep(0.005)
        sizes.append(len(group))
        return serve(self, group)

    monkeypatch.setattr(ServedMemory, "_serve", counted)
    return sizes


def test_lessons_in_one_memory_take_turns(service: httpx.Client, home: str) -> None:
    service.put("/v1/memories/other")
    homes = [home, "/v1/memories/other"]
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        jobs = [threads.submit(teach, service, s, n, home) for n in range(4) for s in range(3) for home in homes]
        receipts = [job.result() for job in jobs]
    for home in homes:
        curve = service.get(home).json()["curve"]
        assert curve["outcomes"].count("n") == 3 and curve["seen"] == 12
        ids = [r["row"] for r in service.get(f"{home}/rows").json()["rows"]]
        assert ids == list(range(1, len(ids) + 1))
    assert sum(r["written"] for r in receipts) == sum(service.get(home).json()["rows"] for home in homes)


def test_a_lesson_that_fails_fails_alone(service: httpx.Client, home: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lessons that wait together share a transaction, which one of them spoils."""
    learn_many, together = OnlineClassifier.learn_many, []

    def spoilt(self: OnlineClassifier, X: object, y: list, **more: object) -> list:
        together.append(len(y))
        if "bad" in y:
            raise StoreError("this one cannot be written")
        return learn_many(self, X, y, **more)

    monkeypatch.setattr(OnlineClassifier, "learn_many", spoilt)
    wait_for_others(monkeypatch)
    labels = [f"good {number}" for number in range(6)] + ["bad", "bad"]
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        sent = {threads.submit(service.post, f"{home}/learn", json=lesson(0, label=label)): label for label in labels}
    for answer, label in sent.items():
        assert answer.result().status_code == (507 if label == "bad" else 200)
    assert max(together) > 1, "some of them were tried together"
    counts = service.get(home).json()["classes"]
    assert sorted(one["label"] for one in counts) == labels[:6]


def test_a_memory_that_breaks_down_answers_all_who_wait(
    service: httpx.Client, home: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(OnlineClassifier, "__len__", lambda self: 1 // 0)
        assert service.post(f"{home}/learn", json=lesson(0)).status_code == 500
        assert service.get(home).status_code in (200, 500)
    assert service.post(f"{home}/learn", json=lesson(1)).status_code == 200


def test_every_page_hears_of_changes_and_of_the_end(service: httpx.Client) -> None:
    home = "/v1/memories/watched"
    service.put(home).raise_for_status()
    with service.stream("GET", f"{home}/events") as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        lines = (line for line in stream.iter_lines() if line.startswith("data: "))
        found = [json.loads(next(lines)[6:])]
        for sent in (
            lambda: teach(service, 0, home=home),
            lambda: service.post(f"{home}/rename", json={"label": "sign 0", "to": "ring"}),
            lambda: service.post(f"{home}/forget", json={"label": "ring"}),
            lambda: service.delete(home),
        ):
            sent()
            found.append(json.loads(next(lines)[6:]))
    assert [(one["event"], one.get("rows")) for one in found] == [
        ("changed", 0),
        ("changed", 1),
        ("changed", 1),
        ("changed", 0),
        ("deleted", None),
    ]


def test_a_budget_of_rows_evicts_and_a_limit_refuses(model: Path) -> None:
    with running(settings(None, model, max_rows=2)) as client:
        evicted = [teach(client, sign)["evicted"] for sign in range(3)]
        assert [len(e) for e in evicted] == [0, 0, 1]
    with running(settings(None, model, limits=Limits(rows=2))) as client:
        teach(client, 0), teach(client, 1)
        refused = client.post(f"{HOME}/learn", json=lesson(2))
        assert refused.status_code == 409 and refused.json()["error"]["code"] == "memory_full"


def test_health_metrics_and_the_description(service: httpx.Client, home: str) -> None:
    assert service.get("/healthz").json() == {"status": "alive"}
    assert service.get("/readyz").json() == {"status": "ready"}
    teach(service, 0, home=home)
    assert not service.get(f"{home}/drift").json()["alarm"]
    metrics = service.get("/metrics").text
    name = home.rsplit("/", 1)[1]
    assert f'apl_memory_rows{{memory="{name}"}} 1.0' in metrics
    assert f'apl_memory_drift{{memory="{name}"}} 0.0' in metrics
    assert f'apl_surprise_nats_count{{memory="{name}"}} 1.0' in metrics
    assert 'apl_requests_total{method="POST",route="/v1/memories/{name}/learn",status="200"}' in metrics
    document = service.get("/openapi.json").json()
    paths = document["paths"]
    assert set(paths["/v1/memories/{name}/learn"]["post"]["requestBody"]["content"]) == {"application/json"}
    assert set(paths["/v1/memories/{name}/import"]["post"]["requestBody"]["content"]) == {"application/zip"}
    assert "Lesson" in document["components"]["schemas"]
    about = service.get("/v1/service").json()
    assert about["fingerprint"] == small_learner().fingerprint() and about["takes"] == "drawing"


def test_a_known_path_under_another_method_is_405_and_an_unknown_one_404(service: httpx.Client, home: str) -> None:
    for verb in ("predict", "predict_set", "suggest", "explain", "learn/batch", "forget", "rename", "relabel", "share"):
        answer = service.get(f"{home}/{verb}")
        assert answer.status_code == 405 and answer.json()["error"]["code"] == "method_not_allowed"
    for path in (f"{home}/unknown", f"{home}/learn/unknown", "/v1/unknown", "/unknown/path"):
        assert service.post(path, json={}).status_code == service.get(path).status_code == 404
    assert service.post("/app.js").status_code == 405
    for path in ("/healthz/", "/v1/memories/", f"{home}/", f"{home}/rows/"):
        assert service.get(path).status_code == 404, "no redirects"
    allowed = service.patch(home).headers["allow"]
    assert allowed == "DELETE, GET, PUT" and service.head("/healthz").headers["allow"] == "GET"


def test_the_description_names_every_refusal(service: httpx.Client) -> None:
    paths = service.get("/openapi.json").json()["paths"]
    for path, methods in paths.items():
        for method in methods.values():
            if path not in ("/healthz", "/readyz"):
                assert {"401", "403", "408", "421", "429", "503"} <= set(method["responses"]), path
    assert all(
        "410" in paths[f"/v1/memories/{{name}}/{verb}"]["post"]["responses"] for verb in ("learn", "learn/batch")
    )


def test_the_page_needs_nothing_from_elsewhere(service: httpx.Client) -> None:
    page = service.get("/")
    assert page.status_code == 200 and "text/html" in page.headers["content-type"]
    names = [file.name for file in (Path(apl.service.__file__).parent / "page").iterdir()]
    for name in names:
        text = service.get(f"/{name}").text
        assert "http://" not in text.replace("http://www.w3.org", "") and "https://" not in text, name


def labels(service: httpx.Client, home: str) -> dict[int, object]:
    return {row["row"]: row["label"] for row in service.get(f"{home}/rows").json()["rows"]}


def test_a_wrong_label_is_reviewed_and_put_right(service: httpx.Client, home: str) -> None:
    for sign in range(3):
        teach(service, sign, home=home)
    assert service.get(f"{home}/review").json() == [], "single rows of a class cannot be judged"
    assert service.post(f"{home}/relabel", json={"row": 1, "label": "house"}).json() == 1
    assert labels(service, home)[1] == "house"
    assert service.post(f"{home}/relabel", json={"row": 99, "label": "house"}).status_code == 404
    assert service.post(f"{home}/relabel", json={"row": 1, "label": "x", "source": "none"}).status_code == 404
    for bad in ({"row": 0, "label": "x"}, {"row": 1, "label": " "}, {"row": 1}, {"label": "x"}):
        assert service.post(f"{home}/relabel", json=bad).status_code == 422
    assert labels(service, home)[1] == "house"


def test_a_class_can_be_renamed_and_joins_one_of_that_name(service: httpx.Client, home: str) -> None:
    for sign in range(3):
        teach(service, sign, home=home)
    assert service.post(f"{home}/rename", json={"label": "sign 0", "to": "house"}).json() == [1]
    assert service.post(f"{home}/predict", json=question(0)).json()["predicted"] == "house"
    assert service.post(f"{home}/rename", json={"label": "sign 1", "to": "house"}).json() == [2]
    joined = {1: "house", 2: "house", 3: "sign 2"}
    assert labels(service, home) == joined
    for bad in ({"label": "none", "to": "x"}, {"label": "house", "to": " "}, {"label": "house", "to": "a\nb"}):
        assert service.post(f"{home}/rename", json=bad).status_code in (404, 422)
    assert labels(service, home) == joined


def test_what_the_page_exports_the_command_line_imports_and_the_other_way_round(model: Path, tmp_path: Path) -> None:
    zipped = {"content-type": "application/zip"}
    with running(settings(tmp_path / "m.apl", model)) as client:
        for sign in range(3):
            client.post(f"{HOME}/learn", json=lesson(sign), headers={"Idempotency-Key": str(sign)}).raise_for_status()
        (tmp_path / "page.zip").write_bytes(client.get(f"{HOME}/export").content)
    assert main(["memory", "import", str(tmp_path / "page.zip"), str(tmp_path / "copy.apl")]) == 0
    assert main(["memory", "export", str(tmp_path / "copy.apl"), str(tmp_path / "back.zip")]) == 0
    with OnlineClassifier.load(tmp_path / "copy.apl") as classifier:
        assert classifier.predict_one(drawing(1)) == "sign 1"
        assert not any("retr" in name for name in classifier.store.settings())
    with running(settings(None, model)) as client:
        for number, name in enumerate(("back.zip", "page.zip")):
            content = (tmp_path / name).read_bytes()
            answer = client.post(f"{HOME}/import", content=content, headers=zipped).json()
            assert answer == {"written": 3 - 3 * number, "already_there": 3 * number, "left_out": []}


def test_while_the_database_is_away_it_says_so_and_nothing_is_left_behind(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> None:
        raise StoreUnavailable("the server does not answer: try again soon")

    with running(settings(None, model)) as client:
        teach(client, 0)
        with monkeypatch.context() as patched:
            for verb in ("_write_in", "_state_query"):
                patched.setattr(SqliteStore, verb, away)
            assert client.get("/readyz").status_code == 503 and client.get("/healthz").status_code == 200
            refused = client.post(f"{HOME}/learn", json=lesson(1))
            assert refused.status_code == 503 and refused.json()["error"]["code"] == "memory_away"
        assert client.get("/readyz").status_code == 200
        assert client.get(HOME).json()["classes"] == [{"label": "sign 0", "rows": 1}]
        teach(client, 1)


def test_in_the_home_of_another_model_s_memories_one_of_its_own_is_made(model: Path, tmp_path: Path) -> None:
    with open_store(tmp_path / "m.apl", fingerprint="other", width=3) as store:
        store.append([NewRow("theirs", np.ones(3, np.float32))])
    for _ in range(2):
        with running(settings(tmp_path / "m.apl", model)) as client:
            theirs, ours = sorted(client.get("/v1/memories").json(), key=lambda one: one["usable"])
            assert (theirs["name"], theirs["rows"], theirs["usable"]) == ("default", 1, False) and ours["usable"]
            assert client.post(f"/v1/memories/{ours['name']}/learn", json=lesson(0)).status_code == 200
            assert client.post("/v1/memories/default/learn", json=lesson(0)).status_code == 409


def test_a_row_that_another_service_changed_meanwhile_is_worth_another_try() -> None:
    refusal = storage(RowChanged("row 3 has been changed by another process; nothing was written"))
    assert refusal.status == 503 and refusal.headers["retry-after"] == "1" and "row 3" in refusal.message
