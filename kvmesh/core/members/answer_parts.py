"""What is read of an answer, and of the request that it answers, to judge it."""

from collections.abc import Iterator
from typing import Final

import msgspec

from kvmesh.bounds import UNREADABLE
from kvmesh.core.chat.answer_json import STOPS

DATA: Final = b"data:"

DONE: Final = b"[DONE]"

FIELDS: Final = (b":", b"event:", b"id:", b"retry:")

LEAST_PART: Final = 3
"""Characters of a model's name that another may contain by being of the same model."""

WITHHELD: Final = frozenset({"content_filter", "refusal"})

ENDED: Final = frozenset({"end", "length"})

MOST_ASKED: Final = 1 << 18
"""Bytes of a request that are read again to judge its answer, 0.1 ms: to read 64 MiB takes 25. Of a
longer one it is not known which model and how much it asked for, so that no verdict rests on it.
"""


class _Asked(msgspec.Struct):
    model: object = ""
    max_tokens: object = None
    max_completion_tokens: object = None
    max_output_tokens: object = None


class _Delta(msgspec.Struct):
    delta: dict[str, object] | None = None
    message: dict[str, object] | None = None
    text: object = None


class _Output(msgspec.Struct):
    choices: list[_Delta] = []


_asked: Final = msgspec.json.Decoder(_Asked)

_output: Final = msgspec.json.Decoder(_Output)

JSON_OBJECT: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


def ends_whole(reason: object) -> bool:
    """Return whether an answer for that reason was neither withheld nor calls a tool."""
    if not isinstance(reason, str) or reason in WITHHELD:
        return False
    return STOPS.get(reason) in ENDED


def wants_tokens(asked: bytes) -> bool:
    """Return whether a request may be answered with tokens, as far as that is known."""
    wanted = read_asked(asked)
    if wanted is None:
        return False
    limits = wanted.max_tokens, wanted.max_completion_tokens, wanted.max_output_tokens
    return not any(limit is not None and not limit for limit in limits)


def carries(data: bytes, *, roles: bool) -> bool:
    """Return whether any choice holds anything, with `roles` even if that is a role alone; what
    does not read does.
    """
    try:
        choices = _output.decode(data).choices
    except UNREADABLE:
        return True
    for one in choices:
        held = one.delta or one.message or {}
        if one.text or any(value and (roles or name != "role") for name, value in held.items()):
            return True
    return False


def datas(events: bytes) -> Iterator[bytes]:
    """Yield the data of events of one line each, without `[DONE]`."""
    for line in events.splitlines():
        data = line.removeprefix(DATA).strip() if line.startswith(DATA) else b""
        if data and data != DONE:
            yield data


def model_of(asked: bytes) -> object:
    """Return the model that a request names, "" where that is not known."""
    wanted = read_asked(asked)
    return "" if wanted is None else wanted.model


def read_asked(body: bytes) -> _Asked | None:
    """Return what a request asks for; None where it is too long or does not read."""
    if len(body) > MOST_ASKED:
        return None
    try:
        return _asked.decode(body)
    except UNREADABLE:
        return None


def resemble(model: str, other: object) -> bool:
    """Return whether either name is part of the other, as those of files and versions are."""
    if not isinstance(other, str) or model == other:
        return model == other
    one, two = sorted((model.casefold(), other.casefold()), key=len)
    return len(one) >= LEAST_PART and one in two
