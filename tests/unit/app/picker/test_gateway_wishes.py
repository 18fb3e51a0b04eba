import json

import pytest

from kvmesh.app.picker.exchange import PickExchange, Way
from kvmesh.app.picker.gateway_wishes import MOST_REWRITTEN, GatewayWishes
from kvmesh.errors import RequestError
from kvmesh.transport.http.server.request import Request
from kvmesh.transport.http.wire.headers import Header, Headers

TENANT = "x-kvmesh-tenant"
PRIORITIES = {"batch": -1, "urgent": 9}
BODY = b'{"messages": [{"role": "user", "content": "\xc3\xa9 \\u0041"}], "model": "a", "n": 1.50}'


class NoGateway:
    """A stream that nobody asks on."""

    def refuse(self, status: int, headers: Headers, body: bytes) -> None:
        raise AssertionError((status, headers, body))

    def go(self, way: Way) -> None:
        raise AssertionError(way)

    def drop(self) -> None:
        raise AssertionError


def asked(*headers: Header, body: bytes = BODY, unread: bool = False) -> PickExchange:
    request = Request("POST", b"/v1/chat/completions", [(b"host", b"h"), *headers], body)
    exchange = PickExchange(request, NoGateway(), b"1", lambda *_: None)
    exchange.unread = unread
    return exchange


def read(*headers: Header, tenant: str = TENANT) -> dict[bytes, bytes]:
    """Return what the headers become."""
    exchange = asked(*headers)
    GatewayWishes(tenant, PRIORITIES.get)(exchange)
    names = [name for name, _ in exchange.request.headers]
    assert len(names) == len({*names})
    return dict(exchange.request.headers)


@pytest.mark.parametrize(
    "name", [b"x-llm-d-inference-fairness-id", b"x-gateway-inference-fairness-id"]
)
def test_a_fairness_id_is_the_tenant_unless_one_is_named(name: bytes) -> None:
    assert read((name, b" team-a "))[TENANT.encode()] == b"team-a"
    assert read((name, b"team-a"), (TENANT.encode(), b"team-b"))[TENANT.encode()] == b"team-b"
    assert TENANT.encode() not in read((name, b""))
    assert read((name, b"team-a"), tenant="").keys() == {b"host", name}


def test_the_newer_name_of_a_header_counts_before_the_older() -> None:
    old, new = b"x-gateway-inference-fairness-id", b"x-llm-d-inference-fairness-id"

    assert read((old, b"old"), (new, b"new"))[TENANT.encode()] == b"new"


@pytest.mark.parametrize("name", [b"x-llm-d-inference-objective", b"x-gateway-inference-objective"])
def test_an_objective_has_a_priority_that_counts_before_the_client_s(name: bytes) -> None:
    own = (b"x-kvmesh-priority", b"32000")

    assert read((name, b"batch"))[own[0]] == b"-1"
    assert read(own, (name, b"urgent"))[own[0]] == b"9"
    assert read(own, (name, b"nobody's"))[own[0]] == b"32000"
    assert own[0] not in read((name, b"nobody's"))


def test_a_request_of_which_the_gateway_says_nothing_is_left_as_it_is() -> None:
    exchange = asked((b"x-gateway-other", b"1"))

    GatewayWishes(TENANT, PRIORITIES.get)(exchange)

    assert exchange.request.headers is exchange.sent_headers
    assert exchange.request.body is exchange.sent_body


@pytest.mark.parametrize("name", [b"x-llm-d-model-name-rewrite", b"x-gateway-model-name-rewrite"])
def test_another_model_s_name_goes_into_the_body_and_nothing_else_changes(name: bytes) -> None:
    exchange = asked((name, "modèle-2".encode()))

    GatewayWishes(TENANT, None)(exchange)

    before, after = json.loads(BODY), json.loads(exchange.request.body)
    assert after == {**before, "model": "modèle-2"}
    assert b'"n":1.50' in exchange.request.body


def test_a_body_without_a_model_gets_one_and_one_that_is_no_object_none() -> None:
    for body, after in (
        (b"{}", b'{"model":"b"}'),
        (b"[1]", b"[1]"),
        (b"\xff", b"\xff"),
        (b"", b""),
    ):
        exchange = asked((b"x-llm-d-model-name-rewrite", b"b"), body=body)
        GatewayWishes(TENANT, None)(exchange)
        assert exchange.request.body == after


def test_a_body_that_is_not_told_is_not_rewritten() -> None:
    exchange = asked((b"x-llm-d-model-name-rewrite", b"b"), body=b"", unread=True)

    GatewayWishes(TENANT, None)(exchange)

    assert exchange.request.body is exchange.sent_body


def test_a_body_too_long_to_be_rewritten_is_refused() -> None:
    exchange = asked((b"x-llm-d-model-name-rewrite", b"b"), body=bytes(MOST_REWRITTEN + 1))

    with pytest.raises(RequestError, match="16,777,217 bytes is not rewritten") as refused:
        GatewayWishes(TENANT, None)(exchange)

    assert refused.value.status == 413


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (b"x-gateway-inference-fairness-id", b"a\x01b"),
        (b"x-llm-d-inference-objective", b"o" * 513),
        (b"x-gateway-model-name-rewrite", b"\x7f"),
        (b"x-llm-d-slo-ttft-ms", b"soon"),
        (b"x-llm-d-slo-tpot-ms", b"1e25"),
        (b"x-slo-ttft-ms", b"-1"),
        (b"x-slo-tpot-ms", b"9" * 5000),
    ],
)
def test_what_a_header_cannot_say_is_refused_by_its_name(name: bytes, value: bytes) -> None:
    with pytest.raises(RequestError, match=f"header {name.decode()} is ") as refused:
        read((name, value))

    assert refused.value.param == name.decode()
    assert len(str(refused.value)) < 300


def test_targets_of_latency_are_passed_on() -> None:
    reported = ((b"x-llm-d-slo-ttft-ms", b"250.5"), (b"x-slo-tpot-ms", b"20"))

    assert read(*reported) == {b"host": b"h", **dict(reported)}
