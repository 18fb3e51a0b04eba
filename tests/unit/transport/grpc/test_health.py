import pytest

from kvmesh.transport.grpc.health import read_service


@pytest.mark.parametrize(
    ("message", "service"),
    [
        (b"", ""),
        (b"\x0a\x00", ""),
        (b"\x0a\x03abc", "abc"),
        (b"\x0a\x7f" + b"n" * 127, "n" * 127),
    ],
)
def test_a_health_request_names_a_service(message: bytes, service: str) -> None:
    assert read_service(message) == service


@pytest.mark.parametrize(
    "message",
    [b"\x0a", b"\x0a\x03ab", b"\x0a\x03abcd", b"\x12\x01a", b"\x0a\x01\xff",
     b"\x0a\x80\x01" + b"n" * 128],
)  # fmt: skip
def test_what_is_no_health_request_is_not_read(message: bytes) -> None:
    assert read_service(message) is None
