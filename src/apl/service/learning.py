"""Paths under /v1 for examples: ask, explain, teach; and an episode as it happens."""

from __future__ import annotations

import base64
import time
from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, File, Form, Header, Query, UploadFile
from starlette.requests import Request
from starlette.responses import Response

from apl.classifier.online import OnlineClassifier
from apl.service.answers import Explained, Prediction, Predictions, Receipt, Receipts, errors
from apl.service.bodies import Ink, LabelField, Lesson, Lessons, Question, Questions, SourceField
from apl.service.live import EVENT_STREAM, EventStream, play
from apl.service.live import episode as episode_events
from apl.service.refusal import Refused
from apl.service.routes import DEPENDENCIES, Name
from apl.service.service import memory_of, service_of
from apl.service.settings import MOST_TOP, TOP

Top = Annotated[int, Query(ge=1, le=MOST_TOP, description="How many of the most probable classes to name.")]
NewAbove = Annotated[float, Query(ge=0, le=1, description="Answer null for what is new with a probability above this.")]
Anyway = Annotated[bool, Query(description="Accept a photograph although the model knows drawings.")]
Key = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=255,
        description="Any text of your choice. A repeated request with the same key gets the same answer and learns "
        "nothing; the latest keys of a memory are remembered, over restarts too.",
    ),
]
Image = Annotated[UploadFile, File(description="A PNG, JPEG, WebP, GIF, BMP or TIFF.")]
router = APIRouter(prefix="/v1", responses=errors(404, 409, 507), dependencies=DEPENDENCIES, tags=["examples"])


@router.post("/memories/{name}/predict")
async def predict(
    request: Request, name: Name, body: Question, top: Top = TOP, new_above: NewAbove = 1.0, anyway: Anyway = False
) -> Prediction:
    """The class of an example. Scope: read."""
    return (await _predictions(request, name, [body], top, new_above, anyway))[0]


@router.post("/memories/{name}/predict/file")
async def predict_file(
    request: Request,
    name: Name,
    image: Image,
    ink: Annotated[Ink, Form()] = "auto",
    top: Top = TOP,
    new_above: NewAbove = 1.0,
    anyway: Anyway = False,
) -> Prediction:
    """The class of an uploaded picture. Scope: read."""
    body = Question(image=await _base64(image), ink=ink)
    return (await _predictions(request, name, [body], top, new_above, anyway))[0]


@router.post("/memories/{name}/predict/batch")
async def predict_batch(
    request: Request, name: Name, body: Questions, top: Top = TOP, new_above: NewAbove = 1.0, anyway: Anyway = False
) -> Predictions:
    """The classes of several examples. Scope: read."""
    return Predictions(answers=await _predictions(request, name, body.examples, top, new_above, anyway))


@router.post("/memories/{name}/explain")
async def explain(request: Request, name: Name, body: Question, top: Top = TOP, anyway: Anyway = False) -> Explained:
    """The class of an example, and the rows and readers behind the answer. Scope: read."""
    return await _explained(request, name, body, top, anyway)


@router.post("/memories/{name}/explain/file")
async def explain_file(
    request: Request,
    name: Name,
    image: Image,
    ink: Annotated[Ink, Form()] = "auto",
    top: Top = TOP,
    anyway: Anyway = False,
) -> Explained:
    """The same for an uploaded picture. Scope: read."""
    return await _explained(request, name, Question(image=await _base64(image), ink=ink), top, anyway)


@router.post("/memories/{name}/learn")
async def learn(request: Request, name: Name, body: Lesson, key: Key = None, anyway: Anyway = False) -> Receipt:
    """Predict, then learn the label: written if it surprises, else merged. Once answered, it lasts. Scope: learn."""
    return (await _learnt(request, name, [body], key, anyway))[0]


@router.post("/memories/{name}/learn/file")
async def learn_file(
    request: Request,
    name: Name,
    image: Image,
    label: Annotated[LabelField, Form()],
    source: Annotated[SourceField | None, Form()] = None,
    ink: Annotated[Ink, Form()] = "auto",
    key: Key = None,
    anyway: Anyway = False,
) -> Receipt:
    """The same for an uploaded picture; the label of a form is text. Scope: learn."""
    body = Lesson(image=await _base64(image), ink=ink, label=label, source=source)
    return (await _learnt(request, name, [body], key, anyway))[0]


@router.post("/memories/{name}/learn/batch")
async def learn_batch(request: Request, name: Name, body: Lessons, key: Key = None, anyway: Anyway = False) -> Receipts:
    """Several lessons: all of them last, or none. Their classes take turns; receipts come in the order sent. Scope: learn."""
    return Receipts(receipts=await _learnt(request, name, body.examples, key, anyway))


@router.get("/episode", tags=["service"], response_class=Response, responses={200: {"content": {EVENT_STREAM: {}}}})
async def episode(
    request: Request,
    way: Annotated[int, Query(ge=2, le=30, description="Characters to invent.")] = 10,
    drawings: Annotated[int, Query(ge=2, le=30, description="How often each is drawn.")] = 12,
    seed: Annotated[int, Query(ge=0, lt=2**31)] = 0,
    pause_ms: Annotated[int, Query(ge=0, le=2000, description="Between two drawings.")] = 150,
) -> Response:
    """An online episode on invented characters as server-sent events: `alphabet`, a `step` per drawing, `end`."""
    parts = service_of(request)
    if parts.takes != "drawing":
        raise Refused(409, "no_episode", "an episode needs a model of drawings")
    parts.episodes.check()
    end = time.monotonic() + parts.settings.limits.episode_seconds
    steps = play(parts.model.sibling(memory=None), way, drawings, seed)
    stream = episode_events(
        steps,
        parts.memories.threads,
        pause_ms / 1000,
        lambda: parts.activity.stopping or time.monotonic() > end,
        parts.episodes,
    )
    return EventStream(stream)


async def _base64(image: UploadFile) -> str:
    return base64.b64encode(await image.read()).decode()


async def _predictions(
    request: Request, name: str, bodies: Sequence[Question], top: int, new_above: float, anyway: bool
) -> list[Prediction]:
    memory = await memory_of(request, "read", name)
    return [Prediction.of(found, top, new_above) for found in await memory.ask(bodies, top, anyway)]


async def _learnt(
    request: Request, name: str, bodies: Sequence[Lesson], key: str | None, anyway: bool
) -> list[Receipt]:
    memory = await memory_of(request, "learn", name)
    return await memory.teach(bodies, key, anyway)


async def _explained(request: Request, name: str, body: Question, top: int, anyway: bool) -> Explained:
    memory, is_text = await memory_of(request, "read", name), service_of(request).takes == "text"

    def explained(classifier: OnlineClassifier) -> Explained:
        explanation = classifier.explain(classifier.embed(memory.reader.read([body], anyway).examples))
        texts = None
        if is_text:
            kept = (classifier.store.payload(neighbour.row) for neighbour in explanation.neighbours)
            texts = ["" if payload is None else payload.decode(errors="replace") for payload in kept]
        return Explained.explained(explanation, top, texts)

    return await memory.run(explained)
