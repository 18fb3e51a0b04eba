import pytest

from kvmesh.core.engines.fetch import Access, read_access
from kvmesh.core.engines.registry import ENGINES, access_of, fetch_of

URL = "http://10.0.0.7:8000"


@pytest.mark.parametrize(
    ("labels", "access"),
    [
        ((), None),
        (("gpu:h100", "kvmesh/prefill"), None),
        (("kvmesh/fetch/",), None),
        (("kvmesh/fetch/offloading",), Access("offloading")),
        (("x", "kvmesh/fetch/offloading/10.0.0.2:5711"), Access("offloading", "10.0.0.2:5711")),
        (("kvmesh/fetch/lmcache/pod-a",), Access("lmcache", "pod-a")),
        (("kvmesh/fetch/offloading/1", "kvmesh/fetch/lmcache/b"), Access("lmcache", "b")),
    ],
)
def test_a_label_says_how_a_worker_fetches(labels: tuple[str, ...], access: Access | None) -> None:
    assert (read_access(labels), access_of(labels)) == (access, access)


def test_a_way_that_no_engine_has_is_none() -> None:
    assert access_of(("kvmesh/fetch/pigeon/x",)) is None
    assert fetch_of("pigeon") is None
    ways = [way for engine in ENGINES.values() for way in engine.fetches]
    assert len(ways) == len(set(ways))


@pytest.mark.parametrize(
    ("rest", "address"),
    [
        ("", ("10.0.0.7", 5710)),
        ("5720", ("10.0.0.7", 5720)),
        ("10.0.0.2:5711", ("10.0.0.2", 5711)),
        ("cache.example:", ("cache.example", 5710)),
        ("::1:5711", ("::1", 5711)),
        ("10.0.0.2:0", None),
        ("10.0.0.2:70000", None),
        ("10.0.0.2:" + "9" * 30, None),
        ("10.0.0.2", None),
        ("host:port", None),
    ],
)
def test_a_cache_is_reached_where_its_label_says(rest: str, address: object) -> None:
    assert Access("offloading", rest).address(URL, 5710) == address


def test_without_a_host_or_a_port_there_is_no_address() -> None:
    assert Access("offloading").address("", 5710) is None
    assert Access("lmcache").address(URL, 0) is None
