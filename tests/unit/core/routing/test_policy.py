import pytest

from kvmesh.core.routing.policy import parse_policy, read_assignment
from kvmesh.errors import ConfigError


def test_numbers_of_a_policy_are_read() -> None:
    options = parse_policy("kv:dynamo:temperature=0.5:overlap_score_weight=2e0", 16)

    assert (options.temperature, options.weights) == (0.5, {"overlap_score_weight": 2.0})


@pytest.mark.parametrize("number", ["", "x", "nan", "inf", "1e400", "1e308", "9" * 5000, "1_0"])
def test_a_number_beyond_all_bounds_is_named(number: str) -> None:
    with pytest.raises(ConfigError, match=r"^here: 'ttl=.* is not name=number") as caught:
        read_assignment(f"ttl={number}", "here")

    assert len(str(caught.value)) < 200
