"""The ids of chats of known form: what is known of a template, around texts tokenised or known."""

from collections.abc import Callable, Sequence
from typing import Final, Protocol, cast

from kvmesh.compiled import NATIVE
from kvmesh.core.chat.chat import JsonObject
from kvmesh.core.chat.opaque_text import Strip
from kvmesh.core.prompts.segment_cache import ByteBudgetCache, EncodeBatch

Message = tuple[str, str] | JsonObject
"""A role and a content, or an object that has just these."""

Opening = tuple[int, str, int, tuple[tuple[Strip, str | None], ...], str]
"""A segment with a text in it: its place among the parts; what stands in front; the number of the
text and what is stripped of it; what stands behind.
"""

_FIELDS: Final = 2


class TextPacker(Protocol):
    """Makes prompts of chats of forms that it was taught, by their sequences of roles.

    `packed` counts the chats.
    """

    packed: int

    def teach(
        self,
        roles: tuple[str, ...],
        hints: tuple[str, ...],
        marks: tuple[str, ...],
        parts: tuple[bytes, ...],
        openings: tuple[Opening, ...],
        /,
    ) -> None:
        """Learn a form: packed ids, empty where a segment with a text belongs.

        It holds for texts that are not blank and have none of `hints`, or one of them but none of
        `marks`, of which there may be more.
        """
        ...

    def forget(self) -> None:
        """Forget all forms."""
        ...

    def pack(self, messages: Sequence[Message], /) -> bytes | None:
        """Return the packed ids of a chat; None where somebody has to look closer.

        What was not seen before is tokenised in one call, whose errors come through.
        """
        ...


class PureTextPacker:
    """`TextPacker` in Python: the specification of the compiled one."""

    def __init__(self, cache: ByteBudgetCache[str], encode_batch: EncodeBatch, /) -> None:
        self.packed = 0
        self._cache = cache
        self._encode_batch = encode_batch
        self._forms: dict[
            tuple[str, ...],
            tuple[tuple[str, ...], tuple[str, ...], tuple[bytes, ...], tuple[Opening, ...]],
        ] = {}

    def teach(
        self,
        roles: tuple[str, ...],
        hints: tuple[str, ...],
        marks: tuple[str, ...],
        parts: tuple[bytes, ...],
        openings: tuple[Opening, ...],
        /,
    ) -> None:
        """Learn a form. Raises `ValueError` for an opening outside of it."""
        for place, _, index, _, _ in openings:
            if not (0 <= place < len(parts) and 0 <= index < len(roles)):
                raise ValueError(f"opening {place} of text {index} is outside the form")
        self._forms[roles] = hints, marks, parts, openings

    def forget(self) -> None:
        """Forget all forms."""
        self._forms.clear()

    def pack(self, messages: Sequence[Message], /) -> bytes | None:
        """Return the packed ids of a chat; None where somebody has to look closer."""
        said = roles_and_texts(messages)
        form = None if said is None else self._forms.get(said[0])
        if said is None or form is None:
            return None
        _, texts = said
        hints, marks, parts, openings = form
        for text in texts:
            if not text or text.isspace():
                return None
            if any(hint in text for hint in hints) and any(mark in text for mark in marks):
                return None
        found = list(parts)
        unknown: list[tuple[int, str]] = []
        for opening in openings:
            segment = filled(opening, texts)
            ids = self._cache.get(segment)
            if ids is None:
                unknown.append((opening[0], segment))
            else:
                found[opening[0]] = ids
        if unknown:
            fresh = self._encode_batch([segment for _, segment in unknown])
            for (place, segment), ids in zip(unknown, fresh, strict=True):
                self._cache.put(segment, ids)
                found[place] = ids
        self.packed += 1
        return b"".join(found)


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


new_text_packer: Final = (
    cast("Callable[[ByteBudgetCache[str], EncodeBatch], TextPacker]", NATIVE.TextPacker)
    if NATIVE
    else PureTextPacker
)
