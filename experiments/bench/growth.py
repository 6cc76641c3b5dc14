"""What more rows cost: time per step at ten times the rows, and memory per row."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from experiments.bench.search import QUERIES, WIDTH, OurStore
from experiments.bench.timing import Contender, ratio, take_turns

STEP_ROWS = (300, 3_000, 30_000)
MEMORY_ROWS = 100_000
ROW_BYTES = WIDTH * 4 + 8
"""The bare content of a row: the key and the label."""


def growth(rounds: int) -> dict[str, Any]:
    contenders = {str(rows): _filled(rows) for rows in STEP_ROWS}
    seconds = take_turns(contenders, rounds, in_a_row=5)
    steps = [
        {
            "rows": rows,
            "step_microseconds": round(1e6 * median(seconds[str(rows)]), 1),
            "ratio_to_a_tenth": round(ratio(seconds[str(rows)], seconds[str(fewer)]), 2) if fewer else None,
        }
        for fewer, rows in zip((None, *STEP_ROWS), STEP_ROWS, strict=False)
    ]
    peak = _in_a_fresh_process(MEMORY_ROWS)
    return {
        "steps": steps,
        "row_bytes": ROW_BYTES,
        "peak_bytes_per_row": peak and round(peak),
        "peak_ratio_to_row": peak and round(peak / ROW_BYTES, 2),
        "measured_at_rows": MEMORY_ROWS,
    }


def _filled(rows: int) -> Contender:
    generator = np.random.default_rng(rows)
    store = OurStore()
    store.insert(generator.standard_normal((rows, WIDTH), np.float32), generator.integers(20, size=rows))
    query, label = generator.standard_normal((QUERIES, WIDTH), np.float32), np.zeros(QUERIES, np.int64)

    def step() -> None:
        store.search(query, 16)
        store.insert(query, label)

    return Contender(step, lambda: store.cut(rows))


def _in_a_fresh_process(rows: int) -> float | None:
    """Space that this process used before and gave back would hide what a memory takes."""
    measure = f"from experiments.bench.growth import peak_bytes_per_row as peak; print(peak({rows}))"
    said = subprocess.run([sys.executable, "-c", measure], capture_output=True, text=True, check=True).stdout.strip()
    return None if said == "None" else float(said)


def peak_bytes_per_row(rows: int) -> float | None:
    """The most the process ever held while a memory grew from nothing, batch by batch; None where unmeasurable."""
    generator = np.random.default_rng(0)
    keys, label = generator.standard_normal((QUERIES, WIDTH), np.float32), np.zeros(QUERIES, np.int64)
    try:
        Path("/proc/self/clear_refs").write_text("5")  # forget the process's earlier peak
        before = _peak_bytes()
    except OSError:
        return None
    store = OurStore()
    for _ in range(rows // QUERIES):
        store.insert(keys, label)
    return (_peak_bytes() - before) / rows


def _peak_bytes() -> int:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    if found is None:
        raise OSError("the kernel does not tell the peak of memory")
    return 1024 * int(found[1])
