import pytest

from kvmesh.core.engines.facts import base_of, reachable


def test_a_wildcard_endpoint_is_named_by_the_engines_host() -> None:
    assert reachable("tcp://*:5557", "gpu-1") == "tcp://gpu-1:5557"
    assert reachable("tcp://0.0.0.0:5557", "gpu-1") == "tcp://gpu-1:5557"
    assert reachable("tcp://other:5557", "gpu-1") == "tcp://other:5557"


@pytest.mark.parametrize(
    "url",
    ["http://h:8000", "http://h:8000/", "http://h:8000/v1", "http://h:8000/v1/"],
)
def test_the_base_of_an_engines_url_is_found_with_and_without_v1(url: str) -> None:
    assert (base_of(url), base_of("http://h/proxy/v1")) == ("http://h:8000", "http://h/proxy")
