import pytest

from kvmesh.transport.grpc.connection import make_session
from kvmesh.transport.grpc.limits import GrpcLimits


@pytest.mark.parametrize("size", [-1, 0, 2**31, 10**25])
def test_a_stream_window_that_http2_does_not_have_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match="stream_window_bytes"):
        GrpcLimits(stream_window_bytes=size)


@pytest.mark.parametrize("size", [65_534, 2**31, 10**25])
def test_a_connection_window_below_the_default_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match="connection_window_bytes"):
        GrpcLimits(connection_window_bytes=size)


def test_the_smallest_connection_window_is_one_that_a_session_has() -> None:
    assert make_session(GrpcLimits(connection_window_bytes=65_535)).take()
