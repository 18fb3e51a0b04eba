"""What processes of a mesh tell each other and store, under any bytes.

What is taken must be itself again after a round trip: a figure that is no number is not.
"""

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Final

from nacl.signing import SigningKey
from xxhash import xxh3_64

from kvmesh.actors.kernel import Message
from kvmesh.actors.member_messages import Reread
from kvmesh.actors.messages import (
    Drain,
    Dump,
    Reload,
    Resync,
    RouterHeartbeat,
    StateWanted,
    Status,
    TakeSnapshot,
    WorkerHeartbeat,
    WriteFormat,
)
from kvmesh.actors.wire import decode, encode
from kvmesh.bounds import UNREADABLE
from kvmesh.core.admission.shares import Shares
from kvmesh.core.blocks.events import ROOT, Stored, WorkerId
from kvmesh.core.blocks.hashing import pack_hashes
from kvmesh.core.chat.named_streams import (
    NamedStreams,
    StreamHead,
    StreamNews,
    decode_news,
    encode_news,
)
from kvmesh.core.chat.stream_marks import cut_behind
from kvmesh.core.index.index import KvIndex
from kvmesh.core.index.snapshot_manifest import (
    Manifest,
    SnapshotGeneration,
    decode_manifest,
    encode_manifest,
)
from kvmesh.core.index.snapshot_reading import decode_snapshot
from kvmesh.core.index.snapshot_writing import MAGIC, Position, encode_snapshot
from kvmesh.core.members.url_rules import parse_url_rules
from kvmesh.errors import CodecError, ConfigError, KvMeshError
from kvmesh.transport.nats.trust.anchors import Anchor, Anchors, decode_anchors, encode_anchors
from kvmesh.transport.nats.trust.claim import Claims
from kvmesh.transport.nats.trust.freshness import Freshness
from kvmesh.transport.nats.trust.judgement import Message as SealedMessage
from kvmesh.transport.nats.trust.judgement import judge
from kvmesh.transport.nats.trust.nkey import user_key
from kvmesh.transport.nats.trust.seal import find_seal
from kvmesh.transport.nats.trust.signer import Signer
from tests.fuzz.stories.booking_stories import tell_story
from tests.property.support.records import (
    bare,
    failed,
    grew,
    named,
    placed,
    state_begins,
    state_ends,
)
from tests.property.support.records import message as message_of
from tests.property.support.replica import Replica

KINDS: Final[tuple[type[Message], ...]] = (
    WorkerHeartbeat, RouterHeartbeat, Drain, Resync, Reload, StateWanted, Dump, Status,
    TakeSnapshot, Reread, WriteFormat,
)  # fmt: skip
RULES: Final = parse_url_rules(["10.0.0.0/8:8000", "*.engines.svc"], ["http://own:1"])
SECRET: Final = SigningKey(bytes(32))
WORKER_KEY: Final = user_key(bytes(SECRET.verify_key))
HEART: Final = "kvmesh.hb.b.w"
STORY: Final = 0x80
"""With this bit in the first byte, the rest chooses among well-formed records."""

RECORDS: Final = message_of(
    named(0, "w"),
    placed(7, 0, (21, 85, 40, 3), list(range(6))),
    placed(8, 0, (9, 36, 36, 1), flags=5),
)
MORE_RECORDS: Final = message_of(
    *(bare(1, 7), grew(7, 17), bare(3, 7), failed(8, 3, "reset", 0.5, 2.0), state_begins()),
    *(named(1, "v"), state_ends()),
    first_seq=4,
    shares=Shares(1, 2, [], beat=True),
)
"""Goes on behind `RECORDS` and has each kind of record."""

MOST_NAMED: Final = 1 << 14
MARK: Final = b"\x00\1\4\0\1\2\3\4"
HEAD: Final = StreamHead("/v1/completions", b'{"prompt":"a"}', b'{"id":"x"}', b"\1\0\0\0")
NEWS: Final = StreamNews("mine", "ann", 3, ids=b"\2\0\0\0", marks=MARK, head=HEAD)
GROWN: Final = StreamNews("mine", "ann", 3, "over", 4, b"\3\0\0\0", 8, MARK)


def message(data: bytes) -> None:
    """Read a heartbeat or a command; the first byte chooses the kind."""
    if not data:
        return
    kind = KINDS[data[0] % len(KINDS)]
    with contextlib.suppress(CodecError):
        taken = decode(data[1:], kind)
        assert decode(encode(taken), kind) == taken, taken
        if isinstance(taken, WorkerHeartbeat | RouterHeartbeat):
            RULES.why_not(taken.url)


def records(data: bytes) -> None:
    """Hear a sibling's booking records in both cores: they come to know the same. Bytes behind one
    that is no version of records choose a story of well-formed ones.
    """
    if data and data[0] >= STORY:
        tell_story(data[1:])
        return
    twins = [Replica("w", compiled=compiled) for compiled in (False, True)]
    answers = list[object]()
    for twin in twins:
        twin.peers.receive("p", RECORDS, 0.0)
        try:
            answers.append(twin.peers.receive("p", data, 1.0))
        except CodecError as error:
            answers.append(str(error))
    assert answers[0] == answers[1], answers
    assert twins[0].view() == twins[1].view()


def news(data: bytes) -> None:
    """Hear of named streams, and cut each behind any of its events."""
    streams = NamedStreams(MOST_NAMED)
    streams.take(NEWS, 0.0)
    with contextlib.suppress(*UNREADABLE, ValueError):
        heard = decode_news(data)
        assert [one for part in encode_news(heard, 1 << 20) for one in decode_news(part)] == heard
        for one in heard:
            streams.take(one, 1.0)
            assert streams.used <= MOST_NAMED
            found = streams.find(one.key, 1.0)
            for events in range(0 if found is None else found.events() + 1):
                assert found is not None
                cut = cut_behind(found.kept(), events)
                assert cut is not None
                assert len(cut.kept.token_ids) <= len(found.ids)


def manifest(data: bytes) -> None:
    """Read a manifest."""
    with contextlib.suppress(KvMeshError):
        taken = decode_manifest(data)
        assert decode_manifest(encode_manifest(taken)) == taken


def snapshot(data: bytes) -> None:
    """Load a snapshot whose checksum is right, whatever it says."""
    content = MAGIC + data
    with contextlib.suppress(CodecError):
        decode_snapshot(content + xxh3_64(content).intdigest().to_bytes(8, "little"))


def url(data: bytes) -> None:
    """Judge a URL, and read it as a rule."""
    text = data.decode("utf-8", "replace")
    RULES.why_not(text)
    with contextlib.suppress(ConfigError):
        parse_url_rules([text])


def signature(data: bytes) -> None:
    """Judge a message by its headers, and read them as a trust file: none is believed."""
    claim = Claims("kvmesh").read(HEART)
    assert claim is not None
    anchors = Anchors((Anchor("worker", WORKER_KEY, "b", "w"),))
    sealed = SealedMessage(claim, HEART, find_seal(data), b"forged")
    assert judge(sealed, anchors, 0, Freshness()) is not None
    with contextlib.suppress(ConfigError):
        decode_anchors(data, "trust.json")


TARGETS: Final[dict[str, Callable[[bytes], None]]] = {
    "message": message,
    "records": records,
    "news": news,
    "manifest": manifest,
    "snapshot": snapshot,
    "url": url,
    "signature": signature,
}


def seeds(target: str) -> Iterator[bytes]:
    """Yield one well-formed input of each kind."""
    worker = WorkerHeartbeat(WorkerId("w"), "b", 1, 1, "http://w:1", ("m",), 16)
    router = RouterHeartbeat("r", "b", "http://r:1", ready=True, epoch=1)
    own = WorkerId("w")
    commands = (Drain(), Resync(own, 1, 1), WriteFormat(own, 2, "r"))
    reported: tuple[Message, ...] = (worker, router, *commands)
    made = {
        "message": [bytes([KINDS.index(type(one))]) + encode(one) for one in reported],
        "records": [RECORDS, MORE_RECORDS, *_stories()],
        "news": encode_news([NEWS, GROWN], 1 << 10),
        "manifest": [
            encode_manifest(Manifest((SnapshotGeneration("idx", "today", 9, 100, "00", 1),)))
        ],
        "snapshot": [_snapshot()[len(MAGIC) : -8]],
        "url": [b"http://10.1.2.3:8000", b"https://[::ffff:169.254.169.254]:1", b"*.x:1-9"],
    }
    if target == "signature":
        header = Signer("kvmesh", SECRET, wall_ns=int).sign(HEART, b"mine", None) or {}
        for name, value in header.items():
            yield f"NATS/1.0\r\n{name}: {value}\r\n\r\n".encode()
        yield encode_anchors(
            (Anchor("worker", WORKER_KEY, "b", "w", 2), Anchor("admin", WORKER_KEY))
        )
        return
    yield from made[target]


def _stories() -> Iterator[bytes]:
    rng = random.Random(3)
    for length in range(20, 420, 20):
        yield bytes([STORY]) + rng.randbytes(length)


def _snapshot() -> bytes:
    index = KvIndex()
    for worker in (WorkerId("a"), WorkerId("b")):
        assert not index.apply(worker, Stored(ROOT, pack_hashes([1, 2, 3])))
    return b"".join(encode_snapshot(index.freeze(), Position("today", 3)))
