"""Services for the tests: a small untrained model, a live server on a free port, pictures to send."""

from __future__ import annotations

import asyncio
import base64
import io
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import numpy as np
import torch
from PIL import Image

from apl.config import ConvConfig, DecoderConfig, Group, LearnerConfig
from apl.data.glyphs import draw_glyphs
from apl.learner import Learner
from apl.service.app import create_app
from apl.service.server import free_port, run
from apl.service.settings import Settings

CLASSES, DRAWINGS = 6, 12


@lru_cache
def small_learner() -> Learner:
    torch.manual_seed(0)
    encoder = ConvConfig(image_size=28, stem_channels=8, stem_stride=2, groups=(Group(8, 1), Group(16, 1)))
    decoder = DecoderConfig(kind="kernel")
    return Learner(LearnerConfig(encoder, decoder)).eval()


def save_small_model(directory: Path) -> Path:
    small_learner().save(directory, {"trained": "no"}, half=False)
    return directory


@lru_cache
def _glyphs() -> np.ndarray:
    images = draw_glyphs(CLASSES, DRAWINGS, np.random.default_rng(5), 56).images
    return images.reshape(CLASSES, DRAWINGS, 56, 56)


def drawing(sign: int, number: int = 0) -> np.ndarray:
    """Dark ink on white, as a person would send it."""
    return 255 - _glyphs()[sign, number]


def png(sign: int, number: int = 0) -> bytes:
    return encoded(drawing(sign, number))


def encoded(pixels: np.ndarray, kind: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind)
    return buffer.getvalue()


def lesson(sign: int, number: int = 0, label: Any = None, **more: Any) -> dict[str, Any]:
    return {**question(sign, number), "label": f"sign {sign}" if label is None else label, **more}


def question(sign: int, number: int = 0) -> dict[str, Any]:
    return {"image": base64.b64encode(png(sign, number)).decode()}


def settings(memory: Path | str | None, model: Path | str, **changes: Any) -> Settings:
    return Settings(
        **{"model": str(model), "memory": "ram:" if memory is None else str(memory), "port": 0, "rate": 0.0, **changes}
    )


def alike(found: Any, expected: Any, tolerance: float = 1e-4) -> bool:
    """Equal, with a little room for the numbers: batches of another size round in another way."""
    if isinstance(expected, dict):
        return set(found) == set(expected) and all(alike(found[key], expected[key], tolerance) for key in expected)
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(alike, found, expected, [tolerance] * len(expected)))
    if isinstance(expected, float):
        return abs(found - expected) <= tolerance * max(1.0, abs(expected))
    return found == expected


@contextmanager
def running(settings: Settings) -> Iterator[httpx.Client]:
    """A live server in a thread of this process."""
    app, told, failed = create_app(settings), threading.Event(), []
    loop, stop, urls = asyncio.new_event_loop(), asyncio.Event(), []

    def serve() -> None:
        try:
            ready = lambda url: (urls.append(url), told.set())  # noqa: E731
            loop.run_until_complete(run(app, settings, free_port(settings), ready, stop))
        except BaseException as error:
            failed.append(error)
        finally:
            told.set()
            loop.close()

    thread = threading.Thread(target=serve)
    thread.start()
    told.wait(60)
    try:
        if not urls:
            raise RuntimeError(f"the server did not start: {failed}")
        port = urlsplit(urls[0]).port
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False) as client:
            yield client
    finally:
        if thread.is_alive():
            loop.call_soon_threadsafe(stop.set)
        thread.join(60)
    assert not failed, failed


class Process:
    """`apl serve` as its users start it, in a process that can be killed."""

    def __init__(self, *arguments: str) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "apl", "serve", "--port", "0", *arguments]
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self.log: list[str] = []
        assert self.process.stdout is not None and self.process.stderr is not None
        self._reader = threading.Thread(target=lambda: self.log.extend(self.process.stderr))
        self._reader.start()
        line = self.process.stdout.readline()
        if "http" not in line:
            self._finish()
            raise RuntimeError("".join(self.log))
        self.url = line.split()[-1].rstrip("/")
        self.client = httpx.Client(base_url=self.url, timeout=30, trust_env=False)

    def kill(self) -> None:
        self.process.kill()
        self._finish()

    def stop(self) -> int:
        self.process.terminate()
        return self._finish()

    def _finish(self) -> int:
        status = self.process.wait(60)
        self._reader.join(10)
        self.process.stdout.close()
        self.process.stderr.close()
        if hasattr(self, "client"):
            self.client.close()
        return status
