from collections.abc import Collection

import msgspec

from kvmesh.app.views.program_rows import (
    MAX_PROGRAMS,
    SLICE,
    ProgramRow,
    Programs,
    WorkerPressure,
    check,
    merge_programs,
)
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.programs.governor import Governor
from kvmesh.core.programs.held import GovernorOptions
from kvmesh.core.programs.turn import Turn, TurnEnd

W0, W1 = WorkerId("w0"), WorkerId("w1")


class OneWorker:
    """An engine of 100,000 tokens, as `Fleet`."""

    def workers(self, now: float) -> Collection[WorkerId]:
        del now
        return (W0,)

    def contexts(self, worker: WorkerId) -> int:
        del worker
        return 0

    def capacity_tokens(self, worker: WorkerId) -> int:
        return 100_000 if worker == W0 else 0

    def active_tokens(self, worker: WorkerId) -> int:
        del worker
        return 0

    def ms_per_token(self, worker: WorkerId) -> float:
        del worker
        return 100.0

    def seen_ms_per_token(self, worker: WorkerId, tokens: int) -> float:
        del tokens
        return self.ms_per_token(worker)


def governor() -> Governor:
    return Governor(GovernorOptions(max_wait_s=30.0), OneWorker())


def turn(name: str, tokens: int = 60_000, program: str = "", **more: object) -> Turn:
    return Turn(
        request_id=f"of {name}",
        agent=name.ljust(32, "0"),
        program=(program or name).ljust(32, "0"),
        client="codex",
        prompt_tokens=tokens,
        **more,  # type: ignore[arg-type]  # any field
    )


def begin(governor: Governor, one: Turn, now: float) -> bool:
    grant = governor.ask(one, now)
    if grant is not None:
        governor.chosen(one, W0, now)
    return grant is not None


def seen(governor: Governor, now: float, workers: Collection[WorkerId] = (W0, W1)) -> Programs:
    steps = check(governor, workers, "chat", now)
    while True:
        try:
            next(steps)
        except StopIteration as done:
            reported: Programs = done.value
            return reported


def test_who_waits_is_first_and_says_why() -> None:
    one = governor()
    begin(one, turn("old"), 0.0)
    assert not begin(one, turn("young", tenant="ann"), 10.0)

    found = seen(one, 14.0)

    waiting, running = found.rows
    assert (waiting.state, waiting.program, waiting.tenant) == ("waiting", "young0000000", "ann")
    assert (waiting.since_s, waiting.workers, waiting.reserved_tokens) == (4.0, (), 0)
    assert "when it has waited longest" in waiting.why
    assert (running.state, running.workers, running.tokens) == ("running", ("w0",), 60_000)
    assert (running.reserved_tokens, running.turns, running.why) == (60_000, 1, "")
    assert found.states == {"waiting": 1, "running": 1, "paused": 0, "ended": 0}


def test_a_paused_program_says_what_it_waits_for_and_keeps_its_cache() -> None:
    one = governor()
    first = turn("a")
    begin(one, first, 0.0)
    end = TurnEnd(
        served=True, worker=W0, output_tokens=500, computed_tokens=60_000, stop="tool", tool="Bash"
    )
    one.ended(first, end, 8.0)

    [row] = seen(one, 10.0).rows

    assert (row.state, row.stop, row.tool, row.since_s, row.age_s) == (
        *("paused", "tool", "Bash"),
        *(2.0, 10.0),
    )
    assert (row.tokens, row.reserved_tokens, row.served_tokens) == (60_500, 60_500, 60_500)


def test_when_the_next_turn_comes_is_foretold_from_pauses_like_it() -> None:
    one = governor()
    again = turn("a", 1000)
    begin(one, again, 0.0)
    one.ended(again, TurnEnd(served=True, worker=W0, stop="end"), 1.0)
    [before] = seen(one, 1.0).rows
    now = 1.0
    for _ in range(200):
        begin(one, again, now + 20.0)
        one.ended(again, TurnEnd(served=True, worker=W0, stop="end"), now + 21.0)
        now += 21.0

    [row] = seen(one, now).rows
    begin(one, again, now)
    [running] = seen(one, now).rows

    assert before.back_s is not None
    assert before.back_late_s is not None
    assert before.back_s > 100.0, "published of agents whose turn is over"
    assert row.back_s is not None
    assert 10.0 < row.back_s < 40.0
    assert (running.back_s, running.back_late_s) == (None, None)


def test_pressure_is_told_by_worker_and_what_has_no_place_apart() -> None:
    one = governor()
    begin(one, turn("a"), 0.0)
    begin(one, turn("b"), 1.0)

    found = seen(one, 2.0)

    assert found.workers == {
        W0: WorkerPressure(100_000, 60_000, 60_000),
        W1: WorkerPressure(0, 0, 0),
    }
    assert found.unplaced_tokens == 60_000
    assert found.agents == 2


def test_many_programs_are_counted_and_the_oldest_shown_in_slices() -> None:
    one = governor()
    count = 2 * SLICE + 5
    for number in range(count):
        begin(one, turn(f"{number:06}", 10), float(number))

    steps = check(one, (W0,), "chat", 1e5)
    slices = sum(1 for _ in steps)
    found = seen(one, 1e5)

    assert slices == 4
    assert (sum(found.states.values()), len(found.rows)) == (count, MAX_PROGRAMS)
    assert [row.program[:6] for row in found.rows[:2]] == ["000000", "000001"]


def test_of_what_replicas_say_the_newest_counts() -> None:
    old = ProgramRow("p", "chat", "running", turns=3, since_s=2.0, age_s=9.0)
    fresh = msgspec.structs.replace(old, turns=4, state="paused", since_s=1.0)
    other = msgspec.structs.replace(old, bucket="code", age_s=20.0)

    assert merge_programs([old, fresh, other]) == [other, fresh]
    assert merge_programs([fresh, old]) == [fresh]
    assert merge_programs([old, msgspec.structs.replace(old, since_s=1.5)])[0].since_s == 1.5
