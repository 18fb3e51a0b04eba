from kvmesh.core.engines.facts import reachable


def test_a_wildcard_endpoint_is_named_by_the_engines_host() -> None:
    assert reachable("tcp://*:5557", "gpu-1") == "tcp://gpu-1:5557"
    assert reachable("tcp://0.0.0.0:5557", "gpu-1") == "tcp://gpu-1:5557"
    assert reachable("tcp://other:5557", "gpu-1") == "tcp://other:5557"
