import pytest

from kvmesh.core.engines.facts import EngineFacts, EventEndpoint, Identity
from kvmesh.core.engines.sglang.interview import identify, recognise
from tests.unit.core.engines.interviews import conduct

EVENTS = b"""{"page_size":16,"kv_events":{"endpoint_port_base":5557,"topic":"t","dp_size":2%s}}"""


def test_ports_are_counted_up_from_rank_0() -> None:
    more = b',"replay_endpoint_port_base":5567,"load_endpoint_port_base":5577'

    facts, asked = conduct(recognise("h"), {"/server_info": EVENTS % more, "/v1/loads": b"{}"})

    assert facts == EngineFacts(
        kind="sglang",
        block_size=16,
        health_path="/v1/models",
        endpoints=(
            EventEndpoint(0, "tcp://h:5557", "tcp://h:5567", "t"),
            EventEndpoint(1, "tcp://h:5558", "tcp://h:5568", "t"),
        ),
        load_path="/v1/loads",
        load_streams=("tcp://h:5577", "tcp://h:5578"),
    )
    assert asked == ["/server_info", "/ready", "/v1/loads", "/model_info", "/get_model_info"]


@pytest.mark.parametrize(
    ("page", "weights"),
    [
        (b'{"weight_version": "v2"}', "v2"),
        (b'{"weight_version": null}', ""),
        (b'{"weight_version": 2}', ""),
        (b'{"weight_version": "%b"}' % (b"v" * 9999), ""),
        (b"no JSON", ""),
    ],
)
@pytest.mark.parametrize("path", ["/model_info", "/get_model_info"])
def test_the_version_of_the_weights_is_told_at_one_of_two_paths(
    path: str, page: bytes, weights: str
) -> None:
    facts, _ = conduct(recognise("h"), {"/server_info": EVENTS % b"", path: page})

    assert facts is not None
    assert (facts.weights, facts.weights_path) == (weights, path if weights else "")


def test_replay_and_load_streams_are_optional() -> None:
    facts, _ = conduct(recognise("h"), {"/server_info": EVENTS % b"", "/ready": b""})

    assert facts is not None
    assert [one.replay for one in facts.endpoints] == ["", ""]
    assert (facts.load_streams, facts.load_path, facts.health_path) == ((), "/metrics", "/ready")


@pytest.mark.parametrize(
    ("said", "role", "port"),
    [
        (b'{"disaggregation_mode":"prefill"}', "prefill", 8998),
        (b'{"disaggregation_mode":"decode","disaggregation_bootstrap_port":7}', "decode", 7),
        (b'{"disaggregation_mode":"null"}', "both", 0),
    ],
)
def test_the_role_comes_with_the_port_to_meet_at(said: bytes, role: str, port: int) -> None:
    facts, _ = conduct(recognise("h"), {"/server_info": said})

    assert facts is not None
    assert (facts.role, facts.bootstrap_port) == (role, port)


@pytest.mark.parametrize("pages", [{}, {"/server_info": b"<html>"}])
def test_what_tells_no_arguments_is_of_another_kind(pages: dict[str, bytes]) -> None:
    assert conduct(recognise("h"), pages) == (None, ["/server_info"])
    assert conduct(identify(), pages) == (None, ["/server_info"])


@pytest.mark.parametrize(
    ("said", "identity"),
    [
        (b'{"version":"0.5.9"}', Identity("0.5.9")),
        (b'{"version":"0.5.23","kv_events":null}', Identity("0.5.23", lists_events=True)),
        (b'{"version":"1","disable_radix_cache":true}', Identity("1", prefix_caching=False)),
        (b'{"version":"1","disable_radix_cache":false}', Identity("1", prefix_caching=True)),
        (b"{}", None),
    ],
)
def test_one_page_tells_who_it_is(said: bytes, identity: Identity | None) -> None:
    assert conduct(identify(), {"/server_info": said})[0] == identity
