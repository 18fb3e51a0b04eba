"""One HTTP/2 connection without its socket: bytes in, events out; messages in, bytes out."""

from kvmesh._native import GrpcSession
from kvmesh.transport.grpc.limits import GrpcLimits


def make_session(limits: GrpcLimits) -> GrpcSession:
    """Return a session that keeps to these limits."""
    return GrpcSession(
        limits.max_streams,
        limits.max_message_bytes,
        limits.max_header_bytes,
        limits.stream_window_bytes,
        limits.connection_window_bytes,
        limits.write_buffer_bytes,
        limits.max_idle_frames,
        limits.max_early_resets,
    )
