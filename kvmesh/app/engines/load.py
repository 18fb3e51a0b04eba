"""What an engine says of its load: asked over HTTP, or heard on its own stream."""

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from kvmesh.actors.messages import WorkerLoad
from kvmesh.core.engines.load import EngineFigures, decode_loads
from kvmesh.errors import CodecError
from kvmesh.transport.http.fetch import fetch_ok
from kvmesh.transport.http.upstream.client import UpstreamPool

METRICS = "/metrics"
LOADS = "/v1/loads"
"""SGLang's own page: more than /metrics, and there without --enable-metrics."""


class Gauges(msgspec.Struct):
    """The figures of one rank out of /metrics."""

    running: float = 0.0
    waiting: float = 0.0
    usage: float = 0.0
    total_blocks: int = 0
    total_tokens: int = 0
    block_size: int = 0


async def read_loads(
    pool: UpstreamPool, url: str, path: str, block_size: int
) -> dict[int, WorkerLoad]:
    """Return each rank's load by `path`, `METRICS` or `LOADS`; empty when it does not tell."""
    if path == METRICS:
        return {rank: load_of(one) for rank, one in (await read_gauges(pool, url)).items()}
    page = await fetch_ok(pool, url, path)
    try:
        figures = decode_loads(page or b"")
    except CodecError:
        return {}
    return {rank: load_of_figures(one, block_size) for rank, one in figures.items()}


def load_of_figures(figures: EngineFigures, block_size: int) -> WorkerLoad:
    """Return SGLang's figures as a heartbeat carries them."""
    size = max(1, block_size)
    return WorkerLoad(
        running_requests=figures.running_requests,
        waiting_requests=figures.waiting_requests,
        used_blocks=figures.used_tokens // size,
        total_blocks=figures.total_tokens // size,
        waiting_tokens=figures.waiting_tokens,
        prefilled_tokens=figures.prefilled_tokens,
        prefill_busy_us=figures.prefill_busy_us,
    )


async def read_gauges(pool: UpstreamPool, url: str) -> dict[int, Gauges]:
    """Return the load figures on /metrics per rank; empty when there are none."""
    body = await fetch_ok(pool, url, "/metrics")
    return parse_gauges(body.decode(errors="replace")) if body else {}


def parse_gauges(page: str) -> dict[int, Gauges]:
    """Return the load figures of a Prometheus page of vLLM or SGLang, per rank."""
    ranks: dict[int, Gauges] = {}
    lines = (line for line in page.splitlines() if line.startswith(_WANTED))
    try:
        families = list(text_string_to_metric_families("\n".join(lines) + "\n"))
    except ValueError:
        return {}
    for family in families:
        for sample in family.samples:
            label = sample.labels.get("engine") or sample.labels.get("dp_rank") or "0"
            gauges = ranks.setdefault(int(label) if label.isdigit() else 0, Gauges())
            _take(gauges, sample.name, sample.value, sample.labels)
    return ranks


_WANTED = (
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "vllm:gpu_cache_usage_perc",
    "vllm:cache_config_info",
    "sglang:num_running_reqs",
    "sglang:num_queue_reqs",
    "sglang:token_usage",
    "sglang:max_total_num_tokens",
    "sglang:page_size",
)


def _take(gauges: Gauges, name: str, value: float, labels: dict[str, str]) -> None:
    match name.partition(":")[2]:
        case "num_requests_running" | "num_running_reqs":
            gauges.running += value
        case "num_requests_waiting" | "num_queue_reqs":
            gauges.waiting += value
        case "kv_cache_usage_perc" | "gpu_cache_usage_perc" | "token_usage":
            gauges.usage = max(gauges.usage, value)
        case "cache_config_info":
            gauges.block_size = _count(labels.get("block_size"))
            gauges.total_blocks = _count(labels.get("num_gpu_blocks"))
        case "page_size":
            gauges.block_size = int(value)
        case "max_total_num_tokens":
            gauges.total_tokens = int(value)
        case _:
            pass


def _count(text: str | None) -> int:
    return int(text) if text is not None and text.isdigit() else 0


def load_of(gauges: Gauges) -> WorkerLoad:
    """Return the figures as a heartbeat carries them; SGLang counts its capacity in tokens."""
    blocks = gauges.total_blocks or gauges.total_tokens // max(1, gauges.block_size)
    return WorkerLoad(
        running_requests=int(gauges.running),
        waiting_requests=int(gauges.waiting),
        used_blocks=int(gauges.usage * blocks),
        total_blocks=blocks,
    )
