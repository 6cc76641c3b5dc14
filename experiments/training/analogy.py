"""Training on the number-analogy task (paper, section 4.5), on embeddings computed once.

The same learner, the same `run_episode`, one optimiser step per batch; only where episodes come from differs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, cast

import torch
from jaxtyping import Float
from torch import Tensor

from apl.checkpoint import find_model, read_json
from apl.config import ConvConfig, IdentityConfig, LearnerConfig
from apl.controller import SurpriseController
from apl.encoder import Encoder, PairEncoder, embed_all, unflatten
from apl.episode import run_episode
from apl.evaluate import watch
from apl.learner import Learner
from apl.networks import TorchNetworks
from apl.training.episodic import in_precision, load_decoder
from apl.training.run import Run, RunOptions
from apl.training.schedule import plateau
from apl.weights_file import below, load_weights, read_weights
from experiments.data.analogy import AnalogySampler, AnalogyTask, Examples, digit_examples, symbol_examples

VALIDATION_EPISODES = 64


@dataclass(frozen=True)
class AnalogyConfig:
    """How to train a learner on the analogy task."""

    learner: LearnerConfig
    task: AnalogyTask = field(default_factory=AnalogyTask)
    digits_from: str | None = None
    """An encoder of digits, or a learner of this task to take it from; it is not trained further."""
    symbols_from: str | None = None
    """The same for the encoder of symbols, where symbols are drawings."""
    share_encoder: bool = False
    """Save the decoder alone; the encoder stays with the bundled learner it was taken from."""
    decoder_from: str | None = None
    """A saved learner whose decoder to start from."""
    sigma_ratios: tuple[float, ...] = ()
    """Thresholds of surprise, one drawn for each round of episodes: memories from sparse to dense. The
    learner's own by default."""
    parallel: int = 16
    batch: int = 4
    """Examples of each episode per step."""
    longest_episode: int = 60
    steps: int = 4000
    learning_rate: float = 3e-3
    warmup_steps: int = 100
    decay_share: float = 0.6
    """The learning rate falls linearly to zero over this last share of the steps."""
    clip: float = 1.0
    seed: int = 0

    def train(self, options: RunOptions) -> Learner:
        return train_analogy(self, options)


def train_analogy(config: AnalogyConfig, options: RunOptions) -> Learner:
    """Train the decoder, save the learner under `options.directory/model`, and return it."""
    torch.manual_seed(config.seed)
    learner = Learner(config.learner)
    encoders = load_encoders(learner, config)
    if config.decoder_from is not None:
        load_decoder(learner, config.decoder_from)
    twin = learner.to(options.device).on_embeddings()
    networks = cast(TorchNetworks, twin.networks)
    optimiser = torch.optim.Adam(networks.parameters(), lr=0.0, fused=True)
    run = Run(config, options, networks, optimiser, config.seed)
    sampler = embedded_sampler(learner, config.task, "train", run.generator)
    ratios = config.sigma_ratios or (config.learner.sigma_ratio,)

    twin.train()
    for _ in run.rounds(config.steps):
        ratio = ratios[int(torch.randint(len(ratios), (1,), generator=run.generator))]
        twin.controller = SurpriseController(ratio)
        drawn = sampler.draw(config.parallel, config.longest_episode)
        memory = twin.new_memory(config.parallel)
        for step in in_precision(run, run_episode(twin, memory, drawn.inputs, drawn.episodes, config.batch)):
            loss = step.observation.surprise_nats.mean()
            run.descend(loss, plateau(config, run.state["step"]), config.clip)
            right = step.right
            run.record(
                right.numel(),
                {"sigma_ratio": ratio},
                accuracy=float(right.float().mean()),
                surprise_nats=loss,
                stored=float(memory.counts.sum()) / config.parallel,
            )
            if run.state["step"] >= config.steps:
                break
    learner.eval()
    if run.rank == 0:
        split = "mnist: 45,000 images for the encoder, 10,000 for the decoder, 5,000 to validate"
        validated = validate(learner, config.task)
        provenance = run.provenance("learner on the analogy task", None, validated, split=split, encoders=encoders)
        shared = config.digits_from if config.share_encoder else None
        learner.save(options.directory / "model", provenance, encoder=shared)
    return learner


def embedded_sampler(
    learner: Learner, task: AnalogyTask, part: Literal["train", "validation", "test"], generator: torch.Generator
) -> AnalogySampler:
    """Episodes for `learner.on_embeddings()`: digits and symbols as the learner's encoder sees them."""
    encoder = learner.encoder
    if not isinstance(encoder, PairEncoder):
        raise ValueError("the analogy task needs an encoder of pairs (PairConfig)")

    def embedded(examples: Examples, by: Encoder, config: ConvConfig | IdentityConfig) -> Examples:
        return Examples(embed_all(by, unflatten(examples.inputs, config)), examples.labels)

    digits = embedded(digit_examples(part), encoder.digit, encoder.config.digit)
    symbols = embedded(symbol_examples(task, part), encoder.symbol, encoder.config.symbol)
    return AnalogySampler(task, digits, symbols, generator)


def validate(learner: Learner, task: AnalogyTask, seed: int = 0) -> dict[str, float]:
    """Online accuracy on combinations never seen, with digits held out of all training."""
    sampler = embedded_sampler(learner, task, "validation", torch.Generator().manual_seed(seed))
    drawn = sampler.draw(VALIDATION_EPISODES)
    result = watch(learner.eval().on_embeddings(), drawn.inputs, drawn.episodes)
    seen = [t for t in (10, 20, 30, 50, 75) if t + 5 <= drawn.digit.shape[1]]
    figures = {f"val_accuracy_after_{t}": float(around(result.correct, t).mean()) for t in seen}
    return {**figures, "val_accuracy": result.accuracy().mean, "val_stored": result.stored_at_end().mean}


def around(values: Float[Tensor, "episode time"], seen: int, span: int = 5) -> Float[Tensor, " episode"]:
    """Each episode's mean over the examples shown after `seen` others, give or take half the span."""
    start = max(0, seen - span // 2)
    return values[:, start : start + span].mean(1)


def load_encoders(learner: Learner, config: AnalogyConfig) -> dict[str, object]:
    """Fill in the pre-trained parts of the encoder; tells where they came from."""
    provenance: dict[str, object] = {}
    for name, part, source in (
        ("digits", learner.encoder.digit, config.digits_from),
        ("symbols", learner.encoder.symbol, config.symbols_from),
    ):
        if source is None:
            continue
        directory = find_model(source)
        tensors, trained = read_weights(directory), read_json(directory / "model.json")["provenance"]
        if of_learner := below(f"encoder.{name.removesuffix('s')}.", tensors):
            tensors, trained = of_learner, trained["encoders"][name]
        load_weights(part, tensors, str(directory))
        provenance[name] = trained
    return provenance
