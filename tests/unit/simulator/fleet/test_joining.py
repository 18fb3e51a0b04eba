"""An engine that joins a simulated fleet, cold and with prefixes given to it."""

import msgspec
import pytest

from kvmesh.core.warming.newcomers import WarmOptions
from kvmesh.errors import ConfigError
from kvmesh_lab.mocker.model.options import EngineOptions
from kvmesh_lab.mocker.model.timing import PROFILES
from kvmesh_lab.simulator.fleet.fleet import SimulatedFleet
from kvmesh_lab.simulator.fleet.options import FleetOptions
from tests.unit.simulator.fleet.fleet_cases import BLOCK_SIZE, families, fleet

JOIN_S = 12.0
OPTIONS = FleetOptions(
    engines=3,
    engine=EngineOptions(block_size=BLOCK_SIZE, num_gpu_blocks=4096, timing=PROFILES["dynamo"]),
    joins=((2, JOIN_S),),
)


def joined(warm: WarmOptions | None, *, routers: int = 1) -> SimulatedFleet:
    """Play 400 requests of a few families; the third engine joins after half of them."""
    options = msgspec.structs.replace(OPTIONS, warm=warm, routers=routers)
    simulated = fleet(families(400), options=options)
    simulated.run()
    return simulated


def first_hits(simulated: SimulatedFleet) -> float:
    """Return the cached share of the newcomer's first prompts."""
    worker = simulated.engines[2].worker
    own = [one for one in simulated.outcomes if one.worker == worker][:20]
    assert own
    return sum(one.cached_tokens for one in own) / sum(one.prompt_tokens for one in own)


def test_an_engine_gets_nothing_before_it_joins() -> None:
    simulated = joined(None)

    worker = simulated.engines[2].worker
    sent = [one.sent_ms for one in simulated.outcomes if one.worker == worker]
    assert min(sent) >= JOIN_S * 1000.0
    assert simulated.joining.serves_s[worker] == JOIN_S
    assert not simulated.joining.warmed_tokens


@pytest.mark.parametrize("routers", [1, 2])
def test_a_newcomer_that_was_given_prefixes_hits_sooner(routers: int) -> None:
    cold, warm = joined(None, routers=routers), joined(WarmOptions(share=0.5), routers=routers)

    assert first_hits(warm) > 0.9
    assert first_hits(warm) > first_hits(cold)
    assert warm.joining.warmed_tokens[warm.engines[2].worker] > 0
    assert warm.joining.serves_s[warm.engines[2].worker] < JOIN_S + 2.0
    assert len(warm.outcomes) == len(cold.outcomes) == 400


@pytest.mark.parametrize(
    ("options", "longest_s"),
    [
        (WarmOptions(share=0.5, crowded_ms=-1.0), 0.25),
        (WarmOptions(share=0.5, longest_s=0.25), 0.75),
    ],
)
def test_a_newcomer_serves_when_the_others_are_full_or_its_time_is_over(
    options: WarmOptions, longest_s: float
) -> None:
    simulated = joined(options)

    assert simulated.joining.serves_s[simulated.engines[2].worker] - JOIN_S <= longest_s


@pytest.mark.parametrize("joins", [((3, 1.0),), ((0, -1.0),), ((0, float("inf")),)])
def test_only_engines_that_there_are_can_join(joins: tuple[tuple[int, float], ...]) -> None:
    with pytest.raises(ConfigError, match="joins or leaves at"):
        msgspec.structs.replace(OPTIONS, joins=joins)
