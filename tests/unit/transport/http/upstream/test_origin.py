import pytest

from kvmesh.errors import ConfigError
from kvmesh.transport.http.upstream.origin import Origin


@pytest.mark.parametrize(
    ("url", "host", "port", "authority", "secure"),
    [
        ("http://127.0.0.1:8000", "127.0.0.1", 8000, b"127.0.0.1:8000", False),
        ("http://engine/", "engine", 80, b"engine", False),
        ("https://engine", "engine", 443, b"engine", True),
        ("http://[::1]:8000", "::1", 8000, b"[::1]:8000", False),
        ("http://Ünder.example:1", "ünder.example", 1, b"xn--nder-zra.example:1", False),
    ],
)
def test_an_origin_is_taken_apart(
    url: str, host: str, port: int, authority: bytes, secure: bool
) -> None:
    origin = Origin.parse(url)

    assert (origin.host, origin.port, origin.secure) == (host, port, secure)
    assert origin.authority == authority


@pytest.mark.parametrize(
    "url",
    [
        "",
        "engine:8000",
        "ftp://engine",
        "http://",
        "http://a:b",
        "http://a:99999",
        "http://a/path",
        "http://a?q",
        "http://user:pw@a",
        "http://[::1",
    ],
)
def test_what_is_no_origin_is_named(url: str) -> None:
    with pytest.raises(ConfigError, match="upstream"):
        Origin.parse(url)
