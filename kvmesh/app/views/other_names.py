"""Metrics by the names that others use: OpenTelemetry, vLLM, gateways' endpoint pickers.

Made of our own while a page is made, for who asks `/metrics?names=…`: they cost nothing until then.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, Literal, get_args
from urllib.parse import parse_qsl

import msgspec
from prometheus_client.core import Metric

from kvmesh.errors import RequestError

Book = Literal["gen_ai", "vllm", "inference", "llm_d"]
"""Whose names: OpenTelemetry's GenAI conventions; vLLM's; those of Gateway API Inference Extension
1.5, which llm-d-router 0.10 has, too, and calls deprecated; llm-d-router's own.
"""

BOOKS: Final[tuple[Book, ...]] = get_args(Book)
Combined = Literal["sum", "mean", "max"]
Pairs = tuple[tuple[str, str], ...]

SEVERAL: Final = "(several)"
"""Stands for the model of a bucket whose workers serve several: sums are not kept by model."""


class Served(msgspec.Struct, frozen=True):
    """What others' labels are filled in with: the one model that is served, and the bucket."""

    model: str = ""
    bucket: str = ""


class Other(msgspec.Struct, frozen=True):
    """One of our metrics, `of` (a counter's without `_total`), by others' names, without it, too.

    `where`: of our samples those with these words alone. `kept`: our label of which samples are
    told apart, and what it is called there, by book. `given`: labels that all samples get. Others
    of our labels are summed up, or as `combined` says. `note`: what it is that theirs is not.
    """

    of: str
    names: Mapping[Book, str | tuple[str, ...]]
    labels: "Labels"
    where: tuple[str, frozenset[str]] = ("", frozenset())
    kept: tuple[str, Mapping[Book, str]] = ("", {})
    given: Mapping[Book, Pairs] = {}
    combined: Combined = "sum"
    note: str = ""

    def pairs(self) -> Iterator[tuple[Book, str]]:
        """Yield each name with its book."""
        for book, names in self.names.items():
            for name in (names,) if isinstance(names, str) else names:
                yield book, name

    def fixed(self, book: Book, served: Served) -> dict[str, str]:
        """Return the labels that all samples get."""
        given = (*_LABELS[self.labels].get(book, ()), *self.given.get(book, ()))
        return {name: word.format(**msgspec.structs.asdict(served)) for name, word in given}


Labels = Literal["requests", "workers", "pool", "queue"]
_MODELS: Final[Pairs] = (("model_name", "{model}"), ("target_model_name", "{model}"))
_LABELS: Final[dict[Labels, dict[Book, Pairs]]] = {
    "requests": {
        "gen_ai": (
            ("gen_ai_operation_name", "inference"),
            ("gen_ai_provider_name", "kvmesh"),
            ("gen_ai_request_model", "{model}"),
            ("gen_ai_original_model", "{model}"),
        ),
        "vllm": (("model_name", "{model}"),),
        "inference": _MODELS,
        "llm_d": _MODELS,
    },
    "workers": {
        "vllm": (("model_name", "{model}"),),
        "inference": (("name", "{bucket}"),),
        "llm_d": (("name", "{bucket}"),),
    },
    "pool": {"inference": (("name", "{bucket}"),), "llm_d": (("name", "{bucket}"),)},
    "queue": {
        "inference": (("inference_pool", "{bucket}"),),
        "llm_d": (("inference_pool", "{bucket}"),),
    },
}

_DISPATCHED: Final[Pairs] = (("outcome", "Dispatched"),)

# fmt: off
OTHERS: Final = (
    Other("kvmesh_requests", {"inference": "inference_objective_request",
                              "llm_d": "llm_d_epp_request"}, "requests"),
    Other("kvmesh_requests", {"inference": "inference_objective_request_error",
                              "llm_d": "llm_d_epp_request_error"}, "requests",
          where=("status", frozenset({"4xx", "5xx"})),
          kept=("status", {"inference": "error_code", "llm_d": "error_code"}),
          note="`error_code` is a class: 4xx, 5xx"),
    Other("kvmesh_requests", {"vllm": "vllm:request_success"}, "requests",
          where=("status", frozenset({"2xx"})), note="not by `finished_reason`"),
    Other("kvmesh_request_duration_seconds", {
              "gen_ai": ("gen_ai_server_request_duration_seconds",
                         "gen_ai_client_operation_duration_seconds"),
              "vllm": "vllm:e2e_request_latency_seconds",
              "inference": "inference_objective_request_duration_seconds",
              "llm_d": "llm_d_epp_request_duration_seconds"}, "requests",
          note="from the decision, of finished requests"),
    Other("kvmesh_time_to_first_token_seconds", {
              "gen_ai": "gen_ai_server_time_to_first_token_seconds",
              "vllm": "vllm:time_to_first_token_seconds",
              "llm_d": "llm_d_epp_request_ttft_seconds"}, "requests",
          note="from the decision"),
    Other("kvmesh_inter_token_latency_seconds", {
              "gen_ai": "gen_ai_server_time_per_output_token_seconds",
              "vllm": ("vllm:inter_token_latency_seconds",
                       "vllm:request_time_per_output_token_seconds"),
              "llm_d": "llm_d_epp_request_streaming_tpot_seconds"}, "requests",
          note="one mean an answer"),
    Other("kvmesh_request_prompt_tokens", {
              "gen_ai": "gen_ai_client_token_usage", "vllm": "vllm:request_prompt_tokens",
              "inference": "inference_objective_input_tokens",
              "llm_d": "llm_d_epp_request_input_tokens"}, "requests",
          given={"gen_ai": (("gen_ai_token_type", "input"),)}),
    Other("kvmesh_request_output_tokens", {
              "gen_ai": "gen_ai_client_token_usage", "vllm": "vllm:request_generation_tokens",
              "inference": "inference_objective_output_tokens",
              "llm_d": "llm_d_epp_request_output_tokens"}, "requests",
          given={"gen_ai": (("gen_ai_token_type", "output"),)}),
    Other("kvmesh_prompt_tokens", {"vllm": "vllm:prompt_tokens"}, "requests",
          where=("kind", frozenset({"all"}))),
    Other("kvmesh_prompt_tokens", {"vllm": ("vllm:prefix_cache_queries",
                                            "vllm:gpu_prefix_cache_queries")}, "requests",
          where=("kind", frozenset({"reported"})),
          note="of answers whose engine reports its cache use"),
    Other("kvmesh_prompt_tokens", {"vllm": ("vllm:prefix_cache_hits",
                                            "vllm:gpu_prefix_cache_hits")}, "requests",
          where=("kind", frozenset({"cached"}))),
    Other("kvmesh_output_tokens", {"vllm": "vllm:generation_tokens"}, "requests"),
    Other("kvmesh_open_requests", {"inference": "inference_objective_running_requests",
                                   "llm_d": "llm_d_epp_request_running"}, "requests"),
    Other("kvmesh_worker_requests_running", {"vllm": "vllm:num_requests_running"}, "workers",
          kept=("worker", {"vllm": "server"})),
    Other("kvmesh_worker_usable", {"vllm": "vllm:healthy_pods_total"}, "workers",
          kept=("worker", {"vllm": "server"}), note="a gauge of vLLM's production stack"),
    Other("kvmesh_worker_requests_waiting", {
              "vllm": "vllm:num_requests_waiting",
              "inference": "inference_pool_per_pod_queue_size",
              "llm_d": "llm_d_epp_per_endpoint_queue_size"}, "workers",
          kept=("worker", {"vllm": "server", "inference": "model_server_pod",
                           "llm_d": "model_server_endpoint"})),
    Other("kvmesh_worker_gpu_cache_usage_perc", {"vllm": "vllm:kv_cache_usage_perc"}, "workers",
          kept=("worker", {"vllm": "server"})),
    Other("kvmesh_worker_requests_running", {
              "inference": "inference_pool_average_running_requests",
              "llm_d": "llm_d_epp_average_running_requests"}, "pool", combined="mean"),
    Other("kvmesh_worker_requests_waiting", {
              "inference": "inference_pool_average_queue_size",
              "llm_d": "llm_d_epp_average_queue_size"}, "pool", combined="mean"),
    Other("kvmesh_worker_gpu_cache_usage_perc", {
              "inference": "inference_pool_average_kv_cache_utilization",
              "llm_d": "llm_d_epp_average_kv_cache_utilization"}, "pool", combined="mean"),
    Other("kvmesh_usable_workers", {"inference": "inference_pool_ready_pods",
                                    "llm_d": "llm_d_epp_ready_endpoints"}, "pool"),
    Other("kvmesh_saturation", {"inference": "inference_extension_flow_control_pool_saturation",
                                "llm_d": "llm_d_epp_flow_control_pool_saturation"}, "queue",
          combined="max", note="the largest over `cause`"),
    Other("kvmesh_queue_requests", {"inference": "inference_extension_flow_control_queue_size",
                                    "llm_d": "llm_d_epp_flow_control_queue_size"}, "queue",
          note="not by `priority` and `fairness_id`"),
    Other("kvmesh_queue_wait_seconds", {
              "inference": "inference_extension_flow_control_request_queue_duration_seconds",
              "llm_d": "llm_d_epp_flow_control_request_queue_duration_seconds"}, "queue",
          given={"inference": _DISPATCHED, "llm_d": _DISPATCHED},
          note="of requests that were held and released; sum and count, no buckets"),
    Other("kvmesh_decision_seconds", {
              "inference": "inference_extension_scheduler_e2e_duration_seconds",
              "llm_d": "llm_d_epp_scheduler_e2e_duration_seconds"}, "pool",
          where=("phase", frozenset({"decide"}))),
)
# fmt: on

_BYTES: Final = "sizes in bytes are not counted"
_ENGINES: Final = "it happens inside an engine: scrape the engines"
_TURNS: Final = "there is no loop that dispatches: a request that may go goes at once"
LACKING: Final = {
    "inference_objective_request_sizes": _BYTES,
    "inference_objective_response_sizes": _BYTES,
    "inference_extension_flow_control_queue_bytes": _BYTES,
    "inference_extension_flow_control_dispatch_cycle_duration_seconds": _TURNS,
    "inference_extension_flow_control_request_enqueue_duration_seconds": _TURNS,
    "vllm:current_qps": "take the rate of `vllm:request_success_total`",
    "router_cpu_usage_percent": "take `process_cpu_seconds_total`",
    "router_memory_usage_percent": "take `process_resident_memory_bytes`",
    "router_disk_usage_percent": "nothing is kept on disk",
    "bbr_success_total": "the body-based router is a process of its own",
    "bbr_model_not_in_body_total": "the same",
    "bbr_model_not_parsed_total": "the same",
    "bbr_plugin_duration_seconds": "the same",
    "vllm:request_queue_time_seconds": _ENGINES,
    "vllm:request_prefill_time_seconds": _ENGINES,
    "vllm:request_decode_time_seconds": _ENGINES,
    "vllm:request_max_num_generation_tokens": _ENGINES,
}
"""What dashboards of others ask for, too, and why there is none."""

LACKING_LABELS: Final = {
    "priority": "no sums by priority are kept",
    "fairness_id": "tenants are no labels: their number has no bound",
    "finished_reason": "not counted",
    "streaming": "streams and whole answers are counted together",
    "error_type": "times are of finished requests; for errors take `kvmesh_requests_total`",
    "gen_ai_response_model": "not read of answers",
    "endpoint": "Prometheus adds it where its operator finds the target",
    "pod": "Prometheus adds it where it finds the target as a pod",
}
"""The same of labels: without them a query shows one curve for all, or nothing."""


def read_books(query: str) -> frozenset[Book]:
    """Return the books that a query asks for. Raises `RequestError` for one that there is not."""
    asked = {name for key, words in parse_qsl(query) if key == "names" for name in words.split(",")}
    for name in asked.difference(BOOKS):
        raise RequestError(f"names={name[:64]}: use of {', '.join(BOOKS)}", param="names")
    return frozenset(book for book in BOOKS if book in asked)


def others_of(own: Iterable[Metric], books: frozenset[Book], served: Served) -> Iterator[Metric]:
    """Yield what is `own` by the names of `books`, each name once."""
    known = {metric.name: metric for metric in own}
    made: dict[str, Metric] = {}
    for other in OTHERS:
        if (metric := known.get(other.of)) is None:
            continue
        for book, name in other.pairs():
            if book in books:
                family = made.setdefault(name, Metric(name, _text(other), metric.type))
                _add(family, metric, other, book, served)
    yield from made.values()


def _add(family: Metric, metric: Metric, other: Other, book: Book, served: Served) -> None:
    """Add the samples of one of our metrics to the family that it is called there."""
    fixed = other.fixed(book, served)
    label, words = other.where
    ours, theirs = other.kept
    found: dict[tuple[str, Pairs], list[float]] = {}
    for sample in metric.samples:
        if label and sample.labels[label] not in words:
            continue
        labels = dict(fixed)
        if book in theirs:
            labels[theirs[book]] = sample.labels[ours]
        if (bound := sample.labels.get("le")) is not None:
            labels["le"] = bound
        name = family.name + sample.name.removeprefix(metric.name)
        found.setdefault((name, tuple(labels.items())), []).append(sample.value)
    for (name, pairs), values in found.items():
        family.add_sample(name, dict(pairs), _COMBINED[other.combined](values))


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


_COMBINED: Final[dict[Combined, Callable[[list[float]], float]]] = {
    "sum": sum,
    "mean": _mean,
    "max": max,
}


def _text(other: Other) -> str:
    note = f"; {other.note.replace('`', '')}" if other.note else ""
    return f"{other.of} by another name{note}."


def render_others() -> list[str]:
    """Return the part of docs/reference/metrics.md about the names of others."""
    lines = [
        "",
        "## By the names of others",
        "`GET /metrics?names=gen_ai` has these, too, made of ours while the page is made; several:",
        "`?names=gen_ai,vllm`, or `names` again. In Prometheus: `params: {names: [gen_ai]}`.",
        "Models are no label of ours: with one in the bucket it is named, else `(several)` stands",
        "there; nor are operations, and `gen_ai_operation_name` is `inference` for all.",
        "`name` and `inference_pool` are the bucket, pods and endpoints its workers.",
        "Replicas of a bucket each tell of all its workers: take `max`, not `sum`, of gauges.",
        "Where Prometheus scrapes the engines, too, `vllm` counts their requests a second time.",
        "Routers and pickers have them. A meta-router names the routers to scrape, in a comment:",
        "it only passes requests on. Who scrapes a whole mesh may send `names` to all of it.",
        "",
        "| `names=` | name | ours | labels | differs |",
        "|---|---|---|---|---|",
    ]
    rows = [(book, name, other) for other in OTHERS for book, name in other.pairs()]
    for book, name, other in sorted(rows, key=lambda row: (BOOKS.index(row[0]), row[1])):
        label, words = other.where
        chosen = f"{{{label}={', '.join(sorted(words))}}}" if label else ""
        fixed = list(other.fixed(book, Served("…", "…")))
        kept = [other.kept[1][book]] if book in other.kept[1] else []
        labels = ", ".join(f"`{one}`" for one in sorted([*fixed, *kept]))
        combined = "" if other.combined == "sum" else f"{other.combined} of "
        ours = f"{combined}`{other.of}{chosen}`"
        lines.append(f"| {book} | `{name}` | {ours} | {labels} | {other.note} |")
    lines += [
        "",
        "Dashboards of others ask for these, too, which there are not:",
        "",
        "| metric or label | why |",
        "|---|---|",
        *(f"| `{name}` | {why} |" for name, why in {**LACKING, **LACKING_LABELS}.items()),
    ]
    return lines
