import pytest

from kvmesh.core.cost.targets import (
    NO_TARGETS,
    TargetDefaults,
    Targets,
    parse_default_targets,
    targets_of,
)
from kvmesh.errors import ConfigError


def test_a_tenant_has_its_own_targets_and_the_others_those_of_all() -> None:
    general = Targets(2000.0, None)
    acme, ease = Targets(500.0, 50.0), Targets()
    defaults = TargetDefaults(general, [("acme*", acme), ("acme-batch", ease), ("batch", ease)])

    assert defaults.any
    assert defaults.find("acme-1") is acme
    assert defaults.find("acme-batch") is acme
    assert defaults.find("batch") is ease
    assert defaults.find("batch") is ease
    assert defaults.find("") is general


def test_without_any_nobody_has_targets() -> None:
    defaults = TargetDefaults()

    assert not defaults.any
    assert defaults.find("acme") is NO_TARGETS


def test_made_up_tenants_are_not_remembered_without_end() -> None:
    defaults = TargetDefaults(NO_TARGETS, [("acme", Targets(1.0, None))])
    for number in range(5000):
        defaults.find(f"t{number}")

    assert len(defaults._found) <= 1024
    assert defaults.find("acme") == Targets(1.0, None)


def test_a_tenants_targets_are_read() -> None:
    assert parse_default_targets("tenant=acme*, ttft-ms=2000,tpot-ms=50") == (
        "acme*",
        Targets(2000.0, 50.0),
    )
    assert parse_default_targets("tenant=batch,ttft-ms=0") == ("batch", NO_TARGETS)
    assert parse_default_targets("tpot-ms=40") == ("*", Targets(None, 40.0))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("acme", "no key=value"),
        ("tenant=acme", "ttft-ms or tpot-ms"),
        ("tenant=acme,ttft-ms=", "no key=value"),
        ("tenant=acme,slo=5", "no key=value"),
        ("tenant=acme,ttft-ms=5,ttft-ms=6", "given twice"),
        ("tenant=acme,ttft-ms=soon", "use milliseconds"),
        ("tenant=acme,tpot-ms=-1", "use milliseconds"),
        ("tenant=acme,tpot-ms=1e300", "use milliseconds"),
        (f"tenant={'a' * 600},tpot-ms=1", "at most 512 characters"),
    ],
)
def test_targets_that_cannot_be_read_are_refused(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_default_targets(text)


def test_zero_is_no_target() -> None:
    assert targets_of(0.0, None) is None
    assert targets_of(None, 0.0) is None
    assert targets_of(5.0, 0.0) == Targets(5.0, None)
