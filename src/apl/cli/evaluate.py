"""`apl evaluate`: one number with its interval, for one model under one protocol."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from apl.cli.options import JsonOption, TrainedModel, arg
from apl.cli.terminal import print_json
from apl.config import DeviceName
from apl.data import Split

if TYPE_CHECKING:
    from torch import Tensor

    from apl.config import EncoderConfig
    from apl.data.labelled import LabelledImages
    from apl.data.source import DataSource
    from apl.learner import Learner


@dataclass
class Command:
    """Measure a model on classes it has never seen: the accuracy, a table per class and the commonest confusions."""

    model: TrainedModel = "omniglot"
    protocol: Literal["fixed", "online"] = "fixed"
    """fixed: store SHOT examples of each class, then ask. online: predict, score, then learn, from an empty memory."""
    way: Annotated[int | None, arg(metavar="CLASSES")] = None
    """Number of classes; 20, or as many as there are. If there are fewer, rotated characters count as further classes."""
    shot: Annotated[int | None, arg(metavar="EXAMPLES")] = None
    """Stored examples per class (fixed); 1 by default."""
    episodes: Annotated[int, arg(metavar="N")] = 1000
    """Episodes to average over."""
    seed: Annotated[int, arg(metavar="NUMBER")] = 0
    """Which episodes are drawn."""
    data: Literal["omniglot", "glyphs"] = "omniglot"
    """Omniglot's test characters, or characters from the generator (which need no file)."""
    folder: Annotated[Path | None, arg(metavar="DIR")] = None
    """Your own pictures instead: the classes that `apl train --data DIR` holds out."""
    split: Split = "paper"
    """Which characters of Omniglot are the test characters."""
    device: DeviceName = "auto"
    """Where to compute; auto takes the best there is."""
    json: JsonOption = False

    def run(self) -> None:
        import torch

        from apl.checkpoint import without_nan
        from apl.cli.score import Score
        from apl.learner import Learner
        from apl.networks import find_device
        from apl.progress import progress

        self._check()
        learner = Learner.load(self.model).to(find_device(self.device))
        source, data, way = self._data(learner.config.encoder)
        score = Score()

        def tally(truth: Tensor, answered: Tensor) -> None:
            pairs, counts = torch.stack([truth.flatten(), answered.flatten()], 1).unique(dim=0, return_counts=True)
            for (true, answer), count in zip(pairs.tolist(), counts.tolist(), strict=True):
                score.add(data.class_names[true], data.class_names[answer] if answer >= 0 else None, count)

        measure = self._fixed if self.protocol == "fixed" else self._online
        with progress("episodes", self.episodes) as done:
            common = {"way": way, "episodes": self.episodes, "seed": self.seed, "progress": done, "tally": tally}
            measured = measure(learner, data, common)
        result = without_nan({**self._described(learner, source, way), **measured})
        if self.json:
            print_json({**result, **{name: score.to_dict()[name] for name in ("classes", "confusions")}})
            return
        for name, value in result.items():
            print(f"{name:>18}  {value:.4f}" if isinstance(value, float) else f"{name:>18}  {value}")
        print(f"\n{score}")

    def _check(self) -> None:
        if self.episodes < 1:
            raise ValueError(f"episodes must be at least 1, got {self.episodes}")
        if self.protocol == "online" and self.shot is not None:
            raise ValueError("--shot is valid with --protocol fixed only")
        if self.split != "paper" and (self.folder is not None or self.data != "omniglot"):
            raise ValueError("--split is valid with --data omniglot only")

    def _data(self, encoder: EncoderConfig) -> tuple[DataSource, LabelledImages, int]:
        """Where the classes come from, their images, and how many are in an episode."""
        from apl.data.source import DataSource

        size = getattr(encoder, "image_size", None)
        if size is None:
            raise ValueError(f"{self.model} does not take single pictures: see `python -m experiments analogy`")
        source = DataSource(name=self.data, split=self.split, rotations=False)
        if self.folder is not None:
            colour = getattr(encoder, "channels", 1) == 3
            source = DataSource(name="folder", folder=str(self.folder.resolve()), rotations=False, colour=colour)
        data = source.load("test", size)
        way = min(20, len(data.class_names)) if self.way is None else self.way
        if self.folder is None and way > len(data.class_names):
            source = replace(source, rotations=True)
            data = source.load("test", size)
        return source, data, way

    def _described(self, learner: Learner, source: DataSource, way: int) -> dict[str, Any]:
        return {
            "model": self.model,
            "protocol": self.protocol,
            "way": way,
            "episodes": self.episodes,
            "seed": self.seed,
            "split": source.split_name(),
            "split_hash": source.split_hash(),
            "rotations": source.rotations,
            "k": learner.config.k,
            "decoder": learner.config.decoder.kind,
        }

    def _fixed(self, learner: Learner, data: LabelledImages, common: dict[str, Any]) -> dict[str, Any]:
        from apl.evaluate import fixed_context

        shot = 1 if self.shot is None else self.shot
        estimate = fixed_context(learner, data.images, data.labels, shot=shot, **common)
        return {"shot": shot, "accuracy": estimate.mean, "ci95": estimate.ci95}

    def _online(self, learner: Learner, data: LabelledImages, common: dict[str, Any]) -> dict[str, Any]:
        from apl.evaluate import online

        outcome = online(learner, data.images, data.labels, **common)
        examples = outcome.correct.shape[1]
        accuracy, last, stored = outcome.accuracy(), outcome.accuracy_last(min(100, examples)), outcome.stored_at_end()
        return {
            "accuracy": accuracy.mean,
            "ci95": accuracy.ci95,
            "accuracy_last": last.mean,
            "stored": stored.mean,
            "stored_per_class": stored.mean / common["way"],
            "examples": examples,
        }
