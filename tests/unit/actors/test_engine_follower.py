from collections.abc import Iterable

import msgspec

from kvmesh.actors.engine_follower import BEGINS_S, EngineFollower, FollowerOptions
from kvmesh.actors.engine_messages import (
    CacheEmptied,
    EngineCaughtUp,
    EngineConnected,
    EngineLost,
    EnginePayload,
    EngineRestarted,
    EngineServed,
    PromptServed,
)
from kvmesh.actors.kernel import Effect, Log, Message, Wake
from kvmesh.actors.messages import Tick, TrustChanged
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.hashing import pack_hashes, sequence_hashes
from kvmesh.core.engines.kv_events.regaining import PROOF_RUNS
from kvmesh.core.index.index import KvIndex
from kvmesh.core.members.worker_info import Trust
from tests.unit.actors.effects import of, sent

W = WorkerId("w")
TOKENS = list(range(12))


def batch(*events: object) -> EnginePayload:
    return EnginePayload(msgspec.msgpack.encode([0.0, list(events), 0]))


def store(block_size: int = 4, blocks: int = 3) -> object:
    return {
        "type": "BlockStored",
        "block_hashes": list(range(11, 11 + blocks)),
        "parent_block_hash": None,
        "token_ids": TOKENS[: block_size * blocks],
        "block_size": block_size,
    }


class Driver:
    def __init__(self, *, replays: bool = False) -> None:
        self.index = KvIndex()
        options = FollowerOptions(W, silent_requests=3, silent_s=10.0, replays=replays)
        self.follower = EngineFollower(self.index, options, name="follower-w")
        self.trust: list[tuple[Trust, str]] = []

    def tell(self, *messages: Message, now: float = 0.0) -> list[Effect]:
        effects: list[Effect] = []
        for message in messages:
            effects += self.follower.receive(message, now)
        self.trust += [(one.trust, one.reason) for one in _changes(effects)]
        return effects

    def blocks(self) -> int:
        return self.index.blocks(W)


def _changes(effects: Iterable[Effect]) -> list[TrustChanged]:
    return [one for one in sent(effects, "registry") if isinstance(one, TrustChanged)]


def caught_up() -> Driver:
    driver = Driver()
    driver.tell(EngineConnected(connected=True), EngineCaughtUp(), batch(store()))
    return driver


def test_it_is_exact_once_it_is_connected_and_has_read_all() -> None:
    driver = Driver()

    driver.tell(EngineConnected(connected=False))
    driver.tell(EngineConnected(connected=True))
    driver.tell(EngineCaughtUp())
    driver.tell(EngineCaughtUp(), batch(store()))

    assert [trust for trust, _ in driver.trust] == [Trust.APPROX, Trust.CATCHING_UP, Trust.EXACT]
    assert "cannot be reached" in driver.trust[0][1]
    assert (driver.blocks(), driver.follower.block_size) == (3, 4)
    assert driver.follower.statistics().visible_blocks == 3


def test_a_start_that_reads_all_events_in_time_warns_of_nothing() -> None:
    driver = Driver()

    effects = driver.tell(
        EngineConnected(connected=False),
        EngineConnected(connected=True),
        EngineCaughtUp(),
        Tick("begin"),
    )
    later = driver.tell(EngineConnected(connected=False))

    assert of(Wake, effects) == [Wake(BEGINS_S, Tick("begin"))]
    assert [log.level for log in of(Log, effects)] == ["info"] * 3
    assert [log.level for log in of(Log, later)] == ["warning"]


def test_events_that_cannot_be_read_a_while_after_the_start_are_warned_of_once() -> None:
    driver = Driver()

    first = of(Log, driver.tell(EngineConnected(connected=False)))
    late = of(Log, driver.tell(Tick("begin"), Tick("begin")))

    assert [log.level for log in first] == ["info"]
    assert [(log.level, log.fields["trust"]) for log in late] == [("warning", "approx")]
    assert Driver().tell(Tick("begin")) == []


def test_a_restart_empties_the_worker_and_keeps_the_trust() -> None:
    driver = caught_up()

    driver.tell(EngineRestarted())

    assert driver.blocks() == 0
    assert driver.trust[-1][0] is Trust.EXACT


def test_a_cache_that_an_operator_emptied_is_empty_before_and_behind_its_event() -> None:
    driver = caught_up()

    driver.tell(CacheEmptied(W))
    at_once = driver.blocks()
    driver.tell(batch({"type": "AllBlocksCleared"}), CacheEmptied(W), batch(store()))

    assert (at_once, driver.blocks()) == (0, 3)
    assert driver.trust[-1][0] is Trust.EXACT


def test_what_is_lost_is_not_believed_until_the_engine_clears() -> None:
    driver = caught_up()

    lines = of(Log, driver.tell(EngineLost("batches 1..2 cannot be replayed")))
    degraded = driver.trust[-1]
    driver.tell(batch({"type": "AllBlocksCleared"}))

    assert lines[0].fields["reason"] == "batches 1..2 cannot be replayed"
    assert degraded[0] is Trust.DEGRADED
    assert "lost" in degraded[1]
    assert driver.blocks() == 0
    assert driver.trust[-1] == (Trust.EXACT, "")


def test_bytes_that_are_no_batch_count_as_a_loss() -> None:
    driver = caught_up()

    driver.tell(EnginePayload(b"\xc1"))

    assert driver.trust[-1][0] is Trust.DEGRADED


def test_blocks_of_any_size_are_trusted() -> None:
    driver = Driver()

    driver.tell(EngineConnected(connected=True), batch(store(6, 2)))

    assert driver.trust[-1] == (Trust.EXACT, "")
    assert driver.follower.block_size == 6


def test_answers_without_any_event_for_long_mean_that_events_stopped() -> None:
    driver = caught_up()

    driver.tell(EngineServed(), EngineServed(), now=5.0)
    driver.tell(EngineServed(), now=14.9)
    before = driver.trust[-1][0]
    driver.tell(EngineServed(), now=15.0)
    silent = driver.trust[-1]
    driver.tell(batch(), now=16.0)

    assert before is Trust.EXACT
    assert silent[0] is Trust.APPROX
    assert "no KV event" in silent[1]
    assert driver.trust[-1][0] is Trust.EXACT


def test_messages_of_no_concern_are_ignored() -> None:
    assert Driver().tell(Message()) == []


def test_what_is_replayed_is_not_what_the_engine_holds_now() -> None:
    driver = Driver(replays=True)

    driver.tell(EngineConnected(connected=True), batch(store()))
    driver.tell(EngineCaughtUp(), EngineRestarted())

    trusts = [trust for trust, _ in driver.trust]
    assert trusts == [Trust.CATCHING_UP, Trust.EXACT, Trust.CATCHING_UP]


def test_what_was_lost_is_known_again_by_answers() -> None:
    driver = caught_up()
    driver.tell(EngineLost("batches 0..1 cannot be replayed"))
    assert driver.follower.wants_answers
    run = {
        "type": "BlockStored",
        "block_hashes": [12],
        "parent_block_hash": 11,
        "token_ids": TOKENS[4:8],
        "block_size": 4,
    }
    driver.tell(batch(run))
    hashes = pack_hashes(sequence_hashes(TOKENS[:8], 4))

    driver.tell(PromptServed(W, hashes, 1, 0.1))
    for number in range(PROOF_RUNS):
        known = {**run, "block_hashes": [100 + number], "parent_block_hash": None}
        driver.tell(batch({**known, "token_ids": [number + 50] * 4}), now=1.0)

    assert driver.blocks() == 2 + PROOF_RUNS
    assert driver.trust[-1] == (Trust.EXACT, "")
    assert not driver.follower.wants_answers
