"""The number-analogy task (paper, section 4.5): the paper's decoders and rule, nothing set by hand, no curriculum.

`python -m experiments analogy` measures the models in `runs/analogy-*` and keeps what was measured of the same training before;
`--train` makes those that are missing. All shuffled cells have the same number of steps. Every accuracy is on combinations never
seen in the episode; the models see the same test episodes, so they may be compared in pairs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated

import torch
from tyro.conf import arg

from apl.checkpoint import read_description
from apl.config import DecoderKind
from apl.controller import SurpriseController, WriteAll
from apl.evaluate import Estimate, OnlineResult, watch
from apl.learner import Learner
from apl.training.run import RunOptions
from experiments.data.analogy import COMBINATIONS, SYMBOLS, WAY, AnalogySampler, Level
from experiments.paper.plot import PALETTE, QUIET, figure
from experiments.paper.results import Cell, Row, figure_path, measure_missing
from experiments.presets import PAPER_DECODERS, PRESETS, dashed
from experiments.training.analogy import AnalogyConfig, around, embedded_sampler

NAME = "analogy"
NEIGHBOURS = (16, 8, 4, 2)
SEED, EPISODES = 1, 100
SEEN = (5, 10, 20, 30, 40, 50, 60, 70, 80, 90, 95)
RULES = {"surprise": None, "everything": WriteAll()}
"""The rule the model was trained with, and every example written: what is lost because the rule keeps too few rows."""


@dataclass(frozen=True)
class Model:
    """One trained model of the comparison."""

    kind: DecoderKind
    k: int
    level: Level = "shuffled"
    seed: int = 0

    @property
    def preset(self) -> str:
        return f"analogy-{dashed(self.kind)}-k{self.k}" if self.level == "shuffled" else fixed_name(self.kind)

    @property
    def directory(self) -> Path:
        return Path("runs") / (self.preset + (f"-seed{self.seed}" if self.seed else ""))

    @property
    def saved(self) -> Path:
        return self.directory / "model"

    @property
    def trained(self) -> bool:
        """Its training ended: one that was stopped has saved a model too."""
        if not (self.saved / "model.json").is_file():
            return False
        provenance = read_description(self.saved)["provenance"]
        return bool(provenance["steps"] >= provenance["training"]["steps"])


def fixed_name(kind: DecoderKind) -> str:
    return f"analogy-fixed-{dashed(kind)}"


def models(seeds: int) -> Iterator[Model]:
    """Every model, in the order in which they are trained: what the claims rest on first."""
    for seed in range(seeds):
        yield Model("relational", preset_of(fixed_name("relational")).learner.k, "fixed", seed)
        yield from (Model(kind, k, seed=seed) for k in NEIGHBOURS for kind in PAPER_DECODERS)
        yield from (Model(kind, preset_of(fixed_name(kind)).learner.k, "fixed", seed) for kind in PAPER_DECODERS[1:])


def preset_of(name: str) -> AnalogyConfig:
    config: AnalogyConfig = PRESETS[name]
    return config


@dataclass
class Command:
    """Measure the decoders of the paper on the analogy task; writes results/analogy.json."""

    train: bool = False
    """First train the models that are missing, one after the other; a run that was stopped goes on."""
    seeds: Annotated[int, arg(metavar="N")] = 3
    """Trainings per cell: those measured, and with --train those made."""
    steps: Annotated[int | None, arg(metavar="STEPS")] = None
    """With --train: another number of steps than the presets'."""
    quick: bool = False
    """A few episodes, in results/quick."""

    def run(self) -> None:
        torch.set_num_threads(1)
        if self.train:
            for model in models(self.seeds):
                if not model.trained and not train(model, self.steps):
                    return
        reproduce(self.quick, self.seeds)


def train(model: Model, steps: int | None = None) -> bool:
    """Whether the training ended, not interrupted."""
    config = replace(preset_of(model.preset), seed=model.seed)
    config = config if steps is None else replace(config, steps=steps)
    resume = (model.directory / "state.json").is_file()
    config.train(RunOptions(model.directory, resume=resume))
    description = read_description(model.saved)["provenance"]
    figures = "  ".join(f"{name} {value:.3f}" for name, value in description["validation"].items())
    print(f"{model.directory.name}: {description['steps']} steps, {description['seconds']} s  {figures}", flush=True)
    return model.trained


def reproduce(quick: bool = False, seeds: int = 3) -> None:
    rows = measure_missing(NAME, cells(seeds, 10 if quick else EPISODES), quick)
    draw_curves(over_seeds(rows), figure_path(NAME, quick))


def cells(seeds: int, episodes: int) -> Iterator[Cell]:
    """Of the models that were trained."""
    for model in models(seeds):
        if model.trained:
            about = described(model)
            where, of = {"checkpoint": about["checkpoint"]}, {"trained": about["trained"]}
            yield Cell(where, partial(measured, model, episodes), of)


def over_seeds(rows: list[Row]) -> list[Row]:
    """One row for each cell: means over its trainings, intervals over trainings, or over episodes where there is only one."""
    groups: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["level"], row["decoder"], row["k"], row["rule"]), []).append(row)
    return [found[0] | {"trained_seeds": 1} if len(found) == 1 else joined(found) for found in groups.values()]


def joined(found: list[Row]) -> Row:
    row = found[0] | {"trained_seeds": len(found), "stored": Estimate.of([one["stored"] for one in found]).mean}
    for name, interval in (("accuracy", "ci95"), ("above_one_shot", "above_one_shot_ci95")):
        if name in row:
            over = Estimate.of([one[name] for one in found])
            row |= {name: over.mean, interval: over.ci95}
    if "curve" in row:
        row["curve"] = [joined_point(points) for points in zip(*(one["curve"] for one in found), strict=True)]
        row["samples"] = [one["accuracy"] for one in found]
    return row


def joined_point(points: tuple[Row, ...]) -> Row:
    over = Estimate.of([point["accuracy"] for point in points])
    stored = Estimate.of([point["stored"] for point in points]).mean
    return points[0] | {"accuracy": over.mean, "ci95": over.ci95, "stored": stored}


def described(model: Model) -> Row:
    provenance = read_description(model.saved)["provenance"]
    return {
        "method": "the paper's form",
        "labels": "fixed",
        "level": model.level,
        "decoder": model.kind,
        "k": model.k,
        "trained_seed": model.seed,
        "checkpoint": model.directory.name,
        "split": "mnist test",
        "seed": SEED,
        "trained": {name: provenance[name] for name in ("steps", "seconds", "commit", "validation")},
    }


def measured(model: Model, episodes: int) -> Iterator[Row]:
    learner, about = Learner.load(model.saved), described(model)
    for rule, controller in RULES.items():
        sampler = embedded_sampler(learner, model.level, "test", torch.Generator().manual_seed(SEED))
        if model.level == "fixed":
            yield {**about, "rule": "one of each symbol", **fixed_row(learner, sampler, episodes)}
            return
        learner.controller = controller or SurpriseController(learner.config.sigma_ratio)
        yield {**about, "rule": rule, **shuffled_row(learner, sampler, episodes)}


@torch.no_grad()
def fixed_row(learner: Learner, sampler: AnalogySampler, episodes: int) -> Row:
    """One example of each symbol in memory, then all other combinations are asked."""
    twin, shown = learner.on_embeddings(), SYMBOLS
    drawn = sampler.draw(episodes, each_symbol_first=True)
    pairs, label = drawn.inputs[drawn.episodes.example], drawn.episodes.label
    memory = twin.new_memory(episodes)
    twin.write(memory, pairs[:, :shown], label[:, :shown], torch.ones_like(label[:, :shown], dtype=torch.bool))
    right = twin.predict(memory, pairs[:, shown:], WAY).label == label[:, shown:]
    accuracy = Estimate.of(right.float().mean(1))
    return {
        "seen": shown,
        "stored": float(shown),
        "accuracy": accuracy.mean,
        "ci95": accuracy.ci95,
        "episodes": episodes,
        "one_shot": shown / COMBINATIONS,
    }


def shuffled_row(learner: Learner, sampler: AnalogySampler, episodes: int) -> Row:
    """Accuracy over the second half of an episode, its distance from the one-shot line over all of it, and the curve.
    `samples` are the accuracies of the single episodes, for paired comparisons."""
    drawn = sampler.draw(episodes)
    result = watch(learner.on_embeddings(), drawn.inputs, drawn.episodes)
    length = result.correct.shape[1]
    line = torch.arange(length) / COMBINATIONS
    second_half = result.correct[:, length // 2 :].mean(1)
    accuracy, above = Estimate.of(second_half), Estimate.of((result.correct - line).mean(1))
    return {
        "accuracy": accuracy.mean,
        "ci95": accuracy.ci95,
        "episodes": len(result.correct),
        "above_one_shot": above.mean,
        "above_one_shot_ci95": above.ci95,
        "stored": result.stored_at_end().mean,
        "samples": [round(float(a), 4) for a in second_half],
        "curve": [point(result, seen) for seen in SEEN],
    }


def point(result: OnlineResult, seen: int) -> Row:
    accuracy = Estimate.of(around(result.correct, seen))
    return {
        "seen": seen,
        "stored": float(result.stored[:, seen - 1].float().mean()),
        "accuracy": accuracy.mean,
        "ci95": accuracy.ci95,
        "one_shot": seen / COMBINATIONS,
    }


def draw_curves(rows: list[Row], path: Path) -> None:
    """Figure 5: the relational decoder by k, and the three decoders at k = 16."""
    curves = [row for row in rows if "curve" in row and row["rule"] == "surprise"]
    panels = {
        "relational": [(f"k = {r['k']}", r) for r in curves if r["decoder"] == "relational"],
        "k = 16": [(r["decoder"].replace("_", " "), r) for r in curves if r["k"] == 16],
    }
    with figure(path, columns=len(panels)) as axes:
        for panel, (title, drawn) in zip(axes, panels.items(), strict=True):
            panel.plot(SEEN, [seen / COMBINATIONS for seen in SEEN], color=QUIET, ls="--", label="perfect one-shot")
            for (label, row), colour in zip(drawn, PALETTE, strict=False):
                panel.plot(SEEN, [point["accuracy"] for point in row["curve"]], ".-", color=colour, label=label)
            panel.set(xlabel="examples seen", title=title, ylim=(0, 1.02), xlim=(0, 100))
            panel.legend(frameon=False, fontsize=8)
        axes[0].set_ylabel("accuracy on combinations never seen")
