from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from apl.memory import SPARE_CANDIDATES, Column, Memory, MemoryFull, Metric, Neighbours

WIDTH = 8


def memory_of(
    *keys: Tensor, metric: Metric = "euclidean", capacity: int | None = None, at_once: int | None = None
) -> Memory:
    """One episode for each tensor of keys; the label of a row is its place in its episode."""
    memory = Memory(
        {"embedding": Column((keys[0].shape[1],)), "label": Column((), torch.int64)},
        ("embedding",),
        episodes=len(keys),
        capacity=capacity,
        metric=metric,
    )
    longest = max(len(k) for k in keys)
    padded = torch.stack([torch.cat([k, torch.zeros(longest - len(k), k.shape[1])]) for k in keys])
    label = torch.arange(longest).expand(len(keys), -1)
    chosen = label < torch.tensor([len(k) for k in keys])[:, None]
    for part in torch.arange(longest).split(at_once or max(longest, 1)):
        memory.write({"embedding": padded[:, part], "label": label[:, part]}, chosen[:, part])
    return memory


def true_distances(keys: Tensor, query: Tensor, metric: Metric) -> Tensor:
    keys, query = keys.double(), query.double()
    if metric == "cosine":
        keys, query = (torch.nn.functional.normalize(t, dim=-1) for t in (keys, query))
    return (query[:, None] - keys[None]).norm(dim=-1)


def check_against_brute_force(found: Neighbours, keys: list[Tensor], query: Tensor, k: int, metric: Metric) -> None:
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
        torch.testing.assert_close(distance.double(), truth.gather(1, row), **within)
        expected = truth.sort(1).values[:, :present]
        torch.testing.assert_close(truth.gather(1, row), expected, **within)
        assert (distance.diff(dim=1) >= -1e-6 * distance[:, 1:]).all(), "not the nearest first"
        for q in range(len(row)):
            check_ties_go_by_age(stored, row[q])
        assert torch.equal(found.columns["embedding"][episode, :, :present], stored[row])
        assert torch.equal(found.columns["label"][episode, :, :present], row)


def check_ties_go_by_age(stored: Tensor, row: Tensor) -> None:
    """Of identical rows, a younger one is recalled only after all the older ones."""
    recalled = row.tolist()
    for place, r in enumerate(recalled):
        twins = (stored[:r] == stored[r]).all(-1).nonzero().flatten().tolist()
        assert all(t in recalled[:place] for t in twins), f"row {r} was recalled before its older twin"


@st.composite
def situations(draw: st.DrawFn) -> tuple[list[Tensor], Tensor, int, int | None]:
    """Keys of several episodes, queries, k, and in how large portions the keys are written."""
    seed = draw(st.integers(0, 2**31 - 1))
    generator = torch.Generator().manual_seed(seed)
    counts = draw(st.lists(st.integers(0, 90), min_size=1, max_size=3))
    spread = draw(st.sampled_from([1e-3, 0.1, 1.0, 30.0]))
    offset = draw(st.sampled_from([0.0, 1.0, 50.0, 1e4]))
    kinds = draw(st.integers(1, 100))
    outlier = draw(st.booleans())
    keys = []
    for count in counts:
        # Drawn from a limited stock, so that duplicates (many, when the stock is small) occur.
        stock = offset + spread * torch.randn(kinds, WIDTH, generator=generator)
        stored = stock[torch.randint(kinds, (count,), generator=generator)]
        if outlier and count:
            stored[0] = 1e3 * torch.randn(WIDTH, generator=generator)
        keys.append(stored)
    query = offset + spread * torch.randn(len(counts), 4, WIDTH, generator=generator)
    if draw(st.booleans()):
        for episode, stored in enumerate(keys):
            if len(stored):
                query[episode, 0] = stored[-1]
    return keys, query, draw(st.integers(1, 24)), draw(st.sampled_from([None, 1, 7, 32]))


@settings(deadline=None, max_examples=120)
@given(situations(), st.sampled_from(["euclidean", "cosine"]))
def test_nearest_agrees_with_a_brute_force_search_in_double_precision(
    situation: tuple[list[Tensor], Tensor, int, int | None], metric: Metric
) -> None:
    keys, query, k, at_once = situation
    memory = memory_of(*keys, metric=metric, at_once=at_once)
    check_against_brute_force(memory.nearest("embedding", query, k), keys, query, k, metric)


@settings(deadline=None, max_examples=40)
@given(situations(), st.integers(0, 2**31 - 1))
def test_nearest_agrees_with_a_brute_force_search_after_some_rows_were_forgotten(
    situation: tuple[list[Tensor], Tensor, int, int | None], seed: int
) -> None:
    keys, query, k, at_once = situation
    memory = memory_of(*keys, at_once=at_once)
    forgotten = torch.rand(len(keys), len(memory), generator=torch.Generator().manual_seed(seed)) < 0.4
    memory.remove(forgotten)
    left = [stored[~gone[: len(stored)]] for stored, gone in zip(keys, forgotten, strict=True)]
    assert memory.counts.tolist() == [len(stored) for stored in left]
    found = memory.nearest("embedding", query, k)
    for episode, stored in enumerate(left):
        assert torch.equal(memory.column("embedding")[episode, : len(stored)], stored)
    relabelled = found.columns["label"].clone()
    assert (found.row >= 0).eq(found.mask).all()
    found.columns["label"].copy_(found.row)
    check_against_brute_force(found, left, query, k, "euclidean")
    for episode, (stored, gone) in enumerate(zip(keys, forgotten, strict=True)):
        places = (~gone[: len(stored)]).nonzero().flatten()
        valid = found.mask[episode]
        assert torch.equal(relabelled[episode][valid], places[found.row[episode][valid]])


@pytest.mark.parametrize("offset,spread", [(50.0, 0.1), (1e4, 1.0), (-1e4, 100.0)])
def test_a_large_offset_shared_by_all_keys_loses_no_neighbour(offset: float, spread: float) -> None:
    generator = torch.Generator().manual_seed(0)
    keys = offset + spread * torch.randn(700, 64, generator=generator)
    query = offset + spread * torch.randn(1, 20, 64, generator=generator)
    found = memory_of(keys, at_once=50).nearest("embedding", query, 16)
    check_against_brute_force(found, [keys], query, 16, "euclidean")


def test_a_first_row_far_from_all_others_loses_no_neighbour() -> None:
    generator = torch.Generator().manual_seed(0)
    keys = 0.01 * torch.randn(300, 64, generator=generator)
    keys[0] = 1e5
    query = 0.01 * torch.randn(1, 20, 64, generator=generator)
    found = memory_of(keys, at_once=10).nearest("embedding", query, 5)
    check_against_brute_force(found, [keys], query, 5, "euclidean")


@pytest.mark.parametrize("spare", SPARE_CANDIDATES)
def test_of_more_duplicates_than_candidates_the_oldest_are_recalled(spare: int) -> None:
    far, near = torch.full((1, WIDTH), 5.0), torch.ones(1, WIDTH)
    keys = torch.cat([far, near.expand(5 * spare, -1), far])
    found = memory_of(keys).nearest("embedding", torch.zeros(1, 1, WIDTH), 3)
    assert found.row.tolist() == [[[1, 2, 3]]]
    torch.testing.assert_close(found.distance, torch.full((1, 1, 3), WIDTH**0.5))


def test_distances_are_true_distances_and_not_squares_or_scores() -> None:
    memory = memory_of(torch.tensor([[3.0, 4.0], [0.0, 1.0], [6.0, 8.0]]))
    found = memory.nearest("embedding", torch.zeros(1, 1, 2), 2)
    assert found.distance.tolist() == [[[1.0, 5.0]]]
    assert found.row.tolist() == [[[1, 0]]]
    assert found.columns["label"].tolist() == [[[1, 0]]]


def test_the_cosine_metric_ignores_length() -> None:
    memory = memory_of(torch.tensor([[0.5, 0.0], [0.0, 100.0]]), metric="cosine")
    found = memory.nearest("embedding", torch.tensor([[[0.0, 2.0]]]), 2)
    assert found.row.tolist() == [[[1, 0]]]
    torch.testing.assert_close(found.distance, torch.tensor([[[0.0, 2.0**0.5]]]))
    assert found.columns["embedding"].tolist() == [[[[0.0, 100.0], [0.5, 0.0]]]], "cells are returned as written"


def test_more_neighbours_than_rows_are_masked_and_zero() -> None:
    memory = memory_of(torch.ones(2, WIDTH), torch.ones(1, WIDTH))
    found = memory.nearest("embedding", torch.zeros(2, 1, WIDTH), 4)
    assert found.mask.tolist() == [[[True, True, False, False]], [[True, False, False, False]]]
    assert found.row.tolist() == [[[0, 1, -1, -1]], [[0, -1, -1, -1]]]
    assert found.distance[~found.mask].eq(0).all()
    assert found.columns["embedding"][~found.mask].eq(0).all() and found.columns["label"][~found.mask].eq(0).all()


def test_an_empty_memory_recalls_nothing_in_the_right_shapes() -> None:
    memory = memory_of(torch.zeros(0, WIDTH), torch.zeros(0, WIDTH))
    found = memory.nearest("embedding", torch.zeros(2, 3, WIDTH), 5)
    assert not found.mask.any() and found.row.eq(-1).all() and found.distance.eq(0).all()
    assert found.columns["embedding"].shape == (2, 3, 5, WIDTH) and found.columns["label"].shape == (2, 3, 5)
    assert found.columns["label"].dtype == torch.int64


def test_no_queries_are_no_error() -> None:
    found = memory_of(torch.ones(20, WIDTH)).nearest("embedding", torch.zeros(1, 0, WIDTH), 3)
    assert found.mask.shape == (1, 0, 3) and found.columns["embedding"].shape == (1, 0, 3, WIDTH)


def test_one_episode_never_recalls_the_rows_of_another() -> None:
    keys = [torch.full((30, WIDTH), float(e)) for e in range(3)]
    found = memory_of(*keys).nearest("embedding", torch.zeros(3, 2, WIDTH), 4)
    for episode in range(3):
        assert found.columns["embedding"][episode].eq(episode).all()


def test_growing_keeps_every_row_and_its_age() -> None:
    generator = torch.Generator().manual_seed(0)
    memory = memory_of(torch.zeros(0, WIDTH), torch.zeros(0, WIDTH))
    written = []
    for _ in range(40):
        rows = torch.randn(2, 7, WIDTH, generator=generator)
        label = torch.arange(7).expand(2, -1)
        memory.write({"embedding": rows, "label": label}, torch.ones(2, 7, dtype=torch.bool))
        written.append(rows)
        assert torch.equal(memory.column("embedding"), torch.cat(written, 1))
    assert memory.counts.tolist() == [280, 280] and len(memory) == 280


def test_only_chosen_rows_are_written_and_their_places_are_told() -> None:
    memory = memory_of(torch.zeros(0, 1), torch.zeros(0, 1))
    values = torch.arange(6.0).view(2, 3, 1)
    chosen = torch.tensor([[True, False, True], [False, False, True]])
    place = memory.write({"embedding": values, "label": values[..., 0].long()}, chosen)
    assert place.tolist() == [[0, -1, 1], [-1, -1, 0]]
    assert memory.counts.tolist() == [2, 1]
    assert memory.column("embedding")[0].flatten().tolist() == [0.0, 2.0]
    assert memory.column("label")[1, 0] == 5
    nothing = memory.write({"embedding": values, "label": values[..., 0].long()}, torch.zeros(2, 3, dtype=torch.bool))
    assert nothing.eq(-1).all() and memory.counts.tolist() == [2, 1]


def test_what_is_written_afterwards_does_not_change_what_was_recalled() -> None:
    memory = memory_of(torch.ones(3, WIDTH))
    found = memory.nearest("embedding", torch.zeros(1, 1, WIDTH), 3)
    before = {name: column.clone() for name, column in found.columns.items()}
    memory.clear()
    memory.write({"embedding": torch.full((1, 3, WIDTH), 9.0), "label": torch.full((1, 3), 9)}, torch.ones(1, 3) > 0)
    assert all(torch.equal(found.columns[name], before[name]) for name in before)


def test_a_full_memory_refuses_and_writes_nothing() -> None:
    memory = memory_of(torch.ones(3, WIDTH), torch.ones(1, WIDTH), capacity=4)
    before = memory.column("embedding").clone()
    two = {"embedding": torch.zeros(2, 2, WIDTH), "label": torch.zeros(2, 2, dtype=torch.int64)}
    with pytest.raises(MemoryFull, match="holds 4 rows and this write needs 5; nothing was written"):
        memory.write(two, torch.ones(2, 2, dtype=torch.bool))
    assert memory.counts.tolist() == [3, 1] and torch.equal(memory.column("embedding"), before)
    memory.write(two, torch.tensor([[True, False], [True, True]]))
    assert memory.counts.tolist() == [4, 3]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_keys_that_are_not_numbers_are_refused_and_nothing_is_written(bad: float) -> None:
    memory = memory_of(torch.ones(2, WIDTH))
    rows = torch.ones(1, 2, WIDTH)
    rows[0, 1, 3] = bad
    with pytest.raises(ValueError, match="'embedding' contains NaN or infinity; nothing was written"):
        memory.write({"embedding": rows, "label": torch.zeros(1, 2, dtype=torch.int64)}, torch.ones(1, 2) > 0)
    assert memory.counts.tolist() == [2]


@pytest.mark.parametrize("rows", [1, 3, 60])
def test_a_query_that_is_not_a_number_is_refused(rows: int) -> None:
    memory = memory_of(torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(0)))
    query = torch.zeros(1, 3, WIDTH)
    query[0, 1, 2] = float("nan")
    with pytest.raises(ValueError, match="the query contains NaN or infinity"):
        memory.nearest("embedding", query, 2)


def test_clearing_forgets_everything() -> None:
    memory = memory_of(torch.full((30, WIDTH), 1e4))
    memory.clear()
    assert len(memory) == 0 and not memory.nearest("embedding", torch.zeros(1, 1, WIDTH), 3).mask.any()
    memory.write(
        {"embedding": torch.ones(1, 1, WIDTH), "label": torch.ones(1, 1, dtype=torch.int64)}, torch.ones(1, 1) > 0
    )
    found = memory.nearest("embedding", torch.zeros(1, 1, WIDTH), 3)
    assert found.mask.tolist() == [[[True, False, False]]] and found.columns["label"][0, 0, 0] == 1


def test_removing_closes_the_gaps_and_keeps_the_age_order() -> None:
    memory = memory_of(torch.arange(5.0)[:, None], torch.arange(3.0)[:, None])
    memory.remove(torch.tensor([[True, False, True, False, False], [False, False, True, False, False]]))
    assert memory.counts.tolist() == [3, 2] and len(memory) == 3
    assert memory.column("embedding")[0].flatten().tolist() == [1.0, 3.0, 4.0]
    assert memory.column("label")[1, :2].tolist() == [0, 1]
    found = memory.nearest("embedding", torch.zeros(2, 1, 1), 5)
    assert found.row.tolist() == [[[0, 1, 2, -1, -1]], [[0, 1, -1, -1, -1]]]


def test_nothing_stored_or_recalled_carries_a_gradient() -> None:
    memory = memory_of(torch.zeros(0, WIDTH))
    live = torch.randn(1, 4, WIDTH, requires_grad=True)
    memory.write({"embedding": live, "label": torch.zeros(1, 4, dtype=torch.int64)}, torch.ones(1, 4) > 0)
    assert not memory.column("embedding").requires_grad
    found = memory.nearest("embedding", live, 2)
    assert not any(column.requires_grad for column in found.columns.values())


@pytest.mark.parametrize("rows", [2, 40])
def test_the_distance_pulls_the_query_away_from_its_neighbour(rows: int) -> None:
    generator = torch.Generator().manual_seed(0)
    keys = torch.randn(rows, WIDTH, generator=generator)
    query = torch.randn(1, 1, WIDTH, generator=generator).requires_grad_()
    found = memory_of(keys).nearest("embedding", query, 1)
    found.distance.sum().backward()
    away = query.detach()[0, 0] - keys[found.row[0, 0, 0]]
    torch.testing.assert_close(query.grad[0, 0], away / away.norm())


def test_the_gradient_is_finite_where_query_and_neighbour_coincide() -> None:
    query = torch.ones(1, 1, WIDTH, requires_grad=True)
    found = memory_of(torch.ones(2, WIDTH)).nearest("embedding", query, 4)
    found.distance.sum().backward()
    assert torch.isfinite(query.grad).all()


def test_every_key_column_can_be_searched_and_returns_all_columns() -> None:
    columns = {"form": Column((2,)), "sound": Column((3,)), "label": Column((), torch.int64)}
    memory = Memory(columns, ("form", "sound"))
    rows = {
        "form": torch.tensor([[[0.0, 0.0], [1.0, 1.0]]]),
        "sound": torch.tensor([[[5.0, 5.0, 5.0], [0.0, 0.0, 0.0]]]),
        "label": torch.tensor([[7, 8]]),
    }
    memory.write(rows, torch.ones(1, 2, dtype=torch.bool))
    by_form = memory.nearest("form", torch.zeros(1, 1, 2), 1)
    by_sound = memory.nearest("sound", torch.zeros(1, 1, 3), 1)
    assert by_form.columns["label"].item() == 7 and by_sound.columns["label"].item() == 8
    both = Neighbours.join([by_form, by_sound])
    assert both.k == 2 and both.columns["label"].tolist() == [[[7, 8]]]
    assert both.flatten().columns["sound"].shape == (1, 2, 3)


def test_bad_requests_say_what_is_wrong() -> None:
    memory = memory_of(torch.ones(2, WIDTH))
    query = torch.zeros(1, 1, WIDTH)
    label = torch.zeros(1, 1, dtype=torch.int64)
    one = torch.ones(1, 1, dtype=torch.bool)
    with pytest.raises(ValueError, match="k must be at least 1, got 0"):
        memory.nearest("embedding", query, 0)
    with pytest.raises(ValueError, match="'label' is not a key column; the key columns are embedding"):
        memory.nearest("label", query, 1)
    with pytest.raises(ValueError, match=r"query must be \[1, any, 8\], got \[1, 1, 9\]"):
        memory.nearest("embedding", torch.zeros(1, 1, 9), 1)
    with pytest.raises(ValueError, match=r"query must be \[1, any, 8\], got \[2, 1, 8\]"):
        memory.nearest("embedding", torch.zeros(2, 1, 8), 1)
    with pytest.raises(ValueError, match="exactly the columns embedding, label; got embedding"):
        memory.write({"embedding": query}, one)
    with pytest.raises(ValueError, match=r"column 'embedding' must be \[1, 1, 8\], got \[1, 1, 7\]"):
        memory.write({"embedding": torch.zeros(1, 1, 7), "label": label}, one)
    with pytest.raises(ValueError, match=r"chosen must be \[1, any\], got \[2, 1\]"):
        memory.write({"embedding": query, "label": label}, torch.ones(2, 1, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"rows must be \[1, 2\], got \[1, 3\]"):
        memory.remove(torch.zeros(1, 3, dtype=torch.bool))
    assert memory.counts.tolist() == [2]


def test_a_memory_that_could_not_work_is_not_made() -> None:
    with pytest.raises(ValueError, match="key column 'sound' is not a column"):
        Memory({"form": Column((2,))}, ("sound",))
    with pytest.raises(ValueError, match="at least one key column"):
        Memory({"form": Column((2,))}, ())
    with pytest.raises(ValueError, match="one vector per row"):
        Memory({"form": Column(())}, ("form",))
    with pytest.raises(ValueError, match="at least 1"):
        Memory({"form": Column((2,))}, ("form",), capacity=0)
