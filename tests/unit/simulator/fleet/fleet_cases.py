"""Small fleets and traces for the tests of the simulator."""

import random

from kvmesh.core.routing.policy import parse_policy
from kvmesh_lab.mocker.model.options import EngineOptions
from kvmesh_lab.mocker.model.timing import PROFILES
from kvmesh_lab.simulator.fleet.fleet import SimulatedFleet
from kvmesh_lab.simulator.fleet.options import FleetOptions
from kvmesh_lab.simulator.fleet.request import make_requests
from kvmesh_lab.traces.trace import TraceRequest

BLOCK_SIZE = 64


def families(
    count: int, *, groups: int = 12, shared: int = 20, gap_ms: float = 60.0, output: int = 40
) -> list[TraceRequest]:
    """Return requests of Zipf-like families: shared leading blocks, own tails of a few tokens."""
    rng = random.Random(count)
    weights = [1 / (group + 1) for group in range(groups)]
    requests: list[TraceRequest] = []
    for index in range(count):
        (group,) = rng.choices(range(groups), weights)
        own = rng.randrange(4)
        ids = [group * 1000 + block for block in range(shared)]
        ids += [10**6 + index * 10 + block for block in range(own)]
        requests.append(
            TraceRequest(
                index=index,
                timestamp_ms=index * gap_ms,
                input_tokens=len(ids) * BLOCK_SIZE + 7,
                output_tokens=1 + rng.randrange(2 * output),
                block_ids=tuple(ids),
            )
        )
    return requests


def fleet(
    requests: list[TraceRequest],
    policy: str = "kv",
    *,
    engines: int = 4,
    routers: int = 1,
    blocks: int = 4096,
    seed: int = 0,
    speedup: float = 1.0,
    profile: str = "dynamo",
    options: FleetOptions | None = None,
) -> SimulatedFleet:
    """Return a fleet about to play `requests`."""
    engine = EngineOptions(block_size=BLOCK_SIZE, num_gpu_blocks=blocks, timing=PROFILES[profile])
    return SimulatedFleet(
        options or FleetOptions(engines=engines, routers=routers, engine=engine, seed=seed),
        parse_policy(policy, BLOCK_SIZE),
        make_requests(requests, BLOCK_SIZE, BLOCK_SIZE),
        random.Random(seed),
        speedup=speedup,
    )
