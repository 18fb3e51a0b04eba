import json
from pathlib import Path

import msgspec
import pytest

from kvmesh.actors.cache_report import BATCH, GROUPS, LEFT_OUT, SUMMARY
from kvmesh.actors.engine_messages import (
    EngineAnswers,
    EngineLoad,
    EngineLost,
    EnginePayload,
    EngineRestarted,
    EngineServes,
)
from kvmesh.actors.kernel import Append, Effect, Log, Message, Publish, Wake
from kvmesh.actors.messages import (
    Appended,
    BusMessage,
    Drain,
    Resync,
    Started,
    Tick,
    WorkerHeartbeat,
    WorkerLoad,
    WriteFormat,
)
from kvmesh.actors.publisher import Publisher
from kvmesh.actors.publisher_options import PublisherOptions
from kvmesh.actors.wire import decode, encode
from kvmesh.core.blocks.events import (
    ENDS,
    ROOT,
    Batch,
    Cleared,
    Event,
    Removed,
    Reuse,
    Stored,
    WorkerId,
    decode_batch,
)
from kvmesh.core.blocks.hashing import pack_hashes, sequence_hashes
from kvmesh.core.journal.event_sender import SenderLimits
from kvmesh.formats import OWN, FormatRange, Formats
from tests.unit.actors.effects import of

CAPTURE = Path(__file__).parents[2] / "fixtures" / "engines" / "vllm_0.32.0_live.jsonl"
W = WorkerId("w")
TOKENS = list(range(12))
H1, H2, H3 = sequence_hashes(TOKENS, 4)


def store(
    *hashes: int, parent: int | None = None, tokens: list[int], medium: str = "GPU"
) -> object:
    return {
        "type": "BlockStored",
        "block_hashes": list(hashes),
        "parent_block_hash": parent,
        "token_ids": tokens,
        "block_size": 4,
        "medium": medium,
    }


def remove(*hashes: int) -> object:
    return {"type": "BlockRemoved", "block_hashes": list(hashes)}


def payload(*events: object) -> EnginePayload:
    return EnginePayload(msgspec.msgpack.encode([0.0, list(events), 0]))


class Driver:
    """Runs a publisher by hand: the journal stores at once, unless told otherwise."""

    def __init__(
        self,
        limits: SenderLimits | None = None,
        *,
        stores: bool = True,
        events: bool = True,
        log_batches: bool = False,
        formats: Formats = OWN,
    ) -> None:
        self.publisher = Publisher(
            PublisherOptions(
                *(W, "code", 5, "http://w", ("m",), 4),
                limits=limits or SenderLimits(window=4),
                events=events,
                log_batches=log_batches,
                formats=formats,
                incarnation=7,
            )
        )
        self.stores = stores
        self.now = 0.0
        self.appends: list[Append] = []
        self.effects: list[Effect] = []
        self.tell(Started())

    def tell(self, message: Message) -> list[Effect]:
        effects = list(self.publisher.receive(message, self.now))
        self.effects += effects
        for append in of(Append, effects):
            self.appends.append(append)
            if self.stores:
                effects += self.tell(Appended(append.token, len(self.appends)))
        return effects

    def batches(self) -> list[Batch]:
        return [decode_batch(append.data, FormatRange(1, 3)) for append in self.appends]

    def events(self) -> list[Event]:
        return [event for batch in self.batches() for event in batch.events]

    def heartbeat(self) -> WorkerHeartbeat:
        return decode(of(Publish, self.effects)[-1].data, WorkerHeartbeat)


def stored(parent: int, *hashes: int, tier: int = 0) -> Stored:
    return Stored(parent, pack_hashes(hashes), tier)


def test_it_starts_with_an_empty_state_and_a_sign_of_life() -> None:
    driver = Driver()

    assert driver.appends[0].subject == "kvmesh.ev.code.w"
    assert driver.batches() == [Batch(1, 5, 1, [Cleared()])]
    assert of(Publish, driver.effects)[0].subject == "kvmesh.hb.code.w"
    assert Wake(1.0, Tick("heartbeat")) in driver.effects


def test_engine_events_are_sent_together_after_a_moment() -> None:
    driver = Driver()
    first = driver.tell(payload(store(11, 12, tokens=TOKENS[:8])))
    second = driver.tell(payload(store(13, parent=12, tokens=TOKENS[8:])))

    assert (first, second) == ([Wake(0.003, Tick("flush"))], [])
    driver.tell(Tick("flush"))
    assert driver.batches()[1:] == [Batch(1, 5, 2, [stored(ROOT, H1, H2, H3)])]


def test_the_first_event_after_a_pause_waits_for_nothing() -> None:
    driver = Driver()
    driver.now = 0.5
    driver.tell(payload(store(11, 12, tokens=TOKENS[:8])))
    at_once = driver.batches()[1:]
    driver.now = 0.501
    [wake] = of(Wake, driver.tell(payload(store(13, parent=12, tokens=TOKENS[8:]))))

    assert at_once == [Batch(1, 5, 2, [stored(ROOT, H1, H2)])]
    assert wake.after_s == pytest.approx(0.002)
    assert len(driver.batches()) == 2


def test_an_inner_eviction_takes_descendants_along_until_it_returns() -> None:
    driver = Driver()
    driver.tell(payload(store(11, 12, tokens=TOKENS[:8])))
    driver.tell(Tick("flush"))
    driver.tell(payload(remove(11)))
    driver.tell(Tick("flush"))
    driver.tell(payload(store(11, tokens=TOKENS[:4])))
    driver.tell(Tick("flush"))

    assert driver.events()[2:] == [Removed(pack_hashes([H2, H1])), stored(ROOT, H1, H2)]


def test_tiers_are_made_closed_one_by_one() -> None:
    driver = Driver()
    driver.tell(payload(store(11, tokens=TOKENS[:4])))
    driver.tell(payload(store(11, 12, tokens=TOKENS[:8], medium="CPU")))
    driver.tell(Tick("flush"))

    assert driver.events()[1:] == [stored(ROOT, H1), stored(ROOT, H1, H2, tier=1)]
    assert driver.publisher.dump() == driver.events()[1:]


def test_what_the_cache_did_is_summed_up_in_the_log_and_each_batch_where_asked() -> None:
    quiet, each = Driver(), Driver(log_batches=True)
    for driver in (quiet, each):
        driver.tell(payload(store(11, tokens=TOKENS[:4])))
        for _ in range(4):
            driver.now += 1.0
            driver.tell(Tick("heartbeat"))

    events = [[line.event for line in of(Log, driver.effects)] for driver in (quiet, each)]
    assert events == [[SUMMARY], [BATCH, SUMMARY]]


def test_heartbeats_tell_what_the_journal_has() -> None:
    driver = Driver(stores=False)
    driver.tell(EngineLoad(WorkerLoad(3, 1, 40, 100)))
    driver.tell(Tick("heartbeat"))
    assert driver.heartbeat().last_seq == 0

    driver.tell(Appended(driver.appends[0].token, 1))
    driver.tell(Tick("heartbeat"))

    beat = driver.heartbeat()
    assert (beat.worker, beat.epoch, beat.last_seq, beat.block_size) == (W, 5, 1, 4)
    assert (beat.url, beat.models, beat.load) == ("http://w", ("m",), WorkerLoad(3, 1, 40, 100))
    assert beat.complete
    assert not beat.draining


def test_other_models_of_the_engine_show_at_once() -> None:
    driver = Driver()

    driver.tell(EngineServes(("base", "poet"), ("poet",)))

    assert driver.heartbeat().models == ("base", "poet")
    assert driver.heartbeat().adapters == ("poet",)


def test_an_engine_that_hangs_shows_at_once_and_ends_no_drain() -> None:
    driver = Driver()
    driver.tell(EngineAnswers(answering=False))
    assert (driver.heartbeat().answering, driver.heartbeat().draining) == (False, True)

    driver.tell(EngineAnswers(answering=True))
    assert (driver.heartbeat().answering, driver.heartbeat().draining) == (True, False)

    driver.tell(Drain())
    driver.tell(EngineAnswers(answering=False))
    driver.tell(EngineAnswers(answering=True))
    assert (driver.heartbeat().answering, driver.heartbeat().draining) == (True, True)


def test_what_the_journal_does_not_store_is_sent_again() -> None:
    driver = Driver(stores=False)
    assert Wake(1.0, Tick("retry")) in driver.effects
    driver.now = 1.0

    effects = driver.tell(Tick("retry"))

    assert [append.data for append in driver.appends] == [driver.appends[0].data] * 2
    assert Wake(2.0, Tick("retry")) in effects


def test_what_waited_for_room_is_sent_when_there_is_some() -> None:
    driver = Driver(SenderLimits(window=1), stores=False)
    driver.tell(payload(store(11, tokens=TOKENS[:4])))
    driver.tell(Tick("flush"))
    assert len(driver.appends) == 1

    driver.tell(Appended(driver.appends[0].token, 1))

    assert driver.events() == [Cleared(), stored(ROOT, H1)]


def test_a_remade_journal_gets_everything_again() -> None:
    driver = Driver(stores=False)
    driver.tell(Appended(driver.appends[0].token, 50))
    driver.tell(payload(store(11, tokens=TOKENS[:4])))
    driver.tell(Tick("flush"))

    effects = driver.tell(Appended(driver.appends[1].token, 2))

    assert [log.event for log in of(Log, effects)] == ["journal was remade, dumping again"]
    assert driver.events()[-2:] == [Cleared(), stored(ROOT, H1)]
    assert driver.publisher.statistics().remade == 1


def test_a_higher_epoch_is_gone_above_and_said_at_once_by_the_incarnation_that_was_asked() -> None:
    driver = Driver()
    driver.tell(payload(store(11, 12, tokens=TOKENS[:8])))
    driver.tell(Tick("flush"))

    assert driver.tell(Resync(W, 9, 0, "r1", incarnation=8)) == []
    assert driver.heartbeat().epoch == 5

    driver.tell(Resync(W, 9, 0, "r1", incarnation=7))
    assert driver.heartbeat().epoch == 10
    assert driver.heartbeat().incarnation == 7
    driver.now = 1.0
    driver.tell(Tick("flush"))
    assert driver.batches()[-1] == Batch(1, 10, 1, [Cleared(), stored(ROOT, H1, H2)])


@pytest.mark.parametrize("epoch", [2**62, 2**64 - 1, -1])
def test_a_resync_to_an_epoch_that_cannot_be_is_refused_and_said(epoch: int) -> None:
    driver = Driver()
    asked = {"type": "resync", "worker": "w", "epoch": epoch, "next_seq": 1, "router": "r"}

    [said] = driver.tell(BusMessage("kvmesh.ctl.code.w", msgspec.msgpack.encode(asked)))

    assert isinstance(said, Log)
    assert said.event == "message refused"
    assert driver.heartbeat().epoch == 5
    driver.tell(payload(store(11, tokens=TOKENS[:4])))
    driver.tell(Tick("flush"))
    assert driver.batches()[-1].epoch == 5


def test_a_restarted_engine_is_empty_and_completely_known() -> None:
    driver = Driver()
    driver.tell(payload(store(11, tokens=TOKENS[:4])))
    driver.tell(EngineLost("hole"))
    driver.tell(EngineRestarted())
    driver.tell(Tick("flush"))
    driver.tell(Tick("heartbeat"))

    assert driver.events()[-1] == Cleared()
    assert driver.heartbeat().complete


@pytest.mark.parametrize("loss", [EngineLost("hole"), EnginePayload(b"\xc1")])
def test_an_engine_whose_history_is_lost_holds_nothing_and_says_so(loss: Message) -> None:
    driver = Driver()
    driver.tell(payload(store(11, tokens=TOKENS[:4])))
    driver.tell(Tick("flush"))

    effects = driver.tell(loss)
    driver.tell(Tick("flush"))

    assert [log.event for log in of(Log, effects)] == ["engine events lost"]
    assert driver.events()[-1] == Cleared()
    assert not driver.publisher.heartbeat().complete
    assert driver.publisher.statistics().cache.lost == 1


def test_a_cleared_cache_makes_a_lost_history_complete_again() -> None:
    driver = Driver()
    driver.tell(EngineLost("hole"))
    driver.tell(payload({"type": "AllBlocksCleared"}))
    driver.tell(Tick("heartbeat"))

    assert driver.heartbeat().complete


def test_what_an_engine_sends_beyond_our_knowledge_is_counted() -> None:
    driver = Driver()
    driver.tell(payload({"type": "Novelty"}, {"type": "AllBlocksCleared", "why": 1}))

    counted = driver.publisher.statistics().cache
    assert (counted.unknown_tags, counted.unknown_fields) == (1, 1)


def test_a_live_capture_of_vllm_is_followed_without_a_doubt() -> None:
    publisher = Publisher(PublisherOptions(W, "code", 5, "http://w", block_size=32))
    visible: list[int] = []

    for line in CAPTURE.read_text().splitlines():
        batch = EnginePayload(bytes.fromhex(json.loads(line)["hex"]))
        list(publisher.receive(batch, 0.0))
        visible.append(publisher.statistics().cache.visible_blocks)

    counted = publisher.statistics().cache
    assert (counted.lost, counted.residency.orphans, counted.residency.unknown_removals) == (0,) * 3
    assert visible[:4] == [3, 4, 4, 7]
    assert visible[-2:] == [65, 3]
    assert counted.residency.mismatched_blocks == counted.residency.partial_blocks == 0


def test_messages_of_no_concern_are_ignored() -> None:
    assert Driver().tell(Message()) == []


def test_events_of_another_block_size_than_was_said_count_and_raise_an_alarm_once() -> None:
    publisher = Publisher(PublisherOptions(W, "code", 5, "http://w", block_size=16))
    batch = payload(store(11, 12, tokens=TOKENS[:8]))

    effects = [*publisher.receive(batch, 0.0), *publisher.receive(batch, 0.0)]

    [log] = of(Log, effects)
    assert (log.level, log.fields) == ("error", {"worker": W, "said": 16, "events": 4})
    assert publisher.heartbeat().block_size == 4


@pytest.mark.parametrize("on_bus", [False, True])
def test_the_format_that_replicas_tell_is_written_and_an_older_one_begins_with_a_dump(
    on_bus: bool,
) -> None:
    formats = Formats(journal=FormatRange(1, 3))
    driver = Driver(formats=formats)
    driver.tell(payload(store(11, tokens=TOKENS[:4])))

    def tell(number: int) -> list[Effect]:
        command = WriteFormat(W, number, "r1")
        return driver.tell(BusMessage("kvmesh.ctl.code.w", encode(command)) if on_bus else command)

    first = driver.heartbeat()
    newer = tell(3)
    said = driver.heartbeat()
    driver.now = 1.0
    driver.tell(payload(store(12, parent=11, tokens=TOKENS[4:8])))
    driver.tell(Tick("flush"))
    again = tell(3)
    tell(1)

    assert (first.journal_format, first.formats) == (1, formats)
    assert [one.event for one in of(Log, newer)] == ["journal format changed"]
    assert (said.journal_format, again) == (3, [])
    versions = [batch.version for batch in driver.batches()]
    assert versions[-2:] == [3, 1]
    assert driver.batches()[-1].events == [Cleared(), stored(ROOT, H1, H2)]


def windowed(*hashes: int, tokens: list[int]) -> tuple[object, object]:
    """Store blocks in a full-attention group, and the last of them in one of a window of 4."""
    event = store(*hashes, tokens=tokens)
    assert isinstance(event, dict)
    full = event | {"group_idx": 1, "kv_cache_spec_kind": "full_attention"}
    window = {"group_idx": 0, "kv_cache_spec_kind": "sliding_window"}
    return event | window | {"block_hashes": [hashes[-1]], "kv_cache_spec_sliding_window": 4}, full


def ends(*hashes: int) -> Stored:
    return Stored(ROOT, pack_hashes(hashes), ENDS)


def test_where_hits_may_end_is_written() -> None:
    driver = Driver()
    driver.now = 1.0
    driver.tell(payload(*windowed(11, 12, tokens=TOKENS[:8])))
    driver.now = 2.0
    driver.tell(payload(*windowed(11, 12, 13, tokens=TOKENS)))
    driver.now = 3.0
    driver.tell(payload(remove(11)))

    _, first, more, *_ = driver.batches()
    assert first == Batch(1, 5, 2, [Cleared(), Reuse(), stored(ROOT, H1, H2), ends(H2)])
    assert more.events == [stored(H2, H3), ends(H3)]
    assert driver.publisher.heartbeat().complete


def test_cache_groups_and_events_that_are_left_out_are_said() -> None:
    driver = Driver()
    full, window = windowed(11, 12, tokens=TOKENS[:8])
    assert isinstance(window, dict)
    chunks = window | {"group_idx": 5, "kv_cache_spec_kind": "chunked_local_attention"}

    first = of(Log, driver.tell(payload(full, window)))
    second = of(Log, driver.tell(payload(chunks, {"type": "BlockStored"})))
    third = of(Log, driver.tell(payload({"type": "BlockStored"})))
    fourth = of(Log, driver.tell(payload({"type": "BlockStored"})))

    groups = "sliding_window of 4 in blocks of 4, full_attention in blocks of 4"
    assert [(one.level, one.event, one.fields["groups"]) for one in first] == [
        ("info", GROUPS, groups)
    ]
    assert [(one.level, one.event) for one in second] == [
        ("warning", GROUPS),
        ("warning", LEFT_OUT),
    ]
    assert second[0].fields["not_understood"] == "chunked_local_attention"
    assert second[1].fields["events"] == 1
    assert [one.fields["events"] for one in third] == [2]
    assert fourth == []


def test_formats_for_others_and_without_events_change_nothing() -> None:
    driver, silent = Driver(), Driver(events=False)

    assert driver.tell(WriteFormat(WorkerId("x"), 2, "r1")) == []
    assert silent.tell(WriteFormat(W, 2, "r1")) == []
    assert driver.tell(WriteFormat(W, 1, "r1")) == []
    assert driver.publisher.heartbeat().journal_format == 1


def test_cached_blocks_are_not_reported_as_used() -> None:
    driver = Driver()
    driver.tell(payload(store(11, tokens=TOKENS[:4])))
    driver.tell(EngineLoad(WorkerLoad(running_requests=1, used_blocks=0, total_blocks=8)))
    driver.tell(Tick("heartbeat"))

    assert driver.heartbeat().load == WorkerLoad(running_requests=1, used_blocks=0, total_blocks=8)
    assert driver.heartbeat().reading == 1


@pytest.mark.parametrize("on_bus", [False, True])
def test_a_replica_that_misses_everything_gets_a_dump(on_bus: bool) -> None:
    driver = Driver()
    driver.tell(payload(store(11, 12, tokens=TOKENS[:8])))
    driver.tell(Tick("flush"))
    asked = Resync(W, 5, 0, "r1")

    driver.tell(BusMessage("kvmesh.ctl.code.w", encode(asked)) if on_bus else asked)

    assert driver.batches()[-1] == Batch(1, 5, 3, [Cleared(), stored(ROOT, H1, H2)])
    assert driver.publisher.statistics().resyncs == 1
    assert driver.publisher.publish_seconds().cumulative()[-1][1] == len(driver.appends)
