"""Text → token numbers: BERT's uncased WordPiece (Devlin et al. 2019), with Google's vocabulary (Apache-2.0, beside this file).

The package `tokenizers` does the same and brings 40 MB of dependencies along, twice the model's size; the tests compare
the two.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

VOCABULARY = Path(__file__).parent / "vocabulary" / "bert-uncased.txt"
LONGEST_WORD = 100
_IDEOGRAPHS = ((0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F))


class _CharacterTable(dict[int, str]):
    """For `str.translate`: what a character becomes, worked out when it first occurs."""

    def __init__(self, rule: Callable[[str], str]) -> None:
        self._rule = rule

    def __missing__(self, code: int) -> str:
        self[code] = self._rule(chr(code))
        return self[code]


def _clean(character: str) -> str:
    """Control characters go, white space becomes a space, an ideograph is a word of its own."""
    category = unicodedata.category(character)
    if character in "\t\n\r" or category.startswith("Z"):
        return " "
    if character == "\ufffd" or category in ("Cc", "Cf", "Co", "Cs"):
        return ""
    if any(low <= ord(character) <= high for low, high in _IDEOGRAPHS):
        return f" {character} "
    return character


def _simplify(character: str) -> str:
    """Accents go, capitals become small, a punctuation mark is a word of its own."""
    category = unicodedata.category(character)
    if category == "Mn":
        return ""
    if category.startswith("P") or (character.isascii() and character.isprintable() and not character.isalnum()):
        return f" {character} "
    return character.lower()


class WordPiece:
    """Splits words into the longest pieces the vocabulary knows, from the left.

    Examples:
        >>> pieces = WordPiece()
        >>> pieces.numbers("Embedding!", most=256)
        [101, 7861, 8270, 4667, 999, 102]
    """

    def __init__(self) -> None:
        names = VOCABULARY.read_text("utf-8").splitlines()
        self._number = {name: number for number, name in enumerate(names)}
        self.unknown, self._start, self._end = (self._number[name] for name in ("[UNK]", "[CLS]", "[SEP]"))
        self._cleaned, self._simplified = _CharacterTable(_clean), _CharacterTable(_simplify)
        self._pieces = lru_cache(maxsize=20_000)(self._split)

    def numbers(self, text: str, most: int) -> list[int]:
        """At most `most` token numbers, the marks of start and end among them."""
        plain = unicodedata.normalize("NFD", text.translate(self._cleaned)).translate(self._simplified)
        found: list[int] = []
        for word in plain.split(" "):
            if word:
                found += self._pieces(word)
            if len(found) >= most - 2:
                break
        return [self._start, *found[: most - 2], self._end]

    def _split(self, word: str) -> list[int]:
        if len(word) > LONGEST_WORD:
            return [self.unknown]
        found, start, before = [], 0, ""
        while start < len(word):
            for stop in range(len(word), start, -1):
                number = self._number.get(before + word[start:stop])
                if number is not None:
                    break
            else:
                return [self.unknown]
            found.append(number)
            start, before = stop, "##"
        return found
