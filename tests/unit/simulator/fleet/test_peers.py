import random

import pytest

from kvmesh.core.members.fetch_times import PEER
from kvmesh.core.routing.policy import parse_policy
from kvmesh.errors import ConfigError
from kvmesh_lab.mocker.model.lower_tiers import TierOptions
from kvmesh_lab.mocker.model.options import EngineOptions
from kvmesh_lab.mocker.model.request import EngineRequest
from kvmesh_lab.mocker.model.timing import PROFILES
from kvmesh_lab.simulator.fleet.engine import FleetEngine, make_engines
from kvmesh_lab.simulator.fleet.fleet import SimulatedFleet
from kvmesh_lab.simulator.fleet.options import FleetOptions, PeerOptions
from kvmesh_lab.simulator.fleet.peers import FleetPeer
from kvmesh_lab.simulator.fleet.request import make_requests
from kvmesh_lab.traces.trace import TraceRequest

BLOCK = 512


def documents(requests: int, families: int, gap_ms: float) -> list[TraceRequest]:
    """Return requests that ask about long documents, drawn with a seed."""
    rng = random.Random(5)
    return [
        TraceRequest(
            index=number,
            timestamp_ms=number * gap_ms,
            input_tokens=20 * BLOCK + 100,
            output_tokens=8,
            block_ids=tuple(range(1000 * (family := rng.randrange(families)), 1000 * family + 20)),
        )
        for number in range(requests)
    ]


def play(trace: list[TraceRequest], **options: object) -> SimulatedFleet:
    engine = EngineOptions(
        block_size=BLOCK,
        num_gpu_blocks=130,
        timing=PROFILES["preble-70b"],
        tiers=options.pop("tiers", ()),  # type: ignore[arg-type]  # as given below
    )
    fleet = SimulatedFleet(
        FleetOptions(engines=3, engine=engine, **options),  # type: ignore[arg-type]  # any option
        parse_policy("kv", BLOCK),
        make_requests(trace, BLOCK, BLOCK),
        random.Random(1),
    )
    fleet.run()
    return fleet


def ttft_ms(fleet: SimulatedFleet) -> float:
    assert all(one.ttft_ms is not None for one in fleet.outcomes)
    return sum(one.ttft_ms or 0.0 for one in fleet.outcomes) / len(fleet.outcomes)


def cached(fleet: SimulatedFleet) -> float:
    reported = [(one.cached_tokens or 0, one.prompt_tokens) for one in fleet.outcomes]
    return sum(one for one, _ in reported) / sum(one for _, one in reported)


def test_host_memory_gives_back_what_the_device_lost() -> None:
    trace = documents(120, 30, 700.0)

    alone = play(trace)
    below = play(trace, tiers=(TierOptions(1000, 2.0, 5.0),))

    assert cached(below) > cached(alone) + 0.15
    assert ttft_ms(below) < 0.8 * ttft_ms(alone)
    assert below.routers[0].scheduler.fetch_times.samples > 5


def test_what_is_predicted_of_tiers_is_what_engines_find() -> None:
    fleet = play(documents(80, 30, 3_000.0), tiers=(TierOptions(300, 2.0), TierOptions(900, 8.0)))

    exact = [one.cached_tokens == (one.overlap_blocks or 0) * BLOCK for one in fleet.outcomes]

    assert exact.count(False) == 0
    assert cached(fleet) > 0.4


def bursts(documents: int, clients: int) -> list[TraceRequest]:
    """Return requests for one document after the other: one client first, then many at once."""
    return [
        TraceRequest(
            index=document * (clients + 1) + client,
            timestamp_ms=document * 20_000.0 + (5_000.0 if client else 0.0),
            input_tokens=20 * BLOCK + 100,
            output_tokens=8,
            block_ids=tuple(range(1000 * document, 1000 * document + 20)),
        )
        for document in range(documents)
        for client in range(clients + 1)
    ]


def test_what_a_busy_engine_holds_is_taken_from_it() -> None:
    trace = bursts(12, 40)

    alone = play(trace)
    peers = play(trace, peer=PeerOptions(6.7, 5.0))

    tokens = peers.routers[0].scheduler.fetches.tokens
    assert tokens[PEER] >= 12 * 20 * BLOCK
    assert alone.routers[0].scheduler.fetches.tokens[PEER] == 0
    assert ttft_ms(peers) < 0.8 * ttft_ms(alone)
    assert cached(peers) > cached(alone)


def test_replicas_hear_what_others_learned() -> None:
    fleet = play(documents(200, 30, 700.0), tiers=(TierOptions(1000, 2.0),), routers=2)

    for router in fleet.routers:
        times, worker = router.scheduler.fetch_times, fleet.engines[0].worker
        own = times.samples
        known = sum(times.report(one.worker, 1, 0.08, fleet.now).samples for one in fleet.engines)
        assert own > 0
        assert known > own or times.report(worker, 1, 0.08, fleet.now).samples > 64


@pytest.fixture
def engines() -> tuple[FleetEngine, ...]:
    engine = EngineOptions(num_gpu_blocks=9, tiers=(TierOptions(50, 1.0),))
    return make_engines(FleetOptions(engines=3, engine=engine), strides=True)


def test_one_thing_at_a_time_leaves_an_engine_and_one_comes_to_it(
    engines: tuple[FleetEngine, ...],
) -> None:
    options = PeerOptions(10.0, 5.0)
    first, second, third = engines
    peers = [FleetPeer(first, second, options), FleetPeer(first, third, options)]

    assert peers[0].bring(4, 1.0) == pytest.approx(1.045)
    assert peers[1].bring(4, 1.0) == pytest.approx(1.085)
    assert FleetPeer(second, third, options).bring(1, 1.0) == pytest.approx(1.095)
    assert FleetPeer(third, second, options).bring(1, 1.0) == pytest.approx(1.055)


def test_a_peer_gives_what_it_holds_on_its_device_and_below(
    engines: tuple[FleetEngine, ...],
) -> None:
    model = engines[0].model
    peer = FleetPeer(engines[0], engines[1], PeerOptions(1.0))
    for name, first in (("a", 100), ("b", 200), ("c", 300)):
        model.add(EngineRequest(name, list(range(first, first + 4)), 65, 1), 0.0)
        while model.step(0.0) is not None:
            pass

    assert peer.held([100, 101, 102, 103, 9]) == 4
    assert peer.held([9, 100]) == 0


def test_a_negative_time_is_refused() -> None:
    with pytest.raises(ConfigError, match="no time is negative"):
        PeerOptions(-1.0)
