"""What a gRPC server counts: shown where no server runs, so it loads nothing of one."""

import msgspec


class GrpcStatistics(msgspec.Struct, frozen=True):
    """Counters since the start; `open_connections` and `open_streams` are of now.

    `resets`: streams that clients gave up, or that were no gRPC. `protocol_errors`: connections
    closed for what they sent.
    """

    open_connections: int
    open_streams: int
    accepted_connections: int
    refused_connections: int
    streams: int
    messages: int
    resets: int
    protocol_errors: int
    handler_failures: int
