"""A training run: directory, log, progress, clock, interruption, resumption.

The training loops keep all their state in a `Run`: the loop's numbers in `run.state`, tensors in the module and
optimiser, chance in `run.generator`. An interrupted and resumed run therefore equals (on a CPU) an uninterrupted one
bit for bit.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from rich.progress import MofNCompleteColumn, TaskID, TextColumn
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from apl.checkpoint import CheckpointError, current_commit, read_json, to_json, write_json
from apl.data.source import DataSource
from apl.networks import CPU
from apl.progress import progress_bar
from apl.weights_file import below, read_tensors, write_tensors

SAVE_EVERY_SECONDS = 50
LOG_EVERY_SECONDS = 5
GRADIENT_SCALE = 2.0**40
"""Of the backward pass, undone before the step. Gradients of confident answers have products so small that CPUs compute with them
several times slower."""

Precision = Literal["full", "bf16"]


@dataclass
class RunOptions:
    """Where a run lives and when it stops."""

    directory: Path
    resume: bool = False
    """Go on from the last checkpoint in the directory."""
    minutes: float | None = None
    """Stop (and save) after this much time."""
    device: torch.device = CPU
    """Where the networks compute. Random numbers are drawn on the CPU, so that a seed means the same everywhere."""
    precision: Precision = "full"
    """Deviation: bf16 computes the networks' products in half precision; weights, losses and their sums stay in full."""

    def autocast(self) -> torch.autocast:
        """Around a network's forward pass: the run's precision."""
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.precision == "bf16")


def check_resumable(directory: Path) -> None:
    if not (directory / "state.json").exists():
        raise CheckpointError(f"nothing to resume in {directory}: no state.json there")


class Run:
    """One training run: `for _ in run.rounds(steps)` watches the clock, saves, and stops when asked.

    `descend` counts `run.state["step"]`. A round may be several steps (an episode), and a run is only ever saved
    between rounds, so that weights, optimiser, random state and `state` are all there is to save.
    """

    def __init__(
        self,
        config: Any,
        options: RunOptions,
        module: nn.Module,
        optimiser: torch.optim.Optimizer,
        seed: int,
        average: AveragedModel | None = None,
    ) -> None:
        self.config, self.options = config, options
        self.module, self.optimiser, self.average = module, optimiser, average
        self.generator = torch.Generator().manual_seed(seed * 1000)
        self.state: dict[str, Any] = {"step": 0, "seconds": 0.0}
        self.stopped_early = False
        self._interrupted = False
        self._started = time.monotonic()
        self._recent: list[tuple[int, dict[str, Tensor | float]]] = []
        self._logged = time.monotonic()
        self._bar = progress_bar(MofNCompleteColumn(), TextColumn("{task.fields[figures]}"))
        self._task: TaskID | None = None
        if options.resume:
            self._load()
        elif (options.directory / "state.json").exists():
            raise CheckpointError(
                f"{options.directory} already holds a run: use --resume to go on, or another directory"
            )
        self._seconds_before = self.state["seconds"]
        options.directory.mkdir(parents=True, exist_ok=True)
        write_json(options.directory / "config.json", to_json(config))

    @property
    def seconds(self) -> float:
        """Time spent training, over all sessions of the run."""
        return float(self._seconds_before + time.monotonic() - self._started)

    def rounds(self, total: int) -> Iterator[None]:
        """Until `total` steps are done; saves every minute, at the end, on Ctrl-C and when the time is up."""
        minutes, last_save = self.options.minutes, time.monotonic()
        with stop_signals(self), self._bar as bar:
            task = self._task = bar.add_task("training", total=total, completed=self.state["step"], figures="")
            while self.state["step"] < total and not self.stopped_early:
                yield
                bar.update(task, completed=self.state["step"])
                out_of_time = minutes is not None and time.monotonic() - self._started > 60 * minutes
                self.stopped_early = (self._interrupted or out_of_time) and self.state["step"] < total
                if time.monotonic() - last_save > SAVE_EVERY_SECONDS:
                    self.save()
                    last_save = time.monotonic()
            self.save()

    def descend(self, loss: Tensor, learning_rate: float, clip: float | None = None) -> None:
        """One step of the optimiser on this loss; `clip` is the largest norm of the gradient."""
        self.optimiser.zero_grad()
        (loss * GRADIENT_SCALE).backward()
        gradients = [p.grad for group in self.optimiser.param_groups for p in group["params"] if p.grad is not None]
        torch._foreach_mul_(gradients, 1 / GRADIENT_SCALE)
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(self.module.parameters(), clip)
        for group in self.optimiser.param_groups:
            group["lr"] = learning_rate
        self.optimiser.step()
        if self.average is not None:
            self.average.update_parameters(self.module)
        self.state["step"] += 1

    def record(self, images: int, **values: Tensor | float | int) -> None:
        """Keep the figures of a step; every few seconds their means over images are shown and logged."""
        # Tensors stay where they are: to ask for a number now would make a GPU wait.
        self._recent.append((images, {n: v.detach() if isinstance(v, Tensor) else v for n, v in values.items()}))
        seconds = time.monotonic() - self._logged
        if seconds < LOG_EVERY_SECONDS:
            return
        total = sum(count for count, _ in self._recent)
        means = {n: sum(float(v[n]) * count for count, v in self._recent) / total for n in values}
        means["images_per_second"] = total / seconds
        if self._task is not None:
            self._bar.update(self._task, figures="  ".join(f"{name} {mean:.3g}" for name, mean in means.items()))
        self.log(**means)
        self._recent, self._logged = [], time.monotonic()

    def log(self, **figures: Any) -> None:
        """One line in log.jsonl."""
        line = {"step": self.state["step"], "seconds": round(self.seconds, 1), **figures}
        with (self.options.directory / "log.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")

    def provenance(
        self, trained_as: str, data: DataSource | None, validation: Mapping[str, float], **more: Any
    ) -> dict[str, Any]:
        """Where weights came from: what is saved beside them."""
        split = {"split": data.split_name(), "split_hash": data.split_hash()} if data else {}
        return {
            "trained_as": trained_as,
            "training": to_json(self.config),
            **split,
            "steps": self.state["step"],
            "seconds": round(self.seconds),
            "device": str(self.options.device),
            "precision": self.options.precision,
            "commit": current_commit(),
            "validation": dict(validation),
            **more,
        }

    def save(self) -> None:
        """Weights, optimiser, random state and loop state, atomically."""
        self.state["seconds"] = self.seconds
        tensors = {f"module.{n}": t for n, t in self.module.state_dict().items()}
        if self.average is not None:
            tensors |= {f"average.{n}": t for n, t in self.average.state_dict().items()}
        for i, slots in self.optimiser.state_dict()["state"].items():
            tensors |= {f"optimiser.{i}.{name}": torch.as_tensor(value) for name, value in slots.items()}
        directory = self.options.directory
        # The step is part of the tensors' file name, so that state.json always names a complete, matching file.
        name = f"state-{self.state['step']}.safetensors"
        write_tensors(directory / name, {**tensors, "generator": self.generator.get_state()})
        write_json(directory / "state.json", {"tensors": name, "state": self.state})
        for old in directory.glob("state-*.safetensors"):
            if old.name != name:
                old.unlink()

    def _load(self) -> None:
        directory = self.options.directory
        check_resumable(directory)
        saved, before = read_json(directory / "state.json"), read_json(directory / "config.json")
        for name, now in to_json(self.config).items():
            if name != "steps" and now != before.get(name):
                raise CheckpointError(
                    f"{directory} was started with another {name!r}: {before.get(name)!r}, now {now!r}"
                )
        tensors = read_tensors(directory / saved["tensors"])
        self.module.load_state_dict(below("module.", tensors))
        if self.average is not None:
            self.average.load_state_dict(below("average.", tensors))
        parameters = [p for group in self.optimiser.param_groups for p in group["params"]]
        slots: dict[int, dict[str, Tensor]] = {}
        for name, value in below("optimiser.", tensors).items():
            number, slot = name.split(".", 1)
            # The fused optimisers need moments that lie in memory as their (channels-last) weights do.
            weight = parameters[int(number)]
            value = torch.empty_like(weight).copy_(value) if value.shape == weight.shape else value
            slots.setdefault(int(number), {})[slot] = value
        self.optimiser.load_state_dict({**self.optimiser.state_dict(), "state": slots})
        self.generator.set_state(tensors["generator"])
        self.state = saved["state"]


@contextmanager
def stop_signals(run: Run) -> Iterator[None]:
    """Ctrl-C and termination ask the loop to stop after the current round; a second Ctrl-C stops at once."""

    def ask(signum: int, frame: object) -> None:
        if run._interrupted and signum == signal.SIGINT:
            raise KeyboardInterrupt
        run._interrupted = True

    try:
        before = {s: signal.signal(s, ask) for s in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # signals can only be handled in the main thread
        before = {}
    try:
        yield
    finally:
        for s, handler in before.items():
            signal.signal(s, handler)


def plateau(step: int, steps: int, rate: float, decay_share: float, warmup_steps: int = 1) -> float:
    """A learning rate that rises over the first steps, stays, and falls linearly to zero over the last share of the steps.
    The plateau lets a run be lengthened or shortened when resumed."""
    return rate * min(1.0, (step + 1) / warmup_steps, (steps - step) / (steps * decay_share))
