from collections.abc import Collection

import msgspec
import pytest

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.programs.bookkeeper import MOST_KEPT_S
from kvmesh.core.programs.governor import Governor
from kvmesh.core.programs.held import GovernorOptions
from kvmesh.core.programs.shared import FORMAT, decode_update, encode_update
from kvmesh.core.programs.sharing import ABSENT_S, MAY_BE_LOST_S, ProgramSharing
from kvmesh.core.programs.table import Agent
from kvmesh.core.programs.turn import Grant, Turn, TurnEnd

W0, W1 = WorkerId("w0"), WorkerId("w1")
UNIX_S = 1_700_000_000.0
ALIVE = {"r0": 1, "r1": 1}


class TwoWorkers:
    """Two engines of 100,000 tokens each, as `Fleet`."""

    def workers(self, now: float) -> Collection[WorkerId]:
        del now
        return (W0, W1)

    def contexts(self, worker: WorkerId) -> int:
        del worker
        return 0

    def capacity_tokens(self, worker: WorkerId) -> int:
        del worker
        return 100_000

    def active_tokens(self, worker: WorkerId) -> int:
        del worker
        return 0

    def ms_per_token(self, worker: WorkerId) -> float:
        del worker
        return 0.5

    def seen_ms_per_token(self, worker: WorkerId, tokens: int) -> float:
        del tokens
        return self.ms_per_token(worker)


class Replica:
    """A governor and its part in the table."""

    def __init__(self, name: str, epoch: int = 1, max_agents: int = 1000) -> None:
        self.governor = Governor(GovernorOptions(max_agents=max_agents), TwoWorkers())
        self.sharing = ProgramSharing(self.governor, name, epoch)

    def reported(self, now: float = 0.0) -> dict[str, bytes]:
        return dict(self.sharing.take(1000, now, UNIX_S + now))

    def hears(self, reported: dict[str, bytes], now: float = 0.0) -> None:
        for key, value in reported.items():
            assert self.sharing.receive(key, value, now) == ""

    def agent(self, name: str) -> Agent:
        agent = self.governor.table.find(key_of(name))
        assert agent is not None
        return agent

    def begin(self, name: str, tokens: int = 60_000, now: float = 0.0) -> Grant | None:
        """Ask for a turn, and take it where it is granted."""
        turn = turn_of(name, tokens)
        grant = self.governor.ask(turn, now)
        if grant is not None:
            worker = min(grant.workers) if grant.workers else W0
            self.governor.chosen(turn, worker, now)
        return grant

    def end(self, name: str, now: float = 0.0) -> None:
        turn = turn_of(name)
        self.governor.ended(turn, TurnEnd(served=True, worker=W0, stop="tool"), now)


def key_of(name: str) -> str:
    return name.ljust(32, "0")


def turn_of(name: str, tokens: int = 60_000) -> Turn:
    key = key_of(name)
    return Turn(request_id=f"of {name}", agent=key, program=key, prompt_tokens=tokens)


@pytest.fixture
def pair() -> tuple[Replica, Replica]:
    return Replica("r0"), Replica("r1")


def test_a_sibling_knows_whose_cache_is_where(pair: tuple[Replica, Replica]) -> None:
    one, two = pair
    one.begin("a", now=3.0)

    two.hears(one.reported(5.0), now=105.0)

    received = two.agent("a")
    assert (received.phase, received.worker, received.tokens) == ("running", W0, 60_000)
    assert received.since_s == 103.0, "the ages are of the moment in which it is told"
    assert two.governor.statistics().reserved_tokens == 60_000


def test_what_was_in_the_table_at_the_start_is_as_old_as_it_is(
    pair: tuple[Replica, Replica],
) -> None:
    one, two = pair
    one.begin("a", now=0.0)
    one.end("a", now=1.0)
    [(key, value)] = one.reported(1.0).items()

    two.sharing.receive(key, value, 500.0, UNIX_S + 31.0)

    assert two.agent("a").since_s == pytest.approx(470.0)
    assert two.agent("a").began_s == pytest.approx(469.0)


def test_an_agent_began_when_the_first_of_all_replicas_saw_it(
    pair: tuple[Replica, Replica],
) -> None:
    one, two = pair
    two.begin("a", now=3.0)
    two.end("a", now=4.0)
    two.begin("a", now=5.0)
    one.begin("a", now=5.0)

    one.hears(two.reported(5.0), now=5.0)
    early = one.agent("a").began_s
    two.end("a", now=12.0)
    [(key, value)] = two.reported(12.0).items()
    younger = decode_update(value)
    record = msgspec.structs.replace(younger.record, age_s=0.0)
    one.hears({key: encode_update("r1", 1, UNIX_S, record)}, now=13.0)

    assert (early, one.agent("a").began_s) == (3.0, 3.0)


def test_news_are_told_once_and_own_words_change_nothing(pair: tuple[Replica, Replica]) -> None:
    one, _ = pair
    one.begin("a")
    reported = one.reported()
    before = one.agent("a").record(0.0)

    one.hears(reported)

    assert one.reported() == {}
    assert one.agent("a").record(0.0) == before
    statistics = one.sharing.statistics()
    assert (statistics.reported, statistics.received) == (1, 0)
    assert statistics.published_bytes == len(reported[key_of("a")])


def test_who_tells_the_news_is_called_at_each(pair: tuple[Replica, Replica]) -> None:
    one, _ = pair
    called: list[bool] = []
    one.sharing.on_news(lambda: called.append(one.sharing.has_updates()))

    one.begin("a")
    one.reported()
    one.sharing.publish_again()
    one.sharing.publish_again()

    assert called == [True, True]
    one.reported()
    assert not one.sharing.has_updates()


def test_one_that_cannot_be_encoded_takes_no_others_along(pair: tuple[Replica, Replica]) -> None:
    one, _ = pair
    one.begin("a")
    one.begin("b", tokens=100)
    one.agent("a").tool = "\ud800"

    with pytest.raises(UnicodeEncodeError):
        one.reported()

    assert set(one.reported()) == {key_of("b")}


def test_no_more_are_told_at_once_than_asked_for(pair: tuple[Replica, Replica]) -> None:
    one, _ = pair
    for number in range(5):
        one.begin(f"{number}", tokens=100)

    assert [key for key, _ in one.sharing.take(2, 0.0, UNIX_S)] == [key_of("0"), key_of("1")]
    assert len(one.reported()) == 3


def test_garbage_is_refused_and_counted(pair: tuple[Replica, Replica]) -> None:
    one, two = pair
    one.begin("a")
    [value] = one.reported().values()

    assert "nothing about an agent" in two.sharing.receive(key_of("a"), b"w0", 0.0)
    assert "not the key" in two.sharing.receive(key_of("b"), value, 0.0)

    assert (two.sharing.statistics().refused, len(two.governor.table)) == (2, 0)


def test_an_agent_for_which_there_is_no_room_is_passed_over() -> None:
    one, full = Replica("r0"), Replica("r1", max_agents=1)
    full.begin("own")
    one.begin("a")

    full.hears(one.reported())

    assert full.governor.table.find(key_of("a")) is None
    assert full.sharing.settle({}, 0.0) == 0


def test_an_agent_that_is_heard_of_takes_the_place_of_an_idle_one() -> None:
    one, full = Replica("r0"), Replica("r1", max_agents=1)
    full.begin("own")
    full.end("own")
    one.begin("a", 30_000)

    full.hears(one.reported())

    assert [*full.governor.table.agents] == [key_of("a")]
    assert full.governor.statistics().reserved_tokens == 30_000
    assert full.governor.statistics().seated == 1
    assert key_of("own") not in full.governor.updates


def test_the_larger_revision_stays_and_is_told_anew_by_who_knows_it(
    pair: tuple[Replica, Replica],
) -> None:
    """Two replicas write one agent at a time; the older record came last, and is in the table."""
    one, two = pair
    two.begin("a")
    late = two.reported()
    one.begin("a")
    one.end("a", now=1.0)
    newest = one.reported(1.0)

    for each in pair:
        each.hears(newest, 1.0)
        each.hears(late, 1.0)

    assert one.agent("a").revision == two.agent("a").revision == 2
    assert one.agent("a").phase == two.agent("a").phase == "paused"
    [again] = one.reported(1.0).values()
    assert decode_update(again).record == decode_update(newest[key_of("a")]).record


def test_of_two_words_on_their_way_the_second_is_still_to_come(
    pair: tuple[Replica, Replica],
) -> None:
    one, two = pair
    one.begin("a")
    first = one.reported()
    one.end("a", now=1.0)
    second = one.reported(1.0)
    two.begin("a")
    older = two.reported()

    one.hears(first, 1.0)
    one.hears(older, 1.0)

    assert one.reported(1.0) == {}, "the second word will stand in the table"
    one.hears(second, 1.0)
    one.hears(older, 1.0)
    assert set(one.reported(1.0)) == {key_of("a")}


def test_a_turn_of_another_is_told_again_as_the_others(pair: tuple[Replica, Replica]) -> None:
    one, two = pair
    two.begin("a")
    two.end("a")
    one.hears(two.reported())
    one.begin("a", now=1.0)
    two.hears(one.reported(1.0), 1.0)

    two.sharing.publish_again()

    [again] = two.reported(2.0).values()
    assert (decode_update(again).replica, decode_update(again).record.phase) == ("r0", "running")


def test_what_may_be_lost_with_the_plane_is_told_again(pair: tuple[Replica, Replica]) -> None:
    one, _ = pair
    one.begin("old", tokens=100)
    one.reported(0.0)
    one.begin("new", tokens=100)
    one.begin("gone", tokens=100)
    one.reported(MAY_BE_LOST_S + 1.0)
    one.governor.table.remove(key_of("gone"))

    one.sharing.publish_again()

    assert set(one.reported(MAY_BE_LOST_S + 2.0)) == {key_of("new")}


def test_a_turn_ends_with_its_replica_and_the_agent_keeps_its_reservation(
    pair: tuple[Replica, Replica],
) -> None:
    one, two = pair
    one.begin("a")
    two.hears(one.reported())

    assert (two.sharing.settle(ALIVE, 1.0), two.sharing.settle({"r1": 1}, 2.0)) == (0, 0)
    assert two.sharing.settle({"r1": 1}, 2.0 + ABSENT_S) == 1

    agent = two.agent("a")
    assert (agent.phase, agent.since_s) == ("paused", 2.0 + ABSENT_S)
    assert two.governor.statistics().reserved_tokens == 60_000
    [ended] = two.reported().values()
    assert (decode_update(ended).record.phase, two.sharing.statistics().orphaned) == ("paused", 1)
    assert two.sharing.settle({"r1": 1}, 100.0) == 0


def test_a_replica_that_is_heard_again_in_time_keeps_its_turns(
    pair: tuple[Replica, Replica],
) -> None:
    one, two = pair
    one.begin("a")
    two.hears(one.reported())

    two.sharing.settle({"r1": 1}, 0.0)
    two.sharing.settle(ALIVE, ABSENT_S - 1.0)

    assert (two.sharing.settle({"r1": 1}, ABSENT_S + 1.0), two.agent("a").phase) == (0, "running")


def test_turns_of_a_life_before_are_over_at_once(pair: tuple[Replica, Replica]) -> None:
    one, two = pair
    one.begin("a")
    reported = one.reported()
    two.hears(reported)
    restarted = Replica("r0", epoch=2)
    restarted.hears(reported)

    assert restarted.sharing.settle({}, 0.0) == 1
    assert two.sharing.settle({"r0": 2, "r1": 1}, 0.0) == 1

    assert restarted.agent("a").record(0.0) == two.agent("a").record(0.0)


def test_all_that_are_left_come_to_one_record_of_an_orphan(
    pair: tuple[Replica, Replica],
) -> None:
    one, two = pair
    three = Replica("r2")
    one.begin("a")
    reported = one.reported()
    two.hears(reported)
    three.hears(reported)

    for each, now in ((two, 0.0), (three, 0.0), (two, ABSENT_S), (three, ABSENT_S)):
        each.sharing.settle({"r1": 1, "r2": 1}, now)
    two.hears(three.reported(ABSENT_S), ABSENT_S)
    three.hears(two.reported(ABSENT_S), ABSENT_S)

    assert two.agent("a").record(20.0) == three.agent("a").record(20.0)
    assert two.agent("a").revision == 2


def test_an_agent_that_went_on_elsewhere_is_no_orphan(pair: tuple[Replica, Replica]) -> None:
    """Its client tried again at a replica that lives; the dead one's turn is of the past."""
    one, two = pair
    one.begin("a")
    two.hears(one.reported())
    two.begin("a", now=1.0)

    two.sharing.settle({"r1": 1}, 1.0)
    assert two.sharing.settle({"r1": 1}, 1.0 + ABSENT_S) == 1

    assert (two.agent("a").phase, two.sharing.statistics().orphaned) == ("running", 0)
    two.hears(two.reported(2.0), 2.0)
    assert two.sharing.settle({"r1": 1}, 100.0) == 0


def test_an_orphan_that_was_forgotten_is_passed_over(pair: tuple[Replica, Replica]) -> None:
    one, two = pair
    one.begin("a")
    two.hears(one.reported())
    two.governor.table.remove(key_of("a"))

    two.sharing.settle({}, 0.0)
    assert two.sharing.settle({}, ABSENT_S) == 0
    assert two.reported() == {}


def test_a_turn_that_ended_is_under_way_no_more(pair: tuple[Replica, Replica]) -> None:
    one, two = pair
    one.begin("a")
    two.hears(one.reported())
    one.end("a", now=1.0)
    two.hears(one.reported(1.0), 1.0)
    one.begin("b", tokens=100)
    two.sharing.settle({}, 1.0)
    two.hears(one.reported(1.0), 1.0)

    assert (two.sharing.settle({}, 1.5), two.sharing.settle({}, 1.5 + ABSENT_S)) == (0, 1)


def test_a_lie_about_revisions_is_refused(pair: tuple[Replica, Replica]) -> None:
    _, two = pair
    two.begin("a")
    record = two.agent("a").record(0.0)
    lie = encode_update("r9", 1, UNIX_S, msgspec.structs.replace(record, revision=2**60))

    assert "out of its range" in two.sharing.receive(key_of("a"), lie, 0.0)
    assert decode_update(lie).format == FORMAT


def test_a_context_is_kept_equally_long_by_all_whatever_they_learned(
    pair: tuple[Replica, Replica],
) -> None:
    """Who served the turn knows how long computing it again takes; its word counts."""
    one, two = pair
    one.begin("a")
    one.end("a", now=1.0)
    [(key, value)] = one.reported(1.0).items()
    updates = decode_update(value)
    reported = msgspec.structs.replace(updates.record, keep_s=77.0)
    endless = msgspec.structs.replace(reported, keep_s=1e8, revision=9)
    broken = msgspec.structs.replace(reported, keep_s=float("nan"), revision=10)

    two.sharing.receive(key, encode_update("r0", 1, UNIX_S, reported), 1.0)
    seat = two.governor.seat_of(key, 2.0)
    two.sharing.receive(key, encode_update("r0", 1, UNIX_S, endless), 1.0)
    most = two.governor.seat_of(key, 2.0)

    assert updates.record.keep_s > 0.0
    assert seat is not None
    assert seat.until_s == 78.0
    assert most is not None
    assert most.until_s == 1.0 + MOST_KEPT_S
    assert two.sharing.receive(key, encode_update("r0", 1, UNIX_S, broken), 1.0) != ""
