"""What the replicas of a bucket tell each other of agents, as bytes in a table that they share."""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from kvmesh.bounds import MAX_SECONDS, UNREADABLE, Epoch, Member
from kvmesh.core.programs.table import AgentRecord
from kvmesh.errors import CodecError, NewerError
from kvmesh.formats import OWN, FormatNumber, unread_by

PROGRAM_TTL_S: Final = 2 * 3600
"""Seconds after which an agent of which nothing is told is no longer in the table: twice the time
in which 99 of 100 pauses of coding agents end.
"""

MAX_PROGRAMS: Final = 1 << 16
"""Agents in the table: the one told longest ago goes for one more."""

MAX_BYTES: Final = 4096
"""A record with the longest names is shorter."""

FORMAT: Final = OWN.programs.newest


class AgentUpdate(msgspec.Struct, frozen=True, array_like=True):
    """An agent as the replica told of it that changed it last, or another in its name.

    `reported_s` is Unix time by the teller's clock; the ages are of that moment. `epoch` tells
    one life of the replica from the next.
    """

    format: FormatNumber
    replica: Member
    epoch: Epoch
    reported_s: Annotated[float, Meta(ge=0.0, le=10 * MAX_SECONDS)]
    record: AgentRecord


class _Head(msgspec.Struct, frozen=True, array_like=True):
    format: FormatNumber


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(AgentUpdate)
_HEADS: Final = msgspec.msgpack.Decoder(_Head)


def encode_update(replica: str, epoch: int, reported_s: float, record: AgentRecord) -> bytes:
    """Return the value of an agent's key."""
    return _ENCODER.encode(AgentUpdate(FORMAT, replica, epoch, reported_s, record))


def decode_update(data: bytes) -> AgentUpdate:
    """Return what a value says; that its record makes sense is for `check_record`.

    Raises `NewerError` for a format of a newer version, `CodecError` for what is no such value.
    """
    if len(data) > MAX_BYTES:
        raise CodecError(f"{len(data):,} bytes about an agent, more than {MAX_BYTES:,}")
    try:
        number = _HEADS.decode(data).format
        if number not in OWN.programs:
            why = unread_by("programs", number, OWN)
            raise NewerError(why, number=number)
        return _DECODER.decode(data)
    except UNREADABLE as error:
        raise CodecError(f"nothing about an agent: {error}") from error


def at(updates: AgentUpdate, passed_s: float) -> AgentRecord:
    """Return the record with its ages `passed_s` after it was told; never younger."""
    passed_s = min(max(0.0, passed_s), PROGRAM_TTL_S)
    record = updates.record
    return msgspec.structs.replace(
        record, age_s=record.age_s + passed_s, since_s=record.since_s + passed_s
    )
