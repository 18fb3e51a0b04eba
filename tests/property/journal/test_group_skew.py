"""A sidecar whose engine turns to several cache groups and back, while readers of format 1 come and
go: who reads format 2 always holds what it holds, who does not does after each change to format 1.
"""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from kvmesh.actors.engine_messages import EngineLost, EnginePayload, EngineRestarted
from kvmesh.actors.kernel import Message
from kvmesh.actors.messages import Tick, WriteFormat
from kvmesh.core.blocks.events import VERSION
from kvmesh.core.index.index import KvIndex
from kvmesh.core.journal.replica import IndexReplica
from kvmesh.formats import FormatRange, Formats
from tests.unit.actors.test_publisher import Driver, W

KINDS = ("full_attention", "sliding_window", "mamba")


def stored(
    hashes: list[int], parent: int | None, medium: str, group: int, more: int
) -> list[object]:
    blocks = len(hashes) + (more if group else 0)
    tokens = [one % 2 for one in range(4 * blocks)]
    place = [4, None, medium, None, None, group, KINDS[group], 6]
    return ["BlockStored", hashes, parent, tokens, *place]


def removed(hashes: list[int], group: int) -> list[object]:
    return ["BlockRemoved", hashes, "GPU", group]


def payload(events: list[list[object]]) -> Message:
    return EnginePayload(msgspec.msgpack.encode([0.0, events, 0]))


def told_format(number: int) -> Message:
    return WriteFormat(W, number, "r1")


hashes = st.lists(st.integers(1, 9), max_size=3)
cleared: list[object] = ["AllBlocksCleared"]
events = st.one_of(
    st.builds(
        stored,
        hashes,
        st.none() | st.integers(1, 9),
        st.sampled_from(["GPU", "GPU", "CPU"]),
        st.sampled_from([0, 0, 1, 2]),
        st.integers(0, 1),
    ),
    st.builds(removed, hashes, st.integers(0, 2)),
    st.just(cleared),
)
payloads = st.lists(events, max_size=3).map(payload)
others: list[Message] = [EngineRestarted(), EngineLost("a gap"), told_format(1), told_format(2)]
messages = st.one_of(payloads, payloads, payloads, st.sampled_from(others))
BOTH = FormatRange(1, 2)
BEGINS = payload([stored([1, 2], None, "GPU", group, 0) for group in (0, 1)])


@given(st.lists(messages, max_size=25))
def test_replicas_hold_what_a_sidecar_tells_in_the_format_of_the_day(
    reported: list[Message],
) -> None:
    driver = Driver(formats=Formats(journal=BOTH))
    current = IndexReplica(KvIndex(), reads=BOTH)
    former = IndexReplica(KvIndex(), reads=FormatRange(VERSION, VERSION))
    read = 0
    for message in [BEGINS, *reported]:
        driver.tell(message)
        driver.now += 100.0
        driver.tell(Tick("flush"))
        for append in driver.appends[read:]:
            read += 1
            for replica in (current, former):
                replica.fold(read, W, append.data, driver.now)
        heartbeat = driver.publisher.heartbeat()
        held = KvIndex()
        for event in driver.publisher.dump():
            held.apply(W, event)
        assert current.index.worker_digest(W) == held.worker_digest(W)
        assert current.index.ends.rule(W) == held.ends.rule(W)
        if heartbeat.journal_format == VERSION:
            assert former.index.worker_digest(W) == held.worker_digest(W)
            assert former.index.ends.rule(W) == held.ends.rule(W)
