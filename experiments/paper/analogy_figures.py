"""Pictures of the analogy task: accuracy against examples seen, and one episode to be understood at a glance."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from pathlib import Path

import torch

from apl.data.analogy import DIGITS, Analogies, AnalogySampler, AnalogyTask, digit_examples, symbol_examples
from apl.episode import run_episode
from apl.learner import Learner, Prediction
from apl.training.analogy import embedded_sampler
from experiments.paper.plot import OTHER, OURS, PALETTE, QUIET, THIRD, figure, plt
from experiments.paper.results import Row

MARKERS = ("o", "s", "^", "D", "v", "P", "*", "X", "h", "p")
COLOURS = plt.get_cmap("tab10").colors
BY_DIGIT, BY_SYMBOL, LINK = OTHER, "#d9a441", THIRD


def draw_curves(rows: list[Row], path: Path) -> None:
    """Left: our best, the solver and the one-shot line. Then k with the paper's decoder, then the three decoders."""
    curves: dict[str, list[Row]] = {}
    for row in rows:
        if row["level"] == "shuffled" and row["method"] in ("ours", "ours, the paper's decoder"):
            curves.setdefault(row["checkpoint"], []).append(row)
    panels = [
        ([name for name in curves if "-k" not in name], "our best"),
        ([name for name in curves if "relational" in name and "two" not in name], "relational decoder, one hop"),
        ([name for name in curves if "-k16" in name], "the paper's decoders, k = 16"),
    ]
    panels = [(names, title) for names, title in panels if names]
    if not panels:
        return
    known = next(iter(curves.values()))
    seen = [row["seen"] for row in known]
    with figure(path, columns=len(panels)) as axes:
        for panel, (names, title) in zip(axes, panels, strict=True):
            panel.plot(seen, [row["solver"] for row in known], color="black", linewidth=1, label="exact solver")
            line = [row["one_shot"] for row in known]
            panel.plot(seen, line, color=QUIET, linestyle="--", linewidth=2, label="perfect one-shot")
            for name, colour in zip(names, PALETTE, strict=False):
                asked = "*" if curves[name][0].get("rows_asked_in_training") else ""
                label = name.removeprefix("analogy-").replace("-", " ").replace("relational k", "k = ") + asked
                panel.plot(seen, [row["accuracy"] for row in curves[name]], ".-", color=colour, label=label)
            panel.set(xlabel="examples seen (* rows asked in training)", title=title, ylim=(0, 1.02), xlim=(0, 100))
            panel.legend(frameon=False, fontsize=8)
        axes[0].set_ylabel("accuracy on combinations never seen")


@dataclass(frozen=True)
class Moment:
    """One question of an episode: what was stored then, what was recalled, what was answered."""

    drawn: Analogies
    time: int
    stored: list[int]
    """Times at which the stored rows were seen, oldest first."""
    recalled: list[int]
    proof: list[int]
    """Times of the equations that together determine the answer."""
    prediction: Prediction


@torch.no_grad()
def find_moment(learner: Learner, seed: int) -> Moment | None:
    """The first question of an episode answered right, with certainty, for which three equations were needed."""
    task = AnalogyTask()

    def drawn_from(sampler: AnalogySampler) -> Analogies:
        sampler.generator.manual_seed(seed)
        return sampler.draw(1)

    embedded = drawn_from(embedded_sampler(learner, task, "test", torch.Generator()))
    # The same seed draws the same episode from the pictures themselves.
    pictures = AnalogySampler(task, digit_examples("test"), symbol_examples(task, "test"), torch.Generator())
    drawn = drawn_from(pictures)
    twin = learner.on_embeddings()
    stored: list[int] = []
    for step in run_episode(twin, twin.new_memory(), embedded.inputs, embedded.episodes, 1):
        prediction = step.observation.prediction
        sure = float(prediction.log_probs.max().exp()) > 0.9 and int(prediction.label) == int(step.label)
        proof = shortest_proof(drawn, stored, step.seen)
        if sure and len(proof) == 3 and len(stored) >= 15:
            rows = sorted({*prediction.neighbours.row[0, 0][prediction.neighbours.mask[0, 0]].tolist()})
            return Moment(drawn, step.seen, list(stored), [stored[row] for row in rows], proof, prediction)
        if step.observation.written.any():
            stored.append(step.seen)
    return None


def shortest_proof(drawn: Analogies, stored: list[int], asked: int) -> list[int]:
    """The fewest stored equations that lead from the digit asked about to the symbol; empty if there are none."""
    digit, symbol = drawn.digit[0].tolist(), drawn.symbol[0].tolist()
    start, goal = digit[asked], DIGITS + symbol[asked]
    paths: dict[int, list[int]] = {start: []}
    queue = deque([start])
    while queue and goal not in paths:
        node = queue.popleft()
        for time in stored:
            ends = (digit[time], DIGITS + symbol[time])
            if node in ends:
                other = ends[1] if node == ends[0] else ends[0]
                if other not in paths:
                    paths[other] = [*paths[node], time]
                    queue.append(other)
    return paths.get(goal, [])


def draw_episode(learner: Learner, path: Path, seed: int = 3) -> None:
    """What is in memory, what is asked, which equations were recalled and which of them give the answer."""
    moment = next((m for m in (find_moment(learner, seed + i) for i in range(20)) if m is not None), None)
    if moment is None:
        return
    drawn, asked = moment.drawn, moment.time
    columns = 4
    lines = -(-len(moment.stored) // columns)
    with plt.rc_context({"font.size": 10}):
        canvas = plt.figure(figsize=(12, max(4.6, 0.62 * lines + 1.2)))
        left = canvas.add_axes((0.01, 0.02, 0.58, 0.86))
        left.axis("off")
        left.set_title(f"in memory: {len(moment.stored)} of the {asked} equations seen so far", loc="left")
        for place, time in enumerate(moment.stored):
            box = (place % columns, place // columns)
            _equation(left, drawn, time, box, _role(drawn, time, asked), time in moment.proof)
        left.set(xlim=(0, columns), ylim=(lines, 0))
        right = canvas.add_axes((0.62, 0.42, 0.36, 0.46))
        right.axis("off")
        right.set_title("asked, and never seen:", loc="left")
        _equation(right, drawn, asked, (0, 0), OURS, True, question=True)
        for place, time in enumerate(moment.proof):
            _equation(right, drawn, time, (0, 1 + place), _role(drawn, time, asked), True)
        right.text(1.05, 2.5, _therefore(moment), va="center", fontsize=12)
        right.set(xlim=(0, 2), ylim=(4.2, 0))
        bars = canvas.add_axes((0.64, 0.12, 0.34, 0.22))
        values = torch.arange(drawn.episodes.way) + AnalogyTask().lowest
        truth = int(drawn.episodes.label[0, asked])
        colours = [OURS if i == truth else QUIET for i in range(drawn.episodes.way)]
        bars.bar(values, moment.prediction.log_probs[0, 0].exp(), color=colours)
        bars.set(ylim=(0, 1), yticks=(0, 1), xticks=values[::2], title="what the learner answers")
        bars.spines[["top", "right"]].set_visible(False)
        legend = [
            plt.Line2D([], [], color=c, linewidth=5, label=text)
            for c, text in (
                (BY_DIGIT, "same digit"),
                (BY_SYMBOL, "same symbol"),
                (LINK, "link between them"),
                (QUIET, "recalled too"),
            )
        ]
        canvas.legend(handles=legend, loc="upper right", ncols=4, frameon=False, fontsize=9)
        hidden = "No digit means its usual value here, and what symbols mean must be found out."
        canvas.text(0.01, 0.955, hidden, style="italic")
        canvas.savefig(path, dpi=130, facecolor="white")
        plt.close(canvas)


def _role(drawn: Analogies, time: int, asked: int) -> str:
    digit, symbol = drawn.digit[0], drawn.symbol[0]
    if digit[time] == digit[asked]:
        return BY_DIGIT
    return BY_SYMBOL if symbol[time] == symbol[asked] else QUIET


def _equation(
    axes: plt.Axes,
    drawn: Analogies,
    time: int,
    place: tuple[int, int],
    colour: str,
    strong: bool,
    question: bool = False,
) -> None:
    """One equation in its frame: picture of the digit, symbol, answer."""
    x, y = place
    if strong and colour == QUIET:
        colour = LINK
    box = ((x + 0.04, y + 0.08), 0.92, 0.84)
    axes.add_patch(plt.Rectangle(*box, facecolor=colour, alpha=0.30 if strong else 0.07))
    axes.add_patch(plt.Rectangle(*box, fill=False, edgecolor=colour, linewidth=2.5 if strong else 0.8))
    picture = drawn.inputs[drawn.episodes.example[0, time], :784].view(28, 28)
    extent = (x + 0.10, x + 0.32, y + 0.84, y + 0.16)
    axes.imshow(255 - picture, cmap="gray", vmin=0, vmax=255, extent=extent, aspect="auto")
    symbol = int(drawn.symbol[0, time])
    axes.text(x + 0.39, y + 0.52, "+", ha="center", va="center")
    axes.plot(x + 0.51, y + 0.5, MARKERS[symbol % 10], color=COLOURS[symbol % 10], markersize=13)
    answer = int(drawn.episodes.label[0, time]) + AnalogyTask().lowest
    axes.text(x + 0.64, y + 0.52, "=", ha="center", va="center")
    shown = "?" if question else str(answer).replace("-", "−")
    axes.text(x + 0.80, y + 0.52, shown, ha="center", va="center", weight="bold")


def _therefore(moment: Moment) -> str:
    values = [int(moment.drawn.episodes.label[0, t]) + AnalogyTask().lowest for t in moment.proof]
    first, link, last = (f"({v})" if v < 0 else str(v) for v in values)
    total = values[0] - values[1] + values[2]
    return f"{first} − {link} + {last} = {total}".replace("-", "−")
