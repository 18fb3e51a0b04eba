"""The compiled decoders without memory, and called with what they do not take.

No bytes alone reach these lines of C, but a machine short of memory does, and a slip of our own
Python would. Either is an exception, never a crash.
"""

import contextlib
import gc
import importlib
import io
import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain, product
from typing import Any, Final

import msgspec

from kvmesh import _native
from kvmesh.core.blocks.events import Cleared, Removed, Stored, WorkerId
from kvmesh.core.chat.kept import Kept
from kvmesh.core.engines.engine_events import (
    FULL_ATTENTION,
    EngineBatch,
    EngineCleared,
    EngineRemoved,
    EngineStored,
)
from kvmesh.core.engines.event_stream import EventStream, new_event_stream
from kvmesh.core.engines.kv_events.dialect import FARTHEST_TIER, TIERS, decode_engine_batch
from kvmesh.core.engines.sse import find_usage
from kvmesh.core.prompts.json_size import BETWEEN
from kvmesh.core.routing.event_fold import EventFold
from kvmesh.errors import CodecError
from kvmesh.transport.grpc.connection import make_session
from kvmesh.transport.grpc.extproc_messages import KINDS, Modes
from tests.fuzz import extproc_targets, grpc_targets, http_targets, mesh_targets, scan_targets
from tests.fuzz.stories.engine_batches import Chooser, build_batches
from tests.fuzz.stories.grpc_frames import build_frames
from tests.fuzz.stories.journal_stories import build_messages
from tests.property.support.records import bare, grew, message, named, placed, state_begins
from tests.property.support.replica import Replica
from tests.property.support.starving import starved

core: Any = _native
W: Final = WorkerId("w")
LONGEST: Final = 13
"""Calls that a decoder is given by a seed."""
TRIES: Final = 8
"""Allocations that fail one after the other, each of a decoder made anew."""

LIFE: Final = (
    *(placed(7, 0, (6, 24, 24, 2), (1, 2, 3)), placed(7, 0, (6, 24, 8, 2), (1, 2, 3))),
    *(bare(1, 7), grew(7, 17), bare(3, 7), placed(8, 0, (3, 12, 12, 1)), state_begins()),
    *(placed(8, 0, (3, 12, 12, 1)), placed(9, 0, (3, 12, 12, 1)), bare(1, 8), bare(3, 8)),
)
"""Records of bookings behind the name of their worker, each a message of its own."""

MOST_CALLS: Final = 12
TYPES: Final = (*KINDS, Modes, CodecError)
LIMITS: Final = (100, 4, 1000, 10, 100)
REFUSALS: Final = (
    *(ArithmeticError, AttributeError, CodecError, LookupError, MemoryError, RuntimeError),
    *(TypeError, ValueError),
)
Call = Callable[[], object]


def _root_of(lora: str, salt: str) -> int:
    return len(lora) + len(salt)


ENGINE_NAMES: Final = (
    *(TIERS, FULL_ATTENTION, _root_of),
    *(EngineStored, EngineRemoved, EngineCleared),
)


def _cache() -> Any:
    return core.EngineCache(
        4, False, FARTHEST_TIER, ENGINE_NAMES, (Stored, Removed, Cleared), LIMITS
    )


def _json(data: bytes) -> Iterator[Call]:
    yield partial(core.scan_tokens, data)
    yield partial(core.ask_usage, data, True)
    for chat in (False, True):
        kept = core.scan(data, chat)
        yield partial(core.scan, data, chat)
        yield from (partial(getattr, kept, name) for name in dir(kept) if name[0] != "_")
    yield partial(core.scan_json, data, BETWEEN, 0)


def _engine_events(data: bytes) -> Iterator[Call]:
    cache = _cache()
    for payload in build_batches(data)[:6] or [data]:
        yield partial(cache.take, payload)
        with contextlib.suppress(CodecError):
            yield partial(cache.fold, decode_engine_batch(payload))
        yield cache.lose


def _with_memory(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return `call` as it is where nothing fails any more: what it calls in turn is not under test,
    and msgspec's decoder does not live through a failed allocation.
    """

    def called(*arguments: Any) -> Any:
        importlib.import_module("_testcapi").remove_mem_hooks()
        return call(*arguments)

    return called


def _all_with_memory(kind: type[Any]) -> type[Any]:
    """Return a class whose methods are called so."""
    methods = {
        name: _with_memory(one)
        for name, one in vars(kind).items()
        if callable(one) and name[0] != "_"
    }
    return type(kind.__name__, (kind,), methods)


Twin: Final = _all_with_memory(EventStream)
Folding: Final = _all_with_memory(EventFold)
find: Final = _with_memory(find_usage)


def _event_streams(data: bytes) -> Iterator[Call]:
    stream = core.EventStream(Twin, find, Kept)
    if data[:1] > b"\x80":
        stream.keep(64, data[0] % 2)
    _, pieces = http_targets.cut(data)
    for piece in pieces:
        yield partial(stream.take, b"%x\r\n%b\r\n" % (len(piece), piece), 1)
        yield partial(stream.feed, piece)
        yield from (partial(getattr, stream, name) for name in ("usage", "held", "error", "kept"))
    yield stream.is_complete
    yield stream.flush


def _http2(data: bytes) -> Iterator[Call]:
    session = make_session(grpc_targets.WIDE if data[:1] > b"\x40" else grpc_targets.LIMITS)
    session.receive(grpc_targets.PREFACE)
    for piece in chain(build_frames(data[1:])[:6], http_targets.cut(data)[1]):
        yield partial(session.receive, piece[:20])
        yield partial(session.receive, piece[20:])
        yield session.take


def _ext_proc(data: bytes) -> Iterator[Call]:
    yield partial(core.read_extproc, TYPES, data)


def _journal(data: bytes) -> Iterator[Call]:
    table, ends = core.Table(), core.Table()
    holding, ended = table.admit(W, 1), ends.admit(W, 1)
    for number, record in enumerate([*build_messages(data)][:6]):
        place = record, 1, 1 + number, 1000
        yield partial(table.fold, holding, *place)
        yield partial(table.fold_ends, holding, *place, (ends, ended))


def _bookings(data: bytes) -> Iterator[Call]:
    twin = Replica("w", "w0")
    events = Folding(twin.scheduler)
    yield partial(_message_fold, twin, events=events)
    fold, peer = _message_fold(twin, events=events).fold, core.Peer("p", 1, 0.0)
    fold(peer, message(named(0, "w")), 0.0)
    for number, record in enumerate(LIFE, 2):
        yield partial(fold, peer, message(record, first_seq=number), float(number))
    late = message(bare(1, 9), named(1, "v"), first_seq=len(LIFE) + 2)
    yield partial(_message_fold(twin, events=object()).fold, peer, late, 20.0)
    yield partial(fold, peer, data, 30.0)


DECODERS: Final[Sequence[Callable[[bytes], Iterator[Call]]]] = (
    *(_json, _engine_events, _event_streams, _http2, _ext_proc, _journal, _bookings),
)


def starving(data: bytes) -> None:
    """Have one allocation after the other fail; the first byte chooses the decoder, the second the
    first of them, the third how many calls are made with memory before.
    """
    if len(data) < 3:
        return
    make, first, spared, rest = DECODERS[data[0] % len(DECODERS)], data[1], data[2], data[3:]
    gc.freeze()  # so that a collection, which empties Python's own stores of objects, is quick
    # A bytearray without memory has Python 3.11 print an error about what it never set.
    quiet = contextlib.redirect_stderr(io.StringIO())
    try:
        for number in range(first, first + TRIES):
            for at, call in enumerate(make(rest)):
                gc.collect()
                with (
                    contextlib.suppress(AttributeError, CodecError, MemoryError, RuntimeError),
                    quiet,
                ):
                    call() if at < spared else starved(number, call)
    finally:
        gc.unfreeze()


def _never(*_arguments: object) -> object:
    raise ZeroDivisionError


ODD: Final[tuple[Any, ...]] = (
    *(None, -1, 0, 1 << 70, 0.5, "x", "\xfc", b"", b"data: {}\n\n", [], (), {}, set(), object()),
    *((None,) * 8, (CodecError,) * 8, (int,) * 8, [1], (1, 2), _never, memoryview(b"x"), True),
)


def _right_calls() -> list[tuple[Callable[..., Any], tuple[Any, ...]]]:
    """Return what is called, and with what it takes."""
    table, twin, cache = core.Table(), Replica("w"), _cache()
    holding, stream, session = (
        table.admit(W, 1),
        new_event_stream(),
        make_session(grpc_targets.WIDE),
    )
    frames = grpc_targets.PREFACE
    twin.peers.receive("p", mesh_targets.RECORDS, 0.0)
    peer = core.Peer("p", 1, 0.0)
    stored: tuple[Any, ...] = ((1,), None, b"\1\0\0\0", 1, 0, (5,))
    return [
        (core.scan, (b"{}", True)),
        (core.scan_tokens, (b"{}",)),
        (core.scan_json, (b"{}", BETWEEN, 0)),
        (core.read_extproc, (TYPES, b"")),
        (core.EventStream, (EventStream, find_usage, Kept)),
        (partial(core.EventStream, EventStream, find_usage, Kept), ()),
        (partial(new_event_stream().keep), (9, True)),
        (_event_stream_by_name, ("make",)),
        (stream.feed, (b"data: {}\r\n\n",)),
        (stream.take, (b"", 1)),
        (core.EventStream(_never, _never, _never).feed, (b": \n\n",)),
        (core.EventStream(_never, _never, _never).take, (b"1\r\n\n\r\n", 1)),
        (
            partial(_gather, core.EventStream(EventStream, _never, _never)),
            (b'data: {"usage":{}}\n\n',),
        ),
        (cache.take, (b"",)),
        (cache.fold, (EngineBatch(0.0, 0, (EngineStored(*stored),)),)),
        (_fold_stored, stored),
        (_fold_batch, (0.0, 0, (), 0, 0)),
        (_fold_removed, ((1,), 0, 0)),
        (core.GrpcSession, msgspec.structs.astuple(grpc_targets.WIDE)[1:9]),
        (session.receive, (frames,)),
        (core.Peer, ("p", 1, 0.0)),
        (_message_fold(twin).fold, (peer, mesh_targets.RECORDS, 0.0)),
        (partial(_make_message_fold, twin), (None, None)),
        (partial(_make_message_fold, twin, "hints"), (twin.hints,)),
        (partial(_make_message_fold, twin, "sequences"), (twin.sequences,)),
        (table.admit, (W, 1)),
        (table.fold, (holding, b"", 1, 1, 10)),
        (table.fold_ends, (holding, b"", 1, 1, 10, (table, holding))),
    ]


def _event_stream_by_name(name: str) -> None:
    core.EventStream(EventStream, find_usage, Kept, **{name: 1})


def _gather(stream: Any, data: bytes) -> None:
    stream.feed(data)
    stream.feed(data)


def _fold_batch(*fields: Any) -> object:
    return _cache().fold(EngineBatch(*fields))


def _fold_stored(*fields: Any) -> object:
    return _fold_batch(0.0, 0, (EngineStored(*fields),))


def _fold_removed(*fields: Any) -> object:
    return _fold_batch(0.0, 0, (EngineRemoved(*fields),))


def _message_fold(twin: Replica, **other: object) -> Any:
    """Return what folds messages into a replica, but for what is `other`."""
    membership = twin.scheduler.workers.membership
    parts: dict[str, object] = {
        "events": twin.events(),
        "sequences": twin.sequences,
        "speeds": twin.scheduler.speeds,
        "hints": twin.hints,
        "members": membership.by_name,
        "strangers": {},
        "out": membership.health.out,
        "distrusted": set(),
        "late": {},
        "ttls": (1.0, 1.0),
        "has_index": False,
        "limits": (10, 10),
    }
    return core.MessageFold(**parts | other)


def _make_message_fold(twin: Replica, name: object, other: object) -> None:
    fold = _message_fold(twin, **{name if isinstance(name, str) else "events": other})
    fold.fold(core.Peer("p", 1, 0.0), mesh_targets.MORE_RECORDS, 1.0)


def misused(data: bytes) -> None:
    """Call decoders with arguments of which one is odd, too many or missing; then collect."""
    chooser, calls = Chooser(data), _right_calls()
    for _ in range(MOST_CALLS):
        if chooser.is_empty:
            break
        call, right = calls[chooser.below(len(calls))]
        arguments = list(right)
        odd = ODD[chooser.below(len(ODD))]
        place = chooser.below(len(arguments) + 1)
        arguments[place : place + chooser.below(3)] = [odd]
        with contextlib.suppress(*REFUSALS):
            call(*arguments)
    if data[-1:] > b"\xf0":
        gc.freeze()
        _leave_cycles()
        gc.collect()
        gc.unfreeze()


def _leave_cycles() -> None:
    """Leave decoders that hold themselves, each the first that the collector clears."""
    held: dict[str, object] = {}
    held["fold"] = _message_fold(Replica("w"), members=held)
    held = {}
    held["stream"] = core.EventStream(held.get, held.get, held.get)


TARGETS: Final[dict[str, Callable[[bytes], None]]] = {"starving": starving, "misused": misused}


def seeds(target: str) -> Iterator[bytes]:
    """Yield what chooses each decoder with seeds of its own, and calls at random."""
    rng = random.Random(6)
    if target == "misused":
        for length in range(40, 80):
            yield rng.randbytes(length) + b"\xff"
        return
    known = (
        *([*scan_targets.seeds("scan")][:4], [rng.randbytes(60) for _ in range(3)]),
        *([*http_targets.seeds("sse")], [rng.randbytes(40) for _ in range(6)]),
        *([*extproc_targets.seeds("extproc")], [rng.randbytes(100) for _ in range(4)]),
        [mesh_targets.RECORDS],
    )
    for number, inputs in enumerate(known):
        for one in inputs:
            for first, spared in product((0, 1, 2), range(0, LONGEST, 2)):
                yield bytes([number, first * TRIES, spared]) + one
