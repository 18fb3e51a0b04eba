import msgspec
import pytest

from kvmesh.core.blocks.events import ROOT, WorkerId
from kvmesh.core.blocks.hashing import (
    NO_HASHES,
    BlockHashes,
    pack_hashes,
    pack_tokens,
    sequence_hashes,
)
from kvmesh.core.members.loads import Demand
from kvmesh.core.members.worker_info import WorkerInfo
from kvmesh.core.routing.decision import RouteRequest, RouterMode
from kvmesh.core.routing.scheduler import Scheduler
from kvmesh.core.routing.unwatched import (
    Over,
    Prefilled,
    Unwatched,
    UnwatchedOptions,
    Why,
)
from kvmesh.core.routing.unwatched_reports import TRIES
from tests.unit.core.routing import scheduling
from tests.unit.core.routing.scheduling import W1, W2, index_of

SIZE = 16
OPTIONS = UnwatchedOptions(report_age_s=1.0, fresh_s=5.0, most_s=100.0, grow_s=1.0)


def make_scheduler(*, events: bool = True, mode: RouterMode = "kv") -> Scheduler:
    return scheduling.make_scheduler(W1, events=events, mode=mode)


def make_unwatched(*, events: bool = True) -> tuple[Unwatched, Scheduler]:
    scheduler = make_scheduler(events=events)
    return Unwatched(scheduler, OPTIONS), scheduler


def hashes_of(family: int, blocks: int = 4) -> BlockHashes:
    return BlockHashes.of([family * 1000 + one for one in range(1, blocks + 1)], SIZE)


def store(scheduler: Scheduler, family: int, blocks: int = 4, worker: WorkerId = W1) -> None:
    hashes = pack_hashes(list(hashes_of(family, blocks).upto(blocks)))
    index_of(scheduler).store(worker, ROOT, hashes)


def book(
    scheduler: Scheduler,
    request_id: str,
    family: int = 1,
    now: float = 0.0,
    *,
    tokens: int = 160,
) -> None:
    request = RouteRequest(
        request_id, hashes_of(family), 4 * SIZE, expected_output_tokens=tokens, pinned_worker=W1
    )
    scheduler.schedule(request, now)


def follow(
    unwatched: Unwatched, scheduler: Scheduler, request_id: str, family: int = 1, **when: float
) -> None:
    book(scheduler, request_id, family, when.get("now", 0.0), tokens=int(when.get("tokens", 160)))
    unwatched.add(request_id, hashes_of(family), when.get("due_s", 0.5))


def pass_on(scheduler: Scheduler, found: list[Prefilled | Over], now: float) -> None:
    """Do as whoever owns the requests."""
    for one in found:
        if isinstance(one, Over):
            scheduler.finish(one.request_id, now)
        elif one.seen:
            scheduler.first_token(one.request_id, now)
        else:
            scheduler.assume_first_token(one.request_id, now)


def ends_of(found: list[Prefilled | Over]) -> list[tuple[str, Why]]:
    return [(one.request_id, one.why) for one in found if isinstance(one, Over)]


def test_a_prompt_is_computed_when_its_worker_tells_of_its_last_block() -> None:
    unwatched, scheduler = make_unwatched()
    follow(unwatched, scheduler, "r1")
    assert (unwatched.follows("r1"), unwatched.follows("r2")) == (True, False)
    store(scheduler, 1, blocks=3)
    before = unwatched.check(0.1)

    store(scheduler, 1)

    assert (before, unwatched.check(0.2)) == ([], [Prefilled("r1", seen=True)])
    assert unwatched.check(0.3) == []


def test_a_worker_with_blocks_of_another_size_tells_of_the_last_of_its_own() -> None:
    unwatched, scheduler = make_unwatched()
    scheduler.workers.describe(W1, WorkerInfo(block_size=32))
    ids = bytes(pack_tokens(list(range(100))))
    for name, kept in (("r1", ids), ("r2", None), ("r3", ids[: 17 * 4])):
        hashes = BlockHashes(ids if kept is None else kept, SIZE, ROOT, kept)
        book(scheduler, name)
        unwatched.add(name, hashes, 9.0)
    run = sequence_hashes(list(range(96)), 32)

    index_of(scheduler).store(W1, ROOT, pack_hashes(run[:2]))
    before = unwatched.check(0.1)
    index_of(scheduler).store(W1, run[1], pack_hashes(run[2:]))

    assert (before, unwatched.check(0.2)) == ([], [Prefilled("r1", seen=True)])


def test_another_workers_blocks_prove_nothing() -> None:
    unwatched, scheduler = make_unwatched()
    follow(unwatched, scheduler, "r1")

    store(scheduler, 1, worker=W2)

    assert unwatched.check(0.2) == []


def test_what_was_sent_before_a_prompt_that_is_computed_is_computed_too() -> None:
    unwatched, scheduler = make_unwatched()
    store(scheduler, 2)
    follow(unwatched, scheduler, "cached", 2, due_s=9.0)
    follow(unwatched, scheduler, "new", 3)
    follow(unwatched, scheduler, "later", 4)

    store(scheduler, 3)
    assert unwatched.check(0.2) == [Prefilled("cached", seen=True), Prefilled("new", seen=True)]


def test_a_report_of_fewer_requests_than_are_booked_ends_those_due_first() -> None:
    unwatched, scheduler = make_unwatched()
    follow(unwatched, scheduler, "long", 1, tokens=1600)
    follow(unwatched, scheduler, "short", 2, tokens=16)
    follow(unwatched, scheduler, "middle", 3, tokens=160)
    for family in (1, 2, 3):
        store(scheduler, family)
    pass_on(scheduler, unwatched.check(0.5), 0.5)

    unwatched.report(W1, 1, 3.0)

    assert ends_of(unwatched.check(3.0)) == [("short", "report"), ("middle", "report")]
    assert (ends_of(unwatched.check(3.1)), len(unwatched)) == ([], 1)


def test_replicas_end_each_its_own_part_of_what_is_over() -> None:
    ended: list[str] = []
    for own in ("ac", "bd"):
        scheduler = make_scheduler()
        unwatched = Unwatched(scheduler, OPTIONS)
        tokens = {"a": 160, "b": 320, "c": 480, "d": 640}
        for name in "abcd":
            if name in own:
                follow(unwatched, scheduler, name, ord(name), tokens=tokens[name])
            else:
                demand = Demand(4 * SIZE, 4 * SIZE, tokens[name])
                scheduler.sequences.add(name, W1, demand, 0.0, owner="peer")
        unwatched.report(W1, 2, 3.0)
        ended += [name for name, _ in ends_of(unwatched.check(3.0))]

    assert sorted(ended) == ["a", "b"]


def test_what_engines_still_have_past_its_predicted_end_teaches_that_answers_take_longer() -> None:
    unwatched, scheduler = make_unwatched(events=False)
    ended: list[float] = []
    for number in range(40):
        now = number * 50.0
        follow(unwatched, scheduler, f"r{number}", number, tokens=160, now=now, due_s=now)
        for tenth in range(400):
            at = now + tenth / 10.0
            if not tenth % 10:
                unwatched.report(W1, at - 1.0 < now + 20.0, at)
            found = unwatched.check(at)
            pass_on(scheduler, found, at)
            ended += [at - now for _ in ends_of(found)]

    assert ended[0] == 8.0
    assert ended[-1] == pytest.approx(20.0, abs=1.0)


def test_how_long_answers_take_is_learned_from_reports() -> None:
    unwatched, scheduler = make_unwatched(events=False)
    for number in range(30):
        now = number * 10.0
        follow(unwatched, scheduler, f"r{number}", tokens=160, now=now, due_s=now + 0.5)
        pass_on(scheduler, unwatched.check(now + 0.5), now + 0.5)
        unwatched.report(W1, 0, now + 3.1)
        pass_on(scheduler, unwatched.check(now + 3.1), now + 3.1)

    # Between the prefill and what the report shows at 2.1 s: 0.8 s on average.
    assert unwatched.stays.ms_per_token(W1) == pytest.approx(1000 * 0.8 / 160)


def test_an_answer_that_nobody_ever_ends_is_let_go() -> None:
    unwatched, scheduler = make_unwatched(events=False)
    follow(unwatched, scheduler, "r1", tokens=100_000, due_s=0.5)
    pass_on(scheduler, unwatched.check(0.5), 0.5)
    for second in range(1, 101):
        unwatched.report(W1, 1, float(second))
        assert ends_of(unwatched.check(float(second))) == []

    unwatched.report(W1, 1, 101.0)

    assert ends_of(unwatched.check(101.0)) == [("r1", "expired")]


def test_a_predicted_end_that_no_report_ever_shows_is_forgotten() -> None:
    unwatched, scheduler = make_unwatched(events=False)
    follow(unwatched, scheduler, "r1", tokens=16, due_s=0.5)
    pass_on(scheduler, unwatched.check(0.5), 0.5)
    unwatched.report(W1, 1, 1.0)
    pass_on(scheduler, unwatched.check(1.4), 1.4)
    follow(unwatched, scheduler, "r2", 2, now=99.0, tokens=100_000, due_s=99.0)
    unwatched.report(W1, 1, 100.0)
    before = ends_of(unwatched.check(100.0))

    unwatched.report(W1, 0, 103.0)

    assert (before, ends_of(unwatched.check(103.0))) == ([], [("r2", "report")])


def test_a_booking_that_went_without_us_is_found_gone() -> None:
    unwatched, scheduler = make_unwatched()
    follow(unwatched, scheduler, "r1")
    unwatched.report(W1, 1, 0.0)
    unwatched.check(0.0)

    scheduler.remove_worker(W1)
    unwatched.retain(())

    assert (ends_of(unwatched.check(2.0)), len(unwatched)) == ([("r1", "gone")], 0)


def test_answers_grow_with_time_up_to_what_is_expected() -> None:
    unwatched, scheduler = make_unwatched(events=False)
    follow(unwatched, scheduler, "r1", tokens=160, due_s=0.5)
    pass_on(scheduler, unwatched.check(0.5), 0.5)
    booking = scheduler.sequences.bookings["r1"]
    unwatched.report(W1, 1, 0.5)

    unwatched.check(4.5)
    half = booking.output_tokens
    unwatched.report(W1, 1, 8.0)
    unwatched.check(12.0)

    assert (half, booking.output_tokens) == (80, 160)


def test_only_live_bookings_of_ones_own_are_followed_and_once() -> None:
    unwatched, scheduler = make_unwatched()
    scheduler.sequences.add("peers", W1, Demand(10, 10), 0.0, owner="peer")
    follow(unwatched, scheduler, "r1")

    added = [unwatched.add(one, NO_HASHES, 0.0) for one in ("peers", "never booked", "r1")]
    unwatched.forget("never booked")
    unwatched.lose("never booked")

    assert (added, len(unwatched)) == ([False, False, True], 1)
    unwatched.forget("r1")
    assert (len(unwatched), unwatched.check(1.0)) == (0, [])


def test_an_answer_that_has_begun_needs_no_sign_of_its_prefill() -> None:
    unwatched, scheduler = make_unwatched(events=False)
    book(scheduler, "r1", tokens=160)
    scheduler.first_token("r1", 0.2)

    unwatched.add("r1", hashes_of(1), 9.0)

    assert unwatched.check(1.0) == []
    assert ends_of(unwatched.check(0.2 + 8.1)) == [("r1", "predicted")]


def test_counts_tell_what_showed_prefills_and_ends() -> None:
    unwatched, scheduler = make_unwatched()
    follow(unwatched, scheduler, "r1", 1)
    follow(unwatched, scheduler, "r2", 2)
    store(scheduler, 1)
    pass_on(scheduler, unwatched.check(0.5), 0.5)
    unwatched.report(W1, 1, 3.0)
    pass_on(scheduler, unwatched.check(3.0), 3.0)

    counts = unwatched.statistics()

    assert msgspec.to_builtins(counts) == {
        "open": 1,
        "prefilled_seen": 1,
        "prefilled_predicted": 0,
        "over": {"report": 1, "predicted": 0, "expired": 0, "gone": 0},
    }


def test_a_report_that_is_taken_for_the_peers_again_and_again_ends_ours() -> None:
    unwatched, scheduler = make_unwatched()
    follow(unwatched, scheduler, "ours", tokens=1600)
    scheduler.sequences.add("peers", W1, Demand(10, 10, 16), 0.0, owner="peer")

    ended = []
    for second in range(2, 2 + TRIES):
        unwatched.report(W1, 1, float(second))
        ended.append(ends_of(unwatched.check(float(second))))

    assert ended == [[]] * (TRIES - 1) + [[("ours", "report")]]


def test_what_somebody_tells_the_end_of_ends_by_nothing_else() -> None:
    unwatched, scheduler = make_unwatched(events=False)
    book(scheduler, "told", tokens=16)
    unwatched.add("told", hashes_of(1), 0.5, reported=True)
    pass_on(scheduler, prefilled := unwatched.check(0.5), 0.5)
    unwatched.report(W1, 0, 3.0)

    assert prefilled == [Prefilled("told", seen=False)]
    assert [ends_of(unwatched.check(now)) for now in (3.0, 20.0, 500.0)] == [[], [], []]


def test_what_nobody_tells_of_any_more_ends_as_the_others_do() -> None:
    unwatched, scheduler = make_unwatched(events=False)
    for name, family in (("early", 1), ("late", 2)):
        book(scheduler, name, family, tokens=16)
        unwatched.add(name, hashes_of(family), 0.5, reported=True)
    unwatched.lose("early")
    unwatched.lose("early")
    pass_on(scheduler, unwatched.check(0.5), 0.5)
    first = ends_of(unwatched.check(1.4))
    pass_on(scheduler, unwatched.check(1.4), 1.4)

    unwatched.lose("late")

    assert first == [("early", "predicted")]
    assert ends_of(unwatched.check(1.5)) == [("late", "predicted")]


def test_a_booking_whose_prefill_would_be_due_is_not_prefilled_when_it_is_gone() -> None:
    unwatched, scheduler = make_unwatched(events=False)
    follow(unwatched, scheduler, "r1", due_s=0.5)

    scheduler.finish("r1", 0.1)

    assert unwatched.check(1.0) == [Over("r1", "gone")]
