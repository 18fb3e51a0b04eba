import pytest

from kvmesh.core.engines.facts import EngineFacts, EventEndpoint, Identity
from kvmesh.core.engines.vllm.interview import identify, recognise
from tests.unit.core.engines.interviews import conduct

SOURCES = b"""{"1":{"endpoint":"tcp://*:5558","replay_endpoint":null,"topic":null},
"0":{"endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:5567","topic":"t"},
"2":{"endpoint":"tcp://*:5559","enable_kv_cache_events":false},"odd":{"endpoint":"tcp://*:1"}}"""
METRICS = b"""# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig
vllm:cache_config_info{block_size="16",enable_prefix_caching="%s",engine="0"} 1.0
"""


def test_the_publishers_of_each_rank_are_listed_where_events_are_on() -> None:
    facts, asked = conduct(recognise("gpu-1"), {"/kv_event_sources": SOURCES})

    assert facts == EngineFacts(
        kind="vllm",
        endpoints=(
            EventEndpoint(0, "tcp://gpu-1:5557", "tcp://gpu-1:5567", "t"),
            EventEndpoint(1, "tcp://gpu-1:5558"),
        ),
    )
    assert asked == ["/kv_event_sources"]


@pytest.mark.parametrize("pages", [{}, {"/kv_event_sources": b"{}"}, {"/kv_event_sources": b"<"}])
def test_an_engine_that_lists_no_publisher_is_of_no_known_kind(pages: dict[str, bytes]) -> None:
    assert conduct(recognise("gpu-1"), pages)[0] is None


@pytest.mark.parametrize(
    ("metrics", "caching"),
    [
        (METRICS % b"True", True),
        (METRICS % b"False", False),
        (METRICS % b"True" + METRICS % b"False", False),
        (b"vllm:cache_config_info 1.0", None),
        (b"", None),
    ],
)
def test_prefix_caching_is_told_by_metrics(metrics: bytes, caching: bool | None) -> None:
    pages = {"/version": b'{"version":"0.32.0"}', "/metrics": metrics}

    assert conduct(identify(), pages)[0] == Identity("0.32.0", prefix_caching=caching)


def test_a_version_that_can_list_its_publishers_is_told_from_one_that_cannot() -> None:
    pages = {"/version": b'{"version":"0.32.0"}', "/kv_event_sources": b"{}"}

    assert conduct(identify(), pages)[0] == Identity("0.32.0", lists_events=True)


@pytest.mark.parametrize("pages", [{}, {"/version": b"{}"}, {"/version": b"[]"}])
def test_what_tells_no_version_is_of_another_kind(pages: dict[str, bytes]) -> None:
    assert conduct(identify(), pages) == (None, ["/version"])
