"""What another engine is asked so that a stream goes on, and what its client is passed of the
answer.
"""

from array import array
from typing import Final, Literal

import msgspec

from kvmesh.bounds import UNREADABLE
from kvmesh.core.chat.kept import Kept
from kvmesh.core.chat.splice import (
    JsonObject,
    Seen,
    Splice,
    TextSplice,
    TokenSplice,
    end_of,
    finish_of,
)
from kvmesh.core.chat.stream_form import SAME, StreamForm

Way = Literal["ids", "again", "none"]

COMPLETIONS: Final = b"/v1/completions"
_LIMITS: Final = ("max_completion_tokens", "max_tokens")
_COMPLETION_LIMIT: Final = 16
"""What a completion has that names no limit."""


class Continuation(msgspec.Struct, frozen=True):
    """How one stream goes on. `path` and `body` are sent, None where they are its own; the answer
    passes through `splice`. `tokens`: prompt and answer so far as packed ids, None where the same
    is asked again. `limit`: how many tokens may come at most, 0 where nothing bounds them.
    """

    splice: Splice
    path: bytes | None = None
    body: bytes | None = None
    tokens: bytes | None = None
    limit: int = 0


def way_of(form: StreamForm, kept: Kept) -> Way:
    """Return how a stream of this form goes on of which so much was passed.

    Nothing of the answer yet: the same is asked again, however it is drawn. A parser was at work
    (reasoning, tool calls): what follows by ids would not be parsed.
    """
    if kept.choices > 1:
        return "none"
    if kept.is_empty:
        return "again"
    inside = kept.tool_calls or (kept.reasoning_bytes and not kept.content_bytes)
    if form.by_ids and kept.prompt_ids and kept.token_ids and not (kept.lost or inside):
        return "ids"
    return "again" if form.again else "none"


def go_on(body: bytes, kind: str, form: StreamForm, seen: Seen) -> Continuation | bytes | None:
    """Return how a stream goes on of which its client has `seen` so much: what is sent elsewhere,
    or what is missing where all but the end has come; None: it cannot.

    `kind` is "chat" or "completions", `body` what it was asked with.
    """
    kept = seen.kept
    way = way_of(form, kept)
    try:
        fields: JsonObject = msgspec.json.decode(body, type=dict[str, object])
    except UNREADABLE:
        return None
    past = len(kept.token_ids) // 4
    limit = _limit_of(fields, kind)
    if kept.finished:
        return end_of(fields, seen)
    if way == "ids" and limit is not None and past >= limit:
        return finish_of(kind, seen) + end_of(fields, seen)
    if way == "none":
        return None
    if way == "again":
        return Continuation(TextSplice(seen))
    tokens = kept.prompt_ids + kept.token_ids
    sent: JsonObject = {name: fields[name] for name in SAME if name in fields}
    least = fields.get("min_tokens")
    if isinstance(least, int):
        sent["min_tokens"] = max(0, least - past)
    left = 0 if limit is None else limit - past
    sent |= {
        "prompt": array("I", tokens).tolist(),
        "max_tokens": left or None,
        "stream": True,
        "return_token_ids": True,
    }
    splice = TokenSplice(seen, kind, with_ids=fields.get("return_token_ids") is True)
    return Continuation(splice, COMPLETIONS, msgspec.json.encode(sent), tokens, left)


def _limit_of(fields: JsonObject, kind: str) -> int | None:
    names = _LIMITS if kind == "chat" else _LIMITS[1:]
    for name in names:
        limit = fields.get(name)
        if isinstance(limit, int):
            return limit
    return _COMPLETION_LIMIT if kind == "completions" and "max_tokens" not in fields else None
