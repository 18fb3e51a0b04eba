"""What following an engine's event publisher asks of whoever has the sockets."""

import msgspec


class Deliver(msgspec.Struct, frozen=True):
    """Hand over batch `seq`: the one after the last, or the first after `Restarted` or `Lost`."""

    seq: int
    payload: bytes


class Restarted(msgspec.Struct, frozen=True):
    """The engine began anew: all that was delivered is void, batches count from 0 again."""


class Resumed(msgspec.Struct, frozen=True):
    """The publisher still has batch `seq` as it was: what was held behind it is so again, and what
    followed comes now, also what was delivered before.
    """

    seq: int


class Lost(msgspec.Struct, frozen=True):
    """Batches `first..last` are gone for good: the engine's cache is no longer known."""

    first: int
    last: int


class SourceCaughtUp(msgspec.Struct, frozen=True):
    """All the engine has published has been delivered, or is lost and said so."""

    last_seq: int


class AskReplay(msgspec.Struct, frozen=True):
    """Ask for everything from `first` on, over a fresh connection, and tag replies with `round`.

    A fresh connection has an empty queue, so that the first reply cannot be one of those the
    publisher drops. It replaces the round before.
    """

    round: int
    first: int


Action = Deliver | Restarted | Resumed | Lost | SourceCaughtUp | AskReplay
"""What the caller must do; several are done in the order given."""
