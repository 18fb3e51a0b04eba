"""Text that a chat template may print and not look at: how what it prints is learned from one run.

A run with opaque texts goes the same way for all texts that keep the conditions it noted.
"""

from collections.abc import Iterable
from typing import Final, Literal, cast

import msgspec

from kvmesh.core.chat.chat import JsonObject

SENTINEL: Final = "\ue000OPAQUE\ue001"
"""What an opaque text is where code that cannot be hooked reads it: found, it gives that away."""

Strip = Literal["strip", "lstrip", "rstrip"]


class ReadsTextError(Exception):
    """The template's way depends on a text, in a manner that no condition can express."""


class Slot(msgspec.Struct, frozen=True):
    """Where the text number `index` is printed, after `strips` (method and its characters)."""

    index: int
    strips: tuple[tuple[Strip, str | None], ...] = ()


Piece = str | Slot


class Trace:
    """What one run assumed: texts are not blank, and none of `absent` is in them.

    `absent` has pairs of a text's number and what it must not hold. `refused` says what the
    template did that nothing can be assumed for; it stays "" where the run counts.
    """

    def __init__(self) -> None:
        self.absent: dict[tuple[int, str], None] = {}
        self.clock: dict[str, str] = {}
        self.refused = ""

    def refuse(self, what: str) -> ReadsTextError:
        """Note what the template did; a template may swallow the error, the note stays."""
        self.refused = self.refused or what
        return ReadsTextError(what)


class OpaqueText(str):
    """Not blank; printed, joined, stripped of blanks. Asked for a mark, it has none."""

    __slots__ = ("pieces", "trace")
    trace: Trace
    pieces: tuple[Piece, ...]

    def __bool__(self) -> bool:
        """Return True: no text is blank, and stripping blanks leaves something of it."""
        return True

    def __eq__(self, other: object) -> bool:
        """Return False, as no text equals a blank or a mark."""
        if isinstance(other, OpaqueText):
            raise self.trace.refuse("compares texts")
        if not isinstance(other, str) or not other or other.isspace():
            return False
        return self._has(other)

    def __ne__(self, other: object) -> bool:
        """Return the contrary of equality."""
        return not self == other

    def __hash__(self) -> int:
        """Refuse."""
        raise self.trace.refuse("looks a text up")

    def __contains__(self, mark: object) -> bool:
        """Return False, and note that the text must not have the mark."""
        return self._has(mark)

    def __add__(self, other: object) -> str:
        """Return both, one after the other."""
        if not isinstance(other, str):
            raise TypeError("can only join a text and a text")
        return joined((self, other))

    def __radd__(self, other: object) -> str:
        """Return both, one after the other."""
        if not isinstance(other, str):
            raise TypeError("can only join a text and a text")
        return joined((other, self))

    def strip(self, chars: str | None = None, /) -> str:
        """Return it without blanks at both ends."""
        if len(self.pieces) == 1:
            return self._stripped("strip", chars, 0)
        return self.lstrip(chars).rstrip(chars)

    def lstrip(self, chars: str | None = None, /) -> str:
        """Return it without blanks in front."""
        return self._stripped("lstrip", chars, 0)

    def rstrip(self, chars: str | None = None, /) -> str:
        """Return it without blanks behind."""
        return self._stripped("rstrip", chars, -1)

    def startswith(self, prefix: str, /, *rest: object) -> bool:  # type: ignore[override]  # traced
        """Return False, and note that the text must not have the mark."""
        return self._has(prefix, *rest)

    def endswith(self, suffix: str, /, *rest: object) -> bool:  # type: ignore[override]  # traced
        """Return False, and note that the text must not have the mark."""
        return self._has(suffix, *rest)

    def split(self, sep: str | None = None, maxsplit: int = -1) -> list[str]:  # type: ignore[override]  # traced
        """Return it alone, and note that the text must not have the mark."""
        self._has(sep)
        del maxsplit
        return [self]

    def replace(self, old: str, new: str, count: int = -1, /) -> str:  # type: ignore[override]  # traced
        """Return it, and note that the text must not have the mark."""
        self._has(old)
        del new, count
        return self

    def _has(self, mark: object, *rest: object) -> Literal[False]:
        if isinstance(mark, OpaqueText) or rest or not isinstance(mark, str) or not mark:
            raise self.trace.refuse("asks what is in a text")
        first, *others = self.pieces
        if others or not isinstance(first, Slot):
            raise self.trace.refuse(f"looks for {mark!r} in a text and its surroundings")
        self.trace.absent[first.index, mark] = None
        return False

    def _stripped(self, method: Strip, chars: str | None, end: Literal[0, -1]) -> str:
        if chars is not None and not (type(chars) is str and chars.isspace()):
            raise self.trace.refuse("strips more than blanks")
        pieces = list(self.pieces)
        while isinstance(literal := pieces[end], str):  # a slot is left: no text is blank
            pieces[end] = getattr(literal, method)(chars)
            if pieces[end]:
                return opaque(self.trace, pieces)
            del pieces[end]
        pieces[end] = Slot(literal.index, (*literal.strips, (method, chars)))
        return opaque(self.trace, pieces)


def opaque(trace: Trace, pieces: Iterable[Piece]) -> OpaqueText:
    """Return a text of these pieces, at least one of them a slot."""
    text = str.__new__(OpaqueText, SENTINEL)
    text.trace, text.pieces = trace, tuple(pieces)
    return text


def joined(texts: Iterable[str]) -> str:
    """Return the texts one after the other: opaque if one of them is."""
    pieces: list[Piece] = []
    trace: Trace | None = None
    for text in texts:
        if isinstance(text, OpaqueText):
            trace = text.trace
            pieces += text.pieces
        elif text:
            pieces.append(text)
    if trace is None:
        return "".join(piece for piece in pieces if isinstance(piece, str))
    return opaque(trace, pieces)


def as_text(value: object = "") -> str:
    """Return what `str` does, an opaque text as it is."""
    return value if isinstance(value, OpaqueText) else str(value)


def _refusing(name: str) -> object:
    def refused(self: OpaqueText, *_args: object, **_named: object) -> object:
        raise self.trace.refuse(f"uses {name} of a text")

    return refused


_KEPT: Final = frozenset(
    (
        *("__class__", "__delattr__", "__dir__", "__doc__", "__getattribute__", "__getstate__"),
        *("__init__", "__init_subclass__", "__new__", "__setattr__", "__sizeof__"),
        "__subclasshook__",
    )
)
for _name in dir(str):
    if _name not in _KEPT and _name not in vars(OpaqueText):
        setattr(OpaqueText, _name, _refusing(_name))


def put_texts(value: object, texts: "dict[str, OpaqueText]") -> object:
    """Return a copy of a message or a part of one, with opaque texts where their keys stand.

    Keys begin with one and the same character.
    """
    if isinstance(value, str):
        if value in texts:
            return texts[value]
        # All keys begin alike: most strings of a long chat are told apart by that.
        return _with_texts(value, texts) if next(iter(texts), " ")[0] in value else value
    if isinstance(value, list):
        return [put_texts(one, texts) for one in cast("list[object]", value)]
    if isinstance(value, dict):
        fields = cast("JsonObject", value)
        return {key: put_texts(one, texts) for key, one in fields.items()}
    return value


def _with_texts(value: str, texts: "dict[str, OpaqueText]") -> str:
    for key, text in texts.items():
        before, found, after = value.partition(key)
        if found:
            return joined((before, text, _with_texts(after, texts)))
    return value
