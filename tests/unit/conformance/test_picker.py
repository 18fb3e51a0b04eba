from pathlib import Path

import pytest

from kvmesh.errors import ConfigError
from kvmesh_lab.conformance.options import ConformanceOptions
from kvmesh_lab.conformance.picker import ALL_CASES, chosen_names, target_of


def test_each_case_says_which_sentence_it_rests_on() -> None:
    for case in ALL_CASES:
        assert case.rule.text.endswith((".", ".)")), case.name
        assert case.rule.source.startswith("https://"), case.name


def test_cases_are_chosen_by_the_beginnings_of_their_names() -> None:
    names = chosen_names(ConformanceOptions(only=("health", "body-0"), skip=("health-server",)))

    assert "health-liveness" in names
    assert "body-0" in names
    assert "health-server" not in names
    assert "body-1" not in names


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (ConformanceOptions(target="somewhere"), "--target 'somewhere': write host:port"),
        (ConformanceOptions(target="a:99999"), "--target 'a:99999'"),
        (ConformanceOptions(target="http://a:1"), "--target 'http://a:1'"),
        (ConformanceOptions(health=":1"), "--health ':1'"),
        (ConformanceOptions(endpoints=("host:80",)), "--endpoints: 'host:80' is not of the form"),
        (ConformanceOptions(tls_ca=Path("/no/such.pem")), "--tls-ca /no/such.pem: no such file"),
    ],
)
def test_what_cannot_be_meant_is_refused(options: ConformanceOptions, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        target_of(options)


def test_a_name_that_no_case_has_is_refused() -> None:
    with pytest.raises(ConfigError, match="--only nothing"):
        chosen_names(ConformanceOptions(only=("nothing",)))
