"""A training run that a person can live with: directory, log, progress, clock, interruption, resumption.

The training loops keep all their state in a `Run`: the loop's numbers in `run.state`, tensors in the module and
optimiser, chance in `run.generator`. What is saved is therefore everything, and an interrupted and resumed run
equals (on a CPU) an uninterrupted one bit for bit.
"""

from __future__ import annotations

import dataclasses
import json
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import torch
from rich.progress import MofNCompleteColumn, Progress, TextColumn
from torch import Tensor, nn

from apl.checkpoint import CheckpointError, current_commit, read_json, to_json, write_json
from apl.data.source import DataSource
from apl.device import CPU
from apl.progress import progress_bar
from apl.training.processes import Processes, laid_out
from apl.training.weight_average import WeightAverage
from apl.weights_file import below, read_tensors, write_tensors

SAVE_EVERY_SECONDS = 50
LOG_EVERY_SECONDS = 5

Precision = Literal["full", "bf16"]


@dataclasses.dataclass
class RunOptions:
    """Where a run lives and when it stops."""

    directory: Path
    resume: bool = False
    """Go on from the last checkpoint in the directory."""
    minutes: float | None = None
    """Stop (and save) after this much time."""
    tensorboard: bool = False
    """Also write TensorBoard event files (needs `pip install 'apl-memory[tensorboard]'`)."""
    device: torch.device = CPU
    """Where the networks compute. Chance is always drawn on the CPU, so that a seed means the same everywhere."""
    precision: Precision = "full"
    """Deviation: bf16 computes the networks' products in half precision; weights, losses and their sums stay in full."""

    def autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.precision == "bf16")


def check_resumable(directory: Path) -> None:
    if not (directory / "state.json").exists():
        raise CheckpointError(f"nothing to resume in {directory}: no state.json there")


class Run:
    """One training run: `for _ in run.rounds(steps)` watches the clock, saves, and stops when asked.

    The loop itself counts `run.state["step"]`; a round may be several steps (an episode), and the run is
    only ever saved between rounds, so that nothing but weights, optimiser, chance and `state` need saving.
    """

    def __init__(
        self,
        config: Any,
        options: RunOptions,
        module: nn.Module,
        optimiser: torch.optim.Optimizer,
        seed: int,
        average: WeightAverage[Any] | None = None,
    ) -> None:
        self.config = config
        self.options = options
        self.module = module
        self.average = average
        self.optimiser = optimiser
        self.processes = Processes(options.device)
        self.rank, self.world = self.processes.rank, self.processes.world
        self.generator = torch.Generator().manual_seed(seed * 1000 + self.rank)
        self.state: dict[str, Any] = {"step": 0, "seconds": 0.0}
        self.stopped_early = False
        self._interrupted = False
        self._started = time.monotonic()
        self._seconds_before = 0.0
        self._writer = None
        self._bar: Progress | None = None
        self._window = Window()
        directory = options.directory
        if options.resume:
            self._load()
        elif (directory / "state.json").exists():
            raise CheckpointError(f"{directory} already holds a run: use --resume to go on, or another directory")
        if self.rank == 0:
            directory.mkdir(parents=True, exist_ok=True)
            write_json(directory / "config.json", to_json(config))
            if options.tensorboard:
                self._writer = _tensorboard_writer(directory)

    @property
    def seconds(self) -> float:
        """Time spent training, over all sessions of the run."""
        return self._seconds_before + time.monotonic() - self._started

    def rounds(self, total: int) -> Iterator[None]:
        """Until `total` steps are done; saves every minute, at the end, on Ctrl-C and when the time is up."""
        last_save = time.monotonic()
        with _stop_signals(self), self._progress_bar(total) as (bar, task):
            self._bar, self._task = bar, task
            while self.state["step"] < total:
                yield
                bar.update(task, completed=self.state["step"])
                out_of_time = self.options.minutes is not None and (
                    time.monotonic() - self._started > 60 * self.options.minutes
                )
                stop = self.processes.any(self._interrupted or out_of_time)
                if stop and self.state["step"] < total:
                    self.stopped_early = True
                    break
                if self.processes.any(time.monotonic() - last_save > SAVE_EVERY_SECONDS):
                    self.save()
                    last_save = time.monotonic()
            self.save()
        if self._writer:
            self._writer.close()

    def autocast(self) -> torch.autocast:
        """Around a network's forward pass: the run's precision."""
        return self.options.autocast()

    def descend(self, loss: Tensor, learning_rate: float, clip: float | None = None) -> None:
        """One step of the optimiser on this loss; `clip` is the largest norm of the gradient."""
        self.optimiser.zero_grad()
        if loss.requires_grad:  # the kernel decoder has nothing to learn from an empty memory
            loss.backward()
        self.processes.average_gradients(self.module.parameters())
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(self.module.parameters(), clip)
        for group in self.optimiser.param_groups:
            group["lr"] = learning_rate
        self.optimiser.step()
        self.state["step"] += 1

    def record(self, images: int, latest: Mapping[str, Any] = MappingProxyType({}), **means: Tensor | float) -> None:
        """Keep the figures of a step; every few seconds their means are shown and logged, with the `latest` as it is."""
        self._window.add(images, means)
        if self._window.seconds > LOG_EVERY_SECONDS:
            figures = self._window.figures(self.world)
            if self._bar:
                text = "  ".join(f"{name} {value:.3g}" for name, value in figures.items())
                self._bar.update(self._task, figures=text)
            self.log(**figures, **latest)
            self._window = Window()

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

    def log(self, **metrics: Any) -> None:
        """One line in log.jsonl (and TensorBoard)."""
        if self.rank:
            return
        record = {"step": self.state["step"], "seconds": round(self.seconds, 1), **metrics}
        with (self.options.directory / "log.jsonl").open("a") as file:
            file.write(json.dumps(record) + "\n")
        if self._writer:
            for name, value in metrics.items():
                if isinstance(value, int | float):
                    self._writer.add_scalar(name, value, self.state["step"])

    def save(self) -> None:
        """Weights, optimiser, random state and loop state, atomically."""
        self.state["seconds"] = self.seconds
        generators = self.processes.gather(self.generator.get_state())
        if self.rank:
            return
        tensors = {f"module.{n}": t for n, t in self.module.state_dict().items()}
        if self.average:
            tensors |= {f"average.{n}": t for n, t in self.average.module.state_dict().items()}
        for i, slots in self.optimiser.state_dict()["state"].items():
            tensors |= {f"optimiser.{i}.{name}": torch.as_tensor(value) for name, value in slots.items()}
        tensors |= {f"generator.{rank}": state for rank, state in enumerate(generators)}
        directory = self.options.directory
        # The step is part of the tensors' file name, so that state.json always names a complete, matching file.
        name = f"state-{self.state['step']}.safetensors"
        write_tensors(directory / name, tensors)
        write_json(directory / "state.json", {"tensors": name, "world": self.world, "state": self.state})
        for old in directory.glob("state-*.safetensors"):
            if old.name != name:
                old.unlink()

    def _load(self) -> None:
        directory = self.options.directory
        check_resumable(directory)
        saved = read_json(directory / "state.json")
        now = to_json(self.config)
        before = read_json(directory / "config.json")
        for name in set(now) & set(before) - {"steps"}:
            if now[name] != before[name]:
                raise CheckpointError(
                    f"{directory} was started with another {name!r}: {before[name]!r}, now {now[name]!r}"
                )
        if saved["world"] != self.world:
            raise CheckpointError(f"{directory} was started with {saved['world']} processes, now {self.world}")
        tensors = read_tensors(directory / saved["tensors"])
        self.module.load_state_dict(below("module.", tensors))
        if self.average:
            self.average.module.load_state_dict(below("average.", tensors))
        parameters = [p for group in self.optimiser.param_groups for p in group["params"]]
        slots: dict[int, dict[str, Tensor]] = {}
        for name, value in below("optimiser.", tensors).items():
            number, slot = name.split(".", 1)
            slots.setdefault(int(number), {})[slot] = laid_out(value, parameters[int(number)])
        state = self.optimiser.state_dict()
        self.optimiser.load_state_dict({"state": slots, "param_groups": state["param_groups"]})
        self.generator.set_state(tensors[f"generator.{self.rank}"])
        self.state = saved["state"]
        self._seconds_before = self.state["seconds"]

    @contextmanager
    def _progress_bar(self, total: int) -> Iterator[tuple[Progress, Any]]:
        figures = TextColumn("{task.fields[figures]}")
        with progress_bar(MofNCompleteColumn(), figures, shown=self.rank == 0) as bar:
            yield bar, bar.add_task("training", total=total, completed=self.state["step"], figures="")


@contextmanager
def _stop_signals(run: Run) -> Iterator[None]:
    """Ctrl-C and termination ask the loop to stop after the current step; a second Ctrl-C stops at once."""

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


class Window:
    """Means of the figures since the last log line, each step counting as often as it had images."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._images = 0
        self._sums: dict[str, Any] = {}

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    def add(self, images: int, means: Mapping[str, Tensor | float]) -> None:
        self._images += images
        for name, value in means.items():
            # Tensors stay where they are: to ask for a number now would make a GPU wait.
            value = value.detach() if isinstance(value, Tensor) else value
            self._sums[name] = self._sums.get(name, 0.0) + value * images

    def figures(self, processes: int) -> dict[str, float]:
        means = {name: float(value) / self._images for name, value in self._sums.items()}
        return {**means, "images_per_second": self._images * processes / self.seconds}


def _tensorboard_writer(directory: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise RuntimeError("TensorBoard is not installed: pip install 'apl-memory[tensorboard]'") from None
    return SummaryWriter(str(directory / "tensorboard"))
