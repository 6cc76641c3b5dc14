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
import torch

from apl.classifier.images import to_png
from apl.data.glyphs import draw_glyphs
from apl.data.labelled import LabelledImages
from apl.episode import EpisodeSampler, Step, run_episode
from apl.learner import Learner

SHOWN = 8
"""Classes of the posterior that are sent with each step."""


def play(learner: Learner, way: int, drawings: int, seed: int) -> Iterator[dict[str, Any]]:
    """First the alphabet, then a record for each drawing shown, at the end a summary."""
    generator = torch.Generator().manual_seed(seed)
    drawn = draw_glyphs(way, drawings, np.random.default_rng(seed), learner.config.encoder.image_size)
    glyphs = LabelledImages.of_glyphs(drawn)
    stream = EpisodeSampler(glyphs.labels, generator).online(way, None, 1)
    memory = learner.new_memory()
    # The sampler shuffles the labels of an episode; any example of a label shows what its character looks like.
    shown = {int(label): int(example) for example, label in zip(stream.example[0], stream.label[0], strict=True)}
    alphabet = [_picture(glyphs.images[shown[label], 0]) for label in range(way)]
    yield {"event": "alphabet", "way": way, "length": stream.label.shape[1], "images": alphabet}
    right = known = known_right = 0
    met: set[int] = set()
    for step in run_episode(learner, memory, glyphs.images, stream, batch=1):
        record = _record(step, way)
        right += record["right"]
        if record["truth"] in met:
            known, known_right = known + 1, known_right + record["right"]
        met.add(record["truth"])
        record["stored"] = int(memory.counts[0])
        record["image"] = _picture(glyphs.images[int(stream.example[0, step.seen]), 0])
        yield record
    length = stream.label.shape[1]
    yield {
        "event": "end",
        "accuracy": right / length,
        "accuracy_on_known": known_right / max(known, 1),
        "stored": int(memory.counts[0]),
        "way": way,
        "length": length,
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


@torch.no_grad()
def _next(episode: Iterator[dict[str, Any]]) -> dict[str, Any] | None:
    # Gradients are switched off by the thread, and each step may find itself in another one.
    return next(episode, None)


def _record(step: Step, way: int) -> dict[str, Any]:
    observation = step.observation
    probabilities = np.exp(np.asarray(observation.prediction.log_probs[0, 0]))
    best = np.argsort(-probabilities, kind="stable")[: min(SHOWN, way)].tolist()
    truth, answer = int(step.label[0, 0]), best[0]
    neighbours = observation.prediction.neighbours
    recalled = [
        {"label": int(neighbours.columns["label"][0, 0, place]), "distance": float(neighbours.distance[0, 0, place])}
        for place in neighbours.mask[0, 0].nonzero()[0].tolist()
    ]
    return {
        "event": "step",
        "seen": step.seen,
        "truth": truth,
        "answer": answer,
        "right": truth == answer,
        "posterior": [{"label": label, "probability": float(probabilities[label])} for label in best],
        "surprise_nats": min(float(observation.surprise_nats[0, 0]), 1e6),
        "written": bool(observation.written[0, 0]),
        "neighbours": recalled,
    }


def _picture(image: torch.Tensor) -> str:
    return "data:image/png;base64," + base64.b64encode(to_png(image.numpy())).decode()
