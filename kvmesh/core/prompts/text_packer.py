"""Chats of known form: what is known of a template, around texts tokenised or known.

`kvmesh._native.TextPacker` makes their ids.
"""

from collections.abc import Sequence
from typing import Final

from kvmesh.core.chat.chat import JsonObject
from kvmesh.core.chat.opaque_text import Strip

MOST_MESSAGES: Final = 96
"""Longer chats are rendered: to learn of one would hold the event loop for more than 5 ms. 30
messages take some 1 ms, once for each sequence of roles.
"""

Message = tuple[str, str] | JsonObject
"""A role and a content, or an object that has just these."""

Opening = tuple[int, str, int, tuple[tuple[Strip, str | None], ...], str]
"""A segment with a text in it: its place among the parts; what stands in front; the number of the
text and what is stripped of it; what stands behind.
"""

_FIELDS: Final = 2


def filled(opening: Opening, texts: Sequence[str]) -> str:
    """Return a segment with its text."""
    _, head, index, strips, tail = opening
    text = texts[index]
    for method, chars in strips:
        text = getattr(text, method)(chars)
    return f"{head}{text}{tail}"


def roles_and_texts(messages: Sequence[Message]) -> tuple[tuple[str, ...], list[str]] | None:
    """Return the roles and contents of messages; None unless all have just these, both strings."""
    roles: list[str] = []
    texts: list[str] = []
    for message in messages:
        role, text = (
            message if isinstance(message, tuple) else (message.get("role"), message.get("content"))
        )
        if len(message) != _FIELDS or type(role) is not str or type(text) is not str:
            return None
        roles.append(role)
        texts.append(text)
    return tuple(roles), texts
