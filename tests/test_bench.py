from __future__ import annotations

import importlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from apl.config import DecoderConfig, IdentityConfig, LearnerConfig
from apl.learner import Learner
from experiments.bench.growth import ROW_BYTES, growth
from experiments.bench.search import FaissFlat, NumpyScan, OurStore, check_same_answers, compare
from experiments.bench.streams import Characters
from experiments.bench.text_peers import installed_peers
from experiments.bench.timing import Contender, ratio, take_turns, threads
from experiments.bench.training_step import training_step


def test_contenders_take_turns_and_are_put_back_after_every_run() -> None:
    told: list[str] = []
    contenders = {
        name: Contender(lambda n=name: told.append(n), lambda n=name: told.append(f"{n} back")) for name in ("a", "b")
    }
    seconds = take_turns(contenders, rounds=2, in_a_row=2, warm_up=0)
    assert told == ["a", "a back"] * 2 + ["b", "b back"] * 2 + ["b", "b back"] * 2 + ["a", "a back"] * 2
    assert {name: len(times) for name, times in seconds.items()} == {"a": 2, "b": 2}


def test_the_ratio_is_the_median_of_the_rounds_ratios() -> None:
    assert ratio([1.0, 2.0, 90.0], [1.0, 1.0, 30.0]) == 2.0


def test_the_number_of_threads_is_put_back() -> None:
    before = torch.get_num_threads()
    with threads(1):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before


def test_a_contender_that_answers_something_else_is_found_out() -> None:
    generator = np.random.default_rng(0)
    keys, labels = generator.standard_normal((50, 256), np.float32), np.arange(50)
    query = generator.standard_normal((4, 256), np.float32)
    stores = {"memory": OurStore(), "faiss": FaissFlat(60), "numpy": NumpyScan(60)}
    for store in stores.values():
        store.insert(keys, labels)
    check_same_answers(stores, query, 5)
    stores["numpy"].labels[:] = np.roll(stores["numpy"].labels, 1)
    with pytest.raises(RuntimeError, match="numpy and the memory disagree on the label of the 5 nearest rows"):
        check_same_answers(stores, query, 5)


def test_every_figure_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("experiments.bench.growth.STEP_ROWS", (30, 300, 3000))
    monkeypatch.setattr("experiments.bench.growth.MEMORY_ROWS", 30_000)
    with threads(1):
        raced = compare(100, 5, rounds=1)
        grown = growth(rounds=1)
        step = training_step(rounds=1)
    assert raced["rows"] == 100 and raced["k"] == 5 and raced["ratio_to_best"] > 0
    assert raced["best_other"] in ("faiss", "numpy")
    assert [s["ratio_to_a_tenth"] is None for s in grown["steps"]] == [True, False, False]
    assert grown["peak_bytes_per_row"] is None or grown["peak_bytes_per_row"] > ROW_BYTES / 4
    assert step["whole_milliseconds"] > 0 and step["ratio"] > 0


def test_the_bench_of_eviction_runs_in_one_go(tmp_path: Path, monkeypatch) -> None:
    module = importlib.import_module("experiments.bench.eviction")
    torch.manual_seed(0)
    learner = Learner(LearnerConfig(IdentityConfig(8), DecoderConfig(hidden=16, blocks=1, heads=2), k=5)).eval()
    labels = torch.arange(6).repeat_interleave(8)
    characters = Characters(torch.randn(6, 8)[labels] + 0.3 * torch.randn(48, 8), labels, 6)
    monkeypatch.setattr(module.Learner, "load", lambda _: learner)
    monkeypatch.setattr(module, "embedded", lambda *_: characters)
    monkeypatch.chdir(tmp_path)
    for name, value in {"CLASSES": 6, "SHOWN": 5, "ASKED": 3, "GROUPS": 2, "SIGMA_NATS": 0.0}.items():
        monkeypatch.setattr(module, name, value)
    rows = json.loads(module.run(seeds=2).read_text())["rows"]
    assert {row["max_rows"] for row in rows} == {6, 9}
    assert all(row["evictions"] > 0 for row in rows if row["max_rows"] == 6)


@pytest.mark.filterwarnings("ignore:The number of unique classes")
def test_all_peers_answer_every_stream(monkeypatch) -> None:
    from experiments.bench import peers

    monkeypatch.setattr(peers, "SEEDS", 2)
    random = np.random.default_rng(0)
    labels = np.arange(6).repeat(20)
    vectors = (random.normal(size=(6, 8))[labels] + 0.2 * random.normal(size=(120, 8))).astype(np.float32)
    rows = list(peers.compared("vectors", vectors, labels, 15, None))
    assert len(rows) == len(peers.ORDERS) * 6
    assert {row["method"]: row for row in rows if "random" in row["stream"]}["apl"]["accuracy_seen"] > 0.9
    assert all(row["rows"] <= row["examples"] for row in rows)
    assert all(0 <= row["ece"] < 0.5 for row in rows if row["method"].startswith("apl"))
    three = {row["method"]: row["accuracy_seen"] for row in rows if "three" in row["stream"]}
    assert three["apl"] > three["running class mean"] - 0.02


def test_packages_for_text_that_are_not_installed_are_left_out_loudly(monkeypatch, capsys) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert list(installed_peers()) == []
    told = capsys.readouterr().err
    assert "pip install adaptive-classifier" in told and "pip install setfit" in told
