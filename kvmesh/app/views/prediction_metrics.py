"""What engines reused against what was predicted, per worker, as Prometheus reads it."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from kvmesh.core.insight.predictions import Predictions


def prediction_metrics(predictions: Predictions) -> Iterator[Metric]:
    """Yield the metrics of every worker that has answered."""
    answers = CounterMetricFamily(
        "kvmesh_worker_predictions",
        "Answers whose engine told its reuse, by how the prediction held "
        "(unlike: the engine counts other prompt tokens).",
        labels=["worker", "result"],
    )
    tokens = CounterMetricFamily(
        "kvmesh_worker_prediction_tokens",
        "Prompt tokens predicted to be cached, and reused by the engine's word.",
        labels=["worker", "kind"],
    )
    resyncs = CounterMetricFamily(
        "kvmesh_worker_prediction_resyncs",
        "How often a worker was asked for all it holds because predictions missed.",
        labels=["worker"],
    )
    doubted = GaugeMetricFamily(
        "kvmesh_worker_doubted", "1 while predictions about a worker miss.", labels=["worker"]
    )
    for worker in predictions.workers():
        report = predictions.report(worker)
        answers.add_metric([worker, "hit"], report.hits)
        answers.add_metric([worker, "over"], report.over)
        answers.add_metric([worker, "under"], report.under)
        answers.add_metric([worker, "unlike"], report.unlike)
        tokens.add_metric([worker, "predicted"], report.predicted_tokens)
        tokens.add_metric([worker, "cached"], report.cached_tokens)
        resyncs.add_metric([worker], report.doubts)
        doubted.add_metric([worker], report.doubted)
    yield answers
    yield tokens
    yield resyncs
    yield doubted
