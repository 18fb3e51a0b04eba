"""Whatever numbers within the bounds a request brings, each formula gives every worker a number."""

from math import isfinite
from random import Random

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from kvmesh.bounds import (
    MAX_CHOICES,
    MAX_PRIORITY,
    MAX_TEMPERATURE,
    MAX_TOKENS,
    MAX_WEIGHT,
)
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.hashing import BlockHashes
from kvmesh.core.cost.formulas import COSTS
from kvmesh.core.index.approx import new_approx
from kvmesh.core.insight.explain import view_decision
from kvmesh.core.members.loads import new_sequences
from kvmesh.core.members.membership import Membership
from kvmesh.core.members.worker_info import LoadReport
from kvmesh.core.routing.decision import RouteRequest, RouterOptions
from kvmesh.core.routing.scheduler import Scheduler

tokens = st.sampled_from([0, 1, 17, 10**6, MAX_TOKENS])
weights = st.sampled_from([0.0, 5e-324, 1e-9, 1.0, MAX_WEIGHT]) | st.floats(0.0, MAX_WEIGHT)
temperatures = st.sampled_from([0.0, 5e-324, 1e-300, 1.0, MAX_TEMPERATURE])
moments = st.sampled_from([100.0, 100.001, 10_000.0])
WEIGHED = [name for name, cost in COSTS.items() if "overlap_score_weight" in cost.weights]


@st.composite
def make_request(draw: st.DrawFn, number: int, default: str) -> RouteRequest:
    blocks = draw(st.integers(0, 40))
    family = draw(st.integers(1, 3))
    cost = draw(st.sampled_from([None, *COSTS]))
    weighed = (cost or default) in WEIGHED
    return RouteRequest(
        f"r{number}",
        BlockHashes.of([family * 1000 + depth for depth in range(blocks)], 16),
        max(blocks * 16, draw(tokens)),
        expected_output_tokens=draw(tokens),
        cost=cost,
        overlap_score_weight=draw(st.none() | weights) if weighed else None,
        temperature=draw(st.none() | temperatures),
        priority=draw(st.sampled_from([-MAX_PRIORITY, 0, MAX_PRIORITY])),
        choices=draw(st.sampled_from([1, MAX_CHOICES])),
        streams=draw(st.booleans()),
    )


@given(st.data(), st.integers(1, 3), st.sampled_from(list(COSTS)))
def test_no_request_makes_a_cost_infinite_or_undefined(
    data: st.DataObject, workers: int, cost: str
) -> None:
    members = Membership()
    for number in range(workers):
        members.add(f"w{number}", 0.0)
    scheduler = Scheduler(
        RouterOptions(cost=cost),
        Random(1),
        membership=members,
        sequences=new_sequences(16),
        routed=new_approx(),
    )
    capacity = data.draw(st.sampled_from([0, 1, MAX_TOKENS]))
    for _ in range(3):
        report = LoadReport(running_requests=data.draw(tokens), total_blocks=capacity)
        scheduler.workers.report(WorkerId("w0"), report)

    for number in range(4):
        now = data.draw(moments)
        request = data.draw(make_request(number, cost))
        explained = scheduler.explain(request, now)
        decision = scheduler.schedule(request, now).record.decision

        assert isfinite(decision.score)
        assert all(map(isfinite, explained.scores))
        assert msgspec.json.encode(view_decision(explained, router="r", bucket="b"))
        if data.draw(st.booleans()):
            scheduler.first_token(request.request_id, now + 0.5)
            scheduler.grow(request.request_id, data.draw(tokens), now + 1e-9)
