"""Storing deduced facts, which the paper leaves open (section 4.5).

When the learner was sure of an answer it had never seen, and right, it knows what the symbol is worth. Values
have no zero at the shuffled level, so the conclusion is written as an equation with a digit of reference, that
of the oldest row: "reference + symbol = answer". Later deductions about the symbol then need one step.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from apl.data.analogy import Analogies
from apl.episode import Step, run_episode
from apl.evaluate import OnlineResult
from apl.learner import Learner
from apl.memory import RamMemory

SURE = 0.9
"""Least probability of an answer that is drawn conclusions from."""


@torch.no_grad()
def watch_with_facts(learner: Learner, drawn: Analogies) -> OnlineResult:
    """As `evaluate.watch`, but conclusions are written too, and counted among the stored rows."""
    memory = learner.new_memory(len(drawn.digit))
    correct, probability, written, stored = [], [], [], []
    for step in run_episode(learner, memory, drawn.inputs, drawn.episodes, 1):
        write_conclusions(learner, memory, step, drawn.episodes.way)
        correct.append(step.right.float())
        probability.append((-step.observation.surprise_nats).exp().cpu())
        written.append(torch.from_numpy(step.observation.written).float())
        stored.append(torch.from_numpy(memory.counts.copy())[:, None])
    parts = [torch.cat(part, 1) for part in (correct, probability, stored, written)]
    return OnlineResult(parts[0], parts[1], parts[2], drawn.episodes.label, parts[3], drawn.episodes.way)


def write_conclusions(learner: Learner, memory: RamMemory, step: Step, way: int) -> Bool[Tensor, "episode query"]:
    """Write "reference + symbol = answer" for symbols just understood; tells where that was done."""
    probability = (-step.observation.surprise_nats).exp()
    understood = (probability > SURE) & ~torch.from_numpy(step.observation.written)
    if not len(memory) or not bool(understood.any()):
        return torch.zeros_like(understood)
    fact = with_reference(learner, memory, step.observation.prediction.embedding)
    whole = torch.cat([torch.from_numpy(memory.column(key)) for key in learner.key_widths], -1)
    present = torch.arange(len(memory)) < torch.from_numpy(memory.counts)[:, None]
    known = ((torch.cdist(fact, whole) < 1e-3) & present[:, None]).any(-1)
    conclusion = learner.decode(memory, fact, learner.recall(memory, fact), way)
    sure = conclusion.log_probs.exp().amax(-1) > SURE
    chosen = understood & sure & ~known
    learner.write(memory, fact, conclusion.label, chosen)
    return chosen


def with_reference(
    learner: Learner, memory: RamMemory, embedding: Float[Tensor, "episode query embed"]
) -> Float[Tensor, "episode query embed"]:
    """The same symbols, beside the digit of the oldest row."""
    digit = torch.from_numpy(memory.column("digit")[:, :1])
    symbol = embedding.split(list(learner.key_widths.values()), -1)[1]
    return torch.cat([digit.expand(-1, symbol.shape[1], -1), symbol], -1)
