"""The naive model of `TextPacker` in kvmesh/native/prompts/packer.c."""

from collections.abc import Sequence

from kvmesh.core.prompts.segment_cache import ByteBudgetCache, EncodeBatch
from kvmesh.core.prompts.text_packer import Message, Opening, filled, roles_and_texts


class TextPacker:
    """Makes prompts of chats of forms that it was taught, by their sequences of roles."""

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
