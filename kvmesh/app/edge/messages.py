"""What edge processes and the index process of one router tell each other, and its codec.

Within one link `n` numbers a request. An edge sends Ask, then any of AttemptFailed, Again,
Answering, Progress, and last Ended or Withdrawn, once; each Ask and Again is answered by Go or
Refuse, perhaps with a Held before it. Abandon may come while an attempt is under way.
"""

from collections.abc import Iterable, Sequence
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from kvmesh.bounds import (
    MAX_NAMES,
    Count,
    MaybeName,
    Priority,
    Temperature,
    Tokens,
    Weight,
)
from kvmesh.core.blocks.events import HASH_BYTES, WorkerId
from kvmesh.core.blocks.hashing import BlockHashes, pack_hashes
from kvmesh.core.engines.sse import Usage
from kvmesh.core.members.last_known import KnownWorker
from kvmesh.core.routing.decision import RouteRequest, RouterMode
from kvmesh.errors import CodecError
from kvmesh.transport.http.forward.plan import Outcome
from kvmesh.transport.http.server.server import HttpStatistics
from kvmesh.transport.http.upstream.messages import UpstreamFailure
from kvmesh.transport.http.wire.problem import Problem

Pairs = list[tuple[bytes, bytes]]

MOST_BLOCKS: Final = 1 << 17
"""Blocks of a prompt that are told: 1 MiB, so that no few prompts fill a frame. With 16 tokens each
they are 2 M tokens, more than any engine takes.
"""

Status = Annotated[int, Meta(ge=0, le=999)]
Names = Annotated[frozenset[MaybeName], Meta(max_length=MAX_NAMES)]


class Hello(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """An edge introduces itself."""

    edge: Count
    pid: Count


class Wanted(msgspec.Struct, frozen=True, array_like=True):
    """What few requests wish; the fields are `RouteRequest`'s."""

    cost: MaybeName | None
    allowed_workers: Annotated[frozenset[WorkerId], Meta(max_length=MAX_NAMES)] | None
    labels: Names
    tolerations: Names
    overridden: bool


_NOTHING: Final = Wanted(None, None, frozenset(), frozenset(), overridden=False)


class Ask(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Choose a worker and book. `hashes` are packed, the first `MOST_BLOCKS`; the other fields are
    `RouteRequest`'s.
    """

    n: Count
    visible_id: bytes
    hashes: Annotated[bytes, Meta(max_length=MOST_BLOCKS * HASH_BYTES)]
    request_id: MaybeName
    prompt_tokens: Tokens
    expected_output_tokens: Tokens
    model: MaybeName
    mode: RouterMode | None
    temperature: Temperature | None
    overlap_score_weight: Weight | None
    pinned_worker: WorkerId | None
    priority: Priority
    streams: bool
    tenant: MaybeName
    session: MaybeName
    wanted: Wanted | None
    approximate: bool


class AttemptFailed(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """The worker failed; its booking may go."""

    n: Count
    failure: UpstreamFailure


class Again(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Choose another worker."""

    n: Count


class Answering(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """The worker answers."""

    n: Count
    status: Status


class Progress(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """So many tokens have passed."""

    n: Count
    tokens: Tokens


class RequestEnded(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """The request is over."""

    n: Count
    outcome: Outcome
    usage: Usage | None


class Withdrawn(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """The edge did not wait for the choice and made its own."""

    n: Count


class EdgeReport(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """An edge's own counters, each second. `unguided` requests went without the index's word."""

    http: HttpStatistics
    unguided: Count
    warnings: tuple[str, ...] = ()


class Go(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """Send the request there. `headers` go to the worker, `told` to the client."""

    n: Count
    worker: WorkerId
    origin: str
    headers: Pairs
    told: Pairs


class Refuse(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Answer with `problem`; without one nothing is left to try."""

    n: Count
    problem: Problem | None


class Queued(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """The request waits for its turn; the answer may take long."""

    n: Count


class Abandon(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """Give up the attempt under way: its worker hangs."""

    n: Count
    failure: UpstreamFailure


class WorkerUpdate(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """The workers now, and where the index process serves the cold paths; each second.

    `splits`: some only prefill for others, so that prompts take two workers. Prompts are hashed by
    blocks of `block_size` tokens.
    """

    workers: list[KnownWorker]
    origin: str
    block_size: Tokens
    splits: bool = False


FromEdge = (
    Hello
    | Ask
    | AttemptFailed
    | Again
    | Answering
    | Progress
    | RequestEnded
    | Withdrawn
    | EdgeReport
)
ToEdge = Go | Refuse | Queued | WorkerUpdate | Abandon

_encoder: Final = msgspec.msgpack.Encoder()
_from_edge: Final = msgspec.msgpack.Decoder(list[FromEdge])
_to_edge: Final = msgspec.msgpack.Decoder(list[ToEdge])


class EdgeCodec:
    """The codec of an edge's end."""

    def encode(self, messages: Sequence[FromEdge]) -> bytes:
        """Return one frame's content."""
        return _encoder.encode(messages)

    def decode(self, data: memoryview) -> Iterable[ToEdge]:
        """Return the messages in a frame. Raises `CodecError`."""
        try:
            return _to_edge.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise CodecError(f"frame from the index process: {error}") from error


class IndexCodec:
    """The codec of the index process's end."""

    def encode(self, messages: Sequence[ToEdge]) -> bytes:
        """Return one frame's content."""
        return _encoder.encode(messages)

    def decode(self, data: memoryview) -> Iterable[FromEdge]:
        """Return the messages in a frame. Raises `CodecError`."""
        try:
            return _from_edge.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise CodecError(f"frame from an edge process: {error}") from error


def ask(n: int, request: RouteRequest, visible_id: bytes) -> Ask:
    """Return `request` as it travels: hashed to the end, or as far as is told."""
    hashes = request.hashes
    wanted = Wanted(
        request.cost,
        request.allowed_workers,
        request.labels,
        request.tolerations,
        request.overridden,
    )
    return Ask(
        n=n,
        visible_id=visible_id,
        hashes=pack_hashes(hashes.upto(MOST_BLOCKS))[: MOST_BLOCKS * HASH_BYTES],
        request_id=request.request_id,
        prompt_tokens=request.prompt_tokens,
        expected_output_tokens=request.expected_output_tokens,
        model=request.model,
        mode=request.mode,
        temperature=request.temperature,
        overlap_score_weight=request.overlap_score_weight,
        pinned_worker=request.pinned_worker,
        priority=request.priority,
        streams=request.streams,
        tenant=request.tenant,
        session=request.session,
        wanted=None if wanted == _NOTHING else wanted,
        approximate=request.approximate,
    )


def asked(message: Ask, block_size: int) -> RouteRequest:
    """Return the request that travelled as `message`. Raises `CodecError`."""
    wanted = message.wanted or _NOTHING
    return RouteRequest(
        request_id=message.request_id,
        hashes=BlockHashes.unpack(message.hashes, block_size),
        prompt_tokens=message.prompt_tokens,
        expected_output_tokens=message.expected_output_tokens,
        model=message.model,
        mode=message.mode,
        temperature=message.temperature,
        overlap_score_weight=message.overlap_score_weight,
        pinned_worker=message.pinned_worker,
        priority=message.priority,
        streams=message.streams,
        tenant=message.tenant,
        session=message.session,
        cost=wanted.cost,
        allowed_workers=wanted.allowed_workers,
        labels=wanted.labels,
        tolerations=wanted.tolerations,
        overridden=wanted.overridden,
        approximate=message.approximate,
    )
