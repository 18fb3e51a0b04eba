"""One's own metrics by the names of others: which samples, with which labels."""

import pytest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from kvmesh.app.views.other_names import Book, Served, others_of, read_books
from kvmesh.errors import RequestError


def requests() -> Metric:
    family = CounterMetricFamily("kvmesh_requests", "", labels=("outcome", "status"))
    for outcome, status, count in (
        ("finished", "2xx", 5),
        ("cut", "5xx", 1),
        ("crashed", "5xx", 2),
    ):
        family.add_metric((outcome, status), count)
    return family


def waiting(*counts: int) -> Metric:
    family = GaugeMetricFamily("kvmesh_worker_requests_waiting", "", labels=("worker",))
    for number, count in enumerate(counts):
        family.add_metric((f"w{number}",), count)
    return family


def saturation() -> Metric:
    family = GaugeMetricFamily("kvmesh_saturation", "", labels=("cause",))
    family.add_metric(("memory",), 0.3)
    family.add_metric(("wait",), 0.7)
    return family


def samples(own: Metric, book: Book) -> dict[tuple[str, ...], float]:
    made = others_of([own], frozenset((book,)), Served("llama", "chat"))
    return {
        (one.name, *(f"{name}={word}" for name, word in sorted(one.labels.items()))): one.value
        for metric in made
        for one in metric.samples
    }


def test_sums_are_over_what_others_have_no_label_for() -> None:
    models = ("model_name=llama", "target_model_name=llama")
    assert samples(requests(), "llm_d") == {
        ("llm_d_epp_request_total", *models): 8,
        ("llm_d_epp_request_error_total", "error_code=5xx", *models): 3,
    }
    assert samples(requests(), "vllm") == {("vllm:request_success_total", models[0]): 5}
    assert samples(requests(), "gen_ai") == {}


def test_workers_are_named_and_their_mean_is_told() -> None:
    found = samples(waiting(1, 2), "inference")

    assert found == {
        ("inference_pool_per_pod_queue_size", "model_server_pod=w0", "name=chat"): 1,
        ("inference_pool_per_pod_queue_size", "model_server_pod=w1", "name=chat"): 2,
        ("inference_pool_average_queue_size", "name=chat"): 1.5,
    }
    assert samples(waiting(), "inference") == {}


def test_what_fills_workers_most_is_how_full_they_are() -> None:
    name = "llm_d_epp_flow_control_pool_saturation"
    assert samples(saturation(), "llm_d") == {(name, "inference_pool=chat"): 0.7}


def test_names_are_asked_for_in_either_way() -> None:
    assert read_books("") == read_books("other=gen_ai") == frozenset()
    assert read_books("names=gen_ai,vllm") == read_books("names=gen_ai&names=vllm")
    with pytest.raises(RequestError, match="names=genai: use of gen_ai, vllm, inference, llm_d"):
        read_books("names=gen_ai,genai")
