"""What a chat template prints around the texts of a chat, whatever they say."""

from collections.abc import Sequence

import msgspec

from kvmesh.core.chat.opaque_text import Piece, Slot


class Skeleton(msgspec.Struct, frozen=True):
    """A rendered chat with its texts left out.

    It holds for texts that are not blank and of which number `i` has not `mark`, for each
    `(i, mark)` of `absent`, while the clock prints `clock` (pattern and what it gave).
    """

    pieces: tuple[Piece, ...]
    absent: tuple[tuple[int, str], ...] = ()
    clock: tuple[tuple[str, str], ...] = ()

    def holds_for(self, texts: Sequence[str]) -> bool:
        """Return whether the template prints these texts so; the clock is not looked at."""
        for text in texts:
            if not text or text.isspace():
                return False
        return all(mark not in texts[index] for index, mark in self.absent)

    def fill(self, texts: Sequence[str]) -> str:
        """Return what the template prints of these texts."""
        return "".join(
            piece if isinstance(piece, str) else stripped(piece, texts[piece.index])
            for piece in self.pieces
        )


def stripped(slot: Slot, text: str) -> str:
    """Return a text as the template prints it in `slot`."""
    for method, chars in slot.strips:
        text = getattr(text, method)(chars)
    return text


def merged(pieces: Sequence[Piece]) -> tuple[Piece, ...]:
    """Return the pieces, literals that stand side by side as one, none of them empty."""
    found: list[Piece] = []
    literals: list[str] = []
    for piece in pieces:
        if isinstance(piece, str):
            literals.append(piece)
            continue
        if literals:
            found.append("".join(literals))
            literals.clear()
        found.append(piece)
    if literals:
        found.append("".join(literals))
    return tuple(piece for piece in found if piece != "")
