from math import inf, nan
from typing import Any

import msgspec
import pytest

from kvmesh.actors.messages import RouterHeartbeat, WorkerHeartbeat, WorkerLoad
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.members.worker_info import AdapterReport


@pytest.mark.parametrize(
    ("reported", "share"), [(0.25, 0.25), (-1.0, 0.0), (1e25, 1.0), (nan, 0.0), (inf, 0.0)]
)
def test_what_no_engine_can_mean_is_not_passed_on(reported: float, share: float) -> None:
    report = WorkerLoad(prefix_hit_rate=reported, total_slots=-3).report()

    assert (report.prefix_hit_rate, report.total_slots) == (share, 0)
    assert WorkerLoad(total_slots=256).report().total_slots == 256
    report = WorkerLoad(prompt_slots=4, slot_tokens=-1).report()
    assert (report.prompt_slots, report.slot_tokens) == (4, 0)


def test_the_share_of_cached_tokens_is_told_or_made_of_two_counts() -> None:
    counted = WorkerLoad(prefix_hit_rate=0.5, cache_queried_tokens=400, cache_hit_tokens=100)

    assert counted.report().prefix_hit_rate == 0.25
    assert WorkerLoad(cache_hit_tokens=3).report().prefix_hit_rate == 0.0


def test_adapters_are_reported_where_the_engine_says_how_many_it_holds() -> None:
    full = WorkerLoad(adapter_slots=2, adapters=("a", "b")).report().adapters
    unnamed = WorkerLoad(adapter_slots=2).report().adapters

    assert WorkerLoad(adapters=("a",)).report().adapters == AdapterReport()
    assert (full, unnamed) == (AdapterReport(2, ("a", "b")), AdapterReport(2, ()))


BEAT = WorkerHeartbeat(
    worker=WorkerId("w"),
    bucket="b",
    epoch=1,
    last_seq=0,
    url="http://w:1",
    models=(),
    block_size=16,
)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({}, "nixl"),
        ({"bootstrap_port": 8998}, "bootstrap"),
        ({"bootstrap_port": 8998, "connector": "mooncake"}, "mooncake"),
        ({"connector": "shared"}, "shared"),
    ],
)
def test_a_worker_shares_requests_by_the_connector_it_names_or_the_usual_one(
    changes: dict[str, Any], name: str
) -> None:
    way = msgspec.structs.replace(BEAT, **changes).way

    assert way is not None
    assert way.name == name


def test_a_connector_of_a_later_version_is_none() -> None:
    assert msgspec.structs.replace(BEAT, connector="telepathy").way is None


@pytest.mark.parametrize(
    ("more", "decides"),
    [({}, True), ({"follower": True}, False), ({"follower": True, "picker": True}, True)],
)
def test_a_follower_decides_nothing_unless_it_is_a_picker(
    more: dict[str, Any], decides: bool
) -> None:
    beat = RouterHeartbeat(router="r", bucket="b", url="http://r:1", ready=True, epoch=1, **more)

    assert beat.decides is decides
