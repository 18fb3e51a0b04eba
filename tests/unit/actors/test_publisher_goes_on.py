import msgspec

from kvmesh.actors.checkpoints import EngineResumed
from kvmesh.actors.engine_messages import (
    CacheEmptied,
    EngineCaughtUp,
    EngineConnected,
    EngineLost,
    EnginePayload,
    EngineRestarted,
    PromptServed,
)
from kvmesh.actors.kernel import Log
from kvmesh.actors.messages import Tick
from kvmesh.actors.publisher import KNOWN_AGAIN
from kvmesh.core.blocks.events import ROOT, WorkerId
from kvmesh.core.blocks.hashing import pack_hashes
from kvmesh.core.engines.kv_events.checkpoint import EngineCheckpoint
from kvmesh.core.engines.kv_events.event_source import batch_digest
from kvmesh.core.engines.kv_events.regaining import PROOF_RUNS
from tests.unit.actors.effects import of
from tests.unit.actors.test_publisher import (
    H1,
    H2,
    TOKENS,
    Driver,
    W,
    payload,
    store,
    stored,
)


def resumable(driver: Driver) -> EngineCheckpoint:
    """Return what a sidecar knows that read three batches."""
    for seq, hashes in enumerate((11, 12, 13)):
        driver.tell(EnginePayload(payload(store(hashes, tokens=TOKENS[:4])).data, seq))
    checkpoint = driver.publisher.checkpoint()
    assert checkpoint is not None
    return checkpoint


def test_what_it_knows_is_had_as_of_the_last_batch_that_it_read() -> None:
    driver = Driver()
    assert driver.publisher.checkpoint() is None
    assert driver.publisher.heartbeat().engine_seq is msgspec.UNSET

    checkpoint = resumable(driver)

    last = payload(store(13, tokens=TOKENS[:4])).data
    assert (checkpoint.seq, checkpoint.batch) == (2, batch_digest(last))
    assert driver.publisher.heartbeat().engine_seq == 2
    driver.tell(EngineRestarted())
    assert driver.publisher.checkpoint() is None


def test_it_goes_on_from_what_another_knew_and_counts_when_the_rest_is_read() -> None:
    checkpoint = resumable(Driver())
    driver = Driver()
    driver.tell(EngineConnected(connected=True))
    driver.tell(EngineLost("batches 0..1 cannot be replayed"))
    was_whole = driver.publisher.is_whole
    assert driver.publisher.why_not_from(checkpoint) == ""
    other = msgspec.structs.replace(checkpoint, secret_mark=7)
    assert driver.publisher.why_not_from(other) == "its hashes are of another secret"

    driver.tell(EngineResumed(checkpoint))

    beat = driver.heartbeat()
    assert (was_whole, driver.publisher.is_whole) == (False, True)
    assert (beat.complete, beat.catching_up, beat.engine_seq) == (False, True, msgspec.UNSET)
    driver.tell(EngineCaughtUp())
    beat = driver.heartbeat()
    assert (beat.complete, beat.catching_up, beat.engine_seq) == (True, False, 2)
    assert driver.tell(EngineCaughtUp()) == []
    assert driver.publisher.statistics().resumed == 1
    assert driver.publisher.dump() == [stored(ROOT, H1)]


def test_blocks_that_are_none_leave_it_as_lost_as_it_was() -> None:
    checkpoint = resumable(Driver())
    saved = msgspec.structs.replace(checkpoint.saved, blocks=b"none")
    driver = Driver()

    driver.tell(EngineResumed(msgspec.structs.replace(checkpoint, saved=saved)))

    assert not driver.heartbeat().complete
    assert driver.publisher.dump() == []


def test_a_cache_that_an_operator_emptied_is_told_as_empty_at_once() -> None:
    driver = Driver()
    driver.tell(payload(store(11, tokens=TOKENS[:4])))
    before = driver.publisher.dump()

    driver.tell(CacheEmptied(WorkerId("another")))
    others = driver.publisher.dump()
    driver.tell(CacheEmptied(W))

    assert before == others == [stored(ROOT, H1)]
    assert driver.publisher.dump() == []
    assert driver.heartbeat().complete


def test_answers_tell_what_was_lost_and_runs_that_all_is_known() -> None:
    driver = Driver()
    driver.tell(EngineLost("batches 0..1 cannot be replayed"))
    assert driver.heartbeat().wants_answers
    driver.tell(payload(store(12, parent=11, tokens=TOKENS[4:8])))

    driver.tell(PromptServed(W, pack_hashes([H1, H2]), 1, 0.1))
    driver.now = 1.0
    driver.tell(Tick("heartbeat"))

    assert driver.publisher.dump() == [stored(ROOT, H1, H2)]
    for number in range(PROOF_RUNS):
        driver.tell(payload(store(100 + number, tokens=[number + 50] * 4)))
    beat = driver.heartbeat()
    assert beat.complete
    assert not beat.wants_answers
    assert KNOWN_AGAIN in [line.event for line in of(Log, driver.effects)]
