from kvmesh.app.engines.load import load_of, parse_gauges

VLLM = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 1.0
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 9.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="1000"} 1.0
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 2000.0
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 500.0
vllm:prefix_cache_hits_created{engine="0",model_name="m"} 1.7e+09
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
    assert (load.cache_queried_tokens, load.cache_hit_tokens) == (2000, 500)
    assert load_of(ranks[1]).running_requests == 1
    assert load.report().prefix_hit_rate == 0.25
    assert load_of(ranks[1]).report().prefix_hit_rate == 0.0
    assert ranks[0].block_size == 16


def test_sglang_capacity_is_counted_in_tokens() -> None:
    load = load_of(parse_gauges(SGLANG)[0])

    assert (load.running_requests, load.waiting_requests) == (4, 1)
    assert (load.used_blocks, load.total_blocks) == (256, 512)


def test_a_page_that_is_no_metrics_page_says_nothing() -> None:
    assert parse_gauges("<html>") == {}
    assert parse_gauges("vllm:num_requests_running{ 3") == {}
