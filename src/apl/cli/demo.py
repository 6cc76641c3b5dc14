"""`apl demo`: an online episode on invented characters, live, with a picture at the end. Needs no data set."""

from __future__ import annotations

import json as json_format
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from apl.data.labelled import LabelledImages


@dataclass
class Command:
    """Watch the learner meet characters that nobody has ever seen, and stop writing once it knows them."""

    model: str = "omniglot"
    """A bundled model's name, or the directory of a saved one."""
    way: int = 20
    """How many characters to invent."""
    drawings: int = 20
    """How often each is drawn."""
    seed: int = 0
    """Another seed invents another alphabet."""
    picture: Path = Path("apl-demo.png")
    """Where the curve goes."""
    json: bool = False
    """Print the summary as one JSON object."""

    def run(self) -> None:
        import torch

        from apl.data.glyphs import draw_glyphs
        from apl.episode import EpisodeSampler, run_episode
        from apl.learner import Learner

        if self.drawings < 2:
            raise ValueError(f"drawings must be at least 2, got {self.drawings}")
        if not self.picture.resolve().parent.is_dir():
            raise ValueError(f"there is no folder {self.picture.resolve().parent} to put the picture in")
        learner = Learner.load(self.model)
        generator = torch.Generator().manual_seed(1_000_000 + self.seed)
        glyphs = draw_glyphs(self.way, self.drawings, generator, learner.config.encoder.image_size)
        stream = EpisodeSampler(glyphs.labels, generator).online(self.way, None, 1)
        memory = learner.new_memory()
        right: list[bool] = []
        stored: list[int] = []
        met: set[int] = set()
        on_known: list[bool] = []
        with torch.no_grad(), _Screen(self.way, stream.label.shape[1]) as show:
            for step in run_episode(learner, memory, glyphs.images, stream, batch=1):
                truth, answer = int(step.label[0, 0]), int(step.observation.prediction.label[0, 0])
                right.append(truth == answer)
                stored.append(int(memory.counts[0]))
                if truth in met:
                    on_known.append(truth == answer)
                met.add(truth)
                show(right, stored, len(met))
        summary = {
            "way": self.way,
            "examples": len(right),
            "accuracy": sum(right) / len(right),
            "accuracy_on_classes_met_before": sum(on_known) / len(on_known),
            "accuracy_last_100": sum(right[-100:]) / len(right[-100:]),
            "stored": stored[-1],
            "stored_per_class": stored[-1] / self.way,
            "picture": str(self.picture),
        }
        _draw(self.picture, glyphs, right, stored, self.way)
        if self.json:
            print(json_format.dumps(summary))
            return
        print(
            f"\n{self.way} invented characters, {len(right)} drawings, no gradient step:\n"
            f"  right on characters met before   {summary['accuracy_on_classes_met_before']:.1%}\n"
            f"  right on the last 100            {summary['accuracy_last_100']:.1%}\n"
            f"  kept in memory                   {stored[-1]} drawings, {stored[-1] / self.way:.1f} per character\n"
            f"  the curve                        {self.picture}\n\n"
            "Next: teach it your own labels from folders of images: apl learn DIR --memory letters.apl"
        )


class _Screen:
    """A live line on a terminal; a line now and then elsewhere."""

    def __init__(self, way: int, total: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        console = Console(stderr=True)
        self.way, self.total, self.live = way, total, console.is_terminal
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[figures]}"))
        self.bar = Progress(*columns, console=console, disable=not self.live)
        self.task = self.bar.add_task("drawings", total=total, figures="")

    def __enter__(self) -> Callable[[list[bool], list[int], int], None]:
        self.bar.start()
        return self.show

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def show(self, right: list[bool], stored: list[int], met: int) -> None:
        recent = right[-50:]
        figures = (
            f"{len(right):>4} seen  {met:>3} characters met  {sum(recent) / len(recent):>4.0%} right of the last 50  "
            f"{stored[-1]:>3} in memory"
        )
        self.bar.update(self.task, completed=len(right), figures=figures)
        if not self.live and (len(right) % 50 == 0 or len(right) == self.total):
            print(figures, file=sys.stderr)


def _draw(path: Path, glyphs: LabelledImages, right: list[bool], stored: list[int], way: int) -> None:
    import torch

    from apl.paper.plot import OTHER, OURS, figure, smooth

    shown = min(way, 20)
    first = [int((glyphs.labels == c).nonzero()[0]) for c in range(shown)]
    alphabet = torch.cat([255 - glyphs.images[i, 0] for i in first[: shown // 2]], 1)
    second = torch.cat([255 - glyphs.images[i, 0] for i in first[shown // 2 : 2 * (shown // 2)]], 1)
    with figure(path, columns=2) as (axes, picture):
        axes.plot(smooth(torch.tensor(right).float(), 25), color=OURS, label="right, of the last 25")
        axes.set(xlabel="drawings seen", ylabel="accuracy", ylim=(0, 1.02), title=f"{way} invented characters, online")
        memory = axes.twinx()
        memory.plot(stored, color=OTHER, label="drawings in memory")
        memory.set(ylabel="drawings in memory", ylim=(0, 3 * way))
        axes.legend(handles=[*axes.get_lines(), *memory.get_lines()], frameon=False, loc="lower right")
        picture.imshow(torch.cat([alphabet, second]), cmap="gray")
        picture.set_title("the alphabet")
        picture.axis("off")
