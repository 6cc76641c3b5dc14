"""The paper's figure, live: an online episode on invented characters, as a stream of events for the page.

The episode has a memory of its own and leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Executor
from typing import Any

import numpy as np

from apl.data.glyphs import draw_glyphs
from apl.learner import Learner, Observation
from apl.pictures.drawings import to_png

SHOWN = 8
"""Classes of the posterior that are sent with each step."""


def play(learner: Learner, way: int, drawings: int, seed: int) -> Iterator[dict[str, Any]]:
    """First the alphabet, then a record for each drawing shown, at the end a summary."""
    chance = np.random.default_rng(seed)
    glyphs = draw_glyphs(way, drawings, chance, learner.config.encoder.image_size)
    alphabet = [_picture(glyphs.images[(glyphs.labels == label).argmax(), 0]) for label in range(way)]
    order = chance.permutation(len(glyphs.labels))
    yield {"event": "alphabet", "way": way, "length": len(order), "images": alphabet}
    memory = learner.new_memory()
    right = known = known_right = 0
    met: set[int] = set()
    for seen, example in enumerate(order):
        truth = int(glyphs.labels[example])
        observation = learner.observe(memory, glyphs.images[None, None, example], np.array([[truth]]), way)
        record = _record(learner, observation, truth, seen, way)
        right += record["right"]
        if truth in met:
            known, known_right = known + 1, known_right + record["right"]
        met.add(truth)
        record["stored"] = int(memory.counts[0])
        record["image"] = _picture(glyphs.images[example, 0])
        yield record
    yield {
        "event": "end",
        "accuracy": right / len(order),
        "accuracy_on_known": known_right / max(known, 1),
        "stored": int(memory.counts[0]),
        "way": way,
        "length": len(order),
    }


async def as_events(
    episode: Iterator[dict[str, Any]], pause_seconds: float, threads: Executor, stopping: Callable[[], bool]
) -> AsyncIterator[bytes]:
    """Server-sent events, one step at a time, so that a client that leaves ends the episode."""
    loop = asyncio.get_running_loop()
    while not stopping():
        record = await loop.run_in_executor(threads, _next, episode)
        if record is None:
            return
        yield f"event: {record['event']}\ndata: {json.dumps(record)}\n\n".encode()
        await asyncio.sleep(pause_seconds)


def _next(episode: Iterator[dict[str, Any]]) -> dict[str, Any] | None:
    return next(episode, None)


def _record(learner: Learner, observation: Observation, truth: int, seen: int, way: int) -> dict[str, Any]:
    array = learner.networks.array
    probabilities = np.exp(array(observation.prediction.log_probs)[0, 0])
    best = np.argsort(-probabilities, kind="stable")[: min(SHOWN, way)].tolist()
    neighbours = observation.prediction.neighbours
    recalled = [
        {"label": int(neighbours.columns["label"][0, 0, place]), "distance": float(neighbours.distance[0, 0, place])}
        for place in neighbours.mask[0, 0].nonzero()[0].tolist()
    ]
    return {
        "event": "step",
        "seen": seen,
        "truth": truth,
        "answer": best[0],
        "right": truth == best[0],
        "posterior": [{"label": label, "probability": float(probabilities[label])} for label in best],
        "surprise_nats": min(float(array(observation.surprise_nats)[0, 0]), 1e6),
        "written": bool(observation.written[0, 0]),
        "neighbours": recalled,
    }


def _picture(image: np.ndarray) -> str:
    return "data:image/png;base64," + base64.b64encode(to_png(image)).decode()
