"""Telling effects apart in tests."""

from collections.abc import Iterable
from typing import TypeVar

from kvmesh.actors.kernel import Effect, Message, Send

E = TypeVar("E", bound=Effect)


def of(kind: type[E], effects: Iterable[Effect]) -> list[E]:
    """Return the effects of one kind."""
    return [effect for effect in effects if isinstance(effect, kind)]


def sent(effects: Iterable[Effect], to: str) -> list[Message]:
    """Return what is sent to one actor."""
    return [effect.message for effect in of(Send, effects) if effect.to == to]
