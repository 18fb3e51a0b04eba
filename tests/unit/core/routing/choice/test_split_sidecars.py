import pytest

from kvmesh.core.routing.choice.split_sidecars import INSTANCE, RESERVED, SIDECARS, Place

PREFILL = Place("http://10.0.0.1:8100", ("kvmesh/prefill", f"{INSTANCE}7"))
DECODE = Place("http://10.0.0.2:8000", (f"{INSTANCE}42",))


@pytest.mark.parametrize(
    ("url", "where"),
    [
        ("http://10.0.0.1:8100", b"10.0.0.1:8100"),
        ("http://engine", b"engine:80"),
        ("https://engine", b"engine:443"),
        ("http://[fd00::1]:8000", b"[fd00::1]:8000"),
        ("ftp://engine", None),
        ("http://engine:99999", None),
        ("nonsense", None),
        ("", None),
    ],
)
def test_a_worker_is_named_by_its_host_and_port(url: str, where: bytes | None) -> None:
    assert Place(url).host_port() == where


@pytest.mark.parametrize(
    ("label", "instance"),
    [("7", b"7"), ("0", b"0"), ("-1", None), ("7f", None), ("", None), (str(10**25), None)],
)
def test_an_instance_id_is_a_number_that_dynamo_can_have(
    label: str, instance: bytes | None
) -> None:
    assert Place("http://w", ("other", INSTANCE + label)).instance() == instance


def test_llm_ds_sidecar_is_told_of_the_prefill_worker_in_both_spellings() -> None:
    assert SIDECARS["llm-d"].split(PREFILL, DECODE) == (
        (b"x-prefiller-host-port", b"10.0.0.1:8100"),
        (b"x-llm-d-prefiller-host-port", b"10.0.0.1:8100"),
    )
    assert SIDECARS["llm-d"].split(Place("nonsense"), DECODE) is None
    assert SIDECARS["llm-d"].whole(DECODE) == ()


def test_dynamos_frontend_is_told_of_both_workers() -> None:
    assert dict(SIDECARS["dynamo"].split(PREFILL, DECODE) or ()) == {
        b"x-worker-instance-id": b"42",
        b"x-dynamo-worker-instance-id": b"42",
        b"x-prefill-instance-id": b"7",
        b"x-dynamo-prefill-instance-id": b"7",
        b"x-dynamo-routing-mode": b"disaggregated",
    }
    assert dict(SIDECARS["dynamo"].whole(DECODE) or ()) == {
        b"x-worker-instance-id": b"42",
        b"x-dynamo-worker-instance-id": b"42",
        b"x-dynamo-routing-mode": b"aggregated",
    }


def test_dynamos_frontend_cannot_be_told_of_a_worker_without_an_instance() -> None:
    bare = Place("http://w:1")

    assert SIDECARS["dynamo"].split(bare, DECODE) is None
    assert SIDECARS["dynamo"].split(PREFILL, bare) is None
    assert SIDECARS["dynamo"].whole(bare) is None


def test_whatever_is_said_to_sidecars_may_be_said_by_nobody_else() -> None:
    for sidecar in SIDECARS.values():
        said = (*(sidecar.split(PREFILL, DECODE) or ()), *(sidecar.whole(DECODE) or ()))
        assert {name for name, _ in said} <= RESERVED
        assert sidecar.name in SIDECARS
