import msgspec
import pytest

from kvmesh.actors.messages import WorkerHeartbeat
from kvmesh.actors.publisher import Publisher
from kvmesh.actors.publisher_options import PublisherOptions
from kvmesh.app.process.aio import MailboxStatistics
from kvmesh.app.views.figure import Sources
from kvmesh.app.views.sidecar_figures import SIDECAR, SIDECAR_RANKS, RankFacts, SidecarFacts
from kvmesh.core.blocks.events import WorkerId
from kvmesh.transport.zmq.statistics import SubscriptionStatistics

ENGINE = "http://engine:8000"


def rank(*, source: bool = True, connected: bool = True, **beat: bool) -> RankFacts:
    options = PublisherOptions(WorkerId("w"), "chat", 5, ENGINE)
    publisher = Publisher(options)
    heartbeat: WorkerHeartbeat = msgspec.structs.replace(publisher.heartbeat(), **beat)
    return RankFacts(
        heartbeat,
        publisher.statistics(),
        publisher.publish_seconds(),
        SubscriptionStatistics(3, 4, 0, 0, 1, 0, connected) if source else None,
        MailboxStatistics(2, 9, 0),
    )


def joined(*ranks: RankFacts, answering: bool = True, connected: bool = True) -> SidecarFacts:
    return SidecarFacts(ENGINE, joined=True, answering=answering, connected=connected, ranks=ranks)


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        (SidecarFacts(ENGINE), "waiting for the engine at http://engine:8000"),
        (SidecarFacts(ENGINE, waiting="waiting for NATS"), "waiting for NATS"),
        (joined(rank()), ""),
        (joined(rank(), rank(draining=True)), "draining"),
        (joined(rank(draining=True), answering=False), "does not answer"),
        # What takes no request away: a probe that failed for NATS would empty the fleet.
        (joined(rank(connected=False, complete=False), connected=False), ""),
    ],
)
def test_a_sidecar_is_ready_while_its_engine_may_get_requests(
    facts: SidecarFacts, why: str
) -> None:
    assert why in facts.why_not()
    assert bool(facts.why_not()) == bool(why)


def test_what_routers_only_notice_later_is_a_warning() -> None:
    facts = joined(rank(connected=False, complete=False), connected=False)

    lines = facts.warnings()

    assert [line.split(":")[0] for line in lines] == ["NATS", "w", "w"]
    assert "no connection" in lines[1]
    assert "incomplete" in lines[2]
    assert joined(rank()).warnings() == ()
    assert SidecarFacts(ENGINE).warnings() == ()


def test_a_sidecar_without_events_has_no_figures_of_a_source() -> None:
    def samples(facts: SidecarFacts) -> set[str]:
        sources = Sources(
            SIDECAR.of(lambda: facts),
            SIDECAR_RANKS.of_each(lambda: {(one.beat.worker,): one for one in facts.ranks}),
        )
        return {sample.name for metric in sources.collect() for sample in metric.samples}

    with_source, without = samples(joined(rank())), samples(joined(rank(source=False)))

    assert without < with_source
    assert with_source - without == {
        "kvmesh_sidecar_source_connected",
        "kvmesh_sidecar_read_batches_total",
        "kvmesh_sidecar_lost_batches_total",
        "kvmesh_sidecar_replays_total",
        "kvmesh_sidecar_engine_restarts_total",
        "kvmesh_sidecar_malformed_messages_total",
    }
