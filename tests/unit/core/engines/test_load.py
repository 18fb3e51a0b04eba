from kvmesh.core.engines.load import Gauge, Gauges


def test_requests_are_added_up_and_of_the_rest_the_largest_or_last_counts() -> None:
    gauges = Gauges()

    for value in (3.0, 1.0):
        gauges.take(Gauge("running"), value, {})
        gauges.take(Gauge("waiting"), value, {})
        gauges.take(Gauge("usage"), value / 4, {})
        gauges.take(Gauge("total_tokens"), value, {})

    assert (gauges.running, gauges.waiting) == (4.0, 4.0)
    assert (gauges.usage, gauges.total_tokens) == (0.75, 1)


def test_a_figure_may_be_in_a_label() -> None:
    gauges = Gauges()

    gauges.take(Gauge("block_size", label="size"), 1.0, {"size": "16"})
    gauges.take(Gauge("total_blocks", label="blocks"), 1.0, {"blocks": "None"})

    assert (gauges.block_size, gauges.total_blocks) == (16, 0)


def test_names_of_adapters_are_those_of_the_latest_sample() -> None:
    gauges, gauge = Gauges(), Gauge("adapters", label="running")

    gauges.take(gauge, 2.0, {"running": "a, b,,"})
    gauges.take(gauge, 1.0, {"running": "old"})

    assert gauges.adapters == {"running": ("a", "b")}
