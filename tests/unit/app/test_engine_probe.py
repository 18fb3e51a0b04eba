import pytest

from kvmesh.app.engine_probe import (
    EventEndpoint,
    given_endpoints,
    load_of,
    parse_gauges,
    reachable,
    refuse_collisions,
)
from kvmesh.errors import ConfigError

VLLM = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 1.0
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 9.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="1000"} 1.0
python_gc_objects_collected_total{generation="0"} 500.0
"""
SGLANG = """\
sglang:num_running_reqs{model_name="m"} 4.0
sglang:num_queue_reqs{model_name="m"} 1.0
sglang:token_usage{model_name="m"} 0.5
sglang:max_total_num_tokens{model_name="m"} 8192.0
sglang:page_size{model_name="m"} 16.0
"""


def test_vllm_figures_are_read_per_rank() -> None:
    ranks = parse_gauges(VLLM)

    load = load_of(ranks[0])
    assert (load.running_requests, load.waiting_requests) == (3, 2)
    assert (load.used_blocks, load.total_blocks) == (250, 1000)
    assert load_of(ranks[1]).running_requests == 1
    assert ranks[0].block_size == 16


def test_sglang_capacity_is_counted_in_tokens() -> None:
    load = load_of(parse_gauges(SGLANG)[0])

    assert (load.running_requests, load.waiting_requests) == (4, 1)
    assert (load.used_blocks, load.total_blocks) == (256, 512)


def test_a_page_that_is_no_metrics_page_says_nothing() -> None:
    assert parse_gauges("<html>") == {}
    assert parse_gauges("vllm:num_requests_running{ 3") == {}


def test_a_wildcard_endpoint_is_named_by_the_engines_host() -> None:
    assert reachable("tcp://*:5557", "gpu-1") == "tcp://gpu-1:5557"
    assert reachable("tcp://0.0.0.0:5557", "gpu-1") == "tcp://gpu-1:5557"
    assert reachable("tcp://other:5557", "gpu-1") == "tcp://other:5557"


def test_ranks_add_their_number_to_both_given_ports() -> None:
    assert given_endpoints("tcp://h:5557", "tcp://h:5567", 2, topic="t") == (
        EventEndpoint(0, "tcp://h:5557", "tcp://h:5567", "t"),
        EventEndpoint(1, "tcp://h:5558", "tcp://h:5568", "t"),
    )
    assert given_endpoints("ipc:///a", "", 1) == (EventEndpoint(0, "ipc:///a"),)


def test_an_endpoint_without_a_port_cannot_have_two_ranks() -> None:
    with pytest.raises(ConfigError, match="has no port to add the rank 1 to"):
        given_endpoints("ipc:///a", "", 2)


@pytest.mark.parametrize(
    ("endpoint", "replay", "ranks", "words"),
    [
        ("tcp://h:5557", "tcp://h:5558", 2, "port 5558 is used by rank 0 replay and rank 1 events"),
        ("tcp://h:5557", "tcp://h:5557", 1, "port 5557 is used by rank 0 events and rank 0 replay"),
    ],
)
def test_ranks_that_would_share_a_port_are_refused(
    endpoint: str, replay: str, ranks: int, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        refuse_collisions(given_endpoints(endpoint, replay, ranks))
