import pytest

from kvmesh.errors import ConfigError
from kvmesh_lab.plan.targets import Target, figure_ms, parse_targets
from kvmesh_lab.report.outcome import RequestOutcome


def test_targets_are_figures_with_limits_and_percentiles() -> None:
    found = parse_targets("ttft=2s, tpot=50ms,p99:e2e=30.5s,p99.9:ttft=9s")

    assert found == (
        Target("ttft", 2000.0, 0.9),
        Target("tpot", 50.0, 0.9),
        Target("e2e", 30_500.0, 0.99),
        Target("ttft", 9000.0, 99.9 / 100.0),
    )
    assert [one.name for one in found] == ["TTFT p90", "TPOT p90", "e2e p99", "TTFT p99.9"]


@pytest.mark.parametrize(
    "text",
    ["", "ttft", "ttft=2", "ttft=-2s", "ttft=0s", "itl=2s", "p0:ttft=1s", "p100:ttft=1s",
     "ttft=2s,",
     "ttft=nans", "ttft=1e9s", "ttft=99999999999999999999999999s"],
)  # fmt: skip
def test_what_is_no_target_is_refused_with_the_form(text: str) -> None:
    with pytest.raises(ConfigError, match="--slo"):
        parse_targets(text)


def test_times_are_those_of_the_client() -> None:
    one = RequestOutcome(0, "", 0.0, 0.0, 500.0, 100.0, (200.0, 200.0), output_tokens=3)
    short = RequestOutcome(0, "", 0.0, 0.0, 100.0, 100.0, output_tokens=1)

    assert [figure_ms(one, name) for name in ("ttft", "tpot", "e2e")] == [100.0, 200.0, 500.0]
    assert figure_ms(short, "tpot") is None
