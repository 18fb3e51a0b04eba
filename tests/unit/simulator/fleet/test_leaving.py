"""An engine that leaves a simulated fleet, and what others are given before."""

import msgspec
import pytest

from kvmesh.core.warming.newcomers import WarmOptions
from kvmesh_lab.mocker.model.options import EngineOptions
from kvmesh_lab.mocker.model.timing import PROFILES
from kvmesh_lab.simulator.fleet.fleet import SimulatedFleet
from kvmesh_lab.simulator.fleet.options import FleetOptions
from kvmesh_lab.traces.trace import TraceRequest
from tests.unit.simulator.fleet.fleet_cases import BLOCK_SIZE, families, fleet

LEAVE_S = 12.0
CHATS = 30
OPTIONS = FleetOptions(
    engines=3,
    engine=EngineOptions(block_size=BLOCK_SIZE, num_gpu_blocks=4096, timing=PROFILES["dynamo"]),
    leaves=((2, LEAVE_S),),
)
EAGER = WarmOptions(share=0.9, moved_rate=0.0)


def chats(turns: int = 6) -> list[TraceRequest]:
    """Return conversations that take a turn each 5 s and share nothing."""
    return [
        TraceRequest(
            index=turn * CHATS + chat,
            timestamp_ms=5000.0 * turn + 150.0 * chat,
            input_tokens=(20 + 2 * turn) * BLOCK_SIZE + 7,
            output_tokens=4,
            block_ids=tuple(chat * 1000 + block for block in range(20 + 2 * turn)),
        )
        for turn in range(turns)
        for chat in range(CHATS)
    ]


def left(options: FleetOptions) -> SimulatedFleet:
    simulated = fleet(chats(), options=options)
    simulated.run()
    return simulated


def hits(simulated: SimulatedFleet) -> float:
    """Return the cached share of prompts in the 6 s after the engine began to leave."""
    late = [one for one in simulated.outcomes if 0 < one.sent_ms - 13_500.0 < 6000.0]
    return sum(one.cached_tokens for one in late) / sum(one.prompt_tokens for one in late)


def test_an_engine_that_leaves_ends_what_it_has_and_gets_nothing_new() -> None:
    outcomes = fleet(families(400), options=OPTIONS).run()

    late = [one for one in outcomes if one.sent_ms >= LEAVE_S * 1000.0]
    assert {one.worker for one in late} == {"worker-0", "worker-1"}
    assert any(one.worker == "worker-2" for one in outcomes)
    assert not [one for one in outcomes if one.error]


@pytest.mark.parametrize("routers", [1, 2])
def test_what_only_the_leaver_keeps_is_computed_elsewhere_before_it_is_asked_for(
    routers: int,
) -> None:
    options = msgspec.structs.replace(OPTIONS, routers=routers)
    cold = left(options)
    handed = left(msgspec.structs.replace(options, hand_over=EAGER))

    assert hits(handed) > hits(cold) + 0.05
    leaving = handed.joining.leaving
    assert leaving.tokens > 0
    assert len(leaving.moved) == len({*leaving.moved})
    assert cold.joining.leaving.moved == []
    booked = [one for router in handed.routers for one in router.sequences.bookings]
    assert not [one for one in booked if "touch" in one]
    assert len(handed.outcomes) == len(cold.outcomes) == 6 * CHATS


@pytest.mark.parametrize(
    "hand_over",
    [
        WarmOptions(share=0.0),
        msgspec.structs.replace(EAGER, idle_ms=-1.0),
        msgspec.structs.replace(EAGER, moved_rate=1e9),
    ],
)
def test_nothing_is_handed_over_that_is_not_paid_for_or_worth_it(hand_over: WarmOptions) -> None:
    assert left(msgspec.structs.replace(OPTIONS, hand_over=hand_over)).joining.leaving.moved == []


def test_an_engine_that_is_gone_hands_nothing_over() -> None:
    gone = msgspec.structs.replace(OPTIONS, hand_over=EAGER, drain_s=0.0)

    assert left(gone).joining.leaving.moved == []
