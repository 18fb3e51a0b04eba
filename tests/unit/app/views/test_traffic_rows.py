from kvmesh.app.views.traffic_rows import (
    MOST_ROWS,
    ModelRow,
    TenantRow,
    TrafficRow,
    merge_models,
    merge_tenants,
    merge_traffic,
    model_rows,
    tenant_rows,
    traffic_row,
)
from kvmesh.core.insight.flow import ERRORS, Flow, NamedFlow, SlidingFlow
from tests.unit.core.insight.ended import ended

ZERO = dict.fromkeys(ERRORS, 0.0)


def named(name: str, *parts: Flow) -> NamedFlow:
    flow = SlidingFlow(10.0, 0.0)
    for one in parts:
        flow.add(one, 1.0)
    return NamedFlow(name, flow.rates(2.0))


def test_a_client_that_leaves_is_no_error_of_a_model_or_tenant() -> None:
    flow = named(
        "m", ended(output_tokens=8, ttft_ms=4.0, first_tokens=1), ended("499"), ended("5xx")
    )

    assert model_rows([flow]) == [ModelRow("m", 1.5, 0.5, 4.0, 4.0)]
    assert tenant_rows([flow]) == [TenantRow("m", 1.5, 0.5, 4.0, 4.0)]
    row = traffic_row(flow.rates, queued=3, held=2)
    assert row.errors_per_s == ZERO | {"499": 0.5, "5xx": 0.5}
    assert (row.queued, row.held) == (3, 2)


def test_replicas_add_up_and_means_weigh() -> None:
    rows = [
        TrafficRow(3.0, {"5xx": 1.0}, 10.0, 30.0, ttft_ms=10.0, tpot_ms=1.0, queued=4, held=1),
        TrafficRow(1.0, {"5xx": 0.5, "hats": 9.0}, 2.0, 10.0, ttft_ms=50.0, tpot_ms=5.0, held=2),
        None,
    ]

    whole = merge_traffic(rows, queued=4)

    assert whole == TrafficRow(4.0, ZERO | {"5xx": 1.5}, 12.0, 40.0, 20.0, 2.0, 4, 3)
    assert merge_traffic([], queued=0) == TrafficRow(errors_per_s=ZERO)


def test_models_and_tenants_of_replicas_are_told_once_busiest_first() -> None:
    one = [ModelRow("a", 1.0, 0.5, 10.0, 3.0), ModelRow("b", 3.0, 0.0, None, 0.0)]
    other = [ModelRow("a", 3.0, 0.0, 30.0, 1.0)]
    many = [TenantRow(f"t{number}", float(number), 0.0, None, 0.0) for number in range(500)]

    assert merge_models([one, other]) == [ModelRow("a", 4.0, 0.5, 25.0, 4.0), one[1]]
    merged = merge_tenants([many, []])
    assert len(merged) == MOST_ROWS
    assert merged[0].tenant == "t499"
