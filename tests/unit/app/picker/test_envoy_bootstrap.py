from typing import Any

import msgspec
import pytest

from kvmesh.app.picker.envoy_bootstrap import encode, is_ip
from kvmesh.app.picker.envoy_options import Address, GatewayOptions

PICKERS = (Address("127.0.0.1", 9002), Address("127.0.0.1", 9003))
ENGINES = (Address("10.0.0.1", 8000), Address("::1", 8000))


def made(**options: Any) -> Any:
    whole = GatewayOptions(**({"pickers": PICKERS, "endpoints": ENGINES} | options))
    return msgspec.json.decode(encode(whole))


def filters_of(config: Any) -> dict[str, Any]:
    chain = config["static_resources"]["listeners"][0]["filter_chains"][0]["filters"]
    manager = chain[0]["typed_config"]
    return {one["name"].rpartition(".")[2]: one["typed_config"] for one in manager["http_filters"]}


def cluster_of(config: Any, name: str) -> Any:
    return next(one for one in config["static_resources"]["clusters"] if one["name"] == name)


def test_a_clients_own_destination_is_dropped_before_the_picker_is_asked() -> None:
    chain = filters_of(made())

    removed = [one["remove"] for one in chain["header_mutation"]["mutations"]["request_mutations"]]
    assert list(chain) == ["header_mutation", "ext_proc", "router"]
    assert removed == [
        "x-gateway-destination-endpoint",
        "x-gateway-destination-endpoint-subset",
        "x-gateway-destination-endpoint-served",
    ]
    assert "header_mutation" not in filters_of(made(stripped=False))


@pytest.mark.parametrize(("mode", "trailers"), [("FULL_DUPLEX_STREAMED", "SEND"), ("NONE", "SKIP")])
def test_trailers_are_shown_where_envoy_demands_it(mode: str, trailers: str) -> None:
    shown = filters_of(made(response_body=mode))["ext_proc"]["processing_mode"]

    assert shown["response_trailer_mode"] == trailers


def test_a_subset_is_metadata_that_the_picker_is_shown() -> None:
    chain = filters_of(made(subset=("10.0.0.1:8000",)))

    [hint] = chain["set_metadata"]["metadata"]
    assert hint["metadata_namespace"] == "envoy.lb.subset_hint"
    assert hint["value"] == {"x-gateway-destination-endpoint-subset": ["10.0.0.1:8000"]}
    shown = chain["ext_proc"]["metadata_options"]["forwarding_namespaces"]["untyped"]
    assert "envoy.lb.subset_hint" in shown


def test_a_cluster_with_a_name_among_its_members_asks_dns() -> None:
    config = made(pickers=(Address("picker-0", 9002),))

    assert cluster_of(config, "pickers")["type"] == "STRICT_DNS"
    assert cluster_of(config, "engines")["type"] == "STATIC"
    assert [is_ip(Address(host, 1)) for host in ("::1", "10.0.0.1", "localhost")] == [1, 1, 0]


def test_only_a_gateway_that_knows_its_endpoints_tries_another() -> None:
    def route(**options: Any) -> Any:
        chain = made(**options)["static_resources"]["listeners"][0]["filter_chains"][0]["filters"]
        return chain[0]["typed_config"]["route_config"]["virtual_hosts"][0]["routes"][0]["route"]

    assert route()["retry_policy"]["num_retries"] == 2
    assert "retry_policy" not in route(retries=0)
    assert "retry_policy" not in route(destination="original_dst")


def test_a_body_that_is_kept_whole_has_room() -> None:
    def listener(**options: Any) -> Any:
        return made(**options)["static_resources"]["listeners"][0]

    kept = listener(request_body="BUFFERED", buffer_bytes=1 << 20)
    assert kept["per_connection_buffer_limit_bytes"] == 1 << 20
    assert "per_connection_buffer_limit_bytes" not in listener()


def test_another_picker_is_asked_again_by_round_robin() -> None:
    config = made()

    again = filters_of(config)["ext_proc"]["grpc_service"]["retry_policy"]
    assert again["num_retries"] == 2
    assert cluster_of(config, "pickers")["lb_policy"] == "ROUND_ROBIN"


def test_tls_to_the_pickers_checks_their_certificate() -> None:
    socket = cluster_of(made(picker_ca="/ca.pem"), "pickers")["transport_socket"]["typed_config"]

    context = socket["common_tls_context"]
    assert context["validation_context"]["trusted_ca"]["filename"] == "/ca.pem"
    assert context["alpn_protocols"] == ["h2"]
