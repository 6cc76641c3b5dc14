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
    """Number of classes; 20, or as many as there are."""
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
    part: Literal["test", "validation", "train"] = "test"
    """Which classes: the test classes, or those for validation or training."""
    rotations: bool | None = None
    """Count rotated characters as classes of their own; by default only when WAY needs them."""
    k: Annotated[int | None, arg(metavar="NEIGHBOURS")] = None
    """Recall another number of neighbours than the model was trained with."""
    sigma: Annotated[float | None, arg(metavar="NATS")] = None
    """Another threshold of surprise, in nats (online)."""
    length: Annotated[int | None, arg(metavar="EXAMPLES")] = None
    """Examples per online episode; by default all examples of the classes."""
    decoder: Literal["kernel", "class_mean", "nearest"] | None = None
    """Put a decoder without weights behind the model's encoder."""
    device: DeviceName = "auto"
    """Where to compute; auto takes the best there is."""
    json: JsonOption = False

    def run(self) -> None:
        import torch

        from apl.checkpoint import without_nan
        from apl.cli.score import Score
        from apl.evaluate import variant
        from apl.networks import find_device
        from apl.progress import progress

        self._check()
        learner = variant(self.model, k=self.k, decoder=self.decoder, sigma_nats=self.sigma)
        learner = learner.to(find_device(self.device))
        source, data, way = self._data(learner.config.encoder)
        described = {
            "model": self.model,
            "protocol": self.protocol,
            "way": way,
            "episodes": self.episodes,
            "seed": self.seed,
            "split": source.split_name(),
            "split_hash": source.split_hash(),
            "part": self.part,
            "rotations": source.rotations,
            "k": learner.config.k,
            "decoder": learner.config.decoder.kind,
            "labels": learner.config.decoder.labels,
        }
        measure = self._fixed if self.protocol == "fixed" else self._online
        score = Score()

        def tally(truth: Tensor, answered: Tensor) -> None:
            pairs, counts = torch.stack([truth.flatten(), answered.flatten()], 1).unique(dim=0, return_counts=True)
            for (true, answer), count in zip(pairs.tolist(), counts.tolist(), strict=True):
                score.add(data.class_names[true], data.class_names[answer] if answer >= 0 else None, count)

        with progress("episodes", self.episodes) as done:
            common = {"way": way, "episodes": self.episodes, "seed": self.seed, "progress": done, "tally": tally}
            result = without_nan({**described, **measure(learner, data.images, data.labels, common)})
        if self.json:
            print_json({**result, **{name: score.to_dict()[name] for name in ("classes", "confusions")}})
            return
        for name, value in result.items():
            print(f"{name:>18}  {value:.4f}" if isinstance(value, float) else f"{name:>18}  {value}")
        print(f"\n{score}")

    def _check(self) -> None:
        fixed = self.protocol == "fixed"
        if self.episodes < 1:
            raise ValueError(f"episodes must be at least 1, got {self.episodes}")
        if fixed and (self.sigma is not None or self.length is not None):
            raise ValueError("--sigma and --length are valid with --protocol online only")
        if not fixed and self.shot is not None:
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
        data = source.load(self.part, size)
        way = min(20, len(data.class_names)) if self.way is None else self.way
        if self.rotations or (self.rotations is None and self.folder is None and way > len(data.class_names)):
            source = replace(source, rotations=True)
            data = source.load(self.part, size)
        return source, data, way

    def _fixed(self, learner: Learner, images: Tensor, labels: Tensor, common: dict[str, Any]) -> dict[str, Any]:
        from apl.evaluate import fixed_context

        shot = 1 if self.shot is None else self.shot
        estimate = fixed_context(learner, images, labels, shot=shot, **common)
        return {"shot": shot, "accuracy": estimate.mean, "ci95": estimate.ci95}

    def _online(self, learner: Learner, images: Tensor, labels: Tensor, common: dict[str, Any]) -> dict[str, Any]:
        from apl.evaluate import online

        outcome = online(learner, images, labels, length=self.length, **common)
        examples = outcome.correct.shape[1]
        last = min(100, examples)
        accuracy, tail, stored = outcome.accuracy(), outcome.accuracy_last(last), outcome.stored_at_end()
        return {
            "accuracy": accuracy.mean,
            "ci95": accuracy.ci95,
            "accuracy_last": tail.mean,
            "accuracy_last_ci95": tail.ci95,
            "last": last,
            "stored": stored.mean,
            "stored_ci95": stored.ci95,
            "stored_per_class": stored.mean / common["way"],
            "examples": examples,
        }
