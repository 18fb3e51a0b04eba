import msgspec
import pytest

from kvmesh_lab.analyze.live_advice import (
    LivePrefix,
    LiveTraffic,
    LiveWorker,
    advise_live,
    core_depth,
)

TRAFFIC = LiveTraffic(
    requests=500,
    overridden=0,
    own=480,
    saved=0.6,
    saved_tokens=600,
    saved_s=0.5,
    predicted_alone=0.0,
    cached=0.6,
    predicted=0.61,
    round_robin=0.3,
    core_breadth=1,
    core_depth=800.0,
)
WORKER = LiveWorker(name="w0", usable=True, trust="exact", usage=0.4)
PREFIX = LivePrefix(
    key="00ab", bucket="chat", tokens=800, parent_tokens=0, share=0.5, cached_share=0.9, holders=2
)


def words(
    traffic: LiveTraffic = TRAFFIC, worker: LiveWorker = WORKER, prefix: LivePrefix = PREFIX
) -> str:
    found = advise_live(traffic, [WORKER, worker], [prefix])
    return "\n".join(f"{one.what}: {one.why}" for one in found)


def test_a_mesh_that_does_well_gets_no_advice() -> None:
    assert words() == ""


def test_few_requests_say_nothing_but_doubtful_workers_do() -> None:
    few = msgspec.structs.replace(TRAFFIC, requests=3, cached=0.0)
    suspect = LiveWorker("w1", usable=True, trust="catching-up", usage=None)
    gone = msgspec.structs.replace(suspect, usable=False)

    assert "only 3 requests" in words(few, gone)
    assert "w1" not in words(few, gone)
    assert "look at worker w1" in words(few, suspect)


@pytest.mark.parametrize("predicted", [0.4, 0.8])
def test_predictions_that_engines_deny_are_named(predicted: float) -> None:
    wrong = msgspec.structs.replace(TRAFFIC, predicted=predicted)

    assert f"predicted {predicted:.1%} of prompt tokens cached, engines report 60.0%" in words(
        wrong
    )


def test_caches_that_gain_nothing_are_named() -> None:
    assert "gains 2.0% here" in words(msgspec.structs.replace(TRAFFIC, round_robin=0.58))


def test_requests_that_named_their_policy_are_not_held_against_predictions() -> None:
    tested = msgspec.structs.replace(
        TRAFFIC, requests=160, overridden=150, own=10, cached=0.2, predicted=0.6, round_robin=0.6
    )
    silent = msgspec.structs.replace(tested, overridden=0, own=0)

    assert "150 of 160 requests did" in words(tested)
    assert "engines report" not in words(tested)
    assert words(silent) == ""


def test_what_engines_do_not_report_is_not_judged() -> None:
    silent = msgspec.structs.replace(TRAFFIC, cached=None, predicted=None, round_robin=None)

    assert words(silent) == ""


def test_full_caches_and_lonely_hot_prefixes_are_named() -> None:
    assert "KV cache of w9" in words(worker=msgspec.structs.replace(WORKER, name="w9", usage=0.97))
    assert "prefix 00ab of 800 tokens begins 50%" in words(
        prefix=msgspec.structs.replace(PREFIX, holders=1)
    )


def test_vast_caches_and_uneven_loads_are_named() -> None:
    vast = msgspec.structs.replace(WORKER, blocks=2_000_000)
    small = msgspec.structs.replace(WORKER, name="w1", blocks=500_000)
    busy = msgspec.structs.replace(WORKER, name="w1", requests=100, bucket="chat")
    idle = [msgspec.structs.replace(busy, name=f"i{number}", requests=1) for number in range(3)]
    gone = msgspec.structs.replace(small, usable=False)

    assert "each worker has 2,000,000 KV blocks" in words(worker=vast)
    for fleet in ([vast, gone], [vast, small]):
        named = [one.what for one in advise_live(TRAFFIC, fleet, [])]
        assert any("weight on cache usage" in what for what in named) == (fleet[1] is gone)
    (found,) = advise_live(TRAFFIC, [busy, *idle], [])
    assert "worker w1 has 100 of the 103 open requests of bucket chat" in found.why


def test_depth_adds_up_levels_by_how_many_go_down_them() -> None:
    below = msgspec.structs.replace(PREFIX, key="b", tokens=1000, parent_tokens=800, share=0.25)
    other = msgspec.structs.replace(PREFIX, bucket="code", tokens=100, share=1.0)

    assert core_depth([PREFIX, below]) == pytest.approx(0.5 * 800 + 0.25 * 200)
    assert core_depth([PREFIX, below, other]) == pytest.approx((450.0 + 100.0) / 2)
    assert core_depth([]) == 0.0
