"""The page in a real browser: drawn on with real pointer events."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from serving import drawing, encoded, running, settings

from apl.learner import Learner

CHROMIUM = os.environ.get("APL_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

playwright = pytest.importorskip("playwright.sync_api", reason="THE PAGE IS NOT TESTED: playwright is not installed")
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="THE PAGE IS NOT TESTED: no chromium here (apt-get install chromium)"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

Stroke = list[tuple[float, float]]
SIGNS: dict[str, list[Stroke]] = {
    "zigzag": [[(0.2, 0.2), (0.8, 0.3), (0.2, 0.7), (0.8, 0.8)]],
    "ring": [[(0.5 + 0.3 * math.cos(t / 2), 0.5 + 0.3 * math.sin(t / 2)) for t in range(14)]],
    "cross": [[(0.5, 0.15), (0.5, 0.85)], [(0.15, 0.5), (0.85, 0.5)]],
}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    # The bundled model, because the drawings must be told apart.
    home = tmp_path_factory.mktemp("home") / "m.apl"
    with running(settings(home, "omniglot"), Learner.load("omniglot")) as client:
        yield client


@pytest.fixture(scope="module")
def browser() -> Iterator[object]:
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def page(service: httpx.Client, browser: object) -> Iterator[object]:
    context = browser.new_context(viewport={"width": 1280, "height": 900}, accept_downloads=True)
    context.set_default_timeout(30_000)
    page = context.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    own = (str(service.base_url), "data:", "blob:")
    page.on("request", lambda request: None if request.url.startswith(own) else problems.append(request.url))
    page.goto(str(service.base_url))
    page.wait_for_selector("html[data-ready]", state="attached")
    yield page
    context.close()
    assert not problems


def draw(page: object, sign: str, lean: float = 0.0) -> None:
    box = page.locator("#sheet").bounding_box()
    for stroke in SIGNS[sign]:
        points = [(box["x"] + box["width"] * (x + lean * (0.5 - y)), box["y"] + box["height"] * y) for x, y in stroke]
        page.mouse.move(*points[0])
        page.mouse.down()
        for point in points[1:]:
            page.mouse.move(*point, steps=3)
        page.mouse.up()


def teach(page: object, label: str) -> None:
    page.fill("#label", label)
    with page.expect_response("**/learn") as answered:
        page.click("#teach-button")
    assert answered.value.status == 200
    page.wait_for_selector(f'.class[data-label="{label}"]')


def best(page: object, label: str) -> None:
    """Wait until this is what it thinks."""
    script = "label => document.querySelector('#bars .first .bar-name')?.textContent === label"
    page.wait_for_function(script, arg=label)


def test_draw_teach_ask_reload_forget(page: object, service: httpx.Client) -> None:
    assert page.locator("#guide").is_visible()
    for sign in ("ring", "cross"):
        draw(page, sign)
        page.wait_for_selector("#bars li")
        teach(page, sign)
    counts = service.get("/v1/memories/default/counts").json()["classes"]
    assert [c["label"] for c in counts] == ["ring", "cross"]
    for sign in ("cross", "ring"):
        page.click("#clear")
        with page.expect_response("**/predict"):
            draw(page, sign, lean=0.08)
        best(page, sign)
        assert page.locator("#neighbours img").count() == 2
    page.reload()
    page.wait_for_selector("html[data-ready]", state="attached")
    assert page.locator(".class").count() == 2 and page.locator(".class li img").count() == 2
    draw(page, "ring", lean=-0.05)
    best(page, "ring")
    page.locator('.class[data-label="cross"] .class-head button').click()
    page.wait_for_selector('.class[data-label="cross"]', state="detached")
    assert service.get("/v1/memories/default/counts").json()["classes"] == [{"label": "ring", "rows": 1}]
    page.click("#toast button")
    page.wait_for_selector('.class[data-label="cross"]')
    assert service.get("/v1/memories/default/counts").json()["rows"] == 2


def test_keyboard_right_pictures_and_export(page: object, service: httpx.Client, tmp_path: Path) -> None:
    rows = service.get("/v1/memories/default/counts").json()["rows"]
    page.focus("#sheet")
    page.keyboard.press(" ")
    for key in ["ArrowRight"] * 6 + ["ArrowDown"] * 8 + ["ArrowLeft"] * 9:
        page.keyboard.press(key)
    page.keyboard.press(" ")
    page.wait_for_selector("#bars li")
    teach(page, "hook")
    assert service.get("/v1/memories/default/counts").json()["rows"] == rows + 1
    page.wait_for_selector("#surprise .meter")

    picture = tmp_path / "picture.png"
    picture.write_bytes(encoded(drawing(3)))
    with page.expect_response("**/predict"):
        page.set_input_files("#picture", picture)
    page.wait_for_selector("#judge:not([hidden])")
    with page.expect_response("**/learn") as answered:
        page.click("#right")
    assert answered.value.status == 200
    with page.expect_download() as download:
        page.click("#export")
    assert download.value.suggested_filename == "default.zip"
    draw(page, "zigzag")
    page.click("#undo-stroke")
    assert page.locator("#undo-stroke").is_disabled()


def test_a_phone_and_a_live_episode(service: httpx.Client, browser: object) -> None:
    phone = browser.new_context(viewport={"width": 375, "height": 700}, has_touch=True, is_mobile=True)
    phone.set_default_timeout(30_000)
    page = phone.new_page()
    page.goto(str(service.base_url))
    page.wait_for_selector("html[data-ready]", state="attached")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.click("#tab-episode")
    page.fill("#way", "3")
    page.fill("#drawings", "3")
    page.fill("#speed", "100")
    page.click("#play")
    page.wait_for_function("() => document.getElementById('episode-summary').textContent.includes('right')")
    assert page.locator("#alphabet li").count() == 3 and page.locator("#alphabet .dots i").count() >= 1
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    phone.close()
