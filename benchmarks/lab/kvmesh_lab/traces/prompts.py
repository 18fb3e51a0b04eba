"""Prompts for trace requests: equal block ids become equal text, other ids other text."""

import hashlib
from typing import Final, Literal

from kvmesh_lab.traces.trace import TraceRequest

PromptUnit = Literal["bytes", "words", "token-ids"]
"""What one token of a trace becomes.

bytes: a letter, exact with the byte tokenizer. words: a short common English word, about one
token of a trained tokenizer. token-ids: an id, exact with every model, /v1/completions only.
"""

_LETTERS: Final = b"etaoin shrdlu cmfwyp vbgkqjxz "
_COMMON_WORDS: Final = (
    "the of and to in is you that it he was for on are as with his they at be this have from or "
    "one had by word but not what all were we when your can said there use an each which she do "
    "how their if will up other about out many then them these so some her would make like him "
    "into time has look two more write go see number no way could people my than first water been "
    "call who oil its now find long down day did get come made may part over new sound take only "
    "little work know place year live me back give most very after thing our just name good man "
    "think say great where help through much before line right too mean old any same tell boy "
    "follow came want show also around form three small set put end does another well large must "
    "big even such because turn here why ask went men read need land home us move try kind hand "
    "picture again change off play air away house point page letter mother answer found study "
    "still learn should world high every near add food between own below country plant last "
    "school father keep tree never start city earth eye light thought head under story saw left "
    "few while along might close something seem next hard open example begin life always those "
    "both paper together got group often run important until children side feet car mile night "
    "walk white sea began grow took"
)
_LETTER_TABLE: Final = bytes(_LETTERS[byte % len(_LETTERS)] for byte in range(256))
_WORD_TABLE: Final = tuple(f" {word}" for word in _COMMON_WORDS.split())


class PromptWriter:
    """Turns trace requests into prompts; the same arguments always give the same prompts.

    `block_size` is the trace's, in tokens. Prompts of another `salt` share no block, so that a
    second run finds nothing of the first one's in any cache.
    """

    def __init__(self, block_size: int, unit: PromptUnit, salt: str) -> None:
        self._block_size = block_size
        self._unit: PromptUnit = unit
        self._salt = salt

    def write(self, request: TraceRequest) -> str | list[int]:
        """Return a prompt of `request.input_tokens` tokens. O(tokens), about 15 us for 1,000."""
        noise = self._noise(request)
        if self._unit == "words":
            return "".join([_WORD_TABLE[byte] for byte in noise])
        letters = noise.translate(_LETTER_TABLE)
        return letters.decode("ascii") if self._unit == "bytes" else list(letters)

    def _noise(self, request: TraceRequest) -> bytes:
        """Return one pseudo-random byte per token: by block id, then by request for the rest."""
        size, wanted = self._block_size, request.input_tokens
        parts = [_stream(f"{self._salt}/block/{block}", size) for block in request.block_ids]
        rest = wanted - size * len(parts)
        if rest > 0:
            parts.append(_stream(f"{self._salt}/request/{request.index}", rest))
        return b"".join(parts)[:wanted]


def _stream(key: str, size: int) -> bytes:
    return hashlib.shake_128(key.encode()).digest(size)
