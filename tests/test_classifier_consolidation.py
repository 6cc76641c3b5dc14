"""The classifier on a memory that consolidates: merges last, happen once, and can be forgotten exactly."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from apl import OnlineClassifier
from apl.memory.staging import Details
from apl.reading.readers import READERS
from apl.store import NewRow, open_store

WIDTH, CLASSES = 6, 4
SPOTS = np.random.default_rng(1).normal(size=(CLASSES, WIDTH))


def stream(count: int, seed: int = 0) -> tuple[np.ndarray, list[str]]:
    random = np.random.default_rng(seed)
    number = np.concatenate([np.arange(CLASSES), random.integers(0, CLASSES, count - CLASSES)])
    return (SPOTS[number] + 0.05 * random.normal(size=(count, WIDTH))).astype(np.float32), [
        f"class {n}" for n in number
    ]


def taught(memory=None, count: int = 30, **parameters) -> OnlineClassifier:
    classifier = OnlineClassifier.for_features(WIDTH, memory=memory, **parameters)
    for x, y in zip(*stream(count), strict=True):
        classifier.learn_one(x, y)
    return classifier


def test_what_does_not_surprise_is_merged_and_the_receipt_says_into_which_row():
    classifier = taught(count=20)
    x, y = stream(21)
    receipt = classifier.learn_one(x[-1], y[-1])
    assert not receipt.written and receipt.row is None
    assert classifier.store.row(receipt.merged_into).label == y[-1]
    assert sum(row.count for row in classifier.store.rows()) == 21
    assert len(classifier) < 12


@pytest.mark.parametrize("where", ["RAM", "a file"])
def test_a_call_that_fails_takes_nothing_of_what_was_learnt_before(where, tmp_path):
    classifier = taught(None if where == "RAM" else tmp_path / "a.apl")
    x, y = stream(10, seed=5)
    before, drift = classifier.predict_proba(x), classifier.drift()
    with pytest.raises(ZeroDivisionError):
        classifier.learn_many(x, y, settings=lambda receipts: {"note": 1 / 0})
    np.testing.assert_array_equal(classifier.predict_proba(x), before)
    assert classifier.drift() == drift
    classifier.close()


def test_a_batch_names_the_rows_it_merged_into_by_their_final_ids():
    classifier = OnlineClassifier.for_features(WIDTH)
    receipts = classifier.learn_many(*stream(20))
    ids = {row.id for row in classifier.store.rows()}
    assert {r.row for r in receipts if r.row is not None} == ids
    assert {r.merged_into for r in receipts if r.merged_into is not None} <= ids
    assert sum(row.count for row in classifier.store.rows()) == 20


def test_a_memory_opened_again_answers_as_it_did(tmp_path):
    with taught(tmp_path / "a.apl") as classifier:
        x, _ = stream(10, seed=5)
        known, new = classifier.predict_proba(x), classifier.predict_new(x)
        weights = [opinion.weight for opinion in classifier.explain(x[0]).readers]
    with OnlineClassifier.load(tmp_path / "a.apl") as again:
        assert again.predict_proba(x) == pytest.approx(known, abs=1e-5)
        assert again.predict_new(x) == pytest.approx(new, abs=1e-5)
        assert [opinion.weight for opinion in again.explain(x[0]).readers] == pytest.approx(weights)


def test_a_saved_copy_and_a_pickled_one_keep_counts_and_what_sources_contributed(tmp_path):
    classifier = taught()
    x, y = stream(40, seed=5)
    classifier.learn_many(x, y, sources=[f"source {n % 3}" for n in range(40)])
    classifier.save(tmp_path / "copy.apl")
    state = classifier.__getstate__()
    other = OnlineClassifier.__new__(OnlineClassifier)
    other.__setstate__(state)
    with OnlineClassifier.load(tmp_path / "copy.apl") as copy:
        for one in (copy, other):
            assert [r.count for r in one.store.rows()] == [r.count for r in classifier.store.rows()]
            shares = [share for row in one.store.new_rows() for share in row.shares]
            assert {share.source for share in shares} >= {"source 0", "source 1", "source 2", None}


def test_an_old_memory_opens_as_rows_of_one_example(tmp_path):
    with OnlineClassifier.for_features(WIDTH, memory=tmp_path / "old.apl", consolidate=False) as plain:
        plain.adopt([NewRow(y, x) for x, y in zip(*stream(12), strict=True)])
    with OnlineClassifier.load(tmp_path / "old.apl", consolidate=True) as classifier:
        assert [row.examples for row in classifier.explain(stream(1 + CLASSES)[0][0]).neighbours] == [1] * 12
        x, y = stream(20, seed=3)
        assert np.mean(classifier.predict(x) == y) == 1
        assert classifier.learn_one(x[0], y[0]).merged_into is not None


@pytest.mark.parametrize("home", ["ram", "file"])
def test_a_forgotten_source_leaves_the_memory_that_never_saw_it(home, tmp_path):
    x, y = stream(40)

    # Enough of both sources in every class, and σ so high that all but the first of a class are merged.
    def classifier(name: str) -> OnlineClassifier:
        where = None if home == "ram" else tmp_path / f"{name}.apl"
        return OnlineClassifier.for_features(WIDTH, memory=where, sigma=1e6)

    with classifier("both") as both, classifier("one") as one:
        for place, (vector, label) in enumerate(zip(x, y, strict=True)):
            theirs = place >= CLASSES and place % 2 == 0
            both.learn_one(vector, label, source="theirs" if theirs else "ours")
            if not theirs:
                one.learn_one(vector, label, source="ours")
        both.learn_one(SPOTS[0], "only theirs", source="theirs")
        gone = both.forget(source="theirs")
        assert len(gone) == 1 and len(gone.rebuilt) == CLASSES
        kept, never = list(both.store.rows()), list(one.store.rows())
        assert [(r.label, r.count, r.source) for r in kept] == [(r.label, r.count, r.source) for r in never]
        for ours, theirs in zip(kept, never, strict=True):
            assert ours.key == pytest.approx(theirs.key, abs=1e-5)
        assert both.store.rows_of_source("theirs") == []
        assert "theirs" not in str(both.store.settings())
        assert "only theirs" not in both.classes_


def test_no_receipt_names_a_forgotten_class(tmp_path):
    with taught(tmp_path / "m.apl") as classifier:
        classifier.store.replace((), (), receipts={"1": {"label": "class 1"}, "2": {"label": "class 2"}})
        assert classifier.forget(label="class 1")
        assert classifier.store.receipt("1") == {} and classifier.store.receipt("2") == {"label": "class 2"}


def test_a_row_written_by_a_forgotten_source_loses_its_picture_and_lives_on_in_what_others_merged():
    classifier = OnlineClassifier.for_features(WIDTH, sigma=1e6)
    x, _ = stream(CLASSES)
    classifier.learn_one(x[0], "a", source="theirs")
    classifier.learn_one(x[1], "b", source="ours")
    classifier.learn_one(x[0] * 1.5, "a", source="ours")
    gone = classifier.forget(source="theirs")
    assert gone == [] and gone.rebuilt == (1,)
    row = classifier.store.row(1)
    assert row.source == "ours" and row.count == 1 and row.payload is None
    assert row.key == pytest.approx(x[0] * 1.5)


def test_a_failed_write_merges_nothing(monkeypatch):
    classifier = taught(count=20)
    before = [(r.id, r.count, r.key.tolist()) for r in classifier.store.rows()]
    answer = classifier.predict_proba(stream(5, seed=9)[0])

    def fails(*_, **__):
        raise OSError("the disk is full")

    monkeypatch.setattr(classifier.store, "commit", fails)
    with pytest.raises(OSError):
        x, y = stream(25)
        # With something to be written beside it, a memory in RAM writes at once.
        classifier.learn_many(x[-1:], y[-1:], settings={"note": 1})
    monkeypatch.undo()
    assert [(r.id, r.count, r.key.tolist()) for r in classifier.store.rows()] == before
    assert classifier.predict_proba(stream(5, seed=9)[0]) == pytest.approx(answer, abs=1e-5)


def test_the_plain_rule_throws_away_what_does_not_surprise():
    classifier = taught(consolidate=False)
    assert all(row.count == 1 for row in classifier.store.rows())
    receipt = classifier.learn_one(*(part[-1] for part in stream(25)))
    assert receipt.merged_into is None
    assert classifier.explain(stream(5)[0][0]).readers == ()


def test_explanations_name_the_readers_and_how_many_examples_stand_behind_a_row():
    explanation = taught().explain(stream(5)[0][0])
    assert [opinion.reader for opinion in explanation.readers] == list(READERS)
    assert {opinion.predicted for opinion in explanation.readers} == {"class 0"}
    assert sum(row.examples for row in explanation.neighbours) == 30
    assert explanation.to_dict()["readers"][0]["reader"] == "nearest row"


def test_what_lies_far_from_every_class_is_probably_new():
    classifier = taught(count=60)
    x, _ = stream(20, seed=4)
    far = -SPOTS.mean(0) * np.array([[3.0], [2.0]]) + np.random.default_rng(0).normal(size=(2, WIDTH))
    assert classifier.predict_new(x).max() < 0.5 < classifier.predict_new(far.astype(np.float32)).min()


def test_a_budget_evicts_rows_and_what_was_merged_into_them(tmp_path):
    classifier = taught(tmp_path / "small.apl", count=40, max_rows=CLASSES, sigma=0.0)
    assert len(classifier) == CLASSES
    ids = {row.id for row in classifier.store.rows()}
    assert set(classifier.store.shares(range(1, 100))) <= ids
    with open_store(tmp_path / "small.apl", read_only=True) as store:
        assert store.count() == CLASSES


def test_a_reader_follows_merges_and_the_weights_of_the_readers(tmp_path):
    x, y = stream(40)
    asked, _ = stream(10, seed=7)
    with OnlineClassifier.for_features(WIDTH, memory=tmp_path / "m.apl") as writer:
        for vector, label in zip(x[:15], y[:15], strict=True):
            writer.learn_one(vector, label)
        with OnlineClassifier.load(tmp_path / "m.apl", read_only=True) as reader:
            reader.predict_proba(asked)
            for vector, label in zip(x[15:], y[15:], strict=True):
                writer.learn_one(vector, label)
            assert reader.predict_proba(asked) == pytest.approx(writer.predict_proba(asked), abs=1e-6)
            assert reader.predict_new(asked) == pytest.approx(writer.predict_new(asked), abs=1e-6)
            assert sum(row.examples for row in reader.explain(asked[0]).neighbours) == 40


def rings(count: int, offset: float, scale: float = 1.0) -> tuple[np.ndarray, list[str]]:
    """Points on a small and on a large circle: only how far out they are tells which."""
    random = np.random.default_rng(3)
    angle, inner = random.uniform(0, 2 * np.pi, count), random.random(count) < 0.5
    radius = np.where(inner, 1.0, 2.0) + 0.1 * random.normal(size=count)
    points = offset + scale * radius[:, None] * np.stack([np.cos(angle), np.sin(angle)], 1)
    return points.astype(np.float32), np.where(inner, "inner", "outer").tolist()


@pytest.mark.parametrize(("offset", "scale"), [(0.0, 1.0), (500.0, 1.0), (0.0, 1e-12), (-3.0, 1e4)])
def test_vectors_of_a_few_numbers_are_positions(offset: float, scale: float) -> None:
    points, labels = rings(160, offset, scale)
    classifier = OnlineClassifier.for_features().partial_fit(points[:100], labels[:100])
    assert np.mean(classifier.predict(points[100:]) == labels[100:]) > 0.94
    assert len(classifier) < 75  # though the means of both classes are one point


def test_how_vectors_are_compared_can_be_chosen_and_is_remembered(tmp_path) -> None:
    points, labels = rings(140, 0.0)
    for metric, least, most in (("cosine", 0.0, 0.8), ("euclidean", 0.9, 1.0)):
        path = tmp_path / f"{metric}.apl"
        with OnlineClassifier.for_features(2, memory=path, metric=metric) as classifier:
            classifier.partial_fit(points[:80], labels[:80])
            said = classifier.predict_proba(points[80:])
        assert least <= np.mean(said.argmax(1) == np.searchsorted(["inner", "outer"], labels[80:])) <= most
        with OnlineClassifier.load(path) as again:
            assert again.metric == metric
            np.testing.assert_allclose(again.predict_proba(points[80:]), said, atol=1e-6)
    with pytest.raises(ValueError, match="metric is 'euclidean' or 'cosine', got 'manhattan'"):
        OnlineClassifier.for_features(2, metric="manhattan")


def test_the_shares_of_neighbours_do_not_depend_on_the_size_of_the_numbers() -> None:
    points, labels = rings(60, 0.0)
    shares = []
    for scale in (1.0, 1e4):
        classifier = OnlineClassifier.for_features().partial_fit(points * scale, labels)
        shares.append([row.weight for row in classifier.explain(points[0] * scale).neighbours])
    np.testing.assert_allclose(shares[0], shares[1], rtol=1e-2)
    assert sum(shares[0]) == pytest.approx(1, abs=1e-3)


def test_a_decoder_that_cannot_change_the_answer_is_not_asked_and_the_answer_stays(monkeypatch):
    """Drawings' own model, keys between clear and utterly unclear: a decoder with more weight than usual changes some answers."""
    random = np.random.default_rng(0)
    with OnlineClassifier.from_pretrained("omniglot") as classifier:
        opened, width = classifier._open(), classifier.store.width
        centres = random.normal(size=(30, width))
        for number in range(90):
            key = centres[number % 30] + random.normal(size=width)
            opened.learn(key.astype(np.float32)[None], [Details(f"class {number % 30}")])
        memory, pool = opened.memory, opened.memory.state.pool
        weight = pool.weight.copy()
        weight[0, -1] = 1.5
        memory.state = replace(memory.state, pool=replace(pool, weight=weight))
        blur = np.linspace(0.5, 6, 90)[:, None] * random.normal(size=(90, width))
        asked = (centres[np.arange(90) % 30] + blur).astype(np.float32)
        decoder, times = opened.learner.reading.decoder, []
        whole, read = opened.predict(asked), decoder.read
        best = memory.names.order[whole.log_probs[0][:, memory.names.order].argmax(1)]
        monkeypatch.setattr(decoder, "read", lambda *given: times.append(1) or read(*given))
        alone = [int(opened.predict(key[None]).best(memory.names.order)[0, 0]) for key in asked]
        assert alone == best.tolist()
        assert 20 < len(times) < 85
        without = whole.without_decoder.scores[0].swapaxes(0, 1)
        pool = memory.state.pool
        weights = pool.weight[0, :-1] / pool.units(whole.without_decoder)[0, 0]
        assert (np.tensordot(weights, without, 1).argmax(1) != best).any()


def test_a_wrong_label_does_not_turn_all_answers_around():
    chance = np.random.default_rng(0)
    centres = chance.normal(size=(5, 64))
    with OnlineClassifier.for_features(64) as classifier:
        for n in range(60):
            classifier.learn_one(centres[n % 5] + 0.05 * chance.normal(size=64), n % 5)
        for n in range(4):
            classifier.learn_one(centres[n] + 0.05 * chance.normal(size=64), (n + 1) % 5)
            assert classifier.score(centres, range(5)) == 1
