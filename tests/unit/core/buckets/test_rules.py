import pytest

from kvmesh.core.buckets.rules import parse_rule
from kvmesh.errors import ConfigError


@pytest.mark.parametrize("number", ["-1", "1.5", "x", "\u0661", "9" * 20, "9" * 5000])
def test_a_count_beyond_all_bounds_is_named(number: str) -> None:
    with pytest.raises(ConfigError, match="give a whole number of characters"):
        parse_rule(f"bucket=a,min-chars={number}")


def test_counts_of_a_rule_are_read() -> None:
    rule = parse_rule("bucket=a,min-chars=7,max-chars=4000")

    assert (rule.min_chars, rule.max_chars) == (7, 4000)
