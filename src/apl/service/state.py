"""The parts of a running service that its routes share."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version

from apl.service.encoding import BatchedEncoder
from apl.service.memories import OpenMemories
from apl.service.served_model import ServedModel
from apl.service.settings import Settings
from apl.service.telemetry import Metrics
from apl.service.tokens import Tokens


@dataclass
class ServiceState:
    settings: Settings
    model: ServedModel
    memories: OpenMemories
    encoder: BatchedEncoder
    metrics: Metrics
    tokens: Tokens | None
    pictures: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(2, thread_name_prefix="pictures"))
    """Threads that unpack pictures."""
    episode_thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "episodes"))
    """Episodes take turns here, a step at a time."""
    episodes_running: int = 0
    stopping: bool = False
    version: str = field(default_factory=lambda: _version())

    @staticmethod
    async def open(settings: Settings, model: ServedModel, metrics: Metrics, tokens: Tokens | None) -> ServiceState:
        memories = OpenMemories(settings, model, metrics)
        await memories.open()
        encoder = BatchedEncoder(model, settings.workers, settings.limits.waiting, metrics)
        return ServiceState(settings, model, memories, encoder, metrics, tokens)

    async def close(self) -> None:
        """Every lesson that was accepted is written before this returns."""
        self.stopping = True
        await self.memories.close()
        self.encoder.close()
        self.pictures.shutdown()
        self.episode_thread.shutdown()


def _version() -> str:
    try:
        return version("apl-memory")
    except PackageNotFoundError:
        return "from a checkout"
