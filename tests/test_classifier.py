"""The classifier: what it promises of labels, memory, budget, new classes and safety."""

from __future__ import annotations

import math
import os
import pickle
import signal
import subprocess
import sys
import unicodedata
from pathlib import Path

import numpy as np
import pandas
import pytest
import torch
from PIL import Image

import apl
from apl.classifier.configuration import check_parameters
from apl.classifier.online import OnlineClassifier
from apl.config import ConvConfig, DecoderConfig, Group, LearnerConfig
from apl.learner import Learner
from apl.store import FingerprintMismatch, StoreBusy, StoreError


@pytest.fixture(scope="module")
def learner() -> Learner:
    """Untrained: its answers are those of a distance kernel, which is all that is needed here."""
    torch.manual_seed(0)
    encoder = ConvConfig(image_size=20, stem_channels=8, stem_stride=2, groups=(Group(8, 1), Group(8, 1)))
    return Learner(LearnerConfig(encoder, DecoderConfig(hidden=16, blocks=1, heads=2), k=5)).eval()


@pytest.fixture(scope="module")
def pictures() -> dict[str, list[np.ndarray]]:
    """Four shapes, eight drawings of each."""
    random = np.random.default_rng(0)
    shapes = {}
    for name in ("bar", "beam", "corner", "box"):
        shapes[name] = []
        for _ in range(8):
            sheet = np.zeros((20, 20), np.uint8)
            x, y, n = random.integers(3, 6), random.integers(3, 6), random.integers(10, 13)
            if name in ("bar", "corner", "box"):
                sheet[y : y + n, x : x + 2] = 255
            if name in ("beam", "corner", "box"):
                sheet[y + n - 2 : y + n, x : x + n] = 255
            if name == "box":
                sheet[y : y + 2, x : x + n], sheet[y : y + n, x + n - 2 : x + n] = 255, 255
            shapes[name].append(sheet)
    return shapes


@pytest.fixture
def classifier(learner: Learner, pictures) -> OnlineClassifier:
    """Knows three of the shapes."""
    made = OnlineClassifier.from_pretrained(learner, sigma=0.3)
    for name in ("bar", "beam", "corner"):
        made.learn_many(pictures[name][:5], [name] * 5)
    return made


@pytest.fixture
def plain_classifier(learner: Learner, pictures) -> OnlineClassifier:
    """Knows the same, and merges nothing: every row is one picture."""
    made = OnlineClassifier.from_pretrained(learner, sigma=0.3, consolidate=False)
    for name in ("bar", "beam", "corner"):
        made.learn_many(pictures[name][:5], [name] * 5)
    return made


def all_answers(classifier: OnlineClassifier, pictures) -> np.ndarray:
    return classifier.predict_proba([p for shape in pictures.values() for p in shape])


# --- labels and classes --------------------------------------------------------------------------------------------


def test_with_nothing_known_it_says_so(learner: Learner, pictures) -> None:
    classifier = OnlineClassifier.from_pretrained(learner)
    picture = pictures["bar"][0]
    assert classifier.predict_one(picture) is None
    probabilities = classifier.predict_proba_one(picture)
    assert probabilities == {} and probabilities.new_class == 1
    assert classifier.explain(picture).neighbours == ()
    assert classifier.counts() == {} and len(classifier) == 0
    with pytest.raises(ValueError, match="learn an example"):
        classifier.predict([picture])


def test_one_class_is_enough_to_answer(learner: Learner, pictures) -> None:
    classifier = OnlineClassifier.from_pretrained(learner)
    receipt = classifier.learn_one(pictures["bar"][0], "bar")
    assert receipt.written and receipt.new_label and receipt.predicted is None and receipt.row == 1
    assert classifier.predict_one(pictures["bar"][1]) == "bar"
    assert classifier.predict_proba_one(pictures["bar"][1]) == {"bar": 1.0}
    assert not classifier.learn_one(pictures["bar"][0], "bar").written


def test_labels_are_text_or_integers_and_7_is_not_text(learner: Learner, pictures) -> None:
    classifier = OnlineClassifier.from_pretrained(learner)
    classifier.partial_fit(pictures["bar"][:2], [7, np.int64(7)])
    classifier.partial_fit(pictures["beam"][:2], ["7", np.str_("ö")])
    assert list(classifier.classes_) == [7, "7", "ö"]
    assert sum(classifier.counts().values()) == len(classifier)
    for wrong in (None, 1.5, b"7", ("a",)):
        with pytest.raises((TypeError, ValueError)):
            classifier.learn_one(pictures["bar"][3], wrong)


def test_a_label_never_seen_is_always_written(learner: Learner, pictures) -> None:
    classifier = OnlineClassifier.from_pretrained(learner, sigma=1000.0)
    for label in range(5):
        assert classifier.learn_one(pictures["bar"][0], label).written
    assert not classifier.learn_one(pictures["beam"][0], 3).written


def test_probabilities_sum_to_one_and_are_the_same_one_by_one_or_together(classifier, pictures) -> None:
    batch = pictures["box"] + pictures["bar"]
    together = classifier.predict_proba(batch)
    np.testing.assert_allclose(together.sum(1), 1, atol=1e-6)
    for row, new, picture in zip(together, classifier.predict_new(batch), batch, strict=True):
        one = classifier.predict_proba_one(picture)
        np.testing.assert_allclose([one[label] for label in classifier.classes_], row, atol=1e-4)
        assert one.new_class == pytest.approx(float(new), abs=1e-4)
        assert classifier.predict_one(picture) == max(one, key=one.get)
    assert classifier.predict_one(batch[0], new_above=0.0) is None


def test_surprise_is_that_of_the_known_classes_and_at_least_of_two(learner: Learner, pictures) -> None:
    classifier = OnlineClassifier.from_pretrained(learner)
    assert classifier.learn_one(pictures["bar"][0], "a").threshold_nats == pytest.approx(0.75 * math.log(2))
    assert classifier.learn_one(pictures["beam"][0], "b").threshold_nats == pytest.approx(0.75 * math.log(2))
    assert classifier.learn_one(pictures["box"][0], "c").threshold_nats == pytest.approx(0.75 * math.log(3))
    before = classifier.predict_proba_one(pictures["box"][1])
    receipt = classifier.learn_one(pictures["box"][1], "c")
    assert receipt.surprise_nats == pytest.approx(-math.log(before["c"]), abs=1e-3)
    assert receipt.probability == pytest.approx(before["c"], abs=1e-4)


def test_learning_a_class_costs_another_only_what_is_confused_with_it(classifier, pictures) -> None:
    batch = [p for name in ("bar", "beam", "corner") for p in pictures[name]]
    before = classifier.predict(batch)
    classifier.learn_many(pictures["box"], ["box"] * 8)
    after = classifier.predict(batch)
    assert all(new in (old, "box") for old, new in zip(before, after, strict=True))


# --- memory --------------------------------------------------------------------------------------------------------


def test_asking_changes_nothing(classifier, pictures) -> None:
    generation, rows = classifier.store.generation(), list(classifier.store.load().ids)
    before = all_answers(classifier, pictures)
    classifier.predict_one(pictures["box"][0])
    classifier.explain(pictures["box"][0])
    classifier.predict_new(pictures["box"])
    assert classifier.store.generation() == generation and list(classifier.store.load().ids) == rows
    np.testing.assert_array_equal(all_answers(classifier, pictures), before)


def test_a_saved_memory_answers_as_the_one_it_was_saved_from(classifier, learner, pictures, tmp_path: Path) -> None:
    before = all_answers(classifier, pictures)
    classifier.save(tmp_path / "shapes.apl")
    with pytest.raises(StoreError, match="model="):
        OnlineClassifier.load(tmp_path / "shapes.apl")
    with OnlineClassifier.load(tmp_path / "shapes.apl", model=learner) as loaded:
        np.testing.assert_array_equal(all_answers(loaded, pictures), before)
        assert loaded.sigma == 0.3 and loaded.counts() == classifier.counts()
        loaded.learn_one(pictures["box"][0], "box")
    with OnlineClassifier.load(tmp_path / "shapes.apl", model=learner) as again:
        assert "box" in again.counts()
    assert "box" not in classifier.counts()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["shapes.apl"]


def test_saving_replaces_nothing_but_a_copy_of_the_same_memory(classifier, learner, pictures, tmp_path: Path) -> None:
    mine = tmp_path / "notes.txt"
    mine.write_text("not a memory")
    with OnlineClassifier.from_pretrained(learner, memory=tmp_path / "two.apl", name="other") as other:
        other.learn_one(pictures["bar"][0], "bar")
    for place in (mine, tmp_path / "two.apl"):
        before = place.read_bytes()
        with pytest.raises(StoreError):
            classifier.save(place)
        assert place.read_bytes() == before
    for _ in range(2):
        classifier.save(tmp_path / "copy.apl")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["copy.apl", "notes.txt", "two.apl"]


def test_a_picture_may_be_given_as_its_file(classifier, pictures, tmp_path: Path) -> None:
    sheet = pictures["corner"][7]
    Image.fromarray(sheet).save(tmp_path / "corner.png")
    place = tmp_path / "corner.png"
    known = classifier.predict_proba_one(sheet)
    for given in (place, str(place), place.read_bytes()):
        assert classifier.predict_proba_one(given) == known
        assert classifier.predict_proba([given]).tolist() == classifier.predict_proba([sheet]).tolist()
    for many in ([place, place], np.array([str(place)] * 2), np.array([place, place]), pandas.Series([str(place)] * 2)):
        assert classifier.predict_proba(many).tolist() == classifier.predict_proba([sheet, sheet]).tolist()
    with pytest.raises(ValueError, match=r"none\.png: there is no such file"):
        classifier.learn_one(tmp_path / "none.png", "corner")


def test_a_label_is_one_class_in_both_forms_of_unicode_and_never_empty() -> None:
    composed, decomposed = (unicodedata.normalize(form, "Über") for form in ("NFC", "NFD"))
    classifier = OnlineClassifier()
    classifier.learn_many([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]], [composed, decomposed, "other"])
    assert classifier.classes_.tolist() == ["other", composed]
    for learn in (classifier.learn_one, lambda x, y: classifier.learn_many([x], [y])):
        with pytest.raises(ValueError, match="a label must not be empty"):
            learn([1.0, 1.0], "")
    assert classifier.forget(label=decomposed) and classifier.classes_.tolist() == ["other"]


def test_a_row_is_named_by_a_whole_number(classifier) -> None:
    rows = len(classifier)
    for wrong in (1.9, "2", True):
        with pytest.raises(TypeError):
            classifier.forget(row=wrong)
    assert len(classifier) == rows


def test_a_vector_without_a_direction_is_like_nothing() -> None:
    random, classifier = np.random.default_rng(0), OnlineClassifier()
    assert classifier.counts() == {}
    for number in range(20):
        vector = np.zeros(100)
        vector[number % 4 * 10 :][:10] = random.random(10) > 0.4
        classifier.learn_one(vector, number % 4)
    unknown = classifier.predict_proba_one(np.zeros(100))
    assert max(unknown.values()) < 0.5 and unknown.new_class > 0.5
    assert classifier.learn_one(np.zeros(100), 9).surprise_nats < 10


def test_a_saved_model_is_found_again_by_what_the_memory_records(learner, pictures, tmp_path: Path) -> None:
    learner.save(tmp_path / "model", {})
    with OnlineClassifier.from_pretrained(tmp_path / "model", memory=tmp_path / "m.apl") as classifier:
        classifier.learn_one(pictures["bar"][0], "bar")
    with OnlineClassifier.load(tmp_path / "m.apl") as again:
        assert again.predict_one(pictures["bar"][1]) == "bar"


def test_keys_of_another_encoder_are_refused(learner, tmp_path: Path) -> None:
    OnlineClassifier.from_pretrained(learner, memory=tmp_path / "m.apl").close()
    torch.manual_seed(1)
    other = Learner(learner.config).eval()
    with pytest.raises(FingerprintMismatch):
        OnlineClassifier.from_pretrained(other, memory=tmp_path / "m.apl")


def test_one_writer_any_readers_and_readers_see_what_is_written(learner, pictures, tmp_path: Path) -> None:
    path = tmp_path / "m.apl"
    with OnlineClassifier.from_pretrained(learner, memory=path) as writer:
        with pytest.raises(StoreBusy):
            OnlineClassifier.from_pretrained(learner, memory=path)
        writer.learn_one(pictures["bar"][0], "bar")
        with OnlineClassifier.from_pretrained(learner, memory=path, read_only=True) as reader:
            assert reader.predict_one(pictures["bar"][1]) == "bar"
            writer.learn_one(pictures["box"][0], "box")
            assert set(reader.predict_proba_one(pictures["bar"][1])) == {"bar", "box"}
            with pytest.raises(StoreError, match="reading only"):
                reader.learn_one(pictures["box"][0], "box")
            assert len(reader) == 2


def test_forgetting_a_row_a_class_a_source(classifier, pictures) -> None:
    receipt = classifier.learn_one(pictures["box"][0], "box", source="box.png")
    later = classifier.learn_one(pictures["bar"][0], "another", source="bar.png")
    assert classifier.forget(row=receipt.row) == [receipt.row]
    assert "box" not in classifier.counts() and "box" not in classifier.predict_proba_one(pictures["box"][0])
    # The numbers of other rows do not move when one goes.
    assert classifier.explain(pictures["bar"][0]).neighbours[0].row in (later.row, 1)
    assert classifier.forget(source="bar.png") == [later.row]
    classifier.forget(label="bar")
    assert set(classifier.counts()) == {"beam", "corner"}
    assert set(classifier.predict(pictures["bar"])) <= {"beam", "corner"}
    assert classifier.forget(row=10_000) == []
    fresh = classifier.learn_one(pictures["box"][0], "box")
    assert fresh.row > later.row
    assert sorted(classifier.store.load().ids.tolist()) == sorted(
        id for label in classifier.counts() for id in classifier._open().memory.ids_of(label)
    )
    with pytest.raises(ValueError, match="label=, row= or source="):
        classifier.forget()


def test_an_explanation_names_rows_that_exist_and_their_pictures(plain_classifier, pictures) -> None:
    classifier = plain_classifier
    explanation = classifier.explain(pictures["corner"][0])
    assert explanation.neighbours[0].distance == pytest.approx(0, abs=1e-3)
    distances = [n.distance for n in explanation.neighbours]
    assert distances == sorted(distances)
    assert sum(n.weight for n in explanation.neighbours) <= 1 + 1e-5
    for neighbour in explanation.neighbours:
        row = classifier.store.row(neighbour.row)
        assert row.label == neighbour.label and row.payload is not None
    assert explanation.neighbours[0].label == explanation.predicted == "corner"
    assert explanation.to_dict()["neighbours"][0]["label"] == "corner"


def test_keys_can_be_made_anew_from_what_was_kept(plain_classifier) -> None:
    for row in plain_classifier.store.rows():
        np.testing.assert_allclose(plain_classifier.embed_payloads([row.payload])[0], row.key, atol=1e-4)


# --- safety --------------------------------------------------------------------------------------------------------


def test_bad_input_changes_nothing(classifier, pictures) -> None:
    before, generation = all_answers(classifier, pictures), classifier.store.generation()
    bad = [
        lambda: classifier.learn_one(np.full((9, 9), np.nan), "new"),
        lambda: classifier.learn_one(pictures["box"][0], None),
        lambda: classifier.learn_many([pictures["box"][0], np.zeros((5, 5))], ["new", "new"]),
        lambda: classifier.learn_many(pictures["box"], ["new"]),
        lambda: classifier.learn_many(pictures["box"][:2], ["new", None]),
        lambda: classifier.learn_one(pictures["box"][0], "new", source="zero\0byte"),
        lambda: classifier.learn_many(pictures["box"][:2], ["new", "x" * 10_000]),
    ]
    for attempt in bad:
        with pytest.raises((TypeError, ValueError)):
            attempt()
        assert classifier.store.generation() == generation
        np.testing.assert_array_equal(all_answers(classifier, pictures), before)


def test_numbers_with_which_nobody_can_reckon_are_refused_by_name(tmp_path) -> None:
    vectors = OnlineClassifier.for_features(4)
    vectors.learn_one([1, 2, 3, 4], "a")
    for much in ([1e38] * 4, [0, 0, 0, -(10**30)]):
        for attempt in (lambda: vectors.learn_one(much, "b"), lambda: vectors.predict([much])):
            with pytest.raises(ValueError, match="may be longer than 1e\\+18"):
                attempt()
    for nothing in (np.float32(3), [10**400] * 4):
        for attempt in (lambda: vectors.predict_one(nothing), lambda: vectors.predict(nothing)):
            with pytest.raises(ValueError):
                attempt()
    for name, value in {"width": -4, "max_rows": 2.5, "k": True}.items():
        with pytest.raises(ValueError, match=f"{name} must be at least 1, and a whole number, got {value}"):
            OnlineClassifier.for_features().set_params(**{"width": 4, name: value}).open()
    with pytest.raises(StoreError, match="is a directory: give the name of a file"):
        vectors.save(tmp_path)
    with pytest.raises(StoreError, match="does not exist"):
        vectors.save(tmp_path / "none" / "m.apl")
    assert list(tmp_path.parent.glob(f"{tmp_path.name}*")) == [tmp_path] and not list(tmp_path.iterdir())


def test_a_store_that_fails_in_the_middle_leaves_everything_as_it_was(classifier, pictures, monkeypatch) -> None:
    before = all_answers(classifier, pictures)

    def fail(*_: object) -> None:
        raise StoreError("the disk is full")

    monkeypatch.setattr(classifier.store, "_write_in", fail)
    with pytest.raises(StoreError, match="full"):
        classifier.learn_many(pictures["box"], ["box"] * 8, settings={"note": 1})
    monkeypatch.undo()
    np.testing.assert_array_equal(all_answers(classifier, pictures), before)
    assert classifier.learn_one(pictures["box"][0], "box").written


def test_what_was_acknowledged_survives_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "m.apl"
    program = (
        "import sys, numpy as np, apl\n"
        f"c = apl.OnlineClassifier.for_features(4, memory={str(path)!r}, sigma=0.0)\n"
        "r = np.random.default_rng(0)\n"
        "for n in range(10**6):\n"
        "    print(c.learn_one(r.normal(size=4), int(n % 5)).row, flush=True)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    acknowledged = [line for line, _ in zip(process.stdout, range(25), strict=False)]
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    with OnlineClassifier.load(path) as classifier:
        ids = set(classifier.store.load().ids.tolist())
        assert {int(line) for line in acknowledged if line.strip().isdecimal()} <= ids
        assert classifier.learn_one(np.ones(4), "new").row not in ids


# --- budget --------------------------------------------------------------------------------------------------------


def test_the_budget_holds_and_the_receipt_says_what_went(learner, pictures, tmp_path: Path) -> None:
    with OnlineClassifier.from_pretrained(learner, memory=tmp_path / "m.apl", max_rows=5, sigma=0.0) as classifier:
        evicted = []
        for n in range(6):
            for name in pictures:
                receipt = classifier.learn_one(pictures[name][n], name)
                evicted += receipt.evicted
                assert len(classifier) <= 5 and classifier.store.count() == len(classifier)
        assert len(evicted) == 24 - 5 == len(set(evicted))
        assert set(classifier.counts()) == set(pictures), "no class may be lost while another has two rows"


def test_in_a_batch_the_budget_holds_too(learner, pictures) -> None:
    classifier = OnlineClassifier.from_pretrained(learner, max_rows=2, sigma=0.0)
    receipts = classifier.learn_many(pictures["bar"] + pictures["box"], ["bar"] * 8 + ["box"] * 8)
    assert classifier.counts() == {"bar": 1, "box": 1}
    alive = {r.row for r in receipts if r.row is not None}
    assert alive == set(classifier.store.load().ids.tolist())


def test_the_row_that_another_stands_in_for_goes_first() -> None:
    classifier = OnlineClassifier.for_features(2, max_rows=4, sigma=0.0)
    for vector, label in (([0, 0], "a"), ([0, 9], "a"), ([5, 5], "b"), ([0, 0.1], "a")):
        classifier.learn_one(vector, label)
    receipt = classifier.learn_one([9, 9], "c")
    assert receipt.evicted == (1,), "rows 1 and 4 say the same: the older goes"


def test_a_known_class_that_grows_throws_out_no_other() -> None:
    classifier = OnlineClassifier.for_features(2, max_rows=3, sigma=0.0)
    for vector, label in (([0, 0], "a"), ([0, 9], "b"), ([9, 0], "c"), ([8, 1], "c"), ([1, 8], "b")):
        classifier.learn_one(vector, label)
    assert classifier.counts() == {"a": 1, "b": 1, "c": 1}


def test_parameters_may_change_while_open(classifier, pictures) -> None:
    classifier.set_params(max_rows=len(classifier))
    rows = len(classifier)
    classifier.learn_one(pictures["box"][0], "box")
    assert len(classifier) == rows
    with pytest.raises(ValueError, match="max_rows"):
        classifier.set_params(max_rows=0).predict_one(pictures["box"][0])


# --- the package ---------------------------------------------------------------------------------------------------


def test_importing_the_package_is_light() -> None:
    program = "import sys, apl; assert not {'torch', 'sklearn'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_every_public_name_is_there() -> None:
    for name in apl.__all__:
        assert getattr(apl, name) is not None
    with pytest.raises(AttributeError):
        _ = apl.nothing_of_this_name


def test_a_decoder_of_fixed_labels_cannot_meet_new_classes(learner: Learner) -> None:
    config = LearnerConfig(learner.config.encoder, DecoderConfig(labels="fixed", way=5, hidden=16, blocks=1, heads=2))
    with pytest.raises(ValueError, match="fixed number"):
        OnlineClassifier.from_pretrained(Learner(config))


def test_the_bundled_model_learns_invented_characters_and_knows_strangers() -> None:
    from apl.data.glyphs import draw_glyphs

    glyphs = draw_glyphs(12, 8, np.random.default_rng(11), 56)
    known, strangers = glyphs.labels < 8, glyphs.labels >= 8
    late = np.arange(len(glyphs)) % 8 >= 5
    classifier = OnlineClassifier.from_pretrained("omniglot")
    classifier.partial_fit(glyphs.images[known & ~late], glyphs.labels[known & ~late].tolist())
    assert len(classifier) < 8 * 5
    right = classifier.predict(glyphs.images[known & late]) == glyphs.labels[known & late]
    assert right.mean() > 0.85
    new = classifier.predict_new(glyphs.images[strangers & late])
    old = classifier.predict_new(glyphs.images[known & late])
    assert (new[:, None] > old).mean() > 0.8


def test_vectors_of_short_floats_are_vectors() -> None:
    classifier = OnlineClassifier.for_features(3)
    classifier.learn_one(torch.tensor([1.0, 0.0, 0.0], dtype=torch.bfloat16), "a")
    classifier.learn_many([torch.tensor([0.0, 1.0, 0.0], dtype=torch.bfloat16)], ["b"])
    assert classifier.predict_one(torch.tensor([0.1, 0.9, 0.0], dtype=torch.bfloat16)) == "b"
    assert classifier.predict(torch.eye(3, dtype=torch.bfloat16)[:1]).tolist() == ["a"]


def test_a_memory_in_ram_that_was_closed_is_gone_and_says_so(learner: Learner, pictures) -> None:
    with OnlineClassifier(learner) as classifier:
        classifier.learn_one(pictures["bar"][0], "bar")
    for use in (classifier.predict_one, lambda x: classifier.learn_one(x, "bar")):
        with pytest.raises(StoreError, match="ended when it was closed"):
            use(pictures["bar"][1])
    assert classifier.open().predict_one(pictures["bar"][1]) is None, "opened again, it is an empty one"
    classifier.close()
    assert classifier.predict_one(pictures["bar"][1]) is None, "nothing was in it, so nothing was lost"


def test_a_model_and_an_encoder_are_not_both_taken(learner: Learner) -> None:
    with pytest.raises(ValueError, match="both model= and encoder="):
        OnlineClassifier.from_pretrained(learner, encoder=lambda examples: np.ones((len(examples), 3)))


@pytest.fixture
def lasting(tmp_path: Path) -> Path:
    """A memory of vectors in a file that nobody has open."""
    with OnlineClassifier(memory=tmp_path / "lasting.apl") as classifier:
        classifier.learn_many(np.eye(3), ["x", "y", "z"])
    return tmp_path / "lasting.apl"


def test_a_memory_that_lasts_is_known_before_the_first_example(lasting: Path) -> None:
    uses = {
        "len": lambda c: len(c),
        "counts": lambda c: sum(c.counts().values()),
        "classes_": lambda c: len(c.classes_),
        "predict": lambda c: len(c.predict(np.eye(3))),
        "predict_proba": lambda c: c.predict_proba(np.eye(3)).shape[1],
        "open": lambda c: len(c.open()),
        "fitted": lambda c: 3 * c.__sklearn_is_fitted__(),
        "pickled": lambda c: len(pickle.loads(pickle.dumps(c)).predict(np.eye(3))),
    }
    for name, use in uses.items():
        with OnlineClassifier(memory=lasting, read_only=True) as classifier:
            assert use(classifier) == 3, name
        assert use(OnlineClassifier(memory=lasting, read_only=True)) == 3, name


def test_looking_at_a_memory_that_is_not_there_makes_none(tmp_path: Path) -> None:
    classifier = OnlineClassifier(memory=tmp_path / "none.apl")
    assert not len(classifier) and classifier.counts() == {} and not hasattr(classifier, "classes_")
    assert not (tmp_path / "none.apl").exists()


def test_fit_never_adds_to_rows_that_were_meant_to_last(lasting: Path) -> None:
    with pytest.raises(StoreError, match="would erase 3 rows"):
        OnlineClassifier(memory=lasting).fit(np.eye(3), ["a", "b", "c"])
    with OnlineClassifier(memory=lasting) as classifier:
        assert set(classifier.counts()) == {"x", "y", "z"}


def test_what_was_set_while_open_is_there_after_loading(lasting: Path, tmp_path: Path) -> None:
    with OnlineClassifier(memory=lasting, keep_images=False) as classifier:
        classifier.sigma, classifier.max_rows = 1.5, 7
        classifier.learn_one([1.0, 1.0, 0.0], "x")
        classifier.save(tmp_path / "copy.apl")
    for path in (lasting, tmp_path / "copy.apl"):
        with OnlineClassifier.load(path) as loaded:
            assert (loaded.sigma, loaded.max_rows, loaded.keep_images) == (1.5, 7, False)


def test_of_equally_probable_classes_every_verb_names_the_same() -> None:
    for consolidate in (True, False):
        classifier = OnlineClassifier(consolidate=consolidate, sigma=0.0)
        for label in ("b", "a"):
            classifier.learn_one([1.0, 2.0], label)
        x = [1.0, 2.0]
        proba = classifier.predict_proba([x])[0]
        assert proba[0] == proba[1], "no tie"
        assert classifier.predict([x]).tolist() == ["a"] and classifier.classes_[proba.argmax()] == "a"
        assert classifier.predict_one(x) == classifier.explain(x).predicted == "a"
        assert next(iter(classifier.predict_proba_one(x))) == "a"
        assert classifier.predict_one(x, new_above=1.0) == "a"


def test_the_score_of_labels_of_several_kinds() -> None:
    classifier = OnlineClassifier()
    classifier.learn_many(np.eye(4), [1, "a", 2, "b"])
    assert classifier.score(np.eye(4), [1, "a", 2, "b"]) == 1.0
    assert classifier.score(np.eye(4), ["1", "a", 2, "b"]) == 0.75


@pytest.mark.parametrize(
    "model,parameters,said",
    [
        ("drawings", {"width": 5}, "width= is for vectors"),
        ("drawings", {"metric": "cosine"}, "metric= is for vectors"),
    ],
)
def test_parameters_that_are_not_valid_together_are_refused(model: str | None, parameters: dict, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        OnlineClassifier(model, **parameters).open()
    with pytest.raises(ValueError, match="ink is 'auto', 'dark' or 'light', got 'blue'"):
        check_parameters(ink="blue")


def test_a_width_that_is_not_the_encoder_s_is_refused() -> None:
    with pytest.raises(ValueError, match="vectors of 3 numbers, not of width=5"):
        OnlineClassifier(encoder=lambda examples: np.ones((len(examples), 3)), width=5).learn_one("x", "a")


def test_a_generator_is_a_batch_and_labels_are_one_column() -> None:
    classifier = OnlineClassifier()
    classifier.learn_many((row for row in np.eye(3)), "abc")
    assert classifier.predict(iter(np.eye(3))).tolist() == ["a", "b", "c"]
    with pytest.raises(ValueError, match="labels are one column"):
        classifier.learn_many(np.eye(3), np.array([["a"], ["b"], ["c"]]))


def test_a_sparse_matrix_is_refused_with_the_remedy() -> None:
    sparse = pytest.importorskip("scipy.sparse")
    for learn in (OnlineClassifier().learn_many, OnlineClassifier().fit):
        with pytest.raises((TypeError, ValueError), match="toarray|dense|sparse"):
            learn(sparse.csr_matrix(np.eye(3)), ["a", "b", "c"])
