"""The actor kernel: an actor takes a message and answers with effects, never acting itself.

A driver (`app.process.aio` for real, `tests.doubles.sim` in virtual time) delivers messages one at
a time and carries the effects out. The same actor code runs under both.
"""

from collections.abc import Iterable, Mapping
from typing import Literal, Protocol

import msgspec


class Message(msgspec.Struct, frozen=True):
    """Base of all messages to actors (see `messages`)."""


class Effect(msgspec.Struct, frozen=True):
    """Base of everything an actor can wish for."""


class Send(Effect, frozen=True):
    """Tell actor `to` of the same process; messages between two actors keep their order."""

    to: str
    message: Message


class Wake(Effect, frozen=True):
    """Tell this actor `message` after `after_s` seconds (0: after the turns already queued)."""

    after_s: float
    message: Message


class Append(Effect, frozen=True):
    """Append to the journal; answered by `Appended(token, sequence)`, or by nothing at all."""

    subject: str
    data: bytes
    token: int


class Publish(Effect, frozen=True):
    """Send on the bus and forget."""

    subject: str
    data: bytes


Fields = Mapping[str, str | int | float | bool | None]
"""What a log line says besides its event."""


class Log(Effect, frozen=True):
    """Write one structured log line; `event` is a constant string."""

    level: Literal["debug", "info", "warning", "error"]
    event: str
    fields: Fields = {}


class Actor(Protocol):
    """State behind a mailbox. `name` is its address in the process."""

    name: str

    def receive(self, message: Message, now: float) -> Iterable[Effect]:
        """Fold `message`, return the wishes in order. `now` is monotonic seconds."""
        ...
