import msgspec
import pytest

from kvmesh.actors.messages import WorkerLoad
from kvmesh.app.members.engine_load import MAX_LINES, load_of, load_of_figures, parse_gauges
from kvmesh.core.engines.load import EngineFigures
from kvmesh.core.members.progress import EngineReading
from kvmesh.core.members.worker_info import AdapterReport

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


IN_USE = (
    'vllm:lora_requests_info{max_lora="4",running_lora_adapters="%s",waiting_lora_adapters="%s"}'
)
LORA = f"""\
vllm:num_requests_running{{engine="0",model_name="m"}} 3.0
{IN_USE % ("poet", "")} 1.7e+09
{IN_USE % ("clerk, poet", "x")} 1.9e+09
{IN_USE % ("old", "")} 1.8e+09
{IN_USE % ("no time", "")} nan
"""


def test_of_adapters_the_latest_line_counts() -> None:
    load = load_of(parse_gauges(LORA)[0])

    assert load.report().adapters == AdapterReport(4, ("clerk", "poet", "x"))


def test_lines_of_adapters_leave_room_for_all_others() -> None:
    one = 'vllm:lora_requests_info{max_lora="4",running_lora_adapters="a%d"} %d.0\n'
    page = "".join(one % (n, n) for n in range(MAX_LINES + 5)) + VLLM

    ranks = parse_gauges(page)

    assert ranks[0].running == 3.0
    assert load_of(ranks[0]).report().adapters.names == (f"a{MAX_LINES + 4}",)


def test_a_page_that_is_no_metrics_page_says_nothing() -> None:
    assert parse_gauges("<html>") == {}
    assert parse_gauges("vllm:num_requests_running{ 3") == {}


@pytest.mark.parametrize(
    ("page", "computed"),
    [
        ("", None),
        ("vllm:num_requests_running 1.0", None),
        ('vllm:generation_tokens_total{engine="0"} 40.0\nvllm:prompt_tokens_total 2.0', 42),
        ("vllm:generation_tokens_total 0.0", 0),
        ("vllm:generation_tokens_total 1e25", None),
        ("vllm:generation_tokens_total NaN\nvllm:prompt_tokens_total 2.0", None),
        ("vllm:generation_tokens_total -1.0", None),
        ("vllm:generation_tokens_total 9e15\nvllm:prompt_tokens_total 9e15", None),
        ('sglang:realtime_tokens_total{mode="decode"} 7.0', 7),
        ('sglang:realtime_tokens_total{mode="a"} 7\nsglang:realtime_tokens_total{mode="b"} 90', 97),
        ("llamacpp:n_decode_total 125", 125),
    ],
)
def test_each_kind_of_engine_shows_its_progress_by_counters_of_its_own(
    page: str, computed: int | None
) -> None:
    gauges = parse_gauges(f"vllm:num_requests_waiting 0.0\n{page}\n")[0]

    load = load_of(gauges)

    assert load.reading().computed == computed
    assert (load.computed_tokens is msgspec.UNSET) == (computed is None)


def test_progress_is_read_of_figures_too_and_travels_in_heartbeats_alone() -> None:
    reported = load_of_figures(EngineFigures(1, 2, 32, 0, computed_tokens=9), 16)
    untold = load_of_figures(EngineFigures(0, 0, 0, 0), 16)

    assert reported.reading() == EngineReading(9, running=1, waiting=2, used_blocks=2)
    assert b"computed_tokens" not in msgspec.msgpack.encode(untold)
    earlier = msgspec.msgpack.encode({"running_requests": 3})
    assert msgspec.msgpack.decode(earlier, type=WorkerLoad).reading().computed is None
