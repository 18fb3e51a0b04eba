import pytest

from kvmesh.app.static_workers import parse_workers
from kvmesh.errors import ConfigError


def test_a_worker_is_named_after_its_address_unless_it_has_a_name() -> None:
    workers = parse_workers(["http://gpu-1:8000/", "fast=http://gpu-2:8000@llama"])

    assert [one.worker for one in workers] == ["gpu-1-8000", "fast"]
    assert [one.url for one in workers] == ["http://gpu-1:8000", "http://gpu-2:8000"]
    assert [one.models for one in workers] == [(), ("llama",)]


@pytest.mark.parametrize(
    ("texts", "named"),
    [
        ([], "--worker"),
        (["gpu-1:8000"], "gpu-1:8000"),
        (["http://a:1", "http://a:1"], "two workers are called a-1"),
    ],
)
def test_a_bad_worker_is_named_with_the_remedy(texts: list[str], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        parse_workers(texts)
