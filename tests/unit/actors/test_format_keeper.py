"""Workers are told what to write, and what is not read is named once, with both versions."""

from collections.abc import Iterable

from kvmesh.actors.format_keeper import FormatKeeper
from kvmesh.actors.kernel import Effect, Log, Publish
from kvmesh.actors.messages import RouterHeartbeat, WorkerHeartbeat, WriteFormat
from kvmesh.actors.wire import Subjects, decode
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.journal.unread import Newer, UnreadRecords
from kvmesh.core.members.readers import HEAR_S
from kvmesh.formats import FIRST, FormatRange, Formats
from tests.unit.actors.effects import of

NEW = Formats(journal=FormatRange(1, 2))
A = WorkerId("a")


def worker(
    number: int = 1, formats: Formats = NEW, *, events: bool = True, version: str = ""
) -> WorkerHeartbeat:
    return WorkerHeartbeat(
        A,
        "code",
        1,
        1,
        "",
        (),
        16,
        events=events,
        formats=formats,
        journal_format=number,
        version=version,
    )


def router(name: str, formats: Formats) -> RouterHeartbeat:
    return RouterHeartbeat(name, "code", "", ready=True, epoch=1, formats=formats)


def make(own: Formats = NEW, unread: UnreadRecords | None = None) -> FormatKeeper:
    subjects = Subjects("kvmesh", "code")
    return FormatKeeper("r1", subjects, unread or UnreadRecords(8), own, "0.1.0")


def commands(effects: Iterable[Effect]) -> list[int]:
    """Return the formats that the worker is told to write."""
    found = list(effects)
    reported = [decode(one.data, WriteFormat) for one in of(Publish, found)]
    assert {one.subject for one in of(Publish, found)} <= {"kvmesh.ctl.code.a"}
    assert {(one.worker, one.router) for one in reported} <= {(A, "r1")}
    return [one.number for one in reported]


def test_a_worker_is_told_to_write_what_all_read_until_it_does() -> None:
    keeper = make()
    keeper.begin(0.0)

    young = commands(keeper.receive_worker(worker(1), 1.0))
    reported = [commands(keeper.receive_worker(worker(1), now)) for now in (2.0, 2.5, 3.0)]
    obeyed = commands(keeper.receive_worker(worker(2), 4.0))

    assert (young, reported, obeyed) == ([], [[2], [], [2]], [])


def test_an_older_replica_that_comes_lowers_what_is_written() -> None:
    keeper = make()

    keeper.receive_router(router("old", FIRST), 2.0)
    reported = commands(keeper.receive_worker(worker(2), 0.0))
    keeper.forget_router("old", 1.0)
    held = commands(keeper.receive_worker(worker(1), 2.0))
    later = commands(keeper.receive_worker(worker(1), 2.3))

    assert (reported, held, later) == ([1], [], [2])


def test_a_worker_that_comes_back_is_told_again_at_once() -> None:
    keeper = make()
    keeper.receive_worker(worker(1), 0.0)

    keeper.forget_worker(A)

    assert commands(keeper.receive_worker(worker(1), 0.1)) == [2]


def test_what_is_newer_is_met_in_heartbeats_records_and_stores() -> None:
    unread = UnreadRecords(8)
    keeper = make(FIRST, unread)
    stored = Newer("the snapshot store", "manifest", 2, "0.3.0")
    found: list[Newer | None] = [None]
    keeper.sources.append(lambda: found[0])
    nothing = keeper.met(0.0)

    unread.meet(WorkerId("b"), 3, 0.0)
    list(keeper.receive_worker(worker(2, version="0.2.0"), 0.0))
    found[0] = stored

    assert nothing == []
    assert keeper.met(0.0) == [
        stored,
        Newer("worker a", "journal", 2, "0.2.0"),
        Newer("worker b", "journal", 3),
    ]
    list(keeper.receive_worker(worker(1), 1.0))
    assert Newer("worker a", "journal", 2, "0.2.0") not in keeper.met(1.0)


def test_one_line_says_it_and_one_that_it_is_over() -> None:
    keeper = make(FIRST)
    quiet = list(keeper.check(0.0))

    list(keeper.receive_worker(worker(2, version="0.2.0"), 0.0))
    said, again = list(keeper.check(0.0)), list(keeper.check(1.0))
    shown = keeper.warnings(1.0)
    keeper.forget_worker(A)
    over = list(keeper.check(2.0))

    assert (quiet, again) == ([], [])
    (log,) = of(Log, said)
    assert (log.level, log.event) == ("error", "newer format met")
    assert (log.fields["written_by"], log.fields["read_by"]) == ("0.2.0", "0.1.0")
    assert (log.fields["format"], log.fields["reads"], log.fields["more"]) == (2, "1", 0)
    assert shown == (
        (
            "worker a has journal format 2, of kvmesh 0.2.0: this is kvmesh 0.1.0, which reads 1; "
            "see docs/operate/upgrade.md"
        ),
    )
    assert [one.event for one in of(Log, over)] == ["all formats are read again"]
    assert keeper.warnings(2.0) == ()


def test_a_start_waits_until_replicas_that_read_it_may_be_heard() -> None:
    keeper = make(FIRST)
    keeper.begin(0.0)
    list(keeper.receive_worker(worker(2), 0.0))

    young = keeper.why_not(HEAR_S / 2, []), list(keeper.check(HEAR_S / 2))
    later = keeper.why_not(HEAR_S, []), list(keeper.check(HEAR_S))

    assert young[0].startswith("worker a has journal format 2")
    assert young[1] == []
    assert (later[0], len(later[1])) == ("", 1)


def test_a_worker_that_is_updated_has_another_version_no_more() -> None:
    unread = UnreadRecords(8)
    keeper = make(FIRST, unread)
    list(keeper.receive_worker(worker(version="0.2.0"), 0.0))
    unread.meet(A, 2, 0.0)
    before = keeper.met(0.0)

    list(keeper.receive_worker(worker(version="0.1.0"), 1.0))

    assert before == [Newer("worker a", "journal", 2, "0.2.0")]
    assert keeper.met(1.0) == [Newer("worker a", "journal", 2)]


def test_requests_go_to_a_replica_that_reads_it_if_there_is_one() -> None:
    keeper = make(FIRST)
    nothing = keeper.why_not(0.0, [NEW])
    list(keeper.receive_worker(worker(2), 0.0))

    assert nothing == ""
    assert keeper.why_not(0.0, [FIRST, NEW]).startswith("worker a has journal format 2")
    assert keeper.why_not(0.0, [FIRST]) == ""
    assert keeper.why_not(0.0, []) == ""
