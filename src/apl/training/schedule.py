"""Learning rates over the steps of a run."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class WithPlateau(Protocol):
    """The settings a configuration needs for `plateau`."""

    @property
    def steps(self) -> int: ...
    @property
    def learning_rate(self) -> float: ...
    @property
    def warmup_steps(self) -> int: ...
    @property
    def decay_share(self) -> float: ...


@runtime_checkable
class WithDecay(Protocol):
    """The settings a configuration needs for `learning_rate`."""

    @property
    def steps(self) -> int: ...
    @property
    def learning_rate(self) -> float: ...
    @property
    def decay(self) -> float: ...
    @property
    def decay_share(self) -> float | None: ...
    @property
    def lowest_learning_rate(self) -> float: ...


def plateau(config: WithPlateau, step: int) -> float:
    """Warm-up, plateau, linear decay: the plateau lets a run be lengthened or shortened when resumed."""
    warm = (step + 1) / config.warmup_steps
    left = (config.steps - step) / (config.steps * config.decay_share)
    return config.learning_rate * min(1.0, warm, left)


def learning_rate(config: WithDecay, step: int) -> float:
    """The paper's: multiplied by `decay` every 1000 steps, down to the lowest. Or linear, over the last `decay_share`."""
    if config.decay_share is not None:
        left = (config.steps - step) / (config.steps * config.decay_share)
        return max(config.lowest_learning_rate, config.learning_rate * min(1.0, left))
    decayed: float = config.learning_rate * config.decay ** (step / 1000)
    return max(config.lowest_learning_rate, decayed)
