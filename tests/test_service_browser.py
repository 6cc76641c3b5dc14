"""The page in a real browser: drawn on with real pointer events."""

from __future__ import annotations

import base64
import importlib.util
import math
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from serving import drawing, encoded, lesson, png, running, save_small_model, settings
from test_service_encoders import landscape
from test_service_encoders import needs as NEEDED_WEIGHTS

from apl.service.tokens import add_to_file, make_token

CHROMIUM = os.environ.get("APL_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--use-fake-device-for-media-stream",
    "--use-fake-ui-for-media-stream",
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
    with running(settings(home, "omniglot")) as client:
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
    context.set_default_timeout(60_000)
    page = context.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    # A browser also tells of what the page expects: a dot or a blank sheet is not ink enough.
    told = lambda text: None if "status of 422" in text else problems.append(text)  # noqa: E731
    page.on("console", lambda message: told(message.text) if message.type == "error" else None)
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
    assert "It knows nothing yet" in page.inner_text("#verdict")
    for sign in ("ring", "cross"):
        draw(page, sign)
        page.wait_for_selector("#bars li")
        teach(page, sign)
    counts = service.get("/v1/memories/default").json()["classes"]
    assert [c["label"] for c in counts] == ["ring", "cross"]
    for sign in ("cross", "ring"):
        page.click("#clear")
        with page.expect_response("**/explain"):
            draw(page, sign, lean=0.08)
        best(page, sign)
        assert page.locator("#neighbours img").count() in (1, 2)
    page.reload()
    page.wait_for_selector("html[data-ready]", state="attached")
    assert page.locator(".class").count() == 2 and page.locator(".class li img").count() == 2
    assert page.inner_text("#verdict") == "Draw something." and "2 lessons" in page.inner_text("#memory-summary")
    assert not page.locator("#last-lesson").is_visible(), "nothing has been taught since the page was opened"
    draw(page, "ring", lean=-0.05)
    best(page, "ring")
    assert "the mean of 'ring' is the closest" in page.inner_text("#why")
    page.locator('.class[data-label="cross"] .class-head button:has-text("Forget")').click()
    page.click("#ask button[value='ok']")
    page.wait_for_selector('.class[data-label="cross"]', state="detached")
    assert service.get("/v1/memories/default").json()["classes"] == [{"label": "ring", "rows": 1}]


def test_a_lesson_is_undone_whether_it_was_written_or_merged(page: object, memory: str, service: httpx.Client) -> None:
    draw(page, "ring")
    teach(page, "ring")
    page.click("#clear")
    draw(page, "ring")
    teach(page, "ring")
    before = service.get(f"{memory}/rows").json()["rows"]
    assert sum(row["examples"] for row in before) == 2
    page.wait_for_selector("#toast button:visible")
    with page.expect_response("**/forget"):
        page.click("#toast button")
    assert sum(row["examples"] for row in service.get(f"{memory}/rows").json()["rows"]) == 1


def test_keyboard_right_pictures_and_export(page: object, service: httpx.Client, tmp_path: Path) -> None:
    rows = service.get("/v1/memories/default").json()["rows"]
    page.focus("#sheet")
    page.keyboard.press(" ")
    for key in ["ArrowRight"] * 6 + ["ArrowDown"] * 8 + ["ArrowLeft"] * 9:
        page.keyboard.press(key)
    page.keyboard.press(" ")
    page.wait_for_selector("#bars li")
    teach(page, "hook")
    assert service.get("/v1/memories/default").json()["rows"] == rows + 1
    assert "always written" in page.inner_text("#surprise")

    picture = tmp_path / "picture.png"
    picture.write_bytes(encoded(drawing(3)))
    with page.expect_response("**/explain"):
        page.set_input_files("#picture", picture)
    page.wait_for_selector("#judge:not([hidden])")
    teach(page, "glyph")
    with page.expect_response("**/explain"):
        page.set_input_files("#picture", picture)
    page.wait_for_selector("#right:has-text('glyph')")
    with page.expect_response("**/learn") as answered:
        page.click("#right")
    assert answered.value.json()["label"] == "glyph"
    page.wait_for_selector("#surprise .meter")
    with page.expect_download() as download:
        page.click("#export")
    assert download.value.suggested_filename == "default.zip"
    draw(page, "zigzag")
    page.click("#undo-stroke")
    assert page.locator("#undo-stroke").is_disabled()


# --- what it says -------------------------------------------------------------------------------------------------


@pytest.fixture
def memory(page: object, service: httpx.Client) -> str:
    """A memory of its own, chosen on the page."""
    name = uuid.uuid4().hex[:8]
    service.put(f"/v1/memories/{name}").raise_for_status()
    page.evaluate("name => localStorage.setItem('apl memory', name)", name)
    page.reload()
    page.wait_for_selector("html[data-ready]", state="attached")
    return f"/v1/memories/{name}"


def shares(page: object) -> dict[str, float]:
    script = """() => [...document.querySelectorAll("#bars li")].map((row) =>
      [row.querySelector(".bar-name").textContent, parseFloat(row.querySelector(".bar > span").style.width)])"""
    return dict(page.evaluate(script))


def test_what_it_thinks_adds_up_and_something_new_is_not_taught_as_something_old(
    page: object, memory: str, service: httpx.Client
) -> None:
    draw(page, "ring")
    teach(page, "ring")
    page.click("#clear")
    draw(page, "cross")
    page.wait_for_selector("#verdict:has-text('Something new?')")
    found = shares(page)
    assert sum(found.values()) == pytest.approx(100, abs=0.5) and found["something new"] > 50
    assert page.inner_text("#wrong") == "No: it is ring"
    page.click("#right")
    assert page.evaluate("document.activeElement.id") == "label"
    assert service.get(memory).json()["curve"]["seen"] == 1
    with page.expect_response("**/learn") as answered:
        page.click("#wrong")
    assert answered.value.json()["label"] == "ring"


def test_several_pictures_and_folders_are_taught_and_nothing_is_left_out_in_silence(
    page: object, memory: str, service: httpx.Client, tmp_path: Path
) -> None:
    root = tmp_path / "signs"
    for sign in range(2):
        (root / f"sign {sign}").mkdir(parents=True)
        for number in range(3):
            (root / f"sign {sign}" / f"{number}.png").write_bytes(encoded(drawing(sign, number)))
    (root / "loose.png").write_bytes(encoded(drawing(2)))
    (root / "sign 0" / "photo.heic").write_bytes(b"not for this browser")
    (root / "sign 1" / "blank.png").write_bytes(encoded(np.full((40, 40), 255, np.uint8)))
    (root / "notes.txt").write_text("hello")
    page.set_input_files("#folder", root)
    inputs = page.locator("#batch-groups input")
    assert sorted(inputs.evaluate_all("all => all.map((one) => one.value)")) == ["", "sign 0", "sign 1"]
    page.click("#batch-go")
    page.wait_for_selector("#batch-title:has-text('Taught 6 pictures')")
    left_out = page.inner_text("#batch-skipped")
    for name, why in {
        "photo.heic": "HEIC",
        "blank.png": "blank",
        "notes.txt": "not a picture",
        "loose.png": "no name",
    }.items():
        assert any(name in line and why in line for line in left_out.splitlines()), (name, left_out)
    page.click("#batch-go")
    labels = {c["label"] for c in service.get(memory).json()["classes"]}
    assert labels == {"sign 0", "sign 1"}
    page.set_input_files("#picture", [root / "loose.png", root / "sign 0" / "0.png"])
    page.fill("#batch-groups input", "both")
    # On a busy machine the dialog's event of having been closed comes only now: it must not stop this run.
    page.evaluate("document.getElementById('batch').dispatchEvent(new Event('close'))")
    page.click("#batch-go")
    page.wait_for_selector("#batch-title:has-text('Taught 2 pictures')")


def test_a_queue_asks_about_one_after_the_other_one_key_agrees_and_the_rest_is_sorted(
    page: object, memory: str, service: httpx.Client, tmp_path: Path
) -> None:
    files = [tmp_path / f"{sign}-{number}.png" for sign in range(3) for number in range(4)]
    for number, file in enumerate(files):
        file.write_bytes(encoded(drawing(number // 4, number % 4)))
    (tmp_path / "blank.png").write_bytes(encoded(np.full((40, 40), 255, np.uint8)))
    page.set_input_files("#picture", [*files, tmp_path / "blank.png"])
    page.click("#batch-ask")
    last, agreed = "", 0
    for number in range(1, 9):
        script = "last => { const at = document.getElementById('queue-text').title; return at && at !== last; }"
        page.wait_for_function(script, arg=last)
        if number > 1:  # nothing was known of the first
            page.wait_for_selector("#judge:visible")
        assert page.inner_text("#queue-text").startswith(f"{number} of 12: "), "what is blank is left out"
        last = page.get_attribute("#queue-text", "title")
        label = f"sign {last[0]}"
        with page.expect_response("**/learn*") as learnt:
            if page.locator("#right").is_visible() and page.inner_text("#right").endswith(label):
                agreed += 1
                page.keyboard.press("Enter")
            else:
                page.fill("#label", label)
                page.press("#label", "Enter")
        assert learnt.value.json()["label"] == label, last
    assert agreed >= 1 and len(service.get(memory).json()["classes"]) == 3
    page.wait_for_function("() => document.getElementById('queue-text').textContent.startsWith('9 of 12')")
    page.click("#queue-skip")
    page.wait_for_function(script, arg=last)
    page.click("#queue-rest")
    page.wait_for_selector("#sorted[open]")
    assert "It sorted 4 examples" in page.inner_text("#sorted") and page.locator("#sorted img").count() == 4
    with page.expect_download() as download:
        page.click("#sorted-save")
    rows = [line.split(",") for line in Path(download.value.path()).read_text().splitlines()[1:]]
    assert all(predicted in ("", f"sign {name[0]}") for name, predicted, *_ in rows), rows
    assert service.get(memory).json()["curve"]["seen"] == 8, "sorting teaches nothing"
    page.click("#sorted button[value='ok']")
    assert not page.locator("#queue").is_visible()


def teach_four_signs(service: httpx.Client, memory: str) -> None:
    for number in range(3):
        taught = [lesson(n % 4, (n + number) % 12) for n in range(40)]
        service.post(f"{memory}/learn/batch", json={"examples": taught}).raise_for_status()


def test_wrong_names_stand_on_a_shelf(page: object, memory: str, service: httpx.Client) -> None:
    teach_four_signs(service, memory)
    for drawn, said in ((0, 1), (2, 3)):
        service.post(f"{memory}/learn", json=lesson(drawn, 5, label=f"sign {said}")).raise_for_status()
    page.wait_for_selector("#suspects li")
    with page.expect_response("**/review*"):  # kept by the reader, so it is asked about the others
        page.locator("#suspects li").last.locator("button").first.click()
    page.wait_for_selector("#suspects li")
    first = page.locator("#suspects li").first
    row, suggested = first.get_attribute("data-row"), first.locator("button").nth(1).inner_text()
    with page.expect_response("**/relabel"):
        first.locator("button").nth(1).click()
    [found] = service.get(f"{memory}/rows?limit=1&after={int(row) - 1}").json()["rows"]
    assert suggested == f"It is {found['label']}"


def test_the_gallery_knows_how_many_examples_share_a_row_now(page: object, memory: str, service: httpx.Client) -> None:
    """Forget on the shelf takes back one example of a row that others share, not the row."""
    script = """([memory, next]) => import('/gallery.js').then(async ({ Gallery }) => {
      const gallery = new Gallery({}), counts = [];
      for (const [verb, json] of [["learn", next], ["forget", { source: "second" }]]) {
        await gallery.load(memory);
        const headers = { "Content-Type": "application/json" };
        await fetch(`/v1/memories/${memory}/${verb}`, { method: "POST", headers, body: JSON.stringify(json) });
        await gallery.load(memory);
        counts.push((await gallery.row(memory, 1)).examples);
      }
      return counts;
    })"""
    service.post(f"{memory}/learn", json=lesson(0, 0, source="first")).raise_for_status()
    given = [memory.rsplit("/", 1)[1], lesson(0, 0, source="second")]
    assert page.evaluate(script, given) == [2, 1]


def test_a_line_shows_where_surprise_rose(page: object, memory: str, service: httpx.Client) -> None:
    teach_four_signs(service, memory)
    page.wait_for_selector("#curve .line")
    assert not page.locator("#drift").is_visible()
    for number in range(40):
        label = f"sign {(number * 7 + number // 3) % 4}"
        service.post(f"{memory}/learn", json=lesson(number % 4, number % 12, label=label)).raise_for_status()
    assert service.get(f"{memory}/drift").json()["alarm"]
    page.wait_for_selector("#drift:visible:has-text('surprised more than before')")
    assert page.locator("#curve .drift").count() == 1


def test_an_answer_says_what_the_set_of_labels_says(page: object) -> None:
    found = {"probabilities": [{"label": "alpha", "probability": 0.6}, {"label": "beta", "probability": 0.4}]}
    said = {}
    for labels, new in (["alpha"], False), (["alpha", "beta"], False), (["alpha"], True), ([], False):
        answer = [found | {"probability_new": 0.1}, {"labels": labels, "new": new, "examples": 20}]
        words = page.evaluate("([f, s]) => import('/answer.js').then((module) => module.words(f, s))", answer)
        said[(*labels, new)] = (words["verdict"], words["agree"])
    unsure = [found | {"probability_new": 0.4}, {"labels": ["alpha"], "new": False, "examples": 20}]
    words = page.evaluate("([f, s]) => import('/answer.js').then((module) => module.words(f, s))", unsure)
    assert words["verdict"] == "alpha, perhaps (36%)."
    assert said == {
        ("alpha", False): ("alpha.", "alpha"),
        ("alpha", "beta", False): ("alpha or beta.", "alpha"),
        ("alpha", True): ("alpha or something new.", "alpha"),
        (False,): ("Something new? If not, alpha.", None),
    }


def test_the_description_of_the_service_can_be_read_in_a_browser(page: object, service: httpx.Client) -> None:
    page.goto(f"{service.base_url}/docs")
    page.wait_for_selector("html[data-ready]", state="attached")
    lesson = page.locator("details:has(> summary:has-text('/learn/batch'))")
    lesson.locator("summary").click()
    assert "Idempotency-Key" in lesson.inner_text()
    lesson.locator("a:has-text('Lessons')").click()
    page.wait_for_selector("#Lessons[open] td:has-text('examples')")


def test_two_browsers_see_what_the_other_teaches(
    page: object, browser: object, memory: str, service: httpx.Client
) -> None:
    other = browser.new_page()
    other.set_default_timeout(60_000)
    other.goto(f"{service.base_url}/#memory={memory.rsplit('/', 1)[1]}")
    other.wait_for_selector("html[data-ready]", state="attached")
    assert "Empty" in other.inner_text("#memory-summary")
    draw(page, "ring")
    teach(page, "ring")
    other.wait_for_selector('.class[data-label="ring"] img')
    assert "1 lesson" in other.inner_text("#memory-summary")
    service.post(f"{memory}/rename", json={"label": "ring", "to": "circle"}).raise_for_status()
    for one in (page, other):
        one.wait_for_selector('.class[data-label="circle"] img')
    service.delete(memory).raise_for_status()
    for one in (page, other):
        one.wait_for_function("gone => document.getElementById('memory').value !== gone", arg=memory.rsplit("/", 1)[1])
    other.close()


def test_a_memory_is_deleted_on_the_page_after_a_question(page: object, memory: str, service: httpx.Client) -> None:
    page.click("#delete-memory")
    page.click("#ask button[value='cancel']")
    assert service.get(memory).status_code == 200
    page.click("#delete-memory")
    page.click("#ask button[value='ok']")
    page.wait_for_function("() => document.getElementById('memory').value === 'default'")
    assert service.get(memory).status_code == 404


def test_on_a_phone_with_many_names_yes_and_no_are_beside_the_sheet(
    browser: object, memory: str, service: httpx.Client, tmp_path: Path
) -> None:
    for number in range(25):
        taught = lesson(number % 6, number % 12, label=f"a rather long name {number}")
        service.post(f"{memory}/learn", json=taught).raise_for_status()
    phone = browser.new_context(viewport={"width": 375, "height": 700}, has_touch=True, is_mobile=True)
    page = phone.new_page()
    page.set_default_timeout(60_000)
    page.goto(f"{service.base_url}/#memory={memory.rsplit('/', 1)[1]}")
    page.wait_for_selector("html[data-ready]", state="attached")
    draw(page, "ring")
    page.wait_for_selector("#judge:visible")
    sheet, judge, names = (page.locator(what).bounding_box() for what in ("#sheet", "#judge", "#known"))
    assert judge["y"] < names["y"] and judge["y"] + judge["height"] < sheet["y"] + sheet["height"] + 150
    assert names["height"] < 80 and page.locator("#known .chip").count() == 24
    page.fill("#label", "name 7")
    assert page.locator("#known .chip").count() == 1
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    pictures = [tmp_path / f"{number}.png" for number in range(3)]
    for number, picture in enumerate(pictures):
        picture.write_bytes(png(number))
    page.set_input_files("#picture", pictures)
    page.click("#batch-ask")
    page.wait_for_selector("#queue:visible")
    page.wait_for_selector("#judge:visible")
    name = page.locator("#label").bounding_box()
    assert name["y"] + name["height"] <= 700, "a queue asks for one name after the other: no scrolling"
    phone.close()


def test_a_guest_who_may_only_ask_is_offered_nothing_else(browser: object, tmp_path: Path) -> None:
    for scope, shown in {"read": False, "learn": True}.items():
        token, entry = make_token(scope, [f"default={scope}"])
        add_to_file(tmp_path / "tokens.json", entry)
        with running(settings(None, "omniglot", tokens=str(tmp_path / "tokens.json"))) as service:
            page = browser.new_page()
            page.set_default_timeout(60_000)
            page.goto(f"{service.base_url}/#token={token}")
            page.wait_for_selector("html[data-ready]", state="attached")
            assert ("name it" in page.inner_text("#verdict")) == shown
            draw(page, "ring")
            page.wait_for_selector("#bars li")
            assert page.locator("#name-form").is_visible() == shown
            for never in ("#share", "#new-memory", "#delete-memory", "label[for='import']"):
                assert not page.locator(never).is_visible(), never
            assert page.locator("#export").is_visible()
            assert page.locator("#teach-button").is_visible() == shown
            pictures = [tmp_path / f"{number}.png" for number in range(2)]
            for number, picture in enumerate(pictures):
                picture.write_bytes(png(number))
            page.set_input_files("#picture", pictures)
            page.wait_for_selector("#batch[open]" if shown else "#sorted[open]:has-text('It sorted 2 examples')")
            page.close()


def test_a_table_of_sentences_is_taught_and_one_without_names_is_asked_about(browser: object, tmp_path: Path) -> None:
    if importlib.util.find_spec(NEEDED_WEIGHTS["text"]) is None:
        pytest.skip("the weights of text are not installed")
    taught, asked = tmp_path / "taught.csv", tmp_path / "asked.csv"
    taught.write_text(
        'text;label\n"where; is ""my"" card";card\nthe card is lost;card\nwhat is the rate;rate\nno name;\n'
    )
    asked.write_text("sentence\nis my card on its way\n")
    with running(settings(tmp_path / "m.apl", "text")) as client:
        page = browser.new_page()
        page.set_default_timeout(60_000)
        page.goto(str(client.base_url))
        page.wait_for_selector("html[data-ready]", state="attached")
        page.set_input_files("#table", taught)
        page.wait_for_selector("#ask[open]:has-text('3 sentences under 2 names. 1 row without a name')")
        page.click("#ask button[value='ok']")
        page.wait_for_selector("#surprise:has-text('Taught 3 sentences')")
        kept = client.get("/v1/memories/default/rows?payloads=true").json()["rows"]
        assert b'where; is "my" card' in [base64.urlsafe_b64decode(row["payload"]) for row in kept]
        page.set_input_files("#table", asked)
        page.wait_for_selector("#queue-text:has-text('1 of 1')")
        assert page.input_value("#sentence") == "is my card on its way"
        page.wait_for_selector("#right:visible")
        with page.expect_response("**/learn*") as learnt:
            page.click("#right")
        assert learnt.value.json()["label"] == "card"
        page.wait_for_selector("#queue", state="hidden")
        page.close()


@pytest.mark.parametrize("kind", ["photo", "text"])
def test_the_page_speaks_of_photographs_and_sentences_where_they_are_taught(
    browser: object, kind: str, tmp_path: Path
) -> None:
    if importlib.util.find_spec(NEEDED_WEIGHTS[kind]) is None:
        pytest.skip(f"the weights of {kind} are not installed")
    with running(settings(tmp_path / "m.apl", kind)) as client:
        page = browser.new_page()
        page.set_default_timeout(60_000)
        page.goto(str(client.base_url))
        page.wait_for_selector("html[data-ready]", state="attached")
        told = page.inner_text("header") + page.inner_text("main")
        assert "raw" not in told and {"photo": "Show it a photograph", "text": "Write a sentence"}[kind] in told
        for number, label in enumerate(("one", "another")):
            if kind == "text":
                page.fill("#sentence", ("where is my card", "what is the rate")[number])
            else:
                (tmp_path / f"{label}.jpg").write_bytes(encoded(landscape(number), "JPEG"))
                page.set_input_files("#picture", tmp_path / f"{label}.jpg")
            teach(page, label)
        best(page, "another")
        page.close()


def test_a_photograph_of_twelve_megapixels_is_shrunk_before_it_is_sent(
    page: object, memory: str, tmp_path: Path
) -> None:
    picture = np.full((3000, 4000), 255, np.uint8)
    picture[1000:2000, 1000:1200] = picture[1800:2000, 1000:3000] = 0
    file = tmp_path / "large.jpg"
    file.write_bytes(encoded(picture, "JPEG"))
    with page.expect_request("**/explain") as asked, page.expect_response("**/explain") as answered:
        page.set_input_files("#picture", file)
    assert answered.value.status == 200 and len(asked.value.post_data) < 100_000


def test_the_camera_shows_what_it_sees_and_can_be_taught_from(page: object, memory: str, service: httpx.Client) -> None:
    with page.expect_response("**/explain"):
        page.click("#camera")
    teach(page, "seen")
    page.wait_for_selector("#bars li:has-text('seen')")
    page.click("#camera")
    assert page.get_attribute("#camera", "aria-pressed") == "false"
    assert service.get(memory).json()["classes"] == [{"label": "seen", "rows": 1}]


def test_a_class_is_renamed_on_the_page(page: object, memory: str, service: httpx.Client) -> None:
    draw(page, "ring")
    teach(page, "rimg")
    page.click(".class[data-label='rimg'] .rename")
    page.fill("#ask-input", "ring")
    page.press("#ask-input", "Enter")
    page.wait_for_selector(".class[data-label='ring']")
    assert service.get(memory).json()["classes"] == [{"label": "ring", "rows": 1}]


def test_a_link_lets_a_guest_in_without_asking_for_a_token(browser: object, tmp_path: Path) -> None:
    token, entry = make_token("owner", ["*=admin"])
    add_to_file(tmp_path / "tokens.json", entry)
    changes = {"host": "0.0.0.0", "share": True, "tokens": str(tmp_path / "tokens.json")}
    with running(settings(None, save_small_model(tmp_path / "model"), **changes)) as service:
        page = browser.new_page()
        page.set_default_timeout(60_000)
        page.goto(f"{service.base_url}/#token={token}")
        page.wait_for_selector("html[data-ready]", state="attached")
        assert token not in page.url and page.locator("#memory option").count() == 1
        page.click("#share")
        page.wait_for_selector("#share-link:visible")
        assert "token=" in page.input_value("#share-link") and token not in page.input_value("#share-link")
        page.close()
