from typing import Any

import msgspec
import pytest

from kvmesh.app.prompts.request_wishes import WishOptions, WishReader
from kvmesh.core.chat.inference import InferenceRequest
from kvmesh.core.cost.targets import TargetDefaults, Targets
from kvmesh.core.routing.model_policy import ModelPolicies, ModelPolicy, parse_model_policy
from kvmesh.errors import RequestError
from kvmesh.transport.http.openai import find_endpoint, parse_request
from kvmesh.transport.http.server.request import Request

CHAT = find_endpoint("POST", "/v1/chat/completions", passthrough=True)


def request(**headers: str) -> Request:
    lines = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Request("POST", b"/v1/chat/completions", lines)


def body(**fields: Any) -> InferenceRequest:
    return parse_request(msgspec.json.encode({"messages": []} | fields), CHAT)


def reader(
    *policies: ModelPolicy, defaults: TargetDefaults | None = None, obeyed: bool = True
) -> WishReader:
    options = WishOptions(
        obeyed=obeyed, tenant_header="x-tenant", targets=defaults or TargetDefaults()
    )
    return WishReader(options, ModelPolicies(policies))


@pytest.mark.parametrize(
    ("headers", "targets"),
    [
        ({"x_kvmesh_slo_ttft_ms": "500"}, Targets(500.0, None)),
        ({"x_kvmesh_slo_tpot_ms": "50.5"}, Targets(None, 50.5)),
        ({"x_llm_d_slo_ttft_ms": "500", "x_llm_d_slo_tpot_ms": "50"}, Targets(500.0, 50.0)),
        ({"x_slo_ttft_ms": "500", "x_slo_tpot_ms": "50"}, Targets(500.0, 50.0)),
        ({"x_slo_ttft_ms": "1", "x_llm_d_slo_ttft_ms": "2"}, Targets(2.0, None)),
        ({"x_llm_d_slo_ttft_ms": "2", "x_kvmesh_slo_ttft_ms": "3"}, Targets(3.0, None)),
        ({"x_llm_d_slo_ttft_ms": "soon", "x_slo_ttft_ms": "7"}, Targets(7.0, None)),
        ({"x_llm_d_slo_ttft_ms": "soon"}, None),
        ({"x_llm_d_slo_ttft_ms": "-1"}, None),
        ({"x_kvmesh_slo_ttft_ms": "0"}, None),
        ({}, None),
    ],
)
def test_targets_come_from_headers(headers: dict[str, str], targets: Targets | None) -> None:
    wishes = reader().read(request(**headers), body())

    assert wishes.targets == targets


def test_what_the_body_asks_for_counts_behind_headers() -> None:
    asked = body(kvmesh={"slo_ttft_ms": 700, "slo_tpot_ms": 30})

    assert reader().read(request(), asked).targets == Targets(700.0, 30.0)
    found = reader().read(request(x_kvmesh_slo_ttft_ms="5"), asked).targets
    assert found == Targets(5.0, 30.0)


@pytest.mark.parametrize("text", ["soon", "-1", "nan", "inf", "1e400", "", "9" * 41, "1e13"])
def test_a_header_of_ours_that_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(RequestError, match=r"header x-kvmesh-slo-tpot-ms is .* use milliseconds"):
        reader().read(request(x_kvmesh_slo_tpot_ms=text), body())


def test_a_model_a_tenant_and_all_have_targets_of_their_own() -> None:
    defaults = TargetDefaults(Targets(1000.0, 100.0), [("acme", Targets(300.0, None))])
    policy = parse_model_policy("model=big*,slo-ttft-ms=9000", formulas=None)
    found = reader(policy, defaults=defaults)

    assert found.read(request(), body(model="big-1")).targets == Targets(9000.0, 100.0)
    assert found.read(request(), body(model="small")).targets == Targets(1000.0, 100.0)
    acme = request(x_tenant="acme")
    assert found.read(acme, body(model="small")).targets == Targets(300.0, None)
    opted_out = request(x_tenant="acme", x_kvmesh_slo_ttft_ms="0")
    assert found.read(opted_out, body()).targets is None
