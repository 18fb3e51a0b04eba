"""What vLLM says of its load: series on /metrics, one of each a data-parallel rank."""

from typing import Final

from kvmesh.core.engines.load import Gauge

CACHE_INFO: Final = "vllm:cache_config_info"

GAUGES: Final = {
    "vllm:num_requests_running": (Gauge("running"),),
    "vllm:num_requests_waiting": (Gauge("waiting"),),
    "vllm:kv_cache_usage_perc": (Gauge("usage"),),
    "vllm:gpu_cache_usage_perc": (Gauge("usage"),),
    "vllm:prefix_cache_queries_total": (Gauge("queried"),),
    "vllm:prefix_cache_hits_total": (Gauge("hit"),),
    "vllm:generation_tokens_total": (Gauge("computed"),),
    "vllm:prompt_tokens_total": (Gauge("computed"),),
    "vllm:lora_requests_info": (
        Gauge("adapter_slots", label="max_lora"),
        Gauge("adapters", label="running_lora_adapters"),
        Gauge("adapters", label="waiting_lora_adapters"),
    ),
    CACHE_INFO: (
        Gauge("block_size", label="block_size"),
        Gauge("total_blocks", label="num_gpu_blocks"),
    ),
}
