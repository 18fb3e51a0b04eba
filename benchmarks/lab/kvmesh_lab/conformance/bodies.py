"""Request and response bodies of exact sizes, in which no piece is like another."""

import random
from typing import Final

import msgspec

PIECE: Final = 64 * 1024
"""Bytes of a piece in which a gateway sends a body: no Envoy sends more."""

_SPACES: Final = b" \t\n\r"
_PROMPT_BYTES: Final = 400


def chat_body(model: str, size: int = 600, *, seed: int = 0) -> bytes:
    """Return a chat request of exactly `size` bytes, or the smallest if it needs more.

    It is filled with white space, which JSON allows and no tokenizer sees: the prompt stays short,
    and a piece that is lost, doubled or moved still makes other bytes.
    """
    drawn = random.Random(seed)  # noqa: S311  what is drawn must be the same again
    words = " ".join(f"{drawn.getrandbits(24):06x}" for _ in range(_PROMPT_BYTES // 7))
    head = msgspec.json.encode({"model": model, "stream": True, "max_tokens": 8})[:-1] + b","
    said = msgspec.json.encode({"messages": [{"role": "user", "content": words}]})[1:]
    return head + spaces(size - len(head) - len(said), seed) + said


def spaces(size: int, seed: int) -> bytes:
    """Return `size` bytes of white space, none for less than 1."""
    if size < 1:
        return b""
    drawn = random.Random(seed)  # noqa: S311  as above
    return drawn.randbytes(size).translate(bytes(_SPACES[byte & 3] for byte in range(256)))


def sse_body(events: int, seed: int = 0) -> list[bytes]:
    """Return the events of an answer in OpenAI's form, with text beyond ASCII, the last [DONE]."""
    drawn = random.Random(seed)  # noqa: S311  as above
    made: list[bytes] = []
    for number in range(events):
        text = f"{number}·{drawn.getrandbits(64):016x}·žлуť"
        choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
        chunk = {"id": "c-1", "object": "chat.completion.chunk", "choices": [choice]}
        made.append(b"data: " + msgspec.json.encode(chunk) + b"\n\n")
    return [*made, b"data: [DONE]\n\n"]


def noise(size: int, seed: int = 0) -> bytes:
    """Return bytes that are no text."""
    return random.Random(seed).randbytes(size)  # noqa: S311  as above


def cut(body: bytes, size: int = PIECE) -> list[bytes]:
    """Return `body` in pieces of `size` bytes; one empty piece for none."""
    return [body[start : start + size] for start in range(0, len(body), size)] or [b""]


def first_difference(sent: bytes, got: bytes) -> str:
    """Return in words where two bodies differ."""
    shared = min(len(sent), len(got))
    at = next((place for place in range(shared) if sent[place] != got[place]), shared)
    return f"{len(got)} of {len(sent)} bytes, the first difference at byte {at}"
