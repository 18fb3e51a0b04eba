"""Subjects and bytes of everything that travels on the bus."""

from collections.abc import Iterable
from typing import Final, TypeVar

import msgspec

from kvmesh.actors.kernel import Message
from kvmesh.errors import CodecError

MOST_MODELS_BYTES: Final = 128 * 1024
MOST_WORKERS_BYTES: Final = 256 * 1024
"""Of models' and workers' names in a router's heartbeat: a server may take 512 KiB a message."""

_M = TypeVar("_M", bound=Message)
_encoder = msgspec.msgpack.Encoder()


class Subjects(msgspec.Struct, frozen=True):
    """The subjects of one bucket."""

    namespace: str
    bucket: str

    def events(self, worker: str = "*") -> str:
        """Return where a worker's journal records go."""
        return f"{self.namespace}.ev.{self.bucket}.{worker}"

    def heartbeats(self, worker: str = "*") -> str:
        """Return where a worker's heartbeats go."""
        return f"{self.namespace}.hb.{self.bucket}.{worker}"

    def routers(self, router: str = "*") -> str:
        """Return where a router replica's heartbeats go."""
        return f"{self.namespace}.rt.{self.bucket}.{router}"

    def bookings(self, router: str = "*") -> str:
        """Return where a router replica's bookings go."""
        return f"{self.namespace}.seq.{self.bucket}.{router}"

    def named_streams(self, router: str = "*") -> str:
        """Return where a router replica tells how far streams have come."""
        return f"{self.namespace}.str.{self.bucket}.{router}"

    def usage(self, router: str = "*") -> str:
        """Return where a router replica records what was used."""
        return f"{self.namespace}.use.{self.bucket}.{router}"

    def limits(self, router: str = "*") -> str:
        """Return where a router replica tells what it charged to keys and tenants with limits."""
        return f"{self.namespace}.lim.{self.bucket}.{router}"

    def control(self, worker: str = "*") -> str:
        """Return where commands to one worker go."""
        return f"{self.namespace}.ctl.{self.bucket}.{worker}"

    def router_control(self, router: str = "*") -> str:
        """Return where commands to one router replica go; it may bear a worker's name."""
        return f"{self.namespace}.rctl.{self.bucket}.{router}"

    def stream(self) -> str:
        """Return the name of the bucket's event stream."""
        return f"{self.namespace.upper()}_EVENTS_{self.bucket}"


def last_token(subject: str) -> str:
    """Return who a subject is about: its last token."""
    return subject.rpartition(".")[2]


def fixed_part(pattern: str) -> str:
    """Return what every subject that matches `pattern` begins with."""
    return pattern.partition("*")[0].partition(">")[0]


def fitting(names: Iterable[str], most_bytes: int) -> tuple[str, ...]:
    """Return the first of `names`, as many as take `most_bytes` in a message."""
    size, kept = 0, list[str]()
    for name in names:
        size += len(name.encode()) + 5
        if size > most_bytes:
            break
        kept.append(name)
    return tuple(kept)


def encode(message: Message) -> bytes:
    """Return `message` as a msgpack map, by field name, so that versions may add fields."""
    return _encoder.encode(message)


def decode_command(data: bytes, commands: "msgspec.msgpack.Decoder[_M]") -> _M:
    """Return the command in `data`, one of those that `commands` reads. Raises `CodecError`."""
    try:
        return commands.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise CodecError(f"command of {len(data)} bytes: {error}") from error


def decode(data: bytes, kind: type[_M]) -> _M:
    """Return the message of that kind. Raises `CodecError`."""
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise CodecError(f"{kind.__name__} of {len(data)} bytes: {error}") from error
