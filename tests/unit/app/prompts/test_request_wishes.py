import random
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from kvmesh.app.prompts.request_wishes import (
    MOST_KNOWN,
    RequestWishes,
    WishOptions,
    WishReader,
    named_workers,
    read_timeout_s,
)
from kvmesh.app.prompts.turn_names import TurnNames
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.chat.inference import Extension, InferenceRequest
from kvmesh.core.routing.model_policy import ModelPolicies, ModelPolicy
from kvmesh.core.routing.sessions import affinity_of, session_key
from kvmesh.errors import RequestError
from kvmesh.transport.http.openai import find_endpoint, parse_request
from kvmesh.transport.http.server.request import Request

CHAT = find_endpoint("POST", "/v1/chat/completions", passthrough=True)


def request(**headers: str) -> Request:
    lines = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Request("POST", b"/v1/chat/completions", lines)


def body(**fields: Any) -> InferenceRequest:
    return parse_request(msgspec.json.encode({"messages": []} | fields), CHAT)


def reader(*policies: ModelPolicy, **options: Any) -> WishReader:
    return WishReader(WishOptions(**options), ModelPolicies(policies))


ALL_HEADERS = {
    "x_kvmesh_router_mode": "random",
    "x_kvmesh_cost": "dynamo",
    "x_kvmesh_temperature": "0.5",
    "x_kvmesh_overlap_score_weight": "2",
    "x_kvmesh_worker_id": "w1",
    "x_kvmesh_allowed_workers": "w1, w2",
    "x_kvmesh_labels": "gpu:h100",
    "x_kvmesh_tolerations": "batch,night",
    "x_kvmesh_output_tokens": "7",
    "x_kvmesh_priority": "-3",
}
ALL_FIELDS = {
    "mode": "random",
    "cost": "dynamo",
    "temperature": 0.5,
    "overlap_score_weight": 2,
    "worker": "w1",
    "allowed_workers": ["w1", "w2"],
    "labels": ["gpu:h100"],
    "tolerations": ["batch", "night"],
    "output_tokens": 7,
    "priority": -3,
}
ALL = RequestWishes(
    mode="random",
    cost="dynamo",
    temperature=0.5,
    overlap_score_weight=2.0,
    pinned_worker=WorkerId("w1"),
    allowed_workers=frozenset([WorkerId("w1"), WorkerId("w2")]),
    labels=frozenset(["gpu:h100"]),
    tolerations=frozenset(["batch", "night"]),
    output_tokens=7,
    priority=-3,
    overridden=True,
    chooses=True,
)


def test_every_wish_may_be_a_header_or_a_field() -> None:
    assert reader().read(request(**ALL_HEADERS)) == ALL
    assert reader().read(request(), body(kvmesh=ALL_FIELDS)) == ALL


def test_a_header_wins_over_the_body_and_the_body_over_the_models_policy() -> None:
    policy = ModelPolicy(
        "m*",
        router_mode="kv",
        kv_cost="lmetric",
        router_temperature=0.1,
        kv_overlap_score_weight=3.0,
        labels=frozenset(["gpu:l4"]),
        tolerations=frozenset(["spot"]),
    )
    read = reader(policy).read

    assert read(request(**ALL_HEADERS), body(model="m1", kvmesh={"mode": "kv"})) == ALL
    assert read(request(), body(model="m1", kvmesh=ALL_FIELDS)) == ALL
    assert read(request(), body(model="m1")) == RequestWishes(
        mode="kv",
        cost="lmetric",
        temperature=0.1,
        overlap_score_weight=3.0,
        labels=frozenset(["gpu:l4"]),
        tolerations=frozenset(["spot"]),
        chooses=True,
    )
    assert read(request(), body(model="other")) == RequestWishes()


def test_a_models_weight_is_one_of_its_own_formula() -> None:
    read = reader(ModelPolicy("m", kv_cost="dynamo", kv_overlap_score_weight=3.0)).read

    same = read(request(x_kvmesh_cost="dynamo"), body(model="m"))
    other = read(request(), body(model="m", kvmesh={"cost": "lmetric"}))

    assert (same.cost, same.overlap_score_weight) == ("dynamo", 3.0)
    assert (other.cost, other.overlap_score_weight) == ("lmetric", None)


@pytest.mark.parametrize(
    ("header", "field"),
    [
        ("x_kvmesh_router_mode", "mode"),
        ("x_kvmesh_cost", "cost"),
        ("x_kvmesh_temperature", "temperature"),
        ("x_kvmesh_overlap_score_weight", "overlap_score_weight"),
        ("x_kvmesh_worker_id", "worker"),
    ],
)
def test_a_client_that_chooses_by_any_way_overrides_the_router(header: str, field: str) -> None:
    zero = {name: 0.0 if name == "temperature" else value for name, value in ALL_FIELDS.items()}

    assert reader().read(request(**{header: ALL_HEADERS[header]})).overridden
    assert reader().read(request(), body(kvmesh={field: zero[field]})).overridden
    assert not reader().read(request(x_kvmesh_priority="1"), body(kvmesh={})).overridden


def test_the_bodys_priority_is_vllms_where_the_smaller_goes_first() -> None:
    assert reader().read(request(), body(priority=5)).priority == -5
    assert reader().read(request(), body(priority=5, kvmesh={"priority": 1})).priority == 1
    assert reader().read(request(x_kvmesh_priority="9"), body(priority=5)).priority == 9


def test_the_tenant_comes_in_a_header_of_any_name() -> None:
    read = reader(tenant_header="X-Team").read

    wishes = read(
        request(x_team=" search ", x_kvmesh_session="abc"), body(kvmesh={"session": "other"})
    )

    assert (wishes.tenant, wishes.session) == ("search", session_key("abc", "search"))
    assert read(request(), body(kvmesh={"session": "abc"})).session == session_key("abc")


def test_where_clients_may_not_choose_they_do_not() -> None:
    read = reader(obeyed=False, tenant_header="x-team").read

    wishes = read(
        request(x_team="search", **ALL_HEADERS),
        body(priority=3, kvmesh=ALL_FIELDS | {"session": "s"}),
    )

    session = session_key("s", "search")
    assert wishes == RequestWishes(
        tenant="search",
        session=session,
        output_tokens=7,
        names=TurnNames(session, session, "kvmesh"),
        chooses=True,
    )


@pytest.mark.parametrize(
    ("headers", "fields", "named"),
    [
        ({"x_kvmesh_router_mode": "clever"}, {}, "'clever': use one of kv"),
        ({}, {"mode": "clever"}, "kvmesh.mode"),
        ({"x_kvmesh_temperature": "hot"}, {}, "header x-kvmesh-temperature is 'hot'"),
        ({}, {"overlap_score_weight": -1}, "kvmesh.overlap_score_weight: Expected `float` >= 0.0"),
        ({"x_kvmesh_priority": "high"}, {}, "'high': use a whole number"),
    ],
)
def test_a_wish_that_cannot_be_is_named(
    headers: dict[str, str], fields: dict[str, Any], named: str
) -> None:
    with pytest.raises(RequestError, match=named):
        reader().read(request(**headers), body(kvmesh=fields))


def test_a_client_may_limit_its_wait() -> None:
    assert read_timeout_s(request(x_kvmesh_timeout_s="1.5")) == 1.5
    assert read_timeout_s(request(x_kvmesh_timeout_s="0")) is None
    assert read_timeout_s(request()) is None
    with pytest.raises(RequestError, match="x-kvmesh-timeout-s is 'soon'"):
        read_timeout_s(request(x_kvmesh_timeout_s="soon"))


@pytest.mark.parametrize(
    ("headers", "extension", "named"),
    [
        ({}, Extension(), set()),
        ({"x_kvmesh_worker_id": " w1 "}, Extension(worker="w2"), {"w1"}),
        ({"x_kvmesh_allowed_workers": "w1, w2"}, Extension(), {"w1", "w2"}),
        ({"x_kvmesh_allowed_workers": "w1"}, Extension(worker="w2"), {"w2"}),
        ({"x_kvmesh_allowed_workers": "w1"}, Extension(allowed_workers=("w3",)), {"w1"}),
        ({}, Extension(allowed_workers=("w3", "w4")), {"w3", "w4"}),
    ],
)
def test_a_front_door_reads_the_named_workers_as_the_router_does(
    headers: dict[str, str], extension: Extension, named: set[str]
) -> None:
    wishes = reader().read(request(**headers), InferenceRequest(kvmesh=extension))

    assert named_workers(request(**headers), extension) == named
    pinned = {wishes.pinned_worker} if wishes.pinned_worker else set[str]()
    assert named == (pinned or wishes.allowed_workers or set())


SAID: list[tuple[str, list[str]]] = [
    ("x_kvmesh_tenant", ["acme", "other", ""]),
    ("x_kvmesh_session", ["s1", "s2"]),
    ("x_claude_code_session_id", ["0123", "4567"]),
    ("x_kvmesh_program", ["p", "p" * 999]),
    ("x_kvmesh_priority", ["3", "-3", "much"]),
    ("x_kvmesh_timeout_s", ["60", "0.5", "soon"]),
    ("x_kvmesh_slo_ttft_ms", ["100"]),
    ("x_kvmesh_cost", ["dynamo"]),
    ("x_correlation_id", ["a", "b"]),
    ("user_agent", ["aiperf/1", "curl"]),
    ("x_request_id", ["r1", "r2"]),
    ("content_encoding", ["gzip", "identity"]),
    ("x_foo", ["1", "2"]),
]


def scanned(urgency: int = 0, cache_key: str = "", keep_s: int = 0) -> Any:
    asks = bool(urgency or cache_key or keep_s)
    said = {"urgency": urgency, "cache_key": cache_key, "keep_s": keep_s, "asks": asks}
    return SimpleNamespace(model="m", **said)


def wishes_of(one: WishReader, asked: Request, body_of: Any) -> RequestWishes | str | None:
    try:
        return one.read_scanned(asked, body_of)
    except RequestError as error:
        return str(error)


@pytest.mark.parametrize("policies", [(), (ModelPolicy(model="m*", router_mode="random"),)])
def test_wishes_that_were_read_before_are_those_of_the_same_words(policies: Any) -> None:
    rng, options = random.Random(len(policies)), {"tenant_header": "x-kvmesh-tenant"}
    one = reader(*policies, **options)
    for _ in range(3000):
        heads = {name: rng.choice(values) for name, values in SAID if rng.random() < 0.2}
        asked = request(**heads)
        body_of = rng.choice([scanned(), scanned(2), scanned(0, "key"), scanned(0, "", 300)])
        assert wishes_of(one, asked, body_of) == wishes_of(
            reader(*policies, **options), asked, body_of
        )


@pytest.mark.parametrize("heads", [{}, {"x_kvmesh_labels": "gpu"}])
def test_a_cache_key_of_any_form_and_a_retention_are_wishes(heads: dict[str, str]) -> None:
    one, asked = reader(tenant_header="x-kvmesh-tenant"), request(x_kvmesh_tenant="t", **heads)

    parsed = one.read(asked, body(prompt_cache_key="my-app", prompt_cache_retention="24h"))
    read = one.read_scanned(asked, scanned(0, "my-app", 3600))

    assert read is not None
    assert parsed.affinity == read.affinity == affinity_of("my-app", "t") != affinity_of("my-app")
    assert parsed.keep_s == read.keep_s == 3600


@pytest.mark.parametrize("key", [7, None, "", ["a"], {"a": 1}])
def test_a_cache_key_that_is_none_is_passed_over(key: Any) -> None:
    assert reader().read(request(), body(prompt_cache_key=key)).affinity == 0


@pytest.mark.parametrize(("path", "seconds"), [("/v1/messages", 3600), ("/v1/chat/completions", 0)])
def test_a_cache_control_is_read_of_messages_alone(path: str, seconds: int) -> None:
    asked = Request("POST", path.encode(), [], b'{"cache_control":{"type":"ephemeral","ttl":"1h"}}')

    assert reader().read(asked, body()).keep_s == seconds


def test_few_heads_are_remembered() -> None:
    one = reader(tenant_header="x-kvmesh-tenant")
    for number in range(3 * MOST_KNOWN):
        one.read_scanned(request(x_kvmesh_tenant=f"t{number}"), scanned())
        one.read_scanned(request(x_kvmesh_tenant="t" * 200, x_kvmesh_labels="l," * 200), scanned())

    assert len(one._known) <= MOST_KNOWN
    assert "l,l,l," not in repr(one._known)
