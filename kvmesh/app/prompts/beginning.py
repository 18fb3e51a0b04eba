"""What is read of a prompt that is too long to be read whole: its beginning, in whole messages.

Each step of reading is one call that holds the interpreter, for about 1 ms a MiB and more for text
of many escapes. No engine computes a prompt of 64 MiB: the beginning says which worker has cached
most of it, and the engine gets all of it.
"""

import re
from typing import Final

import msgspec

from kvmesh.core.chat.inference import InferenceRequest
from kvmesh.transport.http.openai import ApiEndpoint

MOST_READ_BYTES: Final = 4 << 20
"""Of a prompt's JSON: a million tokens of English text."""

_TEXTS: Final = frozenset({"completions", "embeddings"})
_SURE_BYTES: Final = 32
_HALF_PAIR: Final = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}\Z")
_ABSENT: Final = msgspec.Raw(b"")
_lists: Final = msgspec.json.Decoder(list[msgspec.Raw])


def beginning_of(endpoint: ApiEndpoint, parsed: InferenceRequest) -> tuple[InferenceRequest, int]:
    """Return `parsed` with so much of its prompt as is read, and the bytes that are left out.

    Token ids stay, all of them: they are checked. Nothing stays of a prompt that has more than
    `MOST_READ_BYTES` in front of it (tools, documents, system text). Raises `msgspec.MsgspecError`,
    `UnicodeDecodeError` or `RecursionError` for what is no list.
    """
    field = endpoint.prompt
    if field is None:
        return parsed, 0
    sent = {"messages": parsed.messages, "prompt": parsed.prompt, "input": parsed.input}[field]
    before = (parsed.tools, parsed.documents, parsed.system, parsed.instructions)
    behind = parsed.chat_template_kwargs, parsed.tool_choice, parsed.reasoning_effort
    if any(len(memoryview(raw)) > MOST_READ_BYTES for raw in (*before, *behind)):
        nothing = msgspec.structs.replace(parsed, **dict.fromkeys(_BEFORE, _ABSENT))
        return _with(nothing, field, b"[]"), len(memoryview(sent))
    view = memoryview(sent)
    if len(view) <= MOST_READ_BYTES:
        return parsed, 0
    if bytes(view[:1]) == b'"':
        kept = cut_string(bytes(view[:MOST_READ_BYTES]))
    elif endpoint.kind in _TEXTS:
        kept = _first_text(sent)
    else:
        kept = _first_messages(sent)
    return _with(parsed, field, kept), max(0, len(view) - len(kept))


_BEFORE: Final = (
    *("tools", "documents", "system", "instructions"),
    *("chat_template_kwargs", "tool_choice", "reasoning_effort"),
)


def cut_string(begun: bytes) -> bytes:
    """Return the JSON string that `begun` is the beginning of, ended before what may be cut."""
    escape = begun.find(b"\\", max(1, len(begun) - _SURE_BYTES))
    if escape > 0:
        begun = begun[:escape]
        if (len(begun) - len(begun.rstrip(b"\\"))) & 1:
            begun = begun[:-1]
        begun = _HALF_PAIR.sub(b"", begun)
    else:
        begun = begun.decode("utf-8", "ignore").encode()
    return begun + b'"'


def _first_text(sent: msgspec.Raw) -> bytes:
    """Return a batch's first prompt, and all token ids in it."""
    start = bytes(memoryview(sent)[:_SURE_BYTES]).lstrip(b"[ \t\r\n")[:1]
    if start != b'"':
        return bytes(sent)  # token ids: their number is bounded
    first, *others = _lists.decode(sent)
    ids = [bytes(one) for one in others if bytes(memoryview(one)[:1]) == b"["]
    text = bytes(memoryview(first)[:MOST_READ_BYTES])
    if len(memoryview(first)) > MOST_READ_BYTES:
        text = cut_string(text)
    return b"[%b]" % b",".join((text, *ids))


def _first_messages(sent: msgspec.Raw) -> bytes:
    kept: list[bytes] = []
    left = MOST_READ_BYTES
    for message in _lists.decode(sent):
        left -= len(memoryview(message)) + 1
        if left < 0:
            break
        kept.append(bytes(message))
    return b"[%b]" % b",".join(kept)


def _with(parsed: InferenceRequest, field: str, kept: bytes) -> InferenceRequest:
    return msgspec.structs.replace(parsed, **{field: msgspec.Raw(kept)})
