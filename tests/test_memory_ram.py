from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apl.config import Metric
from apl.memory import Column, Neighbours, RamMemory, eviction
from apl.memory.search import SearchIndex

WIDTH = 8


def memory_of(*keys: np.ndarray, metric: Metric = "euclidean", at_once: int | None = None) -> RamMemory:
    """One episode for each tensor of keys; the label of a row is its place in its episode."""
    memory = RamMemory(
        {"embedding": Column((keys[0].shape[1],)), "label": Column((), np.int64)},
        ("embedding",),
        episodes=len(keys),
        metric=metric,
    )
    longest = max(len(k) for k in keys)
    padded = np.stack([np.pad(k, ((0, longest - len(k)), (0, 0))) for k in keys]).astype(np.float32)
    label = np.tile(np.arange(longest), (len(keys), 1))
    chosen = label < np.array([len(k) for k in keys])[:, None]
    step = at_once or max(longest, 1)
    for start in range(0, longest, step):
        part = slice(start, start + step)
        memory.write({"embedding": padded[:, part], "label": label[:, part]}, chosen[:, part])
    return memory


def true_distances(keys: np.ndarray, query: np.ndarray, metric: Metric) -> np.ndarray:
    keys, query = keys.astype(np.float64), query.astype(np.float64)
    if metric == "cosine":
        keys, query = (a / np.linalg.norm(a, axis=-1, keepdims=True) for a in (keys, query))
    return np.linalg.norm(query[:, None] - keys[None], axis=-1)


def check_against_brute_force(
    found: Neighbours, keys: list[np.ndarray], query: np.ndarray, k: int, metric: Metric
) -> None:
    for episode, stored in enumerate(keys):
        present = min(k, len(stored))
        mask = found.mask[episode]
        assert mask[:, :present].all() and not mask[:, present:].any()
        if not present:
            continue
        truth = true_distances(stored, query[episode], metric)
        row, distance = found.row[episode, :, :present], found.distance[episode, :, :present]
        # Unit vectors carry a rounding error of their own; a plain difference is exact to a few units in the last place.
        within = {"rtol": 4e-6, "atol": 1e-6 if metric == "cosine" else 1e-30}
        assert all(len(set(r)) == present for r in row.tolist()), "a row was recalled twice"
        np.testing.assert_allclose(distance, np.take_along_axis(truth, row, 1), **within)
        expected = np.sort(truth, 1)[:, :present]
        np.testing.assert_allclose(np.take_along_axis(truth, row, 1), expected, **within)
        assert (np.diff(distance, axis=1) >= -1e-6 * distance[:, 1:]).all(), "not the nearest first"
        for q in range(len(row)):
            check_ties_go_by_age(stored, row[q])
        assert np.array_equal(found.columns["embedding"][episode, :, :present], stored[row])
        assert np.array_equal(found.columns["label"][episode, :, :present], row)


def check_ties_go_by_age(stored: np.ndarray, row: np.ndarray) -> None:
    """Of identical rows, a younger one is recalled only after all the older ones."""
    recalled = row.tolist()
    for place, r in enumerate(recalled):
        twins = (stored[:r] == stored[r]).all(-1).nonzero()[0].tolist()
        assert all(t in recalled[:place] for t in twins), f"row {r} was recalled before its older twin"


@st.composite
def situations(draw: st.DrawFn) -> tuple[list[np.ndarray], np.ndarray, int, int | None]:
    """Keys of several episodes, queries, k, and in how large portions the keys are written."""
    seed = draw(st.integers(0, 2**31 - 1))
    generator = np.random.default_rng(seed)
    counts = draw(st.lists(st.integers(0, 90), min_size=1, max_size=3))
    spread = draw(st.sampled_from([1e-3, 0.1, 1.0, 30.0]))
    offset = draw(st.sampled_from([0.0, 1.0, 50.0, 1e4]))
    kinds = draw(st.integers(1, 100))
    outlier = draw(st.booleans())
    keys = []
    for count in counts:
        # Drawn from a limited stock, so that duplicates (many, when the stock is small) occur.
        stock = offset + spread * generator.standard_normal((kinds, WIDTH), np.float32)
        stored = stock[generator.integers(kinds, size=count)]
        if outlier and count:
            stored[0] = 1e3 * generator.standard_normal((WIDTH,), np.float32)
        keys.append(stored)
    query = offset + spread * generator.standard_normal((len(counts), 4, WIDTH), np.float32)
    if draw(st.booleans()):
        for episode, stored in enumerate(keys):
            if len(stored):
                query[episode, 0] = stored[-1]
    return keys, query, draw(st.integers(1, 24)), draw(st.sampled_from([None, 1, 7, 32]))


@settings(deadline=None, max_examples=25)
@given(situations(), st.sampled_from(["euclidean", "cosine"]))
def test_nearest_agrees_with_a_brute_force_search_in_double_precision(
    situation: tuple[list[np.ndarray], np.ndarray, int, int | None], metric: Metric
) -> None:
    keys, query, k, at_once = situation
    memory = memory_of(*keys, metric=metric, at_once=at_once)
    check_against_brute_force(memory.nearest("embedding", query, k), keys, query, k, metric)


@settings(deadline=None, max_examples=25)
@given(situations(), st.integers(0, 2**31 - 1))
def test_nearest_agrees_with_a_brute_force_search_after_some_rows_were_forgotten(
    situation: tuple[list[np.ndarray], np.ndarray, int, int | None], seed: int
) -> None:
    keys, query, k, at_once = situation
    memory = memory_of(*keys, at_once=at_once)
    forgotten = np.random.default_rng(seed).random((len(keys), len(memory))) < 0.4
    forgotten &= np.arange(len(memory)) < memory.counts[:, None]
    memory.remove(np.where(forgotten, np.arange(len(memory)), -1))
    left = [stored[~gone[: len(stored)]] for stored, gone in zip(keys, forgotten, strict=True)]
    assert memory.counts.tolist() == [len(stored) for stored in left]
    found = memory.nearest("embedding", query, k)
    for episode, stored in enumerate(left):
        assert np.array_equal(memory.column("embedding")[episode, : len(stored)], stored)
    relabelled = found.columns["label"].copy()
    assert ((found.row >= 0) == found.mask).all()
    found.columns["label"][:] = found.row
    check_against_brute_force(found, left, query, k, "euclidean")
    for episode, (stored, gone) in enumerate(zip(keys, forgotten, strict=True)):
        places = (~gone[: len(stored)]).nonzero()[0]
        valid = found.mask[episode]
        assert np.array_equal(relabelled[episode][valid], places[found.row[episode][valid]])


@pytest.mark.parametrize("offset,spread", [(50.0, 0.1), (1e4, 1.0), (-1e4, 100.0)])
def test_a_large_offset_shared_by_all_keys_loses_no_neighbour(offset: float, spread: float) -> None:
    generator = np.random.default_rng(0)
    keys = offset + spread * generator.standard_normal((700, 64), np.float32)
    query = offset + spread * generator.standard_normal((1, 20, 64), np.float32)
    found = memory_of(keys, at_once=50).nearest("embedding", query, 16)
    check_against_brute_force(found, [keys], query, 16, "euclidean")


def test_a_first_row_far_from_all_others_loses_no_neighbour() -> None:
    generator = np.random.default_rng(0)
    keys = 0.01 * generator.standard_normal((300, 64), np.float32)
    keys[0] = 1e5
    query = 0.01 * generator.standard_normal((1, 20, 64), np.float32)
    found = memory_of(keys, at_once=10).nearest("embedding", query, 5)
    check_against_brute_force(found, [keys], query, 5, "euclidean")


@pytest.mark.parametrize("spare", [2, 64, 400])
def test_of_more_duplicates_than_candidates_the_oldest_are_recalled(spare: int) -> None:
    far, near = np.full((1, WIDTH), 5.0), np.ones((1, WIDTH))
    keys = np.concatenate([far, np.repeat(near, 5 * spare, 0), far]).astype(np.float32)
    found = memory_of(keys).nearest("embedding", np.zeros((1, 1, WIDTH), np.float32), 3)
    assert found.row.tolist() == [[[1, 2, 3]]]
    np.testing.assert_allclose(found.distance, np.full((1, 1, 3), WIDTH**0.5), rtol=1e-6)


def test_distances_are_true_distances_and_not_squares_or_scores() -> None:
    memory = memory_of(np.array([[3.0, 4.0], [0.0, 1.0], [6.0, 8.0]], np.float32))
    found = memory.nearest("embedding", np.zeros((1, 1, 2), np.float32), 2)
    assert found.distance.tolist() == [[[1.0, 5.0]]]
    assert found.row.tolist() == [[[1, 0]]]
    assert found.columns["label"].tolist() == [[[1, 0]]]


def test_the_cosine_metric_ignores_length() -> None:
    memory = memory_of(np.array([[0.5, 0.0], [0.0, 100.0]], np.float32), metric="cosine")
    found = memory.nearest("embedding", np.array([[[0.0, 2.0]]], np.float32), 2)
    assert found.row.tolist() == [[[1, 0]]]
    np.testing.assert_allclose(found.distance, [[[0.0, 2.0**0.5]]], rtol=1e-6)
    assert found.columns["embedding"].tolist() == [[[[0.0, 100.0], [0.5, 0.0]]]], "cells are returned as written"


def test_more_neighbours_than_rows_are_masked_and_zero() -> None:
    memory = memory_of(np.ones((2, WIDTH), np.float32), np.ones((1, WIDTH), np.float32))
    found = memory.nearest("embedding", np.zeros((2, 1, WIDTH), np.float32), 4)
    assert found.mask.tolist() == [[[True, True, False, False]], [[True, False, False, False]]]
    assert found.row.tolist() == [[[0, 1, -1, -1]], [[0, -1, -1, -1]]]
    assert (found.distance[~found.mask] == 0).all()
    assert (found.columns["embedding"][~found.mask] == 0).all() and (found.columns["label"][~found.mask] == 0).all()


def test_an_empty_memory_recalls_nothing_in_the_right_shapes() -> None:
    memory = memory_of(np.zeros((0, WIDTH), np.float32), np.zeros((0, WIDTH), np.float32))
    found = memory.nearest("embedding", np.zeros((2, 3, WIDTH), np.float32), 5)
    assert not found.mask.any() and (found.row == -1).all() and (found.distance == 0).all()
    assert found.columns["embedding"].shape == (2, 3, 5, WIDTH) and found.columns["label"].shape == (2, 3, 5)
    assert found.columns["label"].dtype == np.int64


def test_no_queries_are_no_error() -> None:
    found = memory_of(np.ones((20, WIDTH), np.float32)).nearest("embedding", np.zeros((1, 0, WIDTH), np.float32), 3)
    assert found.mask.shape == (1, 0, 3) and found.columns["embedding"].shape == (1, 0, 3, WIDTH)


def test_one_episode_never_recalls_the_rows_of_another() -> None:
    keys = [np.full((30, WIDTH), float(e), np.float32) for e in range(3)]
    found = memory_of(*keys).nearest("embedding", np.zeros((3, 2, WIDTH), np.float32), 4)
    for episode in range(3):
        assert (found.columns["embedding"][episode] == episode).all()


def test_growing_keeps_every_row_and_its_age() -> None:
    generator = np.random.default_rng(0)
    memory = memory_of(np.zeros((0, WIDTH), np.float32), np.zeros((0, WIDTH), np.float32))
    written = []
    for _ in range(40):
        rows = generator.standard_normal((2, 7, WIDTH), np.float32)
        label = np.tile(np.arange(7), (2, 1))
        memory.write({"embedding": rows, "label": label}, np.ones((2, 7), bool))
        written.append(rows)
        assert np.array_equal(memory.column("embedding"), np.concatenate(written, 1))
    assert memory.counts.tolist() == [280, 280] and len(memory) == 280


def test_only_chosen_rows_are_written_and_their_places_are_told() -> None:
    memory = memory_of(np.zeros((0, 1), np.float32), np.zeros((0, 1), np.float32))
    values = np.arange(6, dtype=np.float32).reshape(2, 3, 1)
    chosen = np.array([[True, False, True], [False, False, True]])
    place = memory.write({"embedding": values, "label": values[..., 0].astype(int)}, chosen)
    assert place.tolist() == [[0, -1, 1], [-1, -1, 0]]
    assert memory.counts.tolist() == [2, 1]
    assert memory.column("embedding")[0].flatten().tolist() == [0.0, 2.0]
    assert memory.column("label")[1, 0] == 5
    nothing = memory.write({"embedding": values, "label": values[..., 0].astype(int)}, np.zeros((2, 3), bool))
    assert (nothing == -1).all() and memory.counts.tolist() == [2, 1]


def test_what_is_written_afterwards_does_not_change_what_was_recalled() -> None:
    memory = memory_of(np.ones((3, WIDTH), np.float32))
    found = memory.nearest("embedding", np.zeros((1, 1, WIDTH), np.float32), 3)
    before = {name: column.copy() for name, column in found.columns.items()}
    memory.remove(np.array([[0, 1, 2]]))
    memory.write(
        {"embedding": np.full((1, 3, WIDTH), 9.0, np.float32), "label": np.full((1, 3), 9)}, np.ones((1, 3), bool)
    )
    assert all(np.array_equal(found.columns[name], before[name]) for name in before)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_keys_that_are_not_numbers_are_refused_and_nothing_is_written(bad: float) -> None:
    memory = memory_of(np.ones((2, WIDTH), np.float32))
    rows = np.ones((1, 2, WIDTH), np.float32)
    rows[0, 1, 3] = bad
    with pytest.raises(ValueError, match="'embedding' contains NaN or infinity; nothing was written"):
        memory.write({"embedding": rows, "label": np.zeros((1, 2), np.int64)}, np.ones((1, 2), bool))
    assert memory.counts.tolist() == [2]


@pytest.mark.parametrize("rows", [1, 3, 60])
def test_a_query_that_is_not_a_number_is_refused(rows: int) -> None:
    memory = memory_of(np.random.default_rng(0).standard_normal((rows, WIDTH), np.float32))
    query = np.zeros((1, 3, WIDTH), np.float32)
    query[0, 1, 2] = float("nan")
    with pytest.raises(ValueError, match="the query contains NaN or infinity"):
        memory.nearest("embedding", query, 2)


def test_removing_closes_the_gaps_and_keeps_the_age_order() -> None:
    memory = memory_of(np.arange(5.0)[:, None], np.arange(3.0)[:, None])
    memory.remove(np.array([[0, 2], [2, -1]]))
    assert memory.counts.tolist() == [3, 2] and len(memory) == 3
    assert memory.column("embedding")[0].flatten().tolist() == [1.0, 3.0, 4.0]
    assert memory.column("label")[1, :2].tolist() == [0, 1]
    found = memory.nearest("embedding", np.zeros((2, 1, 1), np.float32), 5)
    assert found.row.tolist() == [[[0, 1, 2, -1, -1]], [[0, 1, -1, -1, -1]]]


def test_changed_rows_are_found_where_they_are_now() -> None:
    memory = memory_of(np.arange(6.0)[:, None], np.arange(3.0)[:, None])
    moved = np.array([[[10.0], [0.0]], [[0.0], [20.0]]], np.float32)
    memory.update({"embedding": moved}, np.array([[0, -1], [-1, 2]]))
    found = memory.nearest("embedding", np.array([[[9.0]], [[19.0]]], np.float32), 2)
    assert found.row.tolist() == [[[0, 5]], [[2, 1]]] and found.distance.tolist() == [[[1.0, 4.0]], [[1.0, 18.0]]]
    assert memory.column("label")[0].tolist() == [0, 1, 2, 3, 4, 5], "columns not given stay as they are"
    assert memory.counts.tolist() == [6, 3]
    with pytest.raises(ValueError, match="no such row"):
        memory.update({"embedding": moved}, np.array([[0, -1], [-1, 3]]))
    with pytest.raises(ValueError, match="no column 'sound'"):
        memory.update({"sound": moved}, np.array([[0, -1], [-1, 2]]))
    with pytest.raises(ValueError, match="NaN or infinity; nothing was changed"):
        memory.update({"embedding": moved * np.nan}, np.array([[0, -1], [-1, 2]]))


@settings(deadline=None, max_examples=25)
@given(situations(), st.integers(0, 2**31 - 1))
def test_nearest_agrees_with_a_brute_force_search_after_some_rows_were_changed(
    situation: tuple[list[np.ndarray], np.ndarray, int, int | None], seed: int
) -> None:
    keys, query, k, at_once = situation
    memory, chance = memory_of(*keys, at_once=at_once), np.random.default_rng(seed)
    for _ in range(3):
        at = np.array([[int(chance.integers(len(stored))) if len(stored) else -1] for stored in keys])
        moved = chance.standard_normal((len(keys), 1, WIDTH), np.float32)
        memory.update({"embedding": moved}, at)
        for episode, stored in enumerate(keys):
            if len(stored):
                stored[at[episode, 0]] = moved[episode, 0]
    check_against_brute_force(memory.nearest("embedding", query, k), keys, query, k, "euclidean")


def test_every_key_column_can_be_searched_and_returns_all_columns() -> None:
    columns = {"form": Column((2,)), "sound": Column((3,)), "label": Column((), np.int64)}
    memory = RamMemory(columns, ("form", "sound"))
    rows = {
        "form": np.array([[[0.0, 0.0], [1.0, 1.0]]], np.float32),
        "sound": np.array([[[5.0, 5.0, 5.0], [0.0, 0.0, 0.0]]], np.float32),
        "label": np.array([[7, 8]]),
    }
    memory.write(rows, np.ones((1, 2), bool))
    by_form = memory.nearest("form", np.zeros((1, 1, 2), np.float32), 1)
    by_sound = memory.nearest("sound", np.zeros((1, 1, 3), np.float32), 1)
    assert by_form.columns["label"].item() == 7 and by_sound.columns["label"].item() == 8
    both = Neighbours.join([by_form, by_sound], [2, 3])
    assert both.k == 2 and both.columns["label"].tolist() == [[[7, 8]]]
    assert both.compared.tolist() == [[True, True, False, False, False], [False, False, True, True, True]]


def test_bad_requests_say_what_is_wrong() -> None:
    memory = memory_of(np.ones((2, WIDTH), np.float32))
    query = np.zeros((1, 1, WIDTH), np.float32)
    label = np.zeros((1, 1), np.int64)
    one = np.ones((1, 1), bool)
    with pytest.raises(ValueError, match="k must be at least 1, got 0"):
        memory.nearest("embedding", query, 0)
    with pytest.raises(ValueError, match="'label' is not a key column; the key columns are embedding"):
        memory.nearest("label", query, 1)
    with pytest.raises(ValueError, match=r"query must be \[1, any, 8\], got \[1, 1, 9\]"):
        memory.nearest("embedding", np.zeros((1, 1, 9), np.float32), 1)
    with pytest.raises(ValueError, match=r"query must be \[1, any, 8\], got \[2, 1, 8\]"):
        memory.nearest("embedding", np.zeros((2, 1, 8), np.float32), 1)
    with pytest.raises(ValueError, match="exactly the columns embedding, label, count; got embedding, count"):
        memory.write({"embedding": query}, one)
    with pytest.raises(ValueError, match=r"column 'embedding' must be \[1, 1, 8\], got \[1, 1, 7\]"):
        memory.write({"embedding": np.zeros((1, 1, 7), np.float32), "label": label}, one)
    with pytest.raises(ValueError, match=r"expected one row for each of \[1, any\], got \[2, 1\]"):
        memory.write({"embedding": query, "label": label}, np.ones((2, 1), bool))
    with pytest.raises(ValueError, match="there is no such row"):
        memory.remove(np.array([[7]]))
    assert memory.counts.tolist() == [2]


def test_a_memory_that_could_not_work_is_not_made() -> None:
    with pytest.raises(ValueError, match="key column 'sound' is not a column"):
        RamMemory({"form": Column((2,))}, ("sound",))
    with pytest.raises(ValueError, match="at least one key column"):
        RamMemory({"form": Column((2,))}, ())
    with pytest.raises(ValueError, match="one vector per row"):
        RamMemory({"form": Column(())}, ("form",))
    with pytest.raises(ValueError, match="at least 1"):
        RamMemory({"form": Column((2,))}, ("form",), episodes=0)


def test_of_a_crowd_of_equal_rows_the_oldest_are_recalled_and_many_queries_are_divided(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("apl.memory.search.PAIRS_AT_MOST", 20_000)
    memory = memory_of(np.ones((5000, WIDTH), np.float32))
    plain, measured = SearchIndex._square_distances, []
    monkeypatch.setattr(
        SearchIndex,
        "_square_distances",
        lambda self, query, asking, row: measured.append(row.size) or plain(self, query, asking, row),
    )
    found = memory.nearest("embedding", np.zeros((1, 64, WIDTH), np.float32), 16)
    assert found.row[0].tolist() == [list(range(16))] * 64, "of equals the oldest"
    assert max(measured) <= 20_000


def test_a_crowd_of_equal_rows_is_known_anew_when_rows_are_changed_written_or_removed() -> None:
    ones, elsewhere = np.ones((600, WIDTH), np.float32), np.full((1, 1, WIDTH), 9, np.float32)
    memory = memory_of(ones)

    def recalled() -> list[int]:
        return memory.nearest("embedding", np.zeros((1, 1, WIDTH), np.float32), 4).row[0, 0].tolist()

    assert recalled() == [0, 1, 2, 3]
    memory.update({"embedding": elsewhere}, np.array([[1]]))
    assert recalled() == [0, 2, 3, 4]
    memory.update({"embedding": elsewhere / 9}, np.array([[1]]))
    assert recalled() == [0, 1, 2, 3]
    memory.update({"embedding": elsewhere / 18}, np.array([[7]]))
    assert recalled() == [7, 0, 1, 2]
    memory.remove(np.arange(3)[None])
    assert recalled() == [4, 0, 1, 2]


def test_a_memory_that_is_full_compares_few_of_many_rows_to_find_the_one_to_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared = []
    plain = eviction.distances
    monkeypatch.setattr(eviction, "distances", lambda a, b: compared.append(len(a) * len(b)) or plain(a, b))
    rows = eviction.PAIRS_COMPARED // 8
    chance = np.random.default_rng(0)
    keys, labels = chance.standard_normal((rows, WIDTH), np.float32), chance.integers(9, size=rows)
    keys[100], labels[100] = keys[101], labels[101]
    once, allowed = np.ones(rows, np.float32), np.ones(rows, bool)
    gone = {eviction.least_important(keys, labels, once, allowed, turn) for turn in range(70)}
    assert max(compared) <= eviction.FEWEST_CANDIDATES * rows
    assert gone & {100, 101}, "in their turn all rows are looked at, and one that has a twin goes first"


def test_of_rows_that_others_stand_in_for_alike_the_one_with_fewest_examples_goes() -> None:
    keys = np.array([[0, 0], [1, 0], [9, 0], [10, 0]], np.float32)
    labels, examples, allowed = np.array([0, 0, 1, 1]), np.array([5, 3, 2, 4], np.float32), np.ones(4, bool)
    assert eviction.least_important(keys, labels, np.ones(4, np.float32), allowed, 0) in (0, 3)
    assert eviction.least_important(keys, labels, examples, allowed, 0) == 2
