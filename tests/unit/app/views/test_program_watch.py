from kvmesh.app.views.program_figures import PRESSURES, PROGRAM_NEWS, PROGRAMS
from kvmesh.app.views.program_watch import ProgramWatch
from kvmesh.core.programs.sharing import ProgramSharing
from tests.unit.app.views.test_program_rows import W0, begin, governor, turn


class Clock:
    """Says the time it is told."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


async def test_figures_tell_who_waits_for_how_long_and_what_it_holds() -> None:
    one, clock = governor(), Clock()
    watch = ProgramWatch(one, "chat", lambda: (W0,), clock)
    assert watch.longest_wait_s() == 0.0
    begin(one, turn("old"), 0.0)
    begin(one, turn("young"), 2.0)

    clock.now = 7.0
    await watch.refresh()

    reported = {
        (sample.name, *sample.labels.values()): sample.value
        for metric in PROGRAMS.of(lambda: watch).metrics()
        for sample in metric.samples
    }
    assert reported["kvmesh_programs", "waiting"] == reported["kvmesh_programs", "running"] == 1
    assert reported["kvmesh_program_turns_held",] == 1
    assert reported["kvmesh_program_longest_wait_seconds",] == 5.0
    assert reported["kvmesh_program_wait_bound_seconds",] == 30.0
    assert reported["kvmesh_program_unplaced_tokens",] == 60_000
    shown = PROGRAMS.of(lambda: watch).numbers(())[()]
    assert shown == {"turns_held": 1, "programs_waiting": 1, "programs": 2}
    [numbers] = (
        PRESSURES.of_each(lambda: {(worker,): one for worker, one in watch.seen.workers.items()})
        .numbers(("worker",))
        .values()
    )
    assert numbers == {"working_set_tokens": 60_000, "program_pressure": 0.6}


async def test_a_turn_that_was_let_go_at_the_bound_is_counted_as_late() -> None:
    one, clock = governor(), Clock()
    watch = ProgramWatch(one, "chat", lambda: (W0,), clock)
    begin(one, turn("old"), 0.0)
    begin(one, turn("young"), 2.0)

    assert one.release(32.0)

    reported = {
        (sample.name, *sample.labels.values()): sample.value
        for metric in PROGRAMS.of(lambda: watch).metrics()
        for sample in metric.samples
    }
    assert reported["kvmesh_program_turns_ended_total", "late"] == 1
    assert reported["kvmesh_program_turns_ended_total", "released"] == 0
    assert reported["kvmesh_program_waits_seconds_sum",] == 30.0


def test_what_is_told_of_agents_is_counted() -> None:
    one = governor()
    sharing = ProgramSharing(one, "r0", 1)
    begin(one, turn("a"), 0.0)
    [(_, value)] = sharing.take(10, 0.0, 0.0)
    sharing.receive("x", b"", 0.0)

    reported = {
        (sample.name, *sample.labels.values()): sample.value
        for metric in PROGRAM_NEWS.of(sharing.statistics).metrics()
        for sample in metric.samples
    }

    assert reported["kvmesh_program_news_total", "told"] == 1
    assert reported["kvmesh_program_news_total", "refused"] == 1
    assert reported["kvmesh_program_news_bytes_total",] == len(value)
