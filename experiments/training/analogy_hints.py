"""Questions asked of every recalled row while a decoder of the analogy task is trained, and never afterwards.

The answer to a + b follows from rows (a, j), (i, j) and (i, b). The paper's decoders are told of the answer alone and find
elimination first, which follows the one-shot line. So each recalled row i + j is asked two questions of its own, a + j and
i + b: who can answer them in the middle row has the answer to the whole.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from apl.episode import Step
from experiments.data.analogy import Analogies, AnalogyTask


class RowQuestions(nn.Module):
    """Reads two answers off the state of each row, as the decoder last left it; needs nothing of it but the states that
    its last normalisation gives."""

    def __init__(self, decoder: nn.Module, hidden: int, task: AnalogyTask) -> None:
        super().__init__()
        self.task = task
        self.answers = nn.Linear(hidden, 2 * task.way)
        self._states: Tensor | None = None
        norm = decoder.norm
        assert isinstance(norm, nn.Module)
        norm.register_forward_hook(self._keep)

    def _keep(self, module: nn.Module, inputs: Any, states: Tensor) -> None:
        if states.ndim == 3:  # the LSTM also normalises its conclusion
            self._states = states

    def loss(self, drawn: Analogies, step: Step, times: Tensor) -> Tensor:
        """Mean surprise at the rows' answers; `times` tells when each row of each memory was seen."""
        neighbours = step.observation.prediction.neighbours
        mask = torch.from_numpy(neighbours.mask)
        if not mask.any():
            return torch.zeros(())
        seen = times[torch.arange(len(times))[:, None, None], torch.from_numpy(neighbours.row).clamp(min=0)]
        if self._states is None:
            raise RuntimeError("the decoder was not asked yet")
        said = self.answers(self._states[:, 1:].float()).view(*mask.shape, 2, self.task.way)[mask]
        asked = row_questions(self.task, drawn, step.seen, seen)[mask].to(said.device)
        return nn.functional.cross_entropy(said.flatten(0, 1), asked.flatten())


def row_questions(task: AnalogyTask, drawn: Analogies, start: int, seen: Tensor) -> Tensor:
    """The classes of a + j and i + b, for questions a + b from `start` on and rows i + j that were `seen` when:
    `[episode, query, row, 2]`."""
    digit, symbol = drawn.digit_value.gather(1, drawn.digit), drawn.symbol_value.gather(1, drawn.symbol)
    episode = torch.arange(len(seen))[:, None, None]
    asked = slice(start, start + seen.shape[1])
    with_symbol = task.label(digit[:, asked, None], symbol[episode, seen])
    with_digit = task.label(digit[episode, seen], symbol[:, asked, None])
    return torch.stack([with_symbol, with_digit], -1)


def note_times(times: Tensor, step: Step) -> None:
    """Where the examples of this step went."""
    row = torch.from_numpy(step.observation.row)
    episode, place = (row >= 0).nonzero(as_tuple=True)
    times[episode, row[episode, place]] = step.seen + place
