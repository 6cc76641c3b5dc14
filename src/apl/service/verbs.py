"""Paths under /v1 for examples: ask, explain, choose, teach; and an episode as it happens."""

from __future__ import annotations

import base64
import time
from typing import Annotated

from fastapi import APIRouter, Depends, File, Form, Header, Query, UploadFile
from starlette.responses import Response

from apl.classifier.answers import LabelSet, Receipt
from apl.service.answers import Explained, Prediction, Predictions, Receipts, Suggestions, errors
from apl.service.bodies import (
    Asking,
    Choosing,
    Covering,
    Ink,
    LabelField,
    Lesson,
    Lessons,
    Naming,
    Pool,
    Question,
    Questions,
    Reading,
    SourceField,
)
from apl.service.live import EVENT_STREAM, EventStream, episode_events, play
from apl.service.refusal import Refused
from apl.service.service import DEPENDENCIES, Parts, ToRead, ToTeach

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
router = APIRouter(prefix="/v1", responses=errors(), dependencies=DEPENDENCIES, tags=["examples"])


async def _uploaded(image: Image, ink: Annotated[Ink, Form()] = "auto") -> Question:
    return Question(image=base64.b64encode(await image.read()).decode(), ink=ink)


Uploaded = Annotated[Question, Depends(_uploaded)]


@router.post("/memories/{name}/predict")
async def predict(memory: ToRead, body: Question, asked: Annotated[Asking, Query()]) -> Prediction:
    """The class of an example. Scope: read."""
    return (await memory.ask([body], asked))[0]


@router.post("/memories/{name}/predict/file")
async def predict_file(memory: ToRead, body: Uploaded, asked: Annotated[Asking, Query()]) -> Prediction:
    """The class of an uploaded picture. Scope: read."""
    return (await memory.ask([body], asked))[0]


@router.post("/memories/{name}/predict/batch")
async def predict_batch(memory: ToRead, body: Questions, asked: Annotated[Asking, Query()]) -> Predictions:
    """The classes of several examples. Scope: read."""
    return Predictions(answers=await memory.ask(body.examples, asked))


@router.post("/memories/{name}/predict_set")
async def predict_set(memory: ToRead, body: Question, asked: Annotated[Covering, Query()]) -> LabelSet:
    """The labels that contain the true one with the frequency `coverage`. Scope: read."""
    return await memory.examine(
        lambda classifier, example: classifier.predict_set(example, asked.coverage), [body], asked.anyway
    )


@router.post("/memories/{name}/suggest")
async def suggest(memory: ToRead, body: Pool, asked: Annotated[Choosing, Query()]) -> Suggestions:
    """Which examples of a pool are most worth a label, best first. Nothing is learnt. Scope: read."""
    found = await memory.examine(
        lambda classifier, pool: classifier.suggest(pool, asked.n), body.examples, asked.anyway
    )
    return Suggestions(suggestions=found)


@router.post("/memories/{name}/explain")
async def explain(memory: ToRead, body: Question, asked: Annotated[Naming, Query()]) -> Explained:
    """The class of an example, and the rows and readers behind the answer. Scope: read."""
    found = await memory.examine(lambda classifier, example: classifier.explain(example), [body], asked.anyway)
    return Explained.explained(found, asked.top)


@router.post("/memories/{name}/explain/file")
async def explain_file(memory: ToRead, body: Uploaded, asked: Annotated[Naming, Query()]) -> Explained:
    """The same for an uploaded picture. Scope: read."""
    return await explain(memory, body, asked)


@router.post("/memories/{name}/learn")
async def learn(memory: ToTeach, body: Lesson, asked: Annotated[Reading, Query()], key: Key = None) -> Receipt:
    """Predict, then learn the label: written if it surprises, else merged. Once answered, it lasts. Scope: learn."""
    return (await memory.teach([body], key, asked.anyway))[0]


@router.post("/memories/{name}/learn/file")
async def learn_file(
    memory: ToTeach,
    picture: Uploaded,
    label: Annotated[LabelField, Form()],
    asked: Annotated[Reading, Query()],
    source: Annotated[SourceField | None, Form()] = None,
    key: Key = None,
) -> Receipt:
    """The same for an uploaded picture; the label of a form is text. Scope: learn."""
    return await learn(memory, Lesson(**vars(picture), label=label, source=source), asked, key)


@router.post("/memories/{name}/learn/batch")
async def learn_batch(memory: ToTeach, body: Lessons, asked: Annotated[Reading, Query()], key: Key = None) -> Receipts:
    """Several lessons: all of them last, or none. Their classes take turns; receipts come in the order sent. Scope: learn."""
    return Receipts(receipts=await memory.teach(body.examples, key, asked.anyway))


@router.get("/episode", tags=["service"], response_class=Response, responses={200: {"content": {EVENT_STREAM: {}}}})
async def episode(
    parts: Parts,
    way: Annotated[int, Query(ge=2, le=30, description="Characters to invent.")] = 10,
    drawings: Annotated[int, Query(ge=2, le=30, description="How often each is drawn.")] = 12,
    seed: Annotated[int, Query(ge=0, lt=2**31)] = 0,
    pause_ms: Annotated[int, Query(ge=0, le=2000, description="Between two drawings.")] = 150,
) -> Response:
    """An online episode on invented characters as server-sent events: `alphabet`, a `step` per drawing, `end`."""
    model = parts.memories.model
    if model.input_kind != "drawing":
        raise Refused(409, "no_episode", "an episode needs a model of drawings")
    parts.episodes.check()
    end = time.monotonic() + parts.settings.limits.episode_seconds
    steps = play(model.sibling(memory=None), way, drawings, seed)
    over = lambda: parts.activity.stopping or time.monotonic() > end  # noqa: E731
    return EventStream(episode_events(steps, parts.memories.threads, pause_ms / 1000, over, parts.episodes))
