"""/metrics of the pretend vLLM: vLLM's names, labels and buckets.

Source: vllm/v1/metrics/{loggers,buckets}.py (0.32).
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import Final, Protocol

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kvmesh_lab.mocker.model.answer import FinishReason
from kvmesh_lab.mocker.model.request import EngineStatistics

LATENCY_BUCKETS: Final = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
FIRST_TOKEN_BUCKETS: Final = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
INTER_TOKEN_BUCKETS: Final = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0),
)
STEP_BUCKETS: Final = tuple(float(1 << n) for n in (0, *range(3, 15)))
LABELS: Final = ("model_name", "engine")


def request_token_buckets(max_model_len: int) -> tuple[float, ...]:
    """Return 1, 2, 5, 10, 20, 50, … up to `max_model_len`, as vLLM's `build_1_2_5_buckets`."""
    buckets: list[float] = []
    for exponent in count():
        for mantissa in (1, 2, 5):
            value = mantissa * 10**exponent
            if value > max_model_len:
                return tuple(buckets)
            buckets.append(float(value))
    raise AssertionError("unreachable")


class RankView(Protocol):
    """A rank whose gauges and totals can be read."""

    def statistics(self) -> EngineStatistics:
        """Return them as they are now."""
        ...


GAUGES: Final[Mapping[str, tuple[str, Callable[[EngineStatistics], float]]]] = {
    "num_requests_running": (
        "Number of requests in model execution batches.",
        lambda statistics: statistics.running_requests,
    ),
    "num_requests_waiting": (
        "Number of requests waiting to be processed.",
        lambda statistics: statistics.waiting_requests,
    ),
    "kv_cache_usage_perc": (
        "KV-cache usage. 1 means 100 percent usage.",
        lambda statistics: statistics.kv_cache_usage,
    ),
}
COUNTERS: Final[Mapping[str, tuple[str, Callable[[EngineStatistics], float]]]] = {
    "prefix_cache_queries": (
        "Prefix cache queries, in terms of number of queried tokens.",
        lambda statistics: statistics.prefix_cache_queries,
    ),
    "prefix_cache_hits": (
        "Prefix cache hits, in terms of number of cached tokens.",
        lambda statistics: statistics.prefix_cache_hits,
    ),
    "generation_tokens": (
        "Number of generation tokens processed.",
        lambda statistics: statistics.generated_tokens,
    ),
    "num_preemptions": (
        "Cumulative number of preemption from the engine.",
        lambda statistics: statistics.preemptions,
    ),
}


class _Snapshot(Collector):
    """Reads every rank's statistics when the page is asked for, not with every step."""

    def __init__(
        self, model: str, ranks: Mapping[int, RankView], cache_config: Mapping[str, str]
    ) -> None:
        self._model = model
        self._ranks = ranks
        self._cache_config = cache_config

    def collect(self) -> Iterator[Metric]:
        """Yield the gauges, the totals and the cache configuration."""
        now = {str(rank): view.statistics() for rank, view in self._ranks.items()}
        for name, (text, read) in GAUGES.items():
            gauge = GaugeMetricFamily(f"vllm:{name}", text, labels=LABELS)
            for rank, statistics in now.items():
                gauge.add_metric((self._model, rank), read(statistics))
            yield gauge
        for name, (text, read) in COUNTERS.items():
            counter = CounterMetricFamily(f"vllm:{name}", text, labels=LABELS)
            for rank, statistics in now.items():
                counter.add_metric((self._model, rank), read(statistics))
            yield counter
        config = GaugeMetricFamily(
            "vllm:cache_config_info",
            "Information of the LLMEngine CacheConfig",
            labels=(*self._cache_config, "engine"),
        )
        for rank in now:
            config.add_metric((*self._cache_config.values(), rank), 1.0)
        yield config
        yield from _adapters(now["0"]) if "0" in now else ()


def _adapters(statistics: EngineStatistics) -> Iterator[Metric]:
    """Yield what runs with which LoRA adapters, which vLLM tells without a rank."""
    if statistics.adapter_slots:
        words = (
            str(statistics.adapter_slots),
            ",".join(statistics.waiting_adapters),
            ",".join(statistics.running_adapters),
        )
        labels = ("max_lora", "waiting_lora_adapters", "running_lora_adapters")
        text = "Running stats on lora requests."
        info = GaugeMetricFamily("vllm:lora_requests_info", text, labels=labels)
        info.add_metric(words, time.time())
        yield info


class RankMetrics:
    """What one rank observes. `labels` are the values of `LABELS`."""

    def __init__(self, owner: "EngineMetrics", labels: tuple[str, str]) -> None:
        self.observed = 0
        self._success = {
            reason: owner.success.labels(*labels, reason) for reason in ("stop", "length", "abort")
        }
        self._prompt_tokens = owner.prompt_tokens.labels(*labels)
        self._cached_tokens = owner.cached_tokens.labels(*labels)
        self._first_token = owner.first_token.labels(*labels)
        self._inter_token = owner.inter_token.labels(*labels)
        self._step_tokens = owner.step_tokens.labels(*labels)
        self._e2e, self._queue, self._prefill, self._decode, self._inference = (
            histogram.labels(*labels) for histogram in owner.phases
        )
        self._prompt_sizes = owner.prompt_sizes.labels(*labels)
        self._answer_sizes = owner.answer_sizes.labels(*labels)

    def on_step(self, tokens: int, decoded: int, seconds: float) -> None:
        """Count a step: all its tokens, and `decoded` requests that waited `seconds` for one."""
        self.observed += 1
        self._step_tokens.observe(tokens)
        for _ in range(decoded):
            self._inter_token.observe(seconds)

    def on_first_token(self, prompt_tokens: int, cached_tokens: int, seconds: float) -> None:
        """Count a request's first token, `seconds` after it came."""
        self.observed += 1
        self._first_token.observe(seconds)
        self._prompt_tokens.inc(prompt_tokens)
        self._cached_tokens.inc(cached_tokens)

    def on_end(self, reason: FinishReason) -> None:
        """Count an ended request."""
        self.observed += 1
        self._success[reason].inc()

    def on_finish(self, times: Sequence[float], prompt_tokens: int, answer_tokens: int) -> None:
        """Observe a whole request; `times` are arrival, scheduling, first and last token."""
        arrived, scheduled, first, last = times
        self.observed += 1
        self._e2e.observe(last - arrived)
        self._queue.observe(scheduled - arrived)
        self._prefill.observe(first - scheduled)
        self._decode.observe(last - first)
        self._inference.observe(last - scheduled)
        self._prompt_sizes.observe(prompt_tokens)
        self._answer_sizes.observe(answer_tokens)


class EngineMetrics:
    """The whole page. `ranks` reads each rank's gauges and totals when the page is asked for."""

    def __init__(
        self,
        model: str,
        max_model_len: int,
        ranks: Mapping[int, RankView],
        cache_config: Mapping[str, str],
    ) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_Snapshot(model, ranks, cache_config))
        sizes = request_token_buckets(max_model_len)
        self.success = self._counter("request_success", "finished requests", "finished_reason")
        self.prompt_tokens = self._counter("prompt_tokens", "Number of prefill tokens processed.")
        self.cached_tokens = self._counter(
            "prompt_tokens_cached", "Number of cached prompt tokens."
        )
        self.first_token = self._histogram("time_to_first_token_seconds", FIRST_TOKEN_BUCKETS)
        self.inter_token = self._histogram("inter_token_latency_seconds", INTER_TOKEN_BUCKETS)
        self.step_tokens = self._histogram("iteration_tokens_total", STEP_BUCKETS)
        self.phases = [
            self._histogram(f"{name}_seconds", LATENCY_BUCKETS)
            for name in (
                "e2e_request_latency",
                "request_queue_time",
                "request_prefill_time",
                "request_decode_time",
                "request_inference_time",
            )
        ]
        self.prompt_sizes = self._histogram("request_prompt_tokens", sizes)
        self.answer_sizes = self._histogram("request_generation_tokens", sizes)
        self.ranks = [RankMetrics(self, (model, str(rank))) for rank in sorted(ranks)]
        self._views = ranks
        self._page = b""
        self._shown: tuple[list[EngineStatistics], list[int]] = ([], [])

    def page(self) -> bytes:
        """Return the page in Prometheus' text format; made anew, 2.5 ms, where it differs."""
        now = [view.statistics() for view in self._views.values()]
        state = (now, [rank.observed for rank in self.ranks])
        # With adapters the page has the time.
        if state != self._shown or any(one.adapter_slots for one in now):
            self._shown, self._page = state, generate_latest(self.registry)
        return self._page

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"vllm:{name}", text, (*LABELS, *labels), registry=self.registry)

    def _histogram(self, name: str, buckets: Sequence[float]) -> Histogram:
        text = f"Histogram of {name.replace('_', ' ')}."
        return Histogram(f"vllm:{name}", text, LABELS, registry=self.registry, buckets=buckets)
